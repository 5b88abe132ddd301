//! Switches many times from verification to timing and back. No sample of memory may show a verifier and a profiler at
//! work at the same time.

use std::path::Path;

use opt_shared::formula::IDLE_WORKER;
use opt_tests::cycles::{Cycles, TIMED, evidence, prepare};
use opt_tests::{Scenario, Summary};

fn cycles(count: u32, verifiers: u32) {
    let scenario = Scenario::create();
    let made = prepare(scenario.path(), Cycles { count, verifiers, spare: true });
    let plan = made.unwrap_or_else(|trouble| panic!("{trouble}"));
    let outcome = scenario.run(&[Path::new("run"), Path::new("--quiet"), &plan]).expect_exit(0);
    let run = scenario.path().join("runs/cycles");
    let summary = Summary::read(&run, &outcome);
    outcome.expect_clean(&run, &scenario.runtime());

    let evidence = evidence::read(&run, &summary.document).unwrap_or_else(|trouble| outcome.fail(trouble));
    // On a busy machine, timing may reject a correct candidate, so not all of them have to pass.
    let right = count * TIMED;
    outcome.expect(
        (count as usize..=right as usize).contains(&evidence.candidates_passed),
        format_args!("{} of {right} passed", evidence.candidates_passed),
    );
    // An attempt without a result is repeated after all other work, which causes one more switch.
    let cycles = evidence.cycles_ended.len();
    outcome.expect(count as usize <= cycles, format_args!("{cycles} of {count} cycles"));
    outcome.expect_equal(evidence.switches.len(), cycles, "switches");
    outcome.expect(count as usize <= evidence.moments, "samples");
    outcome.expect_equal(evidence.width, 1, "the milliseconds of a step (1 if samples were not thinned out)");
    outcome.expect_equal(
        evidence.both_at_work,
        0,
        format_args!("samples with both at work, such as {:#?}", evidence.violations),
    );
    for role in ["verifier", "profiler"] {
        let idle = evidence.idle.get(role).copied().unwrap_or(0);
        outcome.expect(idle <= IDLE_WORKER.get(), format_args!("an idle {role} owes {idle} bytes"));
        let seen = evidence.at_work.get(role).copied().unwrap_or(0);
        // A runner may have died before the next sample is due, so some cycles have no sample of a runner.
        outcome.expect(0 < seen, format_args!("a {role} was seen at work {seen} times"));
        outcome.expect(evidence.ready_ms.contains_key(role), format_args!("a {role} was started"));
    }
}

#[test]
fn one_verifier_and_the_profiler_never_work_at_the_same_time() {
    cycles(15, 1);
}

#[test]
fn four_verifiers_and_the_profiler_never_work_at_the_same_time() {
    cycles(40, 4);
}
