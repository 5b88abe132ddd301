//! Tests failures of replays, and whom they blame: damaged captures, killed runners, and winners that leave out
//! entries.

use std::fmt::Write as _;
use std::path::PathBuf;

use opt_shared::capture::CaptureFile;
use opt_tests::waiting::until;
use opt_tests::{Scenario, Summary, repository, summary::list};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{captures, forget_result, generate, plan, replay, run};
use crate::control::client::{Client, LiveRun};

/// Writes the demo's softmax with the code `before` inserted at the start of `run`, where this code can use `args`.
fn softmax(scenario: &Scenario, name: &str, before: &str) -> String {
    let naive = repository().join("configs/demo/softmax/naive.c");
    let naive = std::fs::read_to_string(naive).expect("the demo's kernel");
    let text = format!(
        "#define _POSIX_C_SOURCE 200809L\n#include <time.h>\n{}\n\
         int run(void *self, const OptAny *args, int32_t n, OptAny *ret)\n{{\n{before}\nreturn plain(self, args, n, ret);\n}}\n",
        naive.replace("int run(", "static int plain(")
    );
    scenario.write(&format!("{name}.c"), text);
    format!("{name}.c")
}

fn sleeping(milliseconds: u32) -> String {
    format!("nanosleep(&(struct timespec){{0, {milliseconds}000000L}}, 0);")
}

/// The keys of a replay that calls these entries of the job `rows`.
fn steps(entries: &[u32]) -> String {
    let steps: Vec<String> =
        entries.iter().map(|entry| format!("[\"rows\", \"entry_{entry:06}\"]")).collect();
    format!("steps = [{}]\nbudget = \"16MiB\"\n", steps.join(", "))
}

#[test]
fn replay_calls_the_baseline_if_the_winner_leaves_out_an_entry() {
    let scenario = Scenario::create();
    generate(&scenario, "rows", &["op", "--name", "softmax", "--shape", "64,256", "--entries", "2"]);
    generate(&scenario, "more", &["op", "--name", "softmax", "--shape", "32,256", "--entries", "1"]);
    let other = scenario.path().join("rows/entry_000002.pt");
    std::fs::rename(scenario.path().join("more/entry_000000.pt"), other).expect("an entry of another shape");
    let slow = softmax(&scenario, "slow", &sleeping(20));
    let part = "if (((const OptTensor *)args[0].value.v_ptr)->shape[0] == 32) return OPT_UNSUPPORTED;";
    let part = softmax(&scenario, "part", part);
    let mut text = format!(
        "[profile]\nentry_timeout = \"3s\"\n[build]\nlibraries = [\"m\"]\n\
         [[job]]\nname = \"rows\"\ncaptures = \"rows\"\npartial = true\nbaseline = \"{slow}\"\ncandidates = [\"{part}\"]\n"
    );
    for (name, entries, more) in [
        ("its_own", &[0, 1, 0][..], ""),
        ("all", &[0, 2, 1], ""),
        ("of_the_baseline", &[0, 1], "candidates = \"baseline\"\n"),
    ] {
        let _ = write!(text, "[[replay]]\nname = \"{name}\"\n{}{more}", steps(entries));
    }
    let (outcome, summary) = run(&scenario, 0, &text, &[]);
    outcome.expect_equal(summary.job("rows")["winner"].as_str(), Some("part"), "the winner");
    for (name, caller) in [("its_own", "part"), ("all", "slow"), ("of_the_baseline", "slow")] {
        let it = replay(&summary, name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), name);
        let steps = list(&it["result"]["steps"]);
        outcome.expect(steps.iter().all(|step| step["candidate"] == caller), format_args!("{caller}: {it}"));
    }
    outcome.expect_stdout(&["calls by slow (rows, which part won)", "calls by part (rows)"]);
}

/// Damages bytes in the middle of a tensor in a softmax capture: the input (`quarter` 1) or the output (`quarter` 3).
fn damage(scenario: &Scenario, entry: u32, quarter: usize) -> (PathBuf, Vec<u8>) {
    let path = scenario.path().join(format!("rows/entry_{entry:06}.pt"));
    let whole = std::fs::read(&path).expect("a capture");
    let mut damaged = whole.clone();
    let at = whole.len() / 4 * quarter;
    damaged[at..at + 64].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&path, damaged).expect("damaged");
    (path, whole)
}

