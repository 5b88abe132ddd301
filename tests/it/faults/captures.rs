//! Tests captures on a disk that fails while the run reads them. No candidate is blamed, and `--resume` continues when
//! the disk works again.

use std::ops::Range;

use opt_shared::capture::CaptureFile;
use opt_tests::faulty_disk::{Fault, FaultyDisk};
use opt_tests::summary::list;
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, data};
use serde_json::Value;

use crate::control::client::LiveRun;
use crate::report::browser::skipped;
use crate::results::plans::{Plan, SOFTMAX};

const CAPTURES: &str = "demo/torch_nn_functional_softmax";
/// The entry with the bytes that cannot be read.
const ENTRY: &str = "entry_000000.pt";
const WHOLE: Range<u64> = 0..u64::MAX;
const CANDIDATES: [&str; 2] = ["naive", "fast"];

/// Returns a plan whose captures are on a disk that can fail, and the disk. If no disk can be mounted, prints that the
/// test is skipped and returns `None`.
fn with_disk(extra: &str) -> Option<(Scenario, FaultyDisk)> {
    let scenario = Scenario::create();
    let captures = scenario.path().join("captures");
    std::fs::create_dir(&captures).expect("an empty folder");
    let plan = Plan { captures: captures.clone(), extra: extra.to_owned(), ..Plan::softmax(&["fast"]) };
    // Leave out timing, which takes most of the time of a run.
    let text = format!("[run]\nstages = [\"build\", \"verify\"]\n{}", plan.text());
    scenario.write("plan.toml", text);
    match FaultyDisk::mount(&data(CAPTURES), &captures) {
        Ok(disk) => Some((scenario, disk)),
        Err(error) => {
            skipped(&format!("captures on a disk that fails: no file system could be mounted ({error})"));
            None
        }
    }
}

/// The pages that lie completely in the entry's input or, if `output`, in its recorded output. They contain no byte of
/// another part of the capture.
fn pages(output: bool) -> Range<u64> {
    let capture = CaptureFile::open(&data(CAPTURES).join(ENTRY)).expect("a capture");
    let storages = capture.storages();
    let storage = if output { storages.last() } else { storages.first() }.expect("storages");
    let page = rustix::param::page_size() as u64;
    let (start, end) = (storage.file_offset, storage.file_offset + storage.bytes.get());
    start.next_multiple_of(page)..end / page * page
}

/// Checks that no verdict of a candidate and no result of an attempt blames the candidate.
pub fn no_candidate_is_blamed(outcome: &Outcome, summary: &Summary) {
    for candidate in list(&summary.job(SOFTMAX)["candidates"]) {
        outcome.expect(candidate["blame"] != "candidate", format_args!("no blame: {candidate:#}"));
        for attempt in list(&candidate["attempts"]) {
            let innocent = ["PASSED", "INFRA_ERROR", "CAPTURE_ERROR"].map(Value::from);
            outcome.expect(innocent.contains(&attempt["status"]), format_args!("no blame: {attempt:#}"));
        }
    }
}

/// Runs the plan on a disk that fails, and checks the verdicts. Then repairs the disk, and checks that the run
/// continues with `--resume` and that every candidate passes.
#[track_caller]
fn fails_and_heals(scenario: &Scenario, disk: &FaultyDisk, code: i32, verdict: (&str, &str), says: &str) {
    let (outcome, summary) = scenario.run_plan(code, &["--quiet"]);
    outcome.expect(0 < disk.met(), "a read has failed");
    no_candidate_is_blamed(&outcome, &summary);
    for candidate in CANDIDATES {
        let (status, blame) = verdict;
        outcome.expect_equal(summary.verdict(SOFTMAX, candidate), (Some(status), Some(blame)), candidate);
        let detail = summary.candidate(SOFTMAX, candidate)["detail"].as_str().unwrap_or_default();
        outcome.expect(detail.contains(says), format_args!("`{detail}` says {says:?}"));
    }
    disk.heal();
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}

pub fn all_pass(outcome: &Outcome, summary: &Summary) {
    for candidate in CANDIDATES {
        outcome.expect_equal(summary.verdict(SOFTMAX, candidate).0, Some("PASSED"), candidate);
    }
}

