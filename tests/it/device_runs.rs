//! Tests whole runs with `device = "cuda:0"` on a simulated card (twins of NVML and libcuda): leases, ceilings, locks,
//! and the loss of the card.

use std::process::Child;
use std::time::Instant;

use opt_nvml_twin::{Device, Process, Script, Twin, Who};
use opt_tests::devices::{device, on_a_card, plan, twin, with_context};
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, data, repository, summary::list};
use serde_json::Value;

use crate::storm::record::Record;

const MIB: u64 = 1 << 20;
const GOOD: (&str, &str) = ("naive", "relu.ptx");
const ENDLESS: (&str, &str) = ("loops_forever", "bad.ptx");
const TRAPS: (&str, &str) = ("traps", "bad.ptx");
/// The device memory that a context uses in these scripts, in MiB.
const HELD: u64 = 300;
/// An amount of device memory above the ceiling, in MiB.
const TOO_MUCH: u64 = 3000;
const GPU_IS_LOST: u32 = 15;

fn script(processes: Vec<Process>) -> Script {
    Script { devices: vec![Device { processes, ..device() }], ..Script::default() }
}

fn start(scenario: &Scenario, twin: &Twin, dir: &str) -> Child {
    let arguments = ["run", "plan.toml", "--dir", dir];
    let mut command = scenario.command(&arguments);
    on_a_card(scenario, twin, &mut command).spawn().expect("the program starts")
}

/// Runs the plan to its end, and checks the exit code.
fn run(scenario: &Scenario, script: &Script, code: i32) -> (Outcome, Summary) {
    let twin = twin(scenario, script);
    finish(scenario, start(scenario, &twin, "runs/plan"), code)
}

fn finish(scenario: &Scenario, child: Child, code: i32) -> (Outcome, Summary) {
    let outcome = scenario.finish(child, &["run", "plan.toml"]).expect_exit(code);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    (outcome, summary)
}

/// Waits until a candidate is being verified.
fn until_verifying(scenario: &Scenario, candidate: &str) {
    until("a running verification", || {
        let record = Record::read(&scenario.run_folder());
        let runs = |it: &crate::storm::record::Attempt| it.stage == "verify" && it.status.is_none();
        record.attempts.get(candidate).is_some_and(|its| its.iter().any(runs))
    });
}

fn phase<'s>(summary: &'s Summary, candidate: &str) -> &'s Value {
    let of = |it: &&Value| it["stage"] == "verify" && it["candidate"] == candidate;
    list(&summary.document["memory"]["phases"]).iter().find(of).unwrap_or(&Value::Null)
}

#[test]
fn run_on_a_card_reserves_and_reports_device_memory() {
    let scenario = Scenario::with_plan(&plan("cuda:0", &[GOOD]));
    let (outcome, summary) = run(&scenario, &script(vec![with_context(&[(0, HELD)])]), 0);
    let document = &summary.document;
    outcome.expect_equal(summary.verdict("relu", "naive").0, Some("PASSED"), "its verdict");
    outcome.expect_equal(document["run"]["device"].as_str(), Some("cuda:0"), "the device");
    outcome.expect_equal(document["run"]["device_kind"].as_str(), Some("cuda"), "its kind");
    let totals = &document["memory"];
    outcome.expect_equal(totals["device_ceiling_bytes"].as_u64(), Some(1 << 30), "the ceiling");
    // The kernel may start and end between two samples of the card's memory. In this case, the recorded peak is 0.
    let peak = totals["device_peak_bytes"].as_u64();
    outcome.expect([Some(0), Some(HELD * MIB)].contains(&peak), format_args!("the peak: {peak:?}"));
    // The lease covers a context, inputs, outputs and workspaces.
    let reserved = phase(&summary, "naive")["device_predicted_bytes"].as_u64().unwrap_or(0);
    outcome.expect((576 * MIB..1024 * MIB).contains(&reserved), format_args!("{reserved} reserved"));
    outcome.expect(summary.policy("device_in_use").is_empty(), "no other process uses the card");
}

