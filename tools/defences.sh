#!/usr/bin/env bash
# Removes one or two defences of the clock at a time, and shows whether a kernel that cheats then looks faster than it
# is. Prints a table in Markdown. Needs git, patch and Python.
#
#     tools/defences.sh [ROW ...]
#
# The script builds a copy of the repository with the patches in tests/defences. In this copy, the environment variable
# OPT_WITHOUT names the defences that are switched off, separated by commas. For each row of the table, the copy runs a
# kernel twice: with all defences, and without some. docs/explanation/timing.md explains the defences and the results.
#
# On a busy machine, set DEFENCES_PRIORITY=realtime (needs CAP_SYS_NICE).
#
# If the script is interrupted, start it again to continue: it keeps finished runs in target/defences/rows, and does not
# repeat them. Delete a run there to repeat it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly root="$PWD" work="${DEFENCES_DIR:-$PWD/target/defences}"
readonly tree="$work/tree" built="${DEFENCES_TARGET_DIR:-$work/target}" rows="$work/rows"
readonly program="$built/debug/opt-supervisor" generator="$built/debug/gen-captures"

build() {
    rm -rf "$tree"
    mkdir -p "$tree" "$rows"
    git ls-files -z | xargs -0 cp --parents -t "$tree"
    # `switch` adds the function that the other patches call.
    for patch in tests/defences/switch.patch $(ls tests/defences/*.patch | grep -v /switch.patch); do
        patch --silent --strip 0 --directory "$tree" < "$patch"
    done
    (cd "$tree" && CARGO_TARGET_DIR="$built" cargo build --workspace --bin opt-supervisor --bin gen-captures)
}

# Prints a run's result in one line: the status of `cheat`; if it passed, its speed-up over `honest`; the load; and, if
# it did not pass, the detail.
print_result() {
    python3 - "$1" <<'PYTHON'
import json
import os
import sys

job = json.load(open(os.path.join(sys.argv[1], "summary.json")))["jobs"][0]
cheat, honest = (next(it for it in job["candidates"] if it["name"] == name) for name in ("cheat", "honest"))
load = f"{os.getloadavg()[0]:.1f}"
if cheat["status"] != "PASSED":
    print(f"{cheat['status']}|{load}|{cheat['detail']}")
    sys.exit()
speedup = cheat["profile"]["entries"][0]["speedup"]
if speedup is None:
    times = [it["profile"]["median_time_ms"] for it in (honest, cheat)]
    print(f"PASSED {times[0] / times[1]:.2f} of medians|{load}|")
else:
    print(f"PASSED {speedup['value']:.2f} [{speedup['ci_low']:.2f}–{speedup['ci_high']:.2f}]|{load}|")
PYTHON
}

# Runs the plan of a row without the given defences, if any, and stores the result in the folder `rows`.
run() {
    local row="$1" without="$2" suffix="$3"
    local result="$rows/$row.$suffix" folder="$work/runs/$row.$suffix"
    [ -s "$result" ] && return
    rm -rf "$folder"
    mkdir -p "$folder"
    cp -r "$work/runs/$row.plan/." "$folder"
    # A run whose candidates fail exits with an error.
    (cd "$folder" && OPT_WITHOUT="$without" "$program" run --quiet plan.toml > output.txt 2>&1) || true
    print_result "$folder/runs/plan" > "$result.new"
    mv "$result.new" "$result"
}

# row NAME WITHOUT KERNEL: carries out the runs of a row that are not finished yet, and prints the row.
#
# Variables set the options: op, shape and entries of the captures; profile and verify (lines of the plan); flags and
# honest_flags (for the compiler); honest (the kernel to compare with); threads; baseline.
row() {
    local name="$1" without="$2" kernel="$3"
    local kernels="$root/tests/data/kernels" folder="$work/runs/$name.plan"
    if [ "${#wanted[@]}" != 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
    rm -rf "$folder"
    mkdir -p "$folder"
    "$generator" op --name "${op:-softmax}" --shape "${shape:-64,256}" --entries "${entries:-1}" \
        --out "$folder/captures" > /dev/null
    cat > "$folder/plan.toml" <<TOML
[build]
include = ["$kernels/hostile"]
libraries = ["m"]
[verify]
call_timeout = "20s"
${verify:-}
[profile]
entry_timeout = "1s"
priority = "${DEFENCES_PRIORITY:-none}"
${profile:-}
[limits]
memory = "512MiB"
threads = ${threads:-1}
[[job]]
name = "job"
captures = "captures"
${baseline-baseline = \"honest\"}
[[job.candidate]]
name = "honest"
sources = ["$kernels/exploits/${honest:-honest.c}"]
build = { extra_flags = [${honest_flags:-}] }
[[job.candidate]]
name = "cheat"
sources = ["$kernels/exploits/$kernel"]
build = { extra_flags = [${flags:-}] }
TOML
    run "$name" "" with
    run "$name" "$without" without
    printf '| %s | `%s` | %s | %s |\n' "$name" "${kernel%.c}" \
        "$(cut -d'|' -f1,2 "$rows/$name.with" | sed 's/|/, load /')" \
        "$(cut -d'|' -f1,2 "$rows/$name.without" | sed 's/|/, load /')" | tee -a "$work/table.new"
}

readonly wanted=("$@")
[ -n "${DEFENCES_BUILT:-}" ] || build
rm -f "$work/table.new"

profile='vary = "none"' row poison poison fills_each_slot_once.c
row own_values own_values copies_the_slot_before.c
row compare compare skips_half_of_the_calls.c
shape=512,256 threads=2 flags='"-DAREA_MIB=200"' row looks looks works_on_before_it_stops.c
row handoff handoff slows_empty_blocks.c
threads=2 row stopped stopped slows_the_other_side.c
threads=2 row stopped+idle stopped,idle slows_the_other_side.c
row waking waking works_ahead_of_its_calls.c
row idle idle works_ahead_of_its_calls.c
row waking+idle waking,idle works_ahead_of_its_calls.c
row length length takes_over_the_loop.c
threads=2 row waiting waiting keeps_a_thread_asleep.c
baseline="" row fresh_process fresh_process copies_the_slot_before.c
entries=3 profile='entries = "all"
cache_state = "rotate"' row reread reread finishes_in_the_next_entry.c
op=layer_norm shape=1,262144 verify='tolerance = "kernelforge"' honest=remembers_mean_and_deviation.c \
    honest_flags='"-DHONEST_CALLS=1000000000"' row weights weights remembers_mean_and_deviation.c

printf '| without | kernel | with all defences | without this one |\n|---|---|---|---|\n'
cat "$work/table.new"
