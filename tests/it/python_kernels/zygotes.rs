//! Tests runners that are copies of a zygote, and runners that start their own interpreter because copies are
//! impossible. All verdicts must be the same, for every user.

use std::time::Duration;

use opt_tests::processes::{self, Process};
use opt_tests::python::refuse_copies;
use opt_tests::users::{User, users};
use opt_tests::waiting::holds_within;
use opt_tests::{Outcome, Scenario, Summary, data};

use super::{all_kernels, expect_verdicts, interpreter, interpreter_of, plan_of};

const STAGES: &str = "[\"build\", \"verify\"]";
const ENTRY: &str = "entries = [\"entry_000001.pt\"]";

const TIMEOUT: Duration = Duration::from_secs(120);

/// The kind of machine that a run sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    AsItIs,
    /// Refuses a system call that every copy needs.
    RefusesCopies,
}

/// Runs the scenario's plan as this user on this kind of machine.
fn run(scenario: &Scenario, user: User, machine: Machine) -> (Outcome, Summary) {
    let program = user.program(scenario);
    user.take_ownership(scenario);
    let arguments = ["run", "plan.toml"];
    let mut command = scenario.command_of(&program, &arguments);
    user.apply_to(&mut command);
    if machine == Machine::RefusesCopies {
        refuse_copies(&mut command);
    }
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let outcome = scenario.finish(child, &arguments);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let refused = summary.policy("no_zygote");
    outcome.expect_equal(
        !refused.is_empty(),
        machine == Machine::RefusesCopies,
        format_args!("{user:?}: the log reports a missing zygote: {refused:?}"),
    );
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    (outcome, summary)
}

fn expect_kernels_to_end_as_intended(user: User, machine: Machine, names: &[&str]) {
    let Some(python) = interpreter_of(user) else { return };
    let scenario = Scenario::create();
    let kernels = scenario.path().join("kernels");
    std::fs::create_dir(&kernels).expect("a folder");
    for name in names {
        let file = format!("{name}.py");
        std::fs::copy(data("kernels/python").join(&file), kernels.join(&file))
            .expect("a kernel of the tests");
    }
    let captures = scenario.copy_captures(&data("demo/torch_nn_functional_softmax"), "captures");
    let text = plan_of(&kernels, &python, STAGES, names, ENTRY);
    let theirs = format!("captures = {:?}", data("demo/torch_nn_functional_softmax"));
    scenario.write("plan.toml", text.replace(&theirs, &format!("captures = {captures:?}")));
    let (outcome, summary) = run(&scenario, user, machine);
    expect_verdicts(&outcome, &summary, names);
}

#[test]
fn every_kernel_in_python_ends_as_expected() {
    for user in users() {
        expect_kernels_to_end_as_intended(user, Machine::AsItIs, &all_kernels());
    }
}

/// Each kernel starts its own interpreter, which takes seconds, so only one user runs all of them.
#[test]
fn every_kernel_in_python_ends_the_same_without_a_zygote() {
    let all = all_kernels();
    for user in users() {
        let few = ["returns", "writes", "model", "writes_past_the_end"];
        let names = if user == User::Own { &all[..] } else { &few };
        expect_kernels_to_end_as_intended(user, Machine::RefusesCopies, names);
    }
}

/// Returns the random numbers that kernels draw in two runners of one worker.
fn drawn(machine: Machine) -> Option<[Vec<String>; 2]> {
    let python = interpreter()?;
    let scenario = Scenario::create();
    let source = std::fs::read(data("kernels/python/says_what_it_draws.py")).expect("a kernel of the tests");
    for name in ["one", "other"] {
        scenario.write(&format!("kernels/{name}.py"), &source);
    }
    let kernels = scenario.path().join("kernels");
    scenario.write("plan.toml", plan_of(&kernels, &python, STAGES, &["one", "other"], ENTRY));
    let (outcome, summary) = run(&scenario, User::Own, machine);
    Some(["one", "other"].map(|name| {
        let detail = summary.candidate("softmax", name)["detail"].as_str().unwrap_or_default();
        let numbers =
            detail.split_once("it draws ").map(|(_, rest)| rest.split_once(" (at").map_or(rest, |it| it.0));
        let Some(numbers) = numbers else {
            outcome.fail(format_args!("no numbers in the detail of {name}: {detail}"))
        };
        numbers.split(", ").map(str::to_owned).collect()
    }))
}