/// The twin's clock is virtual: an instruction of a warp takes 40 us, and the host waits for the twin as it would wait
/// for a card. `once` launches the kernel once per call, and `twice` launches it twice.
#[test]
fn two_kernels_are_timed_on_the_virtual_clock_and_ranked() {
    let launch = "[[job.candidate.launch]]\nsymbol = \"naive\"\ngrid = \"ceil_div(out.numel, 64)\"\nblock = 64\n\
                  args = [\"input\", \"out\", \"out.numel\"]\n";
    let source = repository().join("configs/cuda/ptx/relu.ptx");
    let candidate = |name: &str, launches: usize| {
        format!(
            "[[job.candidate]]\nname = \"{name}\"\nsources = ['{}']\n{}",
            source.display(),
            launch.repeat(launches)
        )
    };
    let head = "[run]\ndevice = \"cuda:0\"\n[memory]\ndevice_ceiling = \"2GiB\"\n[limits]\nmemory = \"64MiB\"\n\
                [verify]\ncall_timeout = \"60s\"\n[profile]\nentry_timeout = \"10s\"\n";
    let job = format!(
        "[[job]]\nname = \"relu\"\ncaptures = '{}'\nentries = [\"entry_000000.pt\"]\nbaseline = \"twice\"\n",
        data("captures/torch_nn_functional_relu").display()
    );
    let scenario =
        Scenario::with_plan(&format!("{head}{job}{}{}", candidate("twice", 2), candidate("once", 1)));
    scenario.write("cuda-clock", "40000 1000");
    let (outcome, summary) = run(&scenario, &script(vec![with_context(&[(0, HELD)])]), 0);
    for name in ["twice", "once"] {
        outcome.expect_equal(summary.verdict("relu", name).0, Some("PASSED"), name);
    }
    outcome.expect_equal(summary.job("relu")["winner"].as_str(), Some("once"), "the winner");
    let once = summary.candidate("relu", "once");
    outcome.expect_equal(once["rank"].as_u64(), Some(1), "the rank of the winner");
    let timed = &list(&once["profile"]["entries"])[0];
    outcome.expect_equal(
        timed["cache_state"].as_str(),
        Some("cold"),
        "the L2 cache is flushed before each call",
    );
    outcome.expect(
        timed["device"]["copy_bytes_per_second"].is_number(),
        format_args!("the card's copy rate: {timed}"),
    );
    outcome.expect_equal(&timed["varied"][0], &Value::from("input"), "every call has its own input");
}

#[test]
fn worker_above_the_device_ceiling_is_killed_after_the_reason_is_recorded() {
    let scenario = Scenario::with_plan(&plan("cuda:0", &[ENDLESS]));
    let grows = script(vec![with_context(&[(0, HELD), (300, TOO_MUCH)])]);
    let (outcome, summary) = run(&scenario, &grows, 1);
    let verdict = summary.verdict("relu", ENDLESS.0);
    outcome.expect_equal(verdict, (Some("DEVICE_MEMORY_LIMIT"), Some("candidate")), "its verdict");
    // The attempt is repeated once, in a new worker.
    let workers = list(&summary.document["workers"]);
    let reasons: Vec<&Value> =
        summary.policy("kill_worker").into_iter().filter(|row| row["reason"] == "device_ceiling").collect();
    outcome.expect_equal((workers.len(), reasons.len()), (2, 2), "workers and reasons to kill them");
    for (worker, reason) in workers.iter().zip(reasons) {
        let (killed, ended) = (reason["t"].as_str(), worker["ended"].as_str());
        outcome.expect(killed.is_some() && killed < ended, format_args!("{reason} before {worker}"));
        outcome.expect_equal(reason["numbers"]["ceiling_bytes"].as_u64(), Some(1 << 30), "the ceiling");
    }
    let peak = summary.document["memory"]["device_peak_bytes"].as_u64();
    outcome.expect_equal(peak, Some(TOO_MUCH * MIB), "the peak");
}

/// Returns a script for a card that shares the host's memory. NVML reports neither the total memory nor the utilisation
/// of such a card.
fn unified(mib: &[(u64, u64)]) -> Script {
    let card = Device { total_mib: None, utilisation: None, processes: vec![with_context(mib)], ..device() };
    Script { devices: vec![card], ..Script::default() }
}

#[test]
fn memory_of_a_unified_card_is_measured_by_its_processes() {
    let scenario = Scenario::with_plan(&plan("cuda:0", &[GOOD]));
    let (outcome, summary) = run(&scenario, &unified(&[(0, HELD)]), 0);
    outcome.expect_equal(summary.verdict("relu", GOOD.0).0, Some("PASSED"), "its verdict");
    let peak = summary.document["memory"]["device_peak_bytes"].as_u64();
    outcome.expect([Some(0), Some(HELD * MIB)].contains(&peak), format_args!("the peak: {peak:?}"));
}

/// The kernel uses less memory on the device than the ceiling allows. The memory of the run's processes on the host is
/// added, and the sum exceeds the ceiling.
#[test]
fn ceiling_of_unified_memory_covers_host_and_device() {
    const NEAR_THE_CEILING: u64 = 1020;
    let scenario = Scenario::with_plan(&plan("cuda:0", &[ENDLESS]));
    let (outcome, summary) = run(&scenario, &unified(&[(0, HELD), (300, NEAR_THE_CEILING)]), 1);
    let verdict = summary.verdict("relu", ENDLESS.0);
    outcome.expect_equal(verdict, (Some("DEVICE_MEMORY_LIMIT"), Some("candidate")), "its verdict");
    let reasons: Vec<&Value> =
        summary.policy("kill_worker").into_iter().filter(|row| row["reason"] == "device_ceiling").collect();
    outcome.expect(!reasons.is_empty(), "a worker is killed for its memory");
    for reason in reasons {
        let owed = reason["numbers"]["owed_bytes"].as_u64();
        outcome.expect(owed.is_some_and(|owed| 1 << 30 < owed), format_args!("host and device: {reason}"));
    }
    let peak = summary.document["memory"]["device_peak_bytes"].as_u64();
    outcome.expect_equal(peak, Some(NEAR_THE_CEILING * MIB), "the peak of the device alone");
}

