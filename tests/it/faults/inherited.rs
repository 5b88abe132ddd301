//! Tests runs that inherit ignored signals or missing capabilities from the program that starts them.

use std::path::Path;

use opt_tests::{Scenario, Summary};

use crate::report::browser::skipped;
use crate::results::plans::{Plan, SOFTMAX};

/// Starts a run through a program that changes what the run inherits. Two candidates must end as usual, one of them by
/// a kill.
fn run_below(program: &str, before: &[&str]) {
    let plan = Plan {
        extra: "verify = { call_timeout = \"1s\" }\n".to_owned(),
        ..Plan::softmax(&["fast", "bad/loops_forever"])
    };
    let scenario = Scenario::with_plan(&plan.text());
    let binary = opt_tests::binary();
    let supervisor = binary.to_str().expect("tests run in folders with plain names");
    let arguments: Vec<&str> =
        before.iter().copied().chain([supervisor, "run", "plan.toml", "--quiet"]).collect();
    let mut command = scenario.command_of(Path::new(program), &arguments);
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let outcome = scenario.finish(child, &arguments).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (name, status) in [("fast", "PASSED"), ("loops_forever", "TIMEOUT")] {
        let found = summary.candidate(SOFTMAX, name);
        outcome.expect_equal(found["status"].as_str(), Some(status), &found["detail"]);
    }
}

#[test]
fn run_whose_parent_ignores_sigchld_sees_how_its_processes_end() {
    // The `trap` of a shell cannot be used here, because a shell handles SIGCHLD itself.
    run_below("/usr/bin/env", &["--ignore-signal=CHLD"]);
}

/// Without CAP_KILL, root may not send signals to processes of other users, so the runners of this run must be root's
/// too.
#[test]
fn run_of_root_without_the_right_to_kill_ends_its_runners() {
    let setpriv = "/usr/bin/setpriv";
    if !rustix::process::geteuid().is_root() || !Path::new(setpriv).exists() {
        skipped("a run without CAP_KILL was not tried (it needs root and setpriv)");
        return;
    }
    run_below(setpriv, &["--bounding-set", "-kill", "--inh-caps", "-kill"]);
}
