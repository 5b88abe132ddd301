//! Tests the results of runs: exit codes, statuses of jobs and candidates, and commands that show them.

mod commands;
pub mod plans;

use opt_tests::{Scenario, Summary, data, summary::list};
use plans::{Plan, SOFTMAX};
use serde_json::Value;

#[test]
fn successful_run_exits_with_0_and_shows_the_same_document_everywhere() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let (outcome, summary) = scenario.run_plan(0, &["--json"]);
    outcome.expect_equal(outcome.json(), summary.document.clone(), "--json and summary.json");
    outcome.expect_equal(summary.document["run"]["exit_code"].as_i64(), Some(0), "run.exit_code");
    outcome.expect_equal(summary.document["run"]["status"].as_str(), Some("FINISHED"), "run.status");
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("PASSED"), "the job");
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("PASSED"), None), "fast");
    let fast = summary.candidate(SOFTMAX, "fast");
    outcome.expect(fast["speedup"]["value"].is_number(), "fast has a speed-up");
    outcome.expect(fast["artifact_digest"].is_string(), "the artifact has a digest");
    let stages: Vec<&str> =
        list(&fast["attempts"]).iter().filter_map(|attempt| attempt["stage"].as_str()).collect();
    // On a busy machine, `fast` may look slower than the baseline. It is then not timed a second time.
    let all = ["build", "verify", "profile", "confirm"];
    outcome.expect(3 <= stages.len() && all.starts_with(&stages), format_args!("its attempts: {stages:?}"));
    // If the confidence interval of `fast` includes the baseline, there is no winner. If the interval is very wide,
    // `fast` is not confirmed.
    let job = summary.job(SOFTMAX);
    let expected = !job["winner"].is_null() && stages.last() == Some(&"confirm");
    outcome.expect_equal(job["winner_confirmed"].as_bool(), Some(expected), "winner_confirmed");
    outcome.expect_equal(
        fast["profile"]["stage"].as_str(),
        stages.last().copied(),
        "the stage that the times come from",
    );

    let report = scenario.run(&["report", "runs/plan", "--format", "json"]).expect_exit(0);
    report.expect_equal(report.json(), summary.document, "report --format json and summary.json");
    let report = scenario.run(&["report", "runs/latest"]).expect_exit(0);
    report.expect_stdout(&["softmax", "fast", "naive", "PASSED", "FINISHED"]);
    let written = scenario.run(&["report", "runs/plan", "-o", "report.txt"]).expect_exit(0);
    written.expect(written.stdout.is_empty(), "the report is in the file");
    let text = std::fs::read_to_string(scenario.path().join("report.txt")).expect("the report");
    // Do not compare the last line, because it names the folder as the user typed it.
    let body = |text: &str| text.lines().take_while(|line| !line.starts_with("run ")).count();
    report.expect_equal(body(&text), body(&report.stdout), "lines of the same report");
}

#[test]
fn quiet_run_prints_nothing_to_standard_output() {
    let scenario = Scenario::with_plan(&Plan::softmax(&[]).text());
    let (outcome, summary) = scenario.run_plan(0, &["--quiet"]);
    outcome.expect(outcome.stdout.is_empty(), "nothing on standard output");
    // A job that has only a baseline gets the baseline's status.
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("PASSED"), "the job");
}

#[test]
fn unreached_min_speedup_exits_with_1() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let (outcome, summary) = scenario.run_plan(1, &["--min-speedup", "1000"]);
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("PASSED"), None), "fast passes");
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("NONE_PASSED"), "the job");
    outcome.expect_equal(summary.document["run"]["exit_code"].as_i64(), Some(1), "run.exit_code");
}

#[test]
fn run_without_a_passing_candidate_exits_with_1() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["bad/wrong_by_nine_percent"]).text());
    let (outcome, summary) = scenario.run_plan(1, &[]);
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("NONE_PASSED"), "the job");
    let name = "wrong_by_nine_percent";
    outcome.expect_equal(
        summary.verdict(SOFTMAX, name),
        (Some("INCORRECT_NUMERICAL"), Some("candidate")),
        name,
    );
    let failure = &summary.candidate(SOFTMAX, name)["failures"][0];
    let mismatch = &failure["mismatch"];
    outcome.expect_equal(mismatch["pattern"].clone(), Value::from("all"), "the pattern of the bad elements");
    outcome.expect_equal(list(&mismatch["bad_indices"]).len(), 8, "the first bad indices");
    let error = mismatch["relative_error"].as_f64().unwrap_or_default();
    outcome.expect((0.089..0.091).contains(&error), format_args!("it is wrong by nine percent: {error}"));
    outcome.expect(list(&failure["args"]).len() == 4, "the arguments of the failing call");
}

