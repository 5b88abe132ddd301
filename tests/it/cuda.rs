//! Runs the CUDA demo on the emulated device: every kernel ends as expected, and none is timed.

use std::collections::BTreeMap;

use opt_tests::devices::plan;
use opt_tests::{Scenario, Summary, repository, summary::list};
use serde_json::Value;

use crate::report::browser::skipped;

type Verdicts = BTreeMap<String, (Option<String>, Option<String>)>;

fn verdicts(summary: &Summary) -> Verdicts {
    let owned = |value: &Value| value.as_str().map(str::to_owned);
    let of_job = |job: &Value| {
        let name = job["name"].as_str().unwrap_or_default().to_owned();
        let key = move |it: &Value| format!("{name}/{}", it["name"].as_str().unwrap_or_default());
        let verdict = |it: &Value| (owned(&it["status"]), owned(&it["blame"]));
        list(&job["candidates"]).iter().map(|it| (key(it), verdict(it))).collect::<Vec<_>>()
    };
    summary.jobs().iter().flat_map(of_job).collect()
}

#[test]
fn every_kernel_of_the_cuda_demo_ends_as_expected() {
    let scenario = Scenario::create();
    let folder = scenario.path().join("cuda-demo");
    let plan = repository().join("configs/cuda-demo.toml");
    let outcome = scenario
        .run(&["run".as_ref(), plan.as_os_str(), "--dir".as_ref(), folder.as_os_str()])
        .expect_exit(0);
    let summary = Summary::read(&folder, &outcome);
    let text =
        std::fs::read_to_string(repository().join("configs/cuda/expected.json")).expect("a readable file");
    let expected: Verdicts = serde_json::from_str(&text).expect("statuses and blames by JOB/CANDIDATE");
    let found = verdicts(&summary);
    let wrong: Vec<String> = expected
        .iter()
        .filter(|(name, verdict)| found.get(*name) != Some(verdict))
        .map(|(name, verdict)| format!("{name}: {:?}, expected {verdict:?}", found.get(name)))
        .collect();
    outcome.expect(wrong.is_empty(), format_args!("every verdict is right\n{}", wrong.join("\n")));
    outcome.expect_equal(found.len(), expected.len(), "number of candidates");
    let document = &summary.document;
    outcome.expect_equal(document["run"]["device"].as_str(), Some("emulated"), "the device");
    outcome.expect_equal(document["run"]["device_kind"].as_str(), Some("emulated"), "the kind of device");
    for job in summary.jobs() {
        outcome.expect(job["winner"].is_null(), "without timing there is no winner");
        for candidate in list(&job["candidates"]) {
            let passed = candidate["status"] == "PASSED";
            let name = &candidate["name"];
            outcome.expect(candidate["profile"].is_null(), format_args!("{name} is not timed"));
            outcome.expect(candidate["speedup"].is_null(), format_args!("{name} has no speed-up"));
            outcome.expect_equal(candidate["tier"].as_str(), Some("A"), format_args!("{name}'s tier"));
            outcome.expect_equal(
                candidate["not_timed_because"].is_string(),
                passed,
                format_args!("{name} has a reason for not being timed, if it passed"),
            );
        }
    }
    outcome.expect_stdout(&["nothing was timed"]);
    outcome.expect_clean(&folder, &scenario.runtime());
}

#[test]
fn submitted_device_code_is_launched_like_another_candidate() {
    let kernels = [("naive", "relu.ptx"), ("writes_past_the_end", "bad.ptx")];
    let scenario = Scenario::with_plan(&plan("emulated", &kernels));
    let ptx = |file: &str| repository().join("configs/cuda/ptx").join(file).display().to_string();
    let eval =
        |file: &str, more: &[&str]| scenario.run(&[&["eval", "plan.toml", file, "--json"], more].concat());
    let outcome = eval(&ptx("relu.ptx"), &[]).expect_exit(0);
    outcome.expect_equal(
        outcome.json()["status"].as_str(),
        Some("PASSED"),
        "uses the launch of the first candidate",
    );
    let outcome = eval(&ptx("bad.ptx"), &["--like", "writes_past_the_end"]).expect_exit(1);
    outcome.expect_equal(
        outcome.json()["status"].as_str(),
        Some("OUT_OF_BOUNDS"),
        "uses the launch of the named candidate",
    );
    eval(&ptx("bad.ptx"), &["--like", "nobody"]).expect_exit(2).expect_stderr(&["no candidate `nobody`"]);
    let host = scenario.write("fast.c", "int run(void) { return 0; }\n").display().to_string();
    eval(&host, &[]).expect_exit(2).expect_stderr(&["the device of this run is `emulated`"]);
}

#[test]
fn run_on_a_card_without_a_driver_is_refused() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        skipped("`device = \"cuda:0\"` without a driver was not tried: this machine has an NVIDIA driver");
        return;
    }
    let scenario = Scenario::create();
    let plan = repository().join("configs/cuda-demo.toml");
    let folder = scenario.path().join("no-card");
    let run = |device: &str| {
        let set = format!("run.device={device}");
        scenario.run(&[
            "run".as_ref(),
            plan.as_os_str(),
            "--dir".as_ref(),
            folder.as_os_str(),
            "--set".as_ref(),
            set.as_ref(),
        ])
    };
    let outcome = run("cuda:0").expect_exit(3);
    outcome.expect_stderr(&["the device `cuda:0` cannot be used"]);
    outcome.expect(!folder.exists(), "no run folder was made");
    // Without a card, `auto` selects the CPU, which does not run kernels without host code.
    let outcome = run("auto").expect_exit(2);
    outcome.expect_stderr(&["means the CPU on this machine", "runs on a device, not on the CPU"]);
}
