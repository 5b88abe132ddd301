#!/usr/bin/env bash
# Fuzzes one target (libFuzzer with AddressSanitizer) until it has used CPU_SECONDS of CPU time. Needs neither nightly
# Rust nor cargo-fuzz, because RUSTC_BOOTSTRAP lets the pinned compiler use its unstable flags.
#
#     tools/fuzz.sh TARGET CPU_SECONDS
#
# If the script is interrupted, start it again to continue: it keeps inputs that reached new code in
# target/fuzz/corpus/TARGET, and the CPU time used so far in target/fuzz/TARGET.seconds. CPU_SECONDS is the total of all
# runs. A finding ends the script with an error, and its input is in target/fuzz/findings/TARGET. Add the input to
# fuzz/corpus/TARGET, and fix the reader.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# = 2 ] || { echo "usage: tools/fuzz.sh TARGET CPU_SECONDS" >&2; exit 2; }
readonly target="$1" wanted="$2"
readonly triple="$(rustc -vV | sed -n 's/^host: //p')"
readonly built="$PWD/target/fuzz"
readonly corpus="$built/corpus/$target" findings="$built/findings/$target" spent_file="$built/$target.seconds"

# A reader that takes longer hangs. Instrumented code is about ten times slower than a release build.
readonly ANSWER_SECONDS=20
# An input that takes more memory is a finding. The limit includes the fuzzer's own tables.
readonly MEMORY_MIB=2048
# The fuzzer is restarted after this time (wall clock), and its CPU time is added to the total.
readonly SLICE_SECONDS=300
# The maximum length of an input in bytes. Longer inputs are slow.
readonly LONGEST_INPUT=16384

# With --target, build scripts and procedural macros are built without instrumentation.
RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR="$built" \
    RUSTFLAGS="-Zsanitizer=address --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --manifest-path fuzz/Cargo.toml --release --target "$triple" --bin "$target"
readonly program="$built/$triple/release/$target"

# Write the seeds that `mutate` uses too: the target's corpus in the repository, and the fixtures for the target.
cargo run --quiet -p opt-tools --bin mutate -- --target "$target" --seeds "$built/seeds"
mkdir -p "$corpus" "$findings"

# Sets `children` to the CPU time of the children that this shell has waited for, in whole seconds. `times` must run
# in this shell: in a pipe or a substitution, it would report the children of the subshell, which has none.
count_children() {
    times >"$built/times"
    children="$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); total += part[1] * 60 + part[2] } printf "%d", total }' "$built/times")"
}

before="$(cat "$spent_file" 2>/dev/null || echo 0)"
count_children
start="$children"
spent="$before"
while [ "$spent" -lt "$wanted" ]; do
    rest=$((wanted - spent))
    "$program" "$corpus" "$built/seeds/$target" -max_total_time="$((rest < SLICE_SECONDS ? rest : SLICE_SECONDS))" \
        -timeout="$ANSWER_SECONDS" -rss_limit_mb="$MEMORY_MIB" -max_len="$LONGEST_INPUT" \
        -artifact_prefix="$findings/" -print_final_stats=1
    count_children
    spent=$((before + children - start))
    echo "$spent" >"$spent_file"
done
echo "$target: $spent CPU seconds, $(find "$corpus" -type f | wc -l) inputs kept"