#[test]
fn plan_that_does_not_fit_exits_with_3_and_names_its_need() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let (outcome, summary) = scenario.run_plan(3, &["--set", "memory.host_ceiling=1MiB"]);
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("DOES_NOT_FIT"), "the job");
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("DOES_NOT_FIT"), Some("plan")), "fast");
    let detail = summary.candidate(SOFTMAX, "fast")["detail"].as_str().unwrap_or_default();
    outcome.expect(
        detail.contains("stage `build` needs")
            && detail.contains("1.00 MiB")
            && detail.contains("host_ceiling"),
        format_args!("the detail says what needs how much: {detail}"),
    );
    outcome.expect_stdout(&["DOES_NOT_FIT", "needs"]);
    outcome.expect(list(&summary.document["workers"]).is_empty(), "no worker was started");
    let rows = summary.policy("does_not_fit");
    outcome.expect(
        rows.iter()
            .any(|row| row["numbers"]["reserved_bytes"].as_u64() > row["numbers"]["ceiling_bytes"].as_u64()),
        "the decision has its numbers",
    );
    scenario.run(&["check", "plan.toml", "--set", "memory.host_ceiling=1MiB"]).expect_exit(3);
}

#[test]
fn job_that_does_not_fit_leaves_the_other_running() {
    // More memory than any test machine has.
    let text = Plan::softmax(&["fast"]).text()
        + &Plan {
            name: "greedy".to_owned(),
            extra: "limits.memory = \"900TiB\"".to_owned(),
            ..Plan::softmax(&[])
        }
        .job();
    let scenario = Scenario::with_plan(&text);
    let (outcome, summary) = scenario.run_plan(1, &[]);
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("PASSED"), "the job that fits");
    outcome.expect_equal(summary.job("greedy")["status"].as_str(), Some("DOES_NOT_FIT"), "the other");
}

#[test]
fn output_beyond_the_smallest_limit_is_cut_off() {
    let plan = Plan { extra: "limits.output_kib = 1".to_owned(), ..Plan::softmax(&["bad/floods_stdout"]) };
    let scenario = Scenario::with_plan(&plan.text());
    let (outcome, summary) = scenario.run_plan(0, &["--set", "run.stages=[\"build\", \"verify\"]"]);
    let candidate = summary.candidate(SOFTMAX, "floods_stdout");
    outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), "the candidate");
    outcome.expect_equal(candidate["output_truncated"].as_bool(), Some(true), "its output");
}

#[test]
fn candidates_of_a_failed_baseline_are_verified_and_timed() {
    let mut plan = Plan::softmax(&["fast", "naive"]);
    plan.baseline = "bad/wrong_by_nine_percent".to_owned();
    let scenario = Scenario::with_plan(&plan.text());
    let (outcome, summary) = scenario.run_plan(1, &[]);
    let job = summary.job(SOFTMAX);
    outcome.expect_equal(job["status"].as_str(), Some("BASELINE_FAILED"), "the job");
    outcome.expect(
        job["detail"].as_str().is_some_and(|detail| detail.contains("INCORRECT_NUMERICAL")),
        format_args!("the detail says how the baseline failed: {}", job["detail"]),
    );
    for name in ["fast", "naive"] {
        let candidate = summary.candidate(SOFTMAX, name);
        outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), name);
        outcome.expect_equal(candidate["speedup"].clone(), Value::Null, format_args!("{name}'s speed-up"));
        outcome.expect(candidate["profile"]["median_time_ms"].is_number(), format_args!("{name} was timed"));
        outcome.expect(candidate["rank"].is_number(), format_args!("{name} is ranked by time"));
    }
    outcome.expect_stdout(&["BASELINE_FAILED", "the baseline ended with status INCORRECT_NUMERICAL"]);
}

