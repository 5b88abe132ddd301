#!/usr/bin/env bash
# Builds every program for aarch64, and runs the unit tests of the reader of captures, the formula, the judge, the plan
# and the core for it. On a machine of another architecture, this needs qemu-aarch64, aarch64-linux-gnu-gcc and Rust's
# target aarch64-unknown-linux-gnu. Tests that start runners are left out, because qemu runs only single programs, not
# sandboxes.
#
#     tools/aarch64.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# These settings differ from those of other builds, so they need a separate build folder. Most crates are not optimised,
# because optimising them would take longer than running their tests. The optimised crates do most of the work in the
# tests, and this work is slow under qemu.
export CARGO_TARGET_DIR="$PWD/target/aarch64"
readonly SETTINGS=(
    --locked --target aarch64-unknown-linux-gnu
    --config 'profile.dev.debug=false'
    --config 'profile.dev.package."*".opt-level=0'
    --config 'profile.dev.package.blake3.opt-level=2'
    --config 'profile.dev.package.half.opt-level=2'
    --config 'profile.dev.package.opt-emulator.opt-level=0'
    --config 'profile.dev.package.opt-worker.opt-level=0'
)
if [ "$(uname -m)" != aarch64 ]; then
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
    export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
fi
# Property tests try fewer cases under qemu, because `.ci/run` also runs them without qemu, with all cases.
export PROPTEST_CASES="${PROPTEST_CASES:-32}"

echo "aarch64: every program"
cargo build --workspace --bins "${SETTINGS[@]}"

echo "aarch64: unit tests"
# Skip a test that takes more than a minute, because it only renders text.
cargo test -p opt-shared -p opt-worker -p opt-supervisor --lib "${SETTINGS[@]}" -- \
    capture:: formula:: judge:: plan:: core:: \
    --skip only_the_first_100_of_many_mistakes_are_shown
