//! Runs memory bombs, at least one for each kind of owed memory. Each bomb is either denied its memory or threads, or
//! stopped near the limit of its runner, and it gets the right status. The run continues.

use opt_tests::Scenario;
use opt_tests::users::{User, users};

use super::run::{generate, run_as};
use super::{Expected, PASSED, assert_endings, candidate, ends, stem, table};

const MEMORY_LIMIT: &[&str] = &["HOST_MEMORY_LIMIT"];

/// The bombs use private memory (by threads, on the heap, in a reservation), shared memory (by one thread and by
/// several), page tables (of private and of shared maps), stacks, locked memory, and files in memory. A kernel whose
/// attempt is refused may pass.
const BOMBS: &[Expected] = &[
    ends("eats_by_threads.c", MEMORY_LIMIT, "limits.memory"),
    ends("eats_its_heap.c", MEMORY_LIMIT, "limits.memory"),
    ends("eats_a_reserve.c", MEMORY_LIMIT, "limits.memory"),
    ends("eats_page_tables.c", MEMORY_LIMIT, "limits.memory"),
    // The allocations of the next three are refused, so the kernels abort.
    ends("eats_shared_memory.c", &["CRASHED"], "SIGABRT"),
    ends("eats_shared_memory_by_threads.c", &["CRASHED"], "SIGABRT"),
    ends("eats_page_tables_of_shared_memory.c", &["CRASHED"], "SIGABRT"),
    ends("eats_locked_memory.c", MEMORY_LIMIT, "limits.memory"),
    // These two are denied a thread, not memory.
    ends("eats_thread_stacks.c", PASSED, ""),
    ends("starts_a_thousand_threads.c", PASSED, ""),
    // This kernel ends with SIGSEGV, like any program whose stack overflows.
    ends("overflows_the_stack.c", &["CRASHED"], "SIGSEGV"),
    // The sandbox refuses memory files, System V and POSIX shared memory, and message queues.
    ends("makes_files_of_memory.c", PASSED, ""),
];

const PLAN: &str = r#"
[run]
stages = ["build", "verify"]

[build]
libraries = ["m"]

[verify]
call_timeout = "30s"
stop_after = 1

[limits]
memory = "64MiB"
threads = 2

[[job]]
name = "job"
captures = "captures"
baseline = "good"
"#;

/// The memory limit of a runner: the sum of `limits.memory`, the stacks of its threads, its own base, and the outputs
/// and streams of this plan.
const LIMIT: u64 = (64 + 2 * 8 + 16 + 2) << 20;
/// How far a process can exceed its limit if polling, on time, is the only means that stops it.
const OVERSHOOT: u64 = 16 << 20;

#[test]
fn every_kind_of_bomb_is_refused_or_stopped_near_its_limit() {
    users().into_iter().for_each(run_bombs);
}

fn run_bombs(user: User) {
    let scenario = Scenario::create();
    generate(&scenario, "softmax", "64,256", 1);
    let mut plan = PLAN.to_owned() + &candidate("good", "good.c", "");
    for Expected { file, .. } in BOMBS {
        plan += &candidate(stem(file), file, "\"-pthread\"");
    }
    plan += &candidate("good_after_them", "good.c", "");
    let run = run_as(user, &scenario, &plan);

    let good = ["good", "good_after_them"].map(|name| (name, PASSED, ""));
    assert_endings(&run, table(BOMBS).chain(good));
    // The supervisor's own bound on the overshoot on this machine.
    let bound = run.summary.document["memory"]["sampling"]["overshoot_bound_bytes"].as_u64();
    let overshoot = OVERSHOOT.max(bound.unwrap_or_else(|| panic!("a bound: {run}")));
    let mut over = Vec::new();
    for Expected { file, .. } in BOMBS {
        let name = stem(file);
        let peak = run.candidate(name)["resources"]["runner_peak_owed_bytes"].as_u64();
        eprintln!("{name}: peak {peak:?}");
        if peak.is_some_and(|peak| LIMIT + overshoot < peak) {
            over.push(format!("{name}: {peak:?} of {LIMIT} and {overshoot}"));
        }
    }
    assert!(over.is_empty(), "{}\n{run}", over.join("\n"));
}