#[test]
fn truncated_or_flipped_capture_ends_as_capture_error() {
    let scenario = Scenario::create();
    let truncated = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "truncated");
    let entry = truncated.join("entry_000000.pt");
    let bytes = std::fs::read(&entry).expect("a capture");
    std::fs::write(&entry, &bytes[..bytes.len() / 2]).expect("half a capture");
    // Flip a byte of the recorded output, in the middle of the last record with data. Only the CRC reveals it.
    let flipped = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "flipped");
    flip_a_byte_of_the_output(&flipped.join("entry_000001.pt"));

    let text = Plan::softmax(&["fast"]).text()
        + &Plan { name: "truncated".to_owned(), captures: truncated, ..Plan::softmax(&["fast"]) }.job()
        + &Plan { name: "flipped".to_owned(), captures: flipped, ..Plan::softmax(&["fast"]) }.job();
    scenario.write("plan.toml", text);
    let (outcome, summary) = scenario.run_plan(1, &[]);
    outcome.expect_equal(summary.job(SOFTMAX)["status"].as_str(), Some("PASSED"), "the good job beside it");
    let job = summary.job("truncated");
    outcome.expect_equal(job["status"].as_str(), Some("CAPTURE_ERROR"), "the truncated job");
    outcome.expect(
        job["detail"].as_str().is_some_and(|detail| detail.contains("entry_000000")),
        format_args!("it names the entry: {}", job["detail"]),
    );
    for job in ["truncated", "flipped"] {
        for name in ["naive", "fast"] {
            outcome.expect_equal(
                summary.verdict(job, name),
                (Some("CAPTURE_ERROR"), Some("capture")),
                format_args!("{job}/{name}"),
            );
        }
    }
    outcome.expect_stdout(&["CAPTURE_ERROR"]);
}

/// Flips a byte of the output's data. Torch writes storages in the order of their first use, so the output's data is
/// the last large record.
fn flip_a_byte_of_the_output(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).expect("a capture");
    // This entry's output has 2 x 6 x 56 x 60 floats. After it, the file has only small records.
    let at = bytes.len() - 40_320 * 2;
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).expect("a damaged capture");
}

/// The demo's naive softmax supports only float32; the golden captures have other dtypes too.
#[test]
fn unsupported_entries_are_allowed_only_for_partial_candidates() {
    let captures = data("captures/torch_nn_functional_softmax");
    let plan = |name: &str, extra: &str| Plan {
        name: name.to_owned(),
        captures: captures.clone(),
        extra: extra.to_owned(),
        ..Plan::softmax(&[])
    };
    let scenario = Scenario::with_plan(&(plan("whole", "").text() + &plan("part", "partial = true").job()));
    let (outcome, summary) = scenario.run_plan(1, &[]);
    outcome.expect_equal(
        summary.verdict("whole", "naive"),
        (Some("UNSUPPORTED"), Some("candidate")),
        "without partial",
    );
    outcome.expect_equal(summary.verdict("part", "naive"), (Some("PASSED"), None), "with partial = true");
    let verify = &summary.candidate("part", "naive")["verify"];
    let number = |name: &str| verify[name].as_u64().unwrap_or_default();
    outcome.expect_equal(number("entries_run"), 5, "entries that were run");
    outcome.expect(
        0 < number("entries_passed") && 0 < number("entries_unsupported"),
        "some entries passed, and some are unsupported",
    );
    outcome.expect_equal(number("entries_passed") + number("entries_unsupported"), 5, "entries");
}

#[test]
fn named_candidate_runs_with_its_baseline_and_the_others_are_skipped() {
    let mut other = Plan::softmax(&["fast"]);
    "other".clone_into(&mut other.name);
    let text = Plan::softmax(&["fast", "bad/segfaults"]).text() + &other.job();
    let scenario = Scenario::with_plan(&text);
    let (outcome, summary) = scenario.run_plan(0, &["--only", "softmax/fast"]);
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("PASSED"), None), "the named candidate");
    outcome.expect_equal(summary.verdict(SOFTMAX, "naive"), (Some("PASSED"), None), "its baseline");
    outcome.expect_equal(
        summary.verdict(SOFTMAX, "segfaults").0,
        Some("SKIPPED"),
        "a candidate that was not named",
    );
    outcome.expect_equal(
        summary.job("other")["status"].as_str(),
        Some("SKIPPED"),
        "a job that was not named",
    );
    outcome.expect(
        list(&summary.candidate(SOFTMAX, "segfaults")["attempts"]).is_empty(),
        "a skipped candidate has no attempts",
    );
}

