//! Tests that `doctor` reports the same protections as a run on this machine, and claims none that it could not test.

use std::process::{Command, Stdio};

use opt_shared::protection::PROTECTIONS;
use opt_tests::users::users;
use opt_tests::{Outcome, Scenario, binary, repository, summary::list};
use serde_json::Value;

const DOCTOR: [&str; 2] = ["doctor", "--json"];

fn protection<'d>(document: &'d Value, name: &str) -> &'d Value {
    list(&document["protections"])
        .iter()
        .find(|protection| protection["name"] == name)
        .unwrap_or(&Value::Null)
}

/// Checks that the document lists every protection in order, with its purpose and its proof. If a protection is
/// missing, the document must give a reason and advice, and must name the protection if it is needed.
#[track_caller]
fn check(outcome: &Outcome, document: &Value) {
    let names: Vec<&str> =
        list(&document["protections"]).iter().filter_map(|it| it["name"].as_str()).collect();
    let listed: Vec<&str> = PROTECTIONS.iter().map(|kind| kind.name).collect();
    outcome.expect_equal(names, listed, "protections");
    outcome.expect_equal(&document["rungs"], &document["protections"], "the list under its old name");
    let mut missed = Vec::new();
    for it in list(&document["protections"]) {
        let has_text = |field: &str| it[field].as_str().is_some_and(|text| !text.is_empty());
        outcome.expect(
            has_text("proof") && has_text("stops"),
            format_args!("the protection has a purpose and a proof: {it}"),
        );
        if it["present"] == false {
            outcome.expect(
                has_text("detail") && has_text("remedy"),
                format_args!("the missing protection has a reason and advice: {it}"),
            );
            if it["needed"] == true {
                missed.push(it["name"].clone());
            }
        }
    }
    outcome.expect_equal(&document["missed"], &Value::from(missed.clone()), "the missing and needed ones");
    outcome.expect_equal(document["safe"].as_bool(), Some(missed.is_empty()), "safe");
    outcome.expect_equal(outcome.code, Some(0), "missing protections are no error");
}

