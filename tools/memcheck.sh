#!/usr/bin/env bash
# Runs the unit tests of some modules with `unsafe` code under valgrind's memcheck, which reports reads and writes
# outside of an allocation and uses of uninitialised memory. Needs valgrind. Tests that start sandboxed runners are left
# out, because the sandbox refuses system calls that valgrind needs.
#
#     tools/memcheck.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# By default, rustix reads the kernel's auxiliary vector and crashes under valgrind, which changes that vector. The
# tests are therefore built again, with a rustix that makes system calls through the C library.
export CARGO_TARGET_DIR="$PWD/target/memcheck" RUSTFLAGS="--cfg rustix_use_libc"

# Each row has a package, and the modules whose tests are run because they map memory, pass pointers to a library, or
# cast bytes.
readonly MODULES=(
    "opt-shared cache"
    "opt-worker memfd runner::abi runner::control runner::cudart runner::map sandbox::handle residency::host"
    "opt-worker session::host::evict session::host::view session::cuda::tests::twin"
    "opt-worker session::cuda::driver"
)

# Builds the program with the unit tests of a package if necessary, and prints its path.
test_program() {
    cargo test --quiet --locked -p "$1" --lib --no-run --message-format=json \
        | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

for row in "${MODULES[@]}"; do
    read -r package modules <<<"$row"
    program="$(test_program "$package")"
    # Tests use paths relative to their package, as under `cargo test`.
    folder="$(dirname "$(cargo locate-project --quiet --message-format plain --manifest-path "${package#opt-}/Cargo.toml")")"
    echo "memcheck: $package: $modules"
    # shellcheck disable=SC2086 # one argument for each module
    (cd "$folder" && valgrind --quiet --error-exitcode=9 --leak-check=no --num-callers=20 "$program" --test-threads=1 $modules)
done