fn timed(summary: &Summary, name: &str) -> Vec<Value> {
    list(&summary.candidate(SOFTMAX, name)["profile"]["entries"]).to_vec()
}

#[test]
fn candidates_that_cannot_be_timed_are_not_reported_as_failed() {
    // The output overlaps an input, so the candidate is verified but not timed.
    let root = opt_tests::repository();
    let scenario = Scenario::with_plan(&format!(
        "[build]\nlibraries = [\"m\"]\n[[job]]\nname = \"relu\"\ncaptures = '{0}/tests/data/captures/torch_nn_functional_relu'\n\
         entries = [\"entry_000004.pt\"]\ncandidates = ['{0}/tests/data/kernels/naive/relu.c']\n",
        root.display()
    ));
    let (outcome, summary) = scenario.run_plan(1, &[]);
    outcome.expect_equal(summary.verdict("relu", "relu").0, Some("PASSED"), "its verdict");
    outcome.expect_equal(summary.job("relu")["status"].as_str(), Some("NONE_PASSED"), "the job");
    outcome.expect_stdout(&["relu: no winner: 1 passed verification and none was timed"]);
    outcome.expect(!outcome.stdout.contains("none of"), "no candidate is reported as failed");
}

#[test]
fn planned_cache_state_is_reported() {
    for state in ["cold", "rotate"] {
        let plan = Plan::softmax(&["fast"]);
        let plan = Plan { profile: format!("{}cache_state = \"{state}\"\n", plan.profile), ..plan };
        let scenario = Scenario::with_plan(&plan.text());
        let (outcome, summary) = scenario.run_plan(0, &[]);
        let fast = &summary.candidate(SOFTMAX, "fast")["profile"];
        outcome.expect_equal(fast["cache_state"].as_str(), Some(state), "the candidate's cache state");
        let entries = list(&fast["entries"]);
        outcome.expect_equal(entries.len(), 2, "timed entries");
        for entry in entries {
            outcome.expect_equal(entry["cache_state"].as_str(), Some(state), "an entry's cache state");
            outcome.expect_equal(entry["calls_per_block"].as_u64(), Some(1), "calls per block");
        }
    }
}

/// A shuffle of sixteen indices often leaves an index in its place. The row of the output that belongs to it does not
/// change then.
#[test]
fn lookup_with_sixteen_indices_gets_varied_indices() {
    let scenario = Scenario::with_plan(&format!(
        "[profile]\nentry_timeout = \"200ms\"\nvary = [\"input\"]\n[[job]]\nname = \"embedding\"
captures = '{}'\nentries = [\"entry_000000.pt\", \"entry_000001.pt\"]\nbaseline = '{}'\n",
        data("captures/torch_nn_functional_embedding").display(),
        data("kernels/naive/embedding.c").display(),
    ));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let entries = list(&summary.job("embedding")["candidates"][0]["profile"]["entries"]);
    outcome.expect_equal(entries.len(), 2, "timed entries");
    for entry in entries {
        outcome.expect_equal(&entry["varied"], &serde_json::json!(["input"]), "what varied");
    }
}

#[test]
fn real_time_priority_is_reported_or_refused_before_the_run() {
    let plan = Plan::softmax(&["fast"]);
    let plan = Plan { profile: format!("{}priority = \"realtime\"\n", plan.profile), ..plan };
    let scenario = Scenario::with_plan(&format!("[limits]\nthreads = 1\n{}", plan.text()));
    let capabilities = rustix::thread::capabilities(None).expect("this process's capabilities");
    if !capabilities.effective.contains(rustix::thread::CapabilitySet::SYS_NICE) {
        let refused = scenario.run(&["run", "plan.toml"]).expect_exit(3);
        refused.expect_stderr(&["`profile.priority = \"realtime\"`", "CAP_SYS_NICE"]);
        scenario
            .run(&["check", "plan.toml"])
            .expect_exit(3)
            .expect_stdout(&["lacks the capability CAP_SYS_NICE"]);
        crate::report::browser::skipped("real-time priority: this process lacks CAP_SYS_NICE");
        return;
    }
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let reached = if std::thread::available_parallelism().is_ok_and(|cpus| 1 < cpus.get()) {
        "realtime"
    } else {
        // On a machine with one CPU, a real-time candidate would leave no CPU to the supervisor.
        "none"
    };
    for entry in timed(&summary, "fast") {
        outcome.expect_equal(entry["priority"].as_str(), Some(reached), "an entry's priority");
    }
}

#[test]
fn kernelforge_protocol_times_at_most_a_hundred_calls_per_process() {
    let mut plan = Plan::softmax(&["fast"]);
    plan.profile.push_str("protocol = \"kernelforge\"\n");
    let scenario = Scenario::with_plan(&plan.text());
    let (outcome, summary) = scenario.run_plan(0, &[]);
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("PASSED"), None), "fast");
    let entries = timed(&summary, "fast");
    outcome.expect_equal(entries.len(), 2, "timed entries");
    for entry in entries {
        outcome.expect_equal(entry["samples"].as_u64(), Some(3), "samples, one mean for each process");
        outcome
            .expect(entry["calls_per_block"].as_u64().is_some_and(|calls| calls <= 100), "at most 100 calls");
        outcome.expect(entry["median_time_ms"].as_f64().is_some_and(|ms| 0.0 < ms), "a time");
    }
}

