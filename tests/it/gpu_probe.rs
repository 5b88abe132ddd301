//! `gpu-probe` on this machine: a table if there is a driver, otherwise a message.

use opt_tests::{Scenario, binary};

#[test]
fn probe_without_a_driver_exits_with_3() {
    let scenario = Scenario::create();
    let probe = binary().with_file_name("gpu-probe");
    assert!(
        probe.is_file(),
        "{} is missing: build all with `cargo build --workspace --bins`",
        probe.display()
    );
    let arguments = ["--dir", "."];
    let child = scenario.command_of(&probe, &arguments).spawn().expect("started");
    let outcome = scenario.finish(child, &arguments);
    if outcome.code == Some(0) {
        outcome.expect_stdout(&["# GPU probe", "| question | answer | figures |", "maxSize"]);
    } else {
        outcome.expect_stderr(&["no CUDA driver"]);
        outcome.expect_equal(outcome.stdout.as_str(), "", "standard output");
        outcome.expect_exit(3);
    }
}
