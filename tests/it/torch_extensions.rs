//! Tests C++ kernels that use PyTorch's tensors, in the style of torch's own extensions. The tests that run kernels
//! need an interpreter with torch, and torch's headers.

use opt_tests::{Scenario, Summary, data, repository};

use crate::cuda_launchers::toolkit;
use crate::python_kernels::interpreter;

/// The kernels, each with its status and a part of its detail.
const KERNELS: [(&str, &str, &str); 6] = [
    ("returns", "PASSED", ""),
    ("writes", "PASSED", ""),
    ("raises", "RUNTIME_ERROR", "only tensors of seven dimensions, got 4"),
    ("wrong_shape", "INCORRECT_SHAPE", "output 0 that it returned has the shape"),
    (
        "takes_too_few",
        "LOAD_ERROR",
        "`launch` has 2 parameters; it must take the 4 arguments of the captures, or 5",
    ),
    ("has_another_name", "COMPILE_ERROR", "the function that `symbol` names"),
];

fn plan(stages: &str, candidates: &str) -> Option<String> {
    let python = interpreter()?;
    Some(format!(
        "[run]\nstages = {stages}\n[build]\npython = {python:?}\nflags = [\"-O1\"]\n[limits]\nthreads = 1\n\
         [[job]]\nname = \"softmax\"\ncaptures = {captures:?}\nentries = [\"entry_000001.pt\"]\n{candidates}",
        captures = data("demo/torch_nn_functional_softmax"),
    ))
}

fn candidate(name: &str) -> String {
    let source = data("kernels/torch_extension").join(format!("{name}.cpp"));
    format!("[[job.candidate]]\nname = {name:?}\nlanguage = \"torch-extension\"\nsources = [{source:?}]\n")
}

#[test]
fn every_torch_extension_ends_as_expected() {
    let candidates: String = KERNELS.iter().map(|(name, ..)| candidate(name)).collect();
    let Some(plan) = plan("[\"build\", \"verify\"]", &candidates) else { return };
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (name, status, says) in KERNELS {
        let it = summary.candidate("softmax", name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}"));
        let blame = (status != "PASSED").then_some("candidate");
        outcome.expect_equal(it["blame"].as_str(), blame, format_args!("the blame for {name}"));
        outcome.expect(
            detail.contains(says),
            format_args!("the detail of {name} contains {says:?}: {detail:?}"),
        );
    }
    for (name, output) in [("returns", "returned"), ("writes", "written")] {
        let it = summary.candidate("softmax", name);
        outcome.expect_equal(it["verify"]["output"].as_str(), Some(output), name);
    }
}

/// A library that uses libtorch is timed like any other. It is compared with the recorded function, which runs in
/// Python.
#[test]
fn torch_extension_is_timed_beside_torch() {
    let candidates =
        format!("baseline = \"torch\"\nprofile = {{ entry_timeout = \"500ms\" }}\n{}", candidate("writes"));
    let Some(plan) = plan("[\"build\", \"verify\", \"profile\"]", &candidates) else { return };
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for name in ["torch", "writes"] {
        let it = summary.candidate("softmax", name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
        let timed = it["profile"]["median_time_ms"].as_f64().is_some_and(|it| 0.0 < it);
        outcome.expect(timed, format_args!("{name} is timed: {}", it["profile"]));
    }
}

/// The example plan has one op in several languages. Only the kernel whose comment names a mistake may fail.
#[test]
fn example_of_several_languages_has_its_verdicts() {
    let Some(python) = interpreter() else { return };
    let scenario = Scenario::create();
    let plan = repository().join("configs/languages.toml");
    let python = format!("build.python={python:?}");
    let stages = "run.stages=[\"build\", \"verify\"]";
    let plan = plan.to_str().expect("UTF-8");
    let mut arguments = vec!["run", plan, "--dir", "run", "--set", &python, "--set", stages];
    let mut passing =
        vec![("torch", "returned"), ("c", "written"), ("torch-extension", "written"), ("python", "returned")];
    if crate::triton::interpreter().is_some() {
        passing.push(("triton", "returned"));
    } else {
        let others = ["softmax/c", "softmax/torch-extension", "softmax/python", "softmax/python-wrong"];
        arguments.extend(others.iter().flat_map(|name| ["--only", name]));
    }
    let outcome = scenario.run(&arguments);
    let summary = Summary::read(&scenario.path().join("run"), &outcome);
    for (name, output) in passing {
        let it = summary.candidate("softmax", name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
        outcome.expect_equal(it["verify"]["output"].as_str(), Some(output), name);
    }
    let wrong = summary.candidate("softmax", "python-wrong");
    outcome.expect_equal(wrong["status"].as_str(), Some("INCORRECT_NUMERICAL"), "the wrong kernel");
    outcome.expect_equal(wrong["blame"].as_str(), Some("candidate"), "the blame for the wrong kernel");
}

#[test]
fn cuda_source_of_a_torch_extension_is_refused_by_the_plan() {
    let scenario = Scenario::create();
    scenario.write("k.cu", "");
    let captures = data("demo/torch_nn_functional_softmax");
    scenario.write(
        "plan.toml",
        format!(
            "[[job]]\ncaptures = {captures:?}\n[[job.candidate]]\nlanguage = \"torch-extension\"\nsources = [\"k.cu\"]\n"
        ),
    );
    scenario
        .run(&["check", "plan.toml"])
        .expect_exit(2)
        .expect_stderr(&["a torch-extension is C++ for the CPU (write `language = \"torch-cuda\"`"]);
}

/// The launcher is written for `load_inline`. Its kernel runs on the emulated device, and the PyTorch functions that it
/// calls on its tensors run on the host.
#[test]
fn cuda_launchers_with_torch_run_on_the_emulated_device() {
    let (Some(python), Some(toolkit)) = (interpreter(), toolkit()) else { return };
    let expected = [("relu", "PASSED", ""), ("adds_to_its_input", "INPUT_MUTATED", "the buffer is input 0")];
    let captures = data("captures/torch_nn_functional_relu");
    let mut plan = format!(
        "[run]\ndevice = \"emulated\"\n[build]\npython = {python:?}\ntoolchain = [{toolkit:?}]\n[verify]\ncall_timeout = \"60s\"\n\
         [[job]]\nname = \"relu\"\ncaptures = {captures:?}\nentries = [\"entry_000000.pt\"]\n"
    );
    for (name, ..) in expected {
        let source = data("kernels/torch_cuda").join(format!("{name}.cu"));
        plan += &format!(
            "[[job.candidate]]\nname = {name:?}\nlanguage = \"torch-cuda\"\nsources = [{source:?}]\n"
        );
    }
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (name, status, says) in expected {
        let it = summary.candidate("relu", name);
        let detail = it["detail"].as_str().unwrap_or_default();
        let log = &it["build"]["log_head"];
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}: {log}"));
        outcome.expect(detail.contains(says), format_args!("{name}: {detail:?} contains {says:?}"));
        outcome.expect_equal(it["tier"].as_str(), Some("C"), format_args!("{name}'s tier"));
    }
}