#[test]
fn copied_inputs_are_covered_by_the_lease() {
    let reserved = |summary: &Summary| {
        let phases = list(&summary.document["memory"]["phases"]);
        let profiles = phases.iter().filter(|phase| phase["stage"] == "profile");
        profiles.filter_map(|phase| phase["predicted_bytes"].as_u64()).max().unwrap_or_default()
    };
    let mapped = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let (_, mapped) = mapped.run_plan(0, &[]);
    let mut plan = Plan::softmax(&["fast"]);
    plan.profile.push_str("inputs = \"copied\"\n");
    let scenario = Scenario::with_plan(&plan.text());
    let (outcome, summary) = scenario.run_plan(0, &[]);
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("PASSED"), None), "fast");
    outcome.expect_equal(timed(&summary, "fast").len(), 2, "timed entries");
    let (with, without) = (reserved(&summary), reserved(&mapped));
    outcome.expect(
        without < with,
        format_args!("the lease includes the copies: {with} bytes with them, {without} without"),
    );
}

/// There are six entries with the same content. If they come from a store, their inputs are copied, mapped and counted
/// once. In separate files, the content is not known to be the same.
#[test]
fn shared_inputs_of_a_store_are_copied_once() {
    let profile = |captures: std::path::PathBuf| {
        let mut plan = Plan { captures, ..Plan::softmax(&["fast"]) };
        plan.profile.push_str("inputs = \"copied\"\nentries = \"all\"\n");
        Scenario::with_plan(&plan.text())
    };
    let copied = |scenario: &Scenario| {
        let document = scenario.run(&["check", "plan.toml", "--json"]).expect_exit(0).json();
        let stages = document["jobs"][0]["memory"].as_array().cloned().unwrap_or_default();
        let stage = stages.iter().find(|stage| stage["stage"] == "profile").cloned().expect("a profile");
        let terms = stage["predicted_terms"].as_array().cloned().unwrap_or_default();
        let term = terms.iter().find(|term| term["name"] == "copied inputs").cloned().expect("the term");
        (term["bytes"].as_u64(), stage["batches"][0]["bytes"].as_u64())
    };
    let folder = Scenario::create();
    let captures = folder.path().join("six");
    std::fs::create_dir(&captures).expect("a folder");
    let original = data("demo/torch_nn_functional_softmax/entry_000000.pt");
    for number in 0..6 {
        std::fs::copy(&original, captures.join(format!("entry_00000{number}.pt"))).expect("copied");
    }
    folder.run(&["captures", "pack", "six", "store"]).expect_exit(0);
    let folder_of_one = folder.path().join("one");
    std::fs::create_dir(&folder_of_one).expect("a folder");
    std::fs::copy(&original, folder_of_one.join("entry_000000.pt")).expect("copied");
    let (one, six) = (copied(&profile(folder_of_one)), copied(&profile(captures)));
    assert_eq!((six.0, six.1), (one.0.map(|one| 6 * one), one.1.map(|one| 6 * one)));
    let scenario = profile(folder.path().join("store"));
    assert_eq!(copied(&scenario), one);
    let (outcome, summary) = scenario.run_plan(0, &[]);
    outcome.expect_equal(summary.verdict(SOFTMAX, "fast"), (Some("PASSED"), None), "fast");
    outcome.expect_equal(timed(&summary, "fast").len(), 6, "timed entries");
}