/// If a capture is damaged after the verification, the candidate is not blamed.
#[test]
fn replay_of_damaged_capture_ends_as_capture_error() {
    let scenario = Scenario::create();
    captures(&scenario);
    let (_, summary) = run(&scenario, 0, &plan("lookups", &[("model", "64MiB", "")]), &[]);
    let first = replay(&summary, "model")["result"]["outputs_digest"].clone();
    let mut details = Vec::new();
    for quarter in [1, 3] {
        let (path, whole) = damage(&scenario, 2, quarter);
        forget_result(&scenario);
        let (outcome, summary) = scenario.run_plan(1, &["--resume"]);
        let it = replay(&summary, "model");
        outcome.expect_equal(it["status"].as_str(), Some("CAPTURE_ERROR"), "the replay");
        outcome.expect_equal(it["blame"].as_str(), Some("capture"), "blame");
        outcome.expect_equal(&it["attempts"], &json!(1), "attempts: a damaged capture is not tried again");
        outcome.expect(it["result"].is_null(), "no result");
        outcome.expect_stdout(&["replay model: CAPTURE_ERROR (capture)"]);
        details.push(it["detail"].as_str().unwrap_or_default().to_owned());
        std::fs::write(path, whole).expect("repaired");
    }
    // The run notices a damaged input when it loads the input, and a damaged output when it compares the output.
    for wanted in ["differ from the recorded ones", "seen after the candidate ended as INCORRECT_NUMERICAL"] {
        assert!(details.iter().any(|detail| detail.contains(wanted)), "{wanted}: {details:?}");
    }
    // Now the capture is damaged before the recording, so the loaded bytes agree with the recording. The candidate must
    // not be blamed in this case either.
    std::fs::remove_file(scenario.run_folder().join("replay/model.recording")).expect("removed");
    for quarter in [1, 3] {
        let (path, whole) = damage(&scenario, 2, quarter);
        forget_result(&scenario);
        let (outcome, summary) = scenario.run_plan(1, &["--resume"]);
        outcome.expect_equal(
            replay(&summary, "model")["status"].as_str(),
            Some("CAPTURE_ERROR"),
            "the replay",
        );
        std::fs::write(path, whole).expect("repaired");
        std::fs::remove_file(scenario.run_folder().join("replay/model.recording")).expect("removed");
    }
    forget_result(&scenario);
    let (outcome, summary) = scenario.run_plan(0, &["--resume"]);
    outcome.expect_equal(
        &replay(&summary, "model")["result"]["outputs_digest"],
        &first,
        "the outputs are the same as before",
    );
}

/// Entries 0 and 2 contain the same table, and the pool loads it from entry 0. The call of entry 2 reads the damaged
/// row, and the call of entry 0 does not.
#[test]
fn replay_of_tensor_damaged_in_other_capture_ends_as_capture_error() {
    let scenario = Scenario::create();
    captures(&scenario);
    run(&scenario, 0, &plan("lookups", &[("model", "64MiB", "")]), &[]);
    let path = |entry: u32| scenario.path().join(format!("lookups/entry_{entry:06}.pt"));
    let whole = |entry| std::fs::read(path(entry)).expect("a capture");
    let places = |entry| {
        let capture = CaptureFile::open(&path(entry)).expect("a capture");
        let place = |number: usize| {
            let storage = &capture.storages()[number];
            let start = usize::try_from(storage.file_offset).expect("the offset fits");
            start..start + storage.bytes.to_usize()
        };
        [place(0), place(1)]
    };
    let indices = |entry| -> Vec<usize> {
        let [indices, _] = places(entry);
        let of = |bytes: &[u8]| usize::from_le_bytes(bytes.try_into().expect("eight bytes"));
        whole(entry)[indices].chunks_exact(8).map(of).collect()
    };
    let (first, second) = (indices(0), indices(2));
    let row = *second.iter().find(|row| !first.contains(row)).expect("a row of the second alone");
    let (mut damaged, [_, table]) = (whole(0), places(0));
    // Rows of bfloat16 values.
    let row_bytes = 2 * 1352;
    let at = table.start + row * row_bytes;
    assert!(at + row_bytes <= table.end, "row {row} in {table:?}");
    damaged[at..at + row_bytes].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(path(0), damaged).expect("damaged");
    std::fs::remove_file(scenario.run_folder().join("replay/model.recording")).expect("removed");
    forget_result(&scenario);
    let (outcome, summary) = scenario.run_plan(1, &["--resume"]);
    let it = replay(&summary, "model");
    outcome.expect_equal(it["status"].as_str(), Some("CAPTURE_ERROR"), "the replay");
    let why = it["detail"].as_str().unwrap_or_default();
    for wanted in ["step 4, entry_000002", "entry_000000.pt", "seen after the candidate ended as"] {
        outcome.expect(why.contains(wanted), format_args!("{wanted}: {why}"));
    }
}