#[test]
fn capture_that_cannot_be_surveyed_blames_no_candidate() {
    let Some((scenario, disk)) = with_disk("") else { return };
    disk.fail(ENTRY, WHOLE, Fault::Refused);
    fails_and_heals(&scenario, &disk, 1, ("CAPTURE_ERROR", "capture"), "Input/output error");
}

#[test]
fn recorded_output_that_a_verifier_cannot_read_blames_no_candidate() {
    let Some((scenario, disk)) = with_disk("") else { return };
    disk.fail(ENTRY, pages(true), Fault::Refused);
    fails_and_heals(&scenario, &disk, 1, ("CAPTURE_ERROR", "capture"), "Input/output error");
}

#[test]
fn input_that_a_runner_has_mapped_and_cannot_read_blames_no_candidate() {
    let Some((scenario, disk)) = with_disk("") else { return };
    disk.fail(ENTRY, pages(false), Fault::Refused);
    fails_and_heals(&scenario, &disk, 3, ("INFRA_ERROR", "host"), "could not be read");
}

#[test]
fn capture_that_is_cut_short_during_a_run_blames_no_candidate() {
    let Some((scenario, disk)) = with_disk("") else { return };
    let run = LiveRun::start(&scenario, &["--quiet"]);
    run.ctl(&["pause"]).expect_exit(0);
    disk.cut(ENTRY, pages(false).start);
    run.ctl(&["resume"]).expect_exit(0);
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    no_candidate_is_blamed(&outcome, &summary);
    disk.heal();
    let (outcome, summary) = scenario.run_plan(0, &["--resume", "--quiet"]);
    all_pass(&outcome, &summary);
}

#[test]
fn run_continues_when_a_hung_disk_answers() {
    let Some((scenario, disk)) = with_disk("") else { return };
    disk.fail(ENTRY, pages(false), Fault::Hangs);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    until("a read hangs", || 0 < disk.met());
    run.ctl(&["status"]).expect_exit(0);
    disk.heal();
    let (outcome, summary) = run.finish(0);
    no_candidate_is_blamed(&outcome, &summary);
    all_pass(&outcome, &summary);
}

#[test]
fn call_that_waits_for_a_disk_that_hangs_blames_no_candidate() {
    let Some((scenario, disk)) = with_disk("verify = { call_timeout = \"1s\" }\n") else { return };
    disk.fail(ENTRY, pages(false), Fault::Hangs);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    until("a verification has waited for longer than a call may take", || {
        let status = run.ctl(&["status", "--json"]).expect_exit(0).json();
        list(&status["leases"])
            .iter()
            .any(|it| it["stage"] == "verify" && it["seconds"].as_f64().is_some_and(|seconds| 5.0 < seconds))
    });
    disk.heal();
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    no_candidate_is_blamed(&outcome, &summary);
    all_pass(&outcome, &summary);
}

/// A run must report such a file; otherwise the capture set would silently become smaller.
#[test]
fn capture_that_is_no_regular_file_ends_as_capture_error() {
    for (kind, says) in [("link", "No such file"), ("folder", "regular file"), ("pipe", "regular file")] {
        let scenario = Scenario::create();
        let captures = scenario.copy_captures(&data(CAPTURES), "set");
        let odd = captures.join("entry_000009.pt");
        match kind {
            "link" => std::os::unix::fs::symlink("nowhere.pt", &odd),
            "folder" => std::fs::create_dir(&odd),
            _ => rustix::fs::mkfifoat(rustix::fs::CWD, &odd, 0o600.into()).map_err(Into::into),
        }
        .expect("made");
        scenario.write("plan.toml", Plan { captures, ..Plan::softmax(&["fast"]) }.text());
        scenario.run(&["check", "plan.toml"]).expect_exit(1).expect_stdout(&["entry_000009.pt", says]);
        let (outcome, summary) = scenario.run_plan(1, &["--quiet"]);
        let job = summary.job(SOFTMAX);
        outcome.expect_equal(job["status"].as_str(), Some("CAPTURE_ERROR"), kind);
        outcome.expect(job["detail"].as_str().is_some_and(|it| it.contains("entry_000009.pt")), job);
    }
}
