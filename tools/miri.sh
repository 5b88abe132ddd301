#!/usr/bin/env bash
# Runs the unit tests of some modules under Miri, which reports undefined behaviour. Miri cannot run code that maps
# files, starts processes or loads libraries; `memcheck.sh` covers some of that code. Needs a nightly toolchain with the
# component `miri`.
#
#     tools/miri.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Files and clocks of this machine may be read. Addresses may be stored as numbers, as the candidate's interface does.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance"
export CARGO_TARGET_DIR="$PWD/target/miri"

# Each row has a package and the modules whose tests are run.
readonly MODULES=(
    "opt-worker runner::abi runner::ffi_error"
    "opt-emulator memory"
)

for row in "${MODULES[@]}"; do
    read -r package modules <<<"$row"
    echo "miri: $package: $modules"
    # shellcheck disable=SC2086 # one argument for each module
    cargo +nightly miri test --quiet --locked -p "$package" --lib -- $modules
done