#[test]
fn memory_that_is_freed_late_does_not_quarantine_the_card() {
    let lingering =
        Process { listed_after_death_ms: 700, held_after_death_ms: 700, ..with_context(&[(0, HELD)]) };
    let scenario = Scenario::with_plan(&plan("cuda:0", &[TRAPS, GOOD]));
    let (outcome, summary) = run(&scenario, &script(vec![lingering]), 0);
    outcome.expect_equal(summary.verdict("relu", TRAPS.0), (Some("CRASHED"), Some("candidate")), "traps");
    outcome.expect_equal(summary.verdict("relu", GOOD.0).0, Some("PASSED"), "the next candidate");
    outcome.expect(summary.policy("device_not_returned").is_empty(), "the memory was freed in time");
}

/// This test takes more than 30 seconds, because the supervisor waits that long for the memory to be freed.
#[test]
fn card_that_keeps_memory_is_quarantined_and_later_candidates_do_not_run() {
    let lingering = Process { listed_after_death_ms: u64::MAX, ..with_context(&[(0, HELD)]) };
    let scenario = Scenario::with_plan(&plan("cuda:0", &[TRAPS, GOOD]));
    let (outcome, summary) = run(&scenario, &script(vec![lingering]), 3);
    outcome.expect_equal(summary.verdict("relu", TRAPS.0), (Some("CRASHED"), Some("candidate")), "traps");
    outcome.expect_equal(summary.verdict("relu", GOOD.0), (Some("INFRA_ERROR"), Some("host")), "the next");
    let rows = summary.policy("device_not_returned");
    outcome.expect_equal(rows.len(), 1, "policy rows");
    outcome.expect_equal(
        rows[0]["numbers"]["device_bytes"].as_u64(),
        Some(HELD * MIB),
        "the memory that was not freed",
    );
    let detail = summary.candidate("relu", GOOD.0)["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("quarantine"), detail);
}

#[test]
fn other_processes_on_the_card_are_reported() {
    let test_process = Process { who: Who::Pid(std::process::id()), ..with_context(&[(0, 200)]) };
    let scenario = Scenario::with_plan(&plan("cuda:0", &[GOOD]));
    let (outcome, summary) = run(&scenario, &script(vec![test_process, with_context(&[(0, HELD)])]), 0);
    outcome.expect_equal(summary.verdict("relu", GOOD.0).0, Some("PASSED"), "its verdict");
    let rows = summary.policy("device_in_use");
    outcome.expect_equal(rows.len(), 1, "policy rows");
    outcome.expect_equal(rows[0]["numbers"]["device_bytes"].as_u64(), Some(200 * MIB), "theirs");
    let peak = summary.document["memory"]["device_peak_bytes"].as_u64();
    // If the kernel ends between two samples, the peak is 0. If memory of other processes counted, the peak would be
    // larger.
    outcome.expect([Some(0), Some(HELD * MIB)].contains(&peak), format_args!("the peak: {peak:?}"));
}

#[test]
fn lost_card_ends_the_running_candidate_and_those_after_it() {
    let scenario = Scenario::with_plan(&plan("cuda:0", &[ENDLESS, GOOD]));
    let script = script(vec![with_context(&[(0, HELD)])]);
    let twin = twin(&scenario, &script);
    let child = start(&scenario, &twin, "runs/plan");
    until_verifying(&scenario, ENDLESS.0);
    let lost = ("nvmlDeviceGetMemoryInfo_v2".to_owned(), GPU_IS_LOST);
    twin.play(&Script { fails: [lost].into(), ..script }).expect("written");
    let (outcome, summary) = finish(&scenario, child, 3);
    outcome.expect_equal(summary.policy("device_lost").len(), 1, "policy rows");
    for (candidate, _) in [ENDLESS, GOOD] {
        let verdict = summary.verdict("relu", candidate);
        outcome.expect_equal(verdict, (Some("INFRA_ERROR"), Some("host")), candidate);
    }
}

#[test]
fn two_runs_take_turns_on_a_card() {
    let scenario = Scenario::with_plan(&plan("cuda:0", &[ENDLESS]));
    let twin = twin(&scenario, &script(vec![with_context(&[(0, HELD)])]));
    let mut first = start(&scenario, &twin, "runs/plan");
    until_verifying(&scenario, ENDLESS.0);
    scenario.write("plan.toml", plan("cuda:0", &[GOOD]));
    let second = start(&scenario, &twin, "runs/second");
    let log = scenario.path().join("runs/second/log.jsonl");
    until("the second run waits", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains(" for Twin 8G ("))
    });
    let killed = Instant::now();
    first.kill().expect("the child is not reaped yet");
    first.wait().expect("the child is not reaped yet");
    let outcome = scenario.finish(second, &["run", "plan.toml"]).expect_exit(0);
    println!("the second run ended {:?} after the first", killed.elapsed());
    let summary = Summary::read(&scenario.path().join("runs/second"), &outcome);
    outcome.expect_equal(summary.verdict("relu", GOOD.0).0, Some("PASSED"), "its verdict");
}