/// Copies share hash seeds and addresses with the zygote (see SECURITY.md), but like fresh interpreters, they draw
/// different random numbers.
#[test]
fn copies_of_a_zygote_draw_their_own_numbers() {
    let Some([one, other]) = drawn(Machine::AsItIs) else { return };
    assert_eq!(one[..2], other[..2], "{one:?} {other:?}");
    assert!(differ(&one[2..], &other[2..]), "{one:?} {other:?}");
    let Some([one, other]) = drawn(Machine::RefusesCopies) else { return };
    assert!(differ(&one, &other), "{one:?} {other:?}");
}

/// Returns whether all numbers differ. Without numpy, a kernel reports `nothing` in place of its number.
fn differ(one: &[String], other: &[String]) -> bool {
    one.iter().zip(other).all(|(one, other)| one != other || one == "nothing")
}

/// Runs two kernels that take seconds to load. Meanwhile, calls `find` with the living children of each worker until it
/// returns true. Checks that both kernels pass, whatever `find` has done to the children.
fn expect_pass_while(what: &str, mut find: impl FnMut(&[Process]) -> bool) {
    let Some(python) = interpreter() else { return };
    let scenario = Scenario::create();
    let text = std::fs::read_to_string(data("kernels/python/returns.py")).expect("a kernel of the tests");
    let names = ["first", "second"];
    for name in names {
        let checks = "import linecache, time\n\nassert \"rehearsal.py\" not in linecache.cache\n";
        scenario.write(&format!("kernels/{name}.py"), format!("{checks}{text}\n\ntime.sleep(4)\n"));
    }
    let kernels = scenario.path().join("kernels");
    scenario.write("plan.toml", plan_of(&kernels, &python, STAGES, &names, ENTRY));
    let arguments = ["run", "plan.toml"];
    let mut command = scenario.command(&arguments);
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let supervisor = child.id();
    let found = holds_within(TIMEOUT, || {
        let all: Vec<Process> = processes::pids().filter_map(processes::read_process).collect();
        all.iter().filter(|worker| worker.parent == supervisor).any(|worker| {
            let children: Vec<Process> = all.iter().filter(|it| it.parent == worker.pid).cloned().collect();
            find(&children)
        })
    });
    let outcome = scenario.finish(child, &arguments);
    outcome.expect(found, what);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for name in names {
        let it = summary.candidate("softmax", name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
    }
    outcome.expect(summary.policy("no_zygote").is_empty(), "the run has another zygote");
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
}

fn kill(it: &Process) -> bool {
    processes::kill_if(it.pid, || processes::read_process(it.pid).as_ref() == Some(it))
}

fn in_role<'p>(children: &'p [Process], role: &str) -> Vec<&'p Process> {
    children.iter().filter(|it| it.arguments.get(1).is_some_and(|argument| argument == role)).collect()
}

/// Returns the copy that waits for the next kernel. A verifier has two runners only if one of them waits, and the
/// waiting one was started last.
fn waiting_copy(children: &[Process]) -> Option<&Process> {
    let runners = in_role(children, "__runner");
    let both = runners.len() == 2;
    runners.into_iter().max_by_key(|it| started(it.pid)).filter(|_| both)
}

#[test]
fn killed_zygote_is_replaced() {
    expect_pass_while("a zygote was found and killed", |children| {
        in_role(children, "__zygote").first().is_some_and(|it| kill(it))
    });
}

#[test]
fn killed_copy_that_waits_for_the_next_kernel_is_replaced() {
    expect_pass_while("a waiting copy was found and killed", |children| {
        waiting_copy(children).is_some_and(kill)
    });
}

#[test]
fn copy_that_was_made_ahead_runs_the_next_kernel() {
    let mut waited = None;
    expect_pass_while("the copy that waited runs beside the next one that waits", |children| {
        let Some(waits) = waiting_copy(children) else { return false };
        let former = *waited.get_or_insert(waits.pid);
        former != waits.pid && children.iter().any(|it| it.pid == former)
    });
}

/// Returns when a process started, in clock ticks since boot, or `None` if it has ended.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields after the name begin with field 3, and the start time is field 22.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}