/// Kills the runners of one attempt until the next attempt is running or the run no longer answers. One kill may not be
/// enough, because it does not affect the attempt if the runner's call has already ended.
fn kill_runners(client: &mut Client, of_attempt: u64) {
    until("an attempt of the replay is over", || {
        let Ok(answer) = client.call("workers", &json!({})) else { return true };
        let mut workers = list(&answer["workers"]).iter();
        let Some(worker) = workers.find(|it| it["lease"]["stage"] == "replay") else { return false };
        let attempt = worker["lease"]["attempt"].as_u64().expect("a number");
        let runner = list(&worker["runners"]).first().and_then(|it| it["pid"].as_i64());
        if attempt == of_attempt
            && let Some(pid) = runner.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        {
            // The runner may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
        of_attempt < attempt
    });
}

fn slow_replay() -> Scenario {
    let scenario = Scenario::create();
    generate(&scenario, "rows", &["op", "--name", "softmax", "--shape", "64,256", "--entries", "2"]);
    let kernel = softmax(&scenario, "slow", &sleeping(200));
    let entries: Vec<u32> = (0..16).map(|step| step % 2).collect();
    let text = format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n\
         [[job]]\nname = \"rows\"\ncaptures = \"rows\"\nbaseline = \"{kernel}\"\n\
         [[replay]]\nname = \"model\"\n{}",
        steps(&entries)
    );
    scenario.write("plan.toml", text);
    scenario
}

/// If a runner is killed from outside, the replay is attempted again. It has no result until an attempt completes.
#[test]
fn killed_runner_costs_an_attempt_and_leaves_no_result() {
    let scenario = slow_replay();
    let going = LiveRun::start(&scenario, &["--quiet"]);
    let mut client = going.client();
    kill_runners(&mut client, 1);
    let summary = going.folder().join("summary.json");
    until("the summary exists", || summary.exists());
    let now = std::fs::read_to_string(summary).expect("readable");
    let now: Value = serde_json::from_str(&now).expect("the summary is complete at any moment");
    assert!(list(&now["replays"]).iter().all(|it| it["result"].is_null()), "{}", now["replays"]);
    let status = client.call("status", &json!({})).expect("an answer");
    assert_eq!(status["replays"][0]["running"], true, "{status}");
    let (outcome, summary) = going.finish(0);
    let it = replay(&summary, "model");
    outcome.expect_equal((it["status"].as_str(), &it["attempts"]), (Some("PASSED"), &json!(2)), "the replay");
    outcome.expect_equal(list(&it["result"]["steps"]).len(), 16, "the second attempt made all steps");
    let phases: Vec<&Value> =
        list(&summary.document["memory"]["phases"]).iter().filter(|it| it["stage"] == "replay").collect();
    outcome.expect_equal(phases.len(), 2, "phases, one for each attempt");
    for phase in phases {
        outcome.expect_equal((&phase["job"], &phase["candidate"]), (&json!("model"), &Value::Null), "whose");
        let figure = |key: &str| phase[key].as_u64().unwrap_or(0);
        let (predicted, peak) = (figure("predicted_bytes"), figure("peak_owed_bytes"));
        outcome.expect(0 < predicted && 0 < peak, format_args!("predicted and measured: {phase}"));
        outcome.expect(
            phase["swap_delta_bytes"].is_i64(),
            format_args!("the phase has the change of swap: {phase}"),
        );
    }
}

#[test]
fn runner_killed_repeatedly_ends_the_replay_without_a_result() {
    let scenario = slow_replay();
    let going = LiveRun::start(&scenario, &["--quiet"]);
    let mut client = going.client();
    // There are two attempts in the first pass, and two more in the second.
    for attempt in 1..=4 {
        kill_runners(&mut client, attempt);
    }
    let folder = going.folder().to_owned();
    let outcome = going.finish_any();
    let summary = Summary::read(&folder, &outcome);
    let it = replay(&summary, "model");
    // Without a PID namespace, the candidate could have killed its own runner, so the host is not blamed in that case.
    let host = it["status"] == "INFRA_ERROR";
    outcome.expect_equal(outcome.code, Some(if host { 3 } else { 1 }), "the exit code");
    outcome.expect(it["status"] != "PASSED" && it["result"].is_null(), format_args!("no result: {it}"));
    outcome.expect_equal(&it["attempts"], &json!(if host { 4 } else { 2 }), "attempts");
    outcome.expect(it["detail"].as_str().is_some_and(|why| why.contains("kill")), format_args!("why: {it}"));
}
