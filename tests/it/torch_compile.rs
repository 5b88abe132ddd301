//! Tests the recorded function, compiled by PyTorch, as a baseline. The tests need an interpreter with torch.

use std::process::Command;

use opt_tests::{Outcome, Scenario, Summary, data, repository};

use crate::python_kernels::interpreter;

fn head(stages: &str, more: &str) -> Option<String> {
    let python = interpreter()?;
    Some(format!(
        "[run]\nstages = {stages}\n[limits]\nthreads = 1\n[profile]\nentry_timeout = \"500ms\"\n[build]\npython = {python:?}\n{more}"
    ))
}

fn job(name: &str, captures: &str, more: &str) -> String {
    format!("[[job]]\nname = {name:?}\ncaptures = {:?}\nbaseline = \"torch.compile\"\n{more}", data(captures))
}

/// Runs the plan. Returns the outcome, and the reason why the job's compiled function cannot be built.
fn compile_error(scenario: &Scenario, job: &str) -> (Outcome, String) {
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let it = summary.candidate(job, "torch.compile");
    outcome.expect_equal(it["status"].as_str(), Some("COMPILE_ERROR"), "the status");
    let detail = it["detail"].as_str().unwrap_or_default().to_owned();
    (outcome, detail)
}

/// Compiled calls are timed beside the function itself and a kernel in C. Calls that change an argument are compiled
/// too.
#[test]
fn compiled_function_is_a_baseline() {
    let naive = repository().join("configs/demo/softmax/naive.c");
    let candidates = format!(
        "entries = [\"entry_000001.pt\"]\n[[job.candidate]]\nlanguage = \"torch\"\n[[job.candidate]]\nsources = [{naive:?}]\n"
    );
    let Some(head) = head("[\"build\", \"verify\", \"profile\"]", "") else { return };
    let plan = head
        + &job("softmax", "demo/torch_nn_functional_softmax", &candidates)
        + &job("add_", "changed/add_", "");
    let scenario = Scenario::with_plan(&plan);
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for (job, name) in
        [("softmax", "torch.compile"), ("softmax", "torch"), ("softmax", "naive"), ("add_", "torch.compile")]
    {
        let it = summary.candidate(job, name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
        let timed = it["profile"]["median_time_ms"].as_f64().is_some_and(|it| 0.0 < it);
        outcome.expect(timed, format_args!("{job}/{name} is timed: {}", it["profile"]));
    }
    let compiled = summary.candidate("softmax", "torch.compile");
    outcome.expect_equal(compiled["verify"]["output"].as_str(), Some("returned"), "the output");
    let compiler = compiled["build"]["compiler"].as_str().unwrap_or_default();
    outcome.expect(compiler.contains("with torch") && compiler.ends_with(", compiled"), compiler);
    scenario.run(&["repro", "runs/plan", "softmax/torch.compile", "--entry", "entry_000001"]).expect_exit(0);
}

#[test]
fn compiled_function_needs_a_working_compiler() {
    let Some(head) = head("[\"build\"]", "cxx = \"/bin/false\"\n") else { return };
    let scenario = Scenario::with_plan(&(head + &job("relu", "captures/torch_nn_functional_relu", "")));
    let (outcome, detail) = compile_error(&scenario, "relu");
    outcome.expect(detail.contains("No working C++ compiler") && detail.contains("/bin/false"), &detail);
}

/// Calls with tensors in a list and by name, with a negated view of complex numbers, and a call that is made twice.
const CALLS: &str = "
import sys, torch
def record(job, number, name, *args, **kwargs):
    function = eval(name)
    capture = {'function_name': name, 'args': list(args), 'kwargs': kwargs, 'output': function(*args, **kwargs)}
    torch.save(capture, f'{sys.argv[1]}/{job}/entry_{number:06}.pt')
a, b = torch.randn(3, 8), torch.randn(5, 8)
record('cat', 1, 'torch.cat', [a, b], dim=0)
record('cat', 2, 'torch.cat', [b, a], dim=0)
record('cat', 3, 'torch.cat', [a + 1, b], dim=0)
lazy = torch.randn(6, 4, dtype=torch.complex64).conj().imag
assert lazy.is_neg() and lazy.stride() == (8, 2)
record('addcmul', 1, 'torch.addcmul', lazy, tensor1=torch.randn(6, 4), tensor2=torch.randn(1, 4), value=0.5)
";

#[test]
fn compiled_calls_get_their_own_arguments() {
    let Some(head) = head("[\"build\", \"verify\"]", "") else { return };
    let head = head.replace("threads = 1", "threads = 2");
    let jobs = ["cat", "addcmul"];
    let captures = jobs
        .map(|name| format!("[[job]]\nname = {name:?}\ncaptures = {name:?}\nbaseline = \"torch.compile\"\n"));
    let scenario = Scenario::with_plan(&(head + &captures.concat()));
    for name in jobs {
        std::fs::create_dir(scenario.path().join(name)).expect("ours");
    }
    let python = interpreter().expect("found before");
    let made = Command::new(python).args(["-c", CALLS]).arg(scenario.path()).status().expect("python starts");
    assert!(made.success());
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for name in jobs {
        let it = summary.candidate(name, "torch.compile");
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
    }
}

/// PyTorch cannot compile the product of complex matrices.
#[test]
fn operation_without_a_compiled_form_is_named() {
    let Some(head) = head("[\"build\"]", "") else { return };
    let captures = job("matmul", "captures/torch_matmul", "entries = [\"entry_000007.pt\"]\n");
    let scenario = Scenario::with_plan(&(head + &captures));
    let (outcome, detail) = compile_error(&scenario, "matmul");
    outcome.expect(detail.contains("there is no compiled form of aten::"), &detail);
}

#[test]
fn too_many_different_calls_are_refused() {
    let Some(head) = head("[\"build\"]", "") else { return };
    let scenario = Scenario::with_plan(
        &(head + "[[job]]\nname = \"relu\"\ncaptures = \"captures\"\nbaseline = \"torch.compile\"\n"),
    );
    let folder = scenario.path().join("captures");
    std::fs::create_dir(&folder).expect("ours");
    let record = "import sys, torch\nfor size in range(1, 34):\n    x = torch.ones(size)\n    torch.save({'function_name': 'torch.relu', \
                  'args': [x], 'kwargs': {}, 'output': x}, f'{sys.argv[1]}/entry_{size:06}.pt')";
    let python = interpreter().expect("found before");
    let made = Command::new(python).args(["-c", record]).arg(&folder).status().expect("python starts");
    assert!(made.success());
    let (outcome, detail) = compile_error(&scenario, "relu");
    outcome.expect(detail.contains("more than 32 different calls, and no more can be compiled"), &detail);
}