#[test]
fn doctor_works_for_every_user() {
    for user in users() {
        let scenario = Scenario::create();
        let program = user.program(&scenario);
        user.take_ownership(&scenario);
        let mut command = Command::new(program);
        command.args(DOCTOR).current_dir(scenario.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        user.apply_to(&mut command);
        let child = command.spawn().expect("the program starts");
        let outcome = scenario.finish(child, &DOCTOR);
        let document = outcome.json();
        check(&outcome, &document);
        // Every machine that can run these tests has these protections.
        for name in ["memory_limit", "address_space_limit", "sealed_memory", "poll_and_kill", "system_calls"]
        {
            outcome.expect(
                protection(&document, name)["present"] == true,
                format_args!("{user:?}: {name} holds"),
            );
        }
        for field in ["kernel", "cores", "page_size_bytes", "memory", "cgroup", "pressure", "proc", "gpu"] {
            outcome.expect(!document[field].is_null(), format_args!("{field} is known"));
        }
        outcome.expect(document["gpu"]["usable"].is_boolean(), "`gpu.usable` is known");
    }
}

#[test]
fn doctor_text_has_a_line_for_every_protection() {
    let scenario = Scenario::create();
    let outcome = scenario.run(&["doctor"]);
    outcome.expect_equal(outcome.code, Some(0), "an answer");
    for kind in PROTECTIONS {
        let lines = outcome
            .stdout
            .lines()
            .filter(|line| ["yes", "NO"].contains(&line.split_whitespace().next().unwrap_or_default()))
            .filter(|line| line.split_whitespace().nth(1) == Some(kind.name));
        outcome.expect_equal(lines.count(), 1, kind.name);
    }
    outcome.expect_stdout(&[
        "kernel",
        "page size",
        "memory",
        "cgroup",
        "pressure",
        "/proc",
        "Landlock",
        "GPU",
    ]);
}

/// With so few file descriptors, `doctor` cannot start a canary, which is the process that proves a protection.
#[test]
fn untested_protection_is_not_claimed() {
    let scenario = Scenario::create();
    let script = format!("ulimit -n 8; exec '{}' doctor --json", binary().display());
    let child = Command::new("sh")
        .args(["-c", &script])
        .current_dir(scenario.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let outcome = scenario.finish(child, &DOCTOR).expect_exit(0);
    let document = outcome.json();
    check(&outcome, &document);
    outcome.expect(protection(&document, "memory_limit")["present"] == false, "nothing was proved");
}

#[test]
fn run_reports_the_protections_of_the_doctor() {
    let root = repository().display();
    let scenario = Scenario::with_plan(&format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n[[job]]\nname = \"job\"\n\
         captures = '{root}/tests/data/demo/torch_nn_functional_softmax'\n\
         candidates = ['{root}/configs/demo/softmax/naive.c']\n"
    ));
    let document = scenario.run(&DOCTOR).json();
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let host = &summary.document["host"];
    for it in list(&document["protections"]) {
        let name = it["name"].as_str().unwrap_or_default();
        outcome.expect_equal(&protection(host, name)["present"], &it["present"], name);
    }
    // `doctor` must list every protection that a runner reports.
    for it in list(&host["protections"]) {
        outcome.expect(!protection(&document, it["name"].as_str().unwrap_or_default()).is_null(), it);
    }
    // Each missing protection must be printed exactly once.
    for it in list(&host["protections"]).iter().filter(|it| it["present"] == false) {
        let name = it["name"].as_str().unwrap_or_default();
        let warning = format!("the protection `{name}` is not enforced on this machine ");
        outcome.expect_equal(outcome.stderr.matches(&warning).count(), 1, warning);
    }
}

/// The figures depend on the machine, so the test checks only their order and a generous limit.
#[test]
fn timing_trial_reports_plausible_bounds_and_needs_a_compiler() {
    let scenario = Scenario::create();
    let outcome = scenario.run(&["doctor", "--timing", "--json"]);
    outcome.expect_equal(outcome.code, Some(0), "an answer");
    let document = outcome.json();
    let trial = &document["timing"]["trial"];
    outcome.expect_equal(trial["copies"].as_u64(), Some(3), "copies");
    let bounds = trial["low"].as_f64().zip(trial["high"].as_f64());
    outcome.expect(bounds.is_some_and(|(low, high)| 0.0 < low && low <= 1.05 && low < high), trial);
    outcome.expect(document["timing"]["no_trial_because"].is_null(), "the trial took place");
    // Without a compiler, `doctor` leaves out the trial and reports everything else as usual.
    let mut command = Command::new(binary());
    command.args(["doctor", "--timing"]).env("PATH", "").current_dir(scenario.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let outcome = scenario.finish(child, &["doctor", "--timing"]);
    outcome.expect_equal(outcome.code, Some(0), "an answer");
    outcome.expect_stdout(&["kernel", "unknown: "]);
}

#[test]
fn documentation_names_every_protection_and_field() {
    let text =
        std::fs::read_to_string(repository().join("docs/reference/doctor.md")).expect("a readable page");
    for kind in PROTECTIONS {
        assert!(
            text.contains(&format!("| `{}` |", kind.name)),
            "docs/reference/doctor.md has no row of {}",
            kind.name
        );
    }
    let document = Scenario::create().run(&DOCTOR).json();
    let fields = document.as_object().expect("an object");
    for (field, value) in fields {
        assert!(text.contains(&format!("| `{field}` |")), "docs/reference/doctor.md has no row of {field}");
        for inner in value.as_object().into_iter().flat_map(serde_json::Map::keys) {
            assert!(
                text.contains(&format!("`{inner}`")),
                "docs/reference/doctor.md does not name {field}.{inner}"
            );
        }
    }
}
