//! Tests `opt-supervisor import`, which turns projects of other tools into plans whose candidates run. The tests need
//! an interpreter with torch.

use std::path::{Path, PathBuf};

use opt_tests::users::set_mode;
use opt_tests::{Outcome, Scenario, Summary, data};

use crate::python_kernels::interpreter;

/// The problems of `tests/data/kernelbench`, which are of the same kinds as those in levels 1 and 2 of KernelBench. In
/// each problem, `ModelNew` computes the same as `Model` in another way.
const PROBLEMS: [&str; 20] = [
    "01_matmul",
    "02_batched_matmul",
    "03_matmul_transposed",
    "04_relu",
    "05_gelu",
    "06_softmax",
    "07_layer_norm",
    "08_batch_norm",
    "09_rms_norm",
    "10_group_norm",
    "11_max_pool",
    "12_average_pool",
    "13_conv2d",
    "14_argmax",
    "15_cumsum",
    "16_mse_loss",
    "17_cross_entropy",
    "18_gemm_bias_relu",
    "19_conv_bn_relu",
    "20_linear_swish",
];
const VERIFY: &str = "run.stages=[\"build\", \"verify\"]";

fn problem(name: &str) -> PathBuf {
    data("kernelbench").join(format!("{name}.py"))
}

/// Returns a scenario with a separate temporary folder for the importers, and the interpreter to use.
fn prepared() -> Option<(Scenario, PathBuf)> {
    let python = interpreter()?;
    let scenario = Scenario::create();
    std::fs::create_dir(scenario.path().join("tmp")).expect("an empty folder");
    Some((scenario, python))
}

/// Imports a project into the folder `imported`, and checks that no temporary file is left.
fn import(scenario: &Scenario, python: &Path, arguments: &[&str]) -> Outcome {
    let python = python.to_str().expect("a path in UTF-8");
    let all = [&["import"], arguments, &["-o", "imported/plan.toml", "--python", python]].concat();
    let mut command = scenario.command(&all);
    let child = command.env("TMPDIR", scenario.path().join("tmp")).spawn().expect("the program starts");
    let outcome = scenario.finish(child, &all);
    let left = std::fs::read_dir(scenario.path().join("tmp")).expect("a readable folder").count();
    outcome.expect_equal(left, 0, "the temporary folder is removed");
    outcome
}

/// Runs the imported plan and returns its summary.
fn run(scenario: &Scenario, more: &[&str]) -> (Outcome, Summary) {
    let outcome = scenario.run(&[&["run", "imported/plan.toml"], more].concat()).expect_exit(0);
    let summary = Summary::read(&scenario.path().join("imported/runs/plan"), &outcome);
    (outcome, summary)
}

fn expect_passed(outcome: &Outcome, summary: &Summary, job: &str, candidate: &str) {
    let it = summary.candidate(job, candidate);
    outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{job}: {}", it["detail"]));
}

#[test]
fn twenty_kernelbench_problems_are_imported_and_verified_in_one_plan() {
    let Some((scenario, python)) = prepared() else { return };
    let files: Vec<String> = PROBLEMS.iter().map(|name| problem(name).display().to_string()).collect();
    let arguments: Vec<&str> = ["kernelbench"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let imported = import(&scenario, &python, &arguments).expect_exit(0);
    imported.expect_stdout(&["20_linear_swish: ModelNew", "to fill in: imported/kernels/01_matmul.c"]);
    let (outcome, summary) = run(&scenario, &["--set", VERIFY]);
    for job in PROBLEMS {
        expect_passed(&outcome, &summary, job, "Model");
        expect_passed(&outcome, &summary, job, "ModelNew");
        let entries = summary.candidate(job, "ModelNew")["verify"]["entries_passed"].as_u64();
        outcome.expect_equal(entries, Some(3), format_args!("{job}: every call is verified"));
    }
}

/// A `ModelNew` that is in another file is constructed with the values that the problem's `get_init_inputs` returns.
#[test]
fn model_with_weights_is_timed_against_problems_model() {
    let Some((scenario, python)) = prepared() else { return };
    let source = std::fs::read_to_string(problem("20_linear_swish")).expect("a problem");
    let (new, _) = source.split_once("def get_inputs").expect("a function");
    scenario.write("20_linear_swish_faster.py", new);
    let wrong = new.replace("F.silu(F.linear(x, self.linear.weight, self.linear.bias))", "self.linear(x)");
    scenario.write("20_linear_swish_wrong.py", wrong);
    let swapped = new.replace("nn.Linear(inputs, outputs)", "nn.Linear(outputs, inputs)");
    scenario.write("20_linear_swish_swapped.py", swapped);
    let file = problem("20_linear_swish").display().to_string();
    let mut arguments = vec!["kernelbench", &*file, "--calls", "1"];
    for kernel in ["20_linear_swish_faster.py", "20_linear_swish_wrong.py", "20_linear_swish_swapped.py"] {
        arguments.extend(["--kernel", kernel]);
    }
    import(&scenario, &python, &arguments).expect_exit(0);
    let (outcome, summary) = run(&scenario, &["--set", "profile.entry_timeout=\"500ms\""]);
    for candidate in ["Model", "ModelNew", "20_linear_swish_faster"] {
        expect_passed(&outcome, &summary, "20_linear_swish", candidate);
        let it = summary.candidate("20_linear_swish", candidate);
        let timed = it["profile"]["median_time_ms"].as_f64().is_some_and(|it| 0.0 < it);
        outcome.expect(timed, format_args!("{candidate} is timed: {}", it["profile"]));
    }
    for (candidate, status, says) in [
        ("20_linear_swish_wrong", "INCORRECT_NUMERICAL", "elements"),
        (
            "20_linear_swish_swapped",
            "LOAD_ERROR",
            "`linear.weight` of `ModelNew` is torch.float32 of shape [48, 24]",
        ),
    ] {
        let it = summary.candidate("20_linear_swish", candidate);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{candidate}: {detail}"));
        outcome.expect(detail.contains(says), format_args!("{candidate}: {detail:?} contains {says:?}"));
    }
}

/// In training mode, a model changes its running statistics, which are judged like its output.
#[test]
fn running_statistics_of_a_model_in_training_are_judged() {
    let Some((scenario, python)) = prepared() else { return };
    let source = std::fs::read_to_string(problem("08_batch_norm")).expect("a problem");
    let (model, rest) = source.split_once("class ModelNew").expect("two classes");
    let (_, functions) = rest.split_once("def get_inputs").expect("a function");
    let with = |body: &str| format!("{model}class ModelNew(Model):\n{body}\n\n\ndef get_inputs{functions}");
    let forgets = "    def forward(self, x):\n        norm = self.norm\n        \
                   return F.batch_norm(x, None, None, norm.weight, norm.bias, True)";
    let file = scenario.write("norm.py", with("    pass"));
    scenario.write("forgets.py", format!("import torch.nn.functional as F\n{}", with(forgets)));
    let file = file.display().to_string();
    import(&scenario, &python, &["kernelbench", &file, "--training", "--kernel", "forgets.py"])
        .expect_exit(0);
    let (outcome, summary) = run(&scenario, &["--set", "profile.entry_timeout=\"500ms\""]);
    expect_passed(&outcome, &summary, "norm", "Model");
    expect_passed(&outcome, &summary, "norm", "ModelNew");
    let it = summary.candidate("norm", "forgets");
    let detail = it["detail"].as_str().unwrap_or_default();
    outcome.expect(it["status"] != "PASSED", "statistics that were not updated are noticed");
    outcome.expect(detail.contains("self.norm."), format_args!("the detail names them: {detail}"));
}

#[test]
fn kernelforge_project_is_imported_and_verified() {
    let Some((scenario, python)) = prepared() else { return };
    let op = "torch_nn_functional_softmax";
    let captures = format!("project/io/individual_ops/{op}");
    scenario.copy_captures(&data(&format!("demo/{op}")), &captures);
    let kernel = "import torch\n\n\ndef launch(input, dim, *rest):\n    return torch.softmax(input, dim)\n";
    scenario.write(&format!("project/kernels/generated/individual_op_kernels/{op}/kernel.py"), kernel);
    let imported = import(&scenario, &python, &["kernelforge", "project", "--parity"]).expect_exit(0);
    imported
        .expect_stdout(&["torch_nn_functional_softmax: kernel", "opt-supervisor check imported/plan.toml"]);
    let (outcome, summary) = run(&scenario, &["--set", VERIFY]);
    expect_passed(&outcome, &summary, op, "kernel");
    expect_passed(&outcome, &summary, op, "torch");
    // A second import is refused, because the plan already exists.
    import(&scenario, &python, &["kernelforge", "project"]).expect_exit(1).expect_stderr(&["plan.toml"]);
}

#[test]
fn flashinfer_trace_data_set_is_imported_and_verified() {
    let Some((scenario, python)) = prepared() else { return };
    let tensor = serde_json::json!({ "shape": ["n"], "dtype": "float32" });
    let definition = serde_json::json!({
        "name": "twice", "axes": { "n": { "type": "var" } }, "inputs": { "x": tensor }, "outputs": { "y": tensor },
        "reference": "def run(x):\n    return {'y': x * 2}\n",
    });
    let workload = serde_json::json!({
        "definition": "twice", "workload": { "axes": { "n": 7 }, "inputs": { "x": { "type": "random" } } },
    });
    let source = "#include \"opt_candidate.h\"\n\
        OPT_EXPORT int run(void *, const OptAny *args, int32_t, OptAny *) {\n\
        const OptTensor *x = args[0].value.v_tensor, *y = args[1].value.v_tensor;\n\
        for (int64_t at = 0; at < x->shape[0]; at++) ((float *)y->data)[at] = 2 * ((const float *)x->data)[at];\n\
        return OPT_OK;\n}\n";
    let solution = serde_json::json!({
        "name": "twice-cpp", "definition": "twice", "author": "nobody",
        "spec": { "language": "cpp", "target_hardware": ["cpu"], "entry_point": "main.cpp::run" },
        "sources": [{ "path": "main.cpp", "content": source }],
    });
    scenario.write("set/definitions/twice.json", definition.to_string());
    scenario.write("set/workloads/twice.jsonl", workload.to_string());
    scenario.write("set/solutions/twice.json", solution.to_string());
    import(&scenario, &python, &["flashinfer-trace", "set"])
        .expect_exit(0)
        .expect_stdout(&["twice: twice-cpp"]);
    let (outcome, summary) = run(&scenario, &["--set", VERIFY]);
    expect_passed(&outcome, &summary, "twice", "twice-cpp");
    expect_passed(&outcome, &summary, "twice", "reference");
    // Without timing, there is no winner to write.
    let report = ["report", "imported/runs/plan", "--solutions", "winners"];
    scenario.run(&report).expect_exit(2).expect_stderr(&["has no winner"]);
    let named = [&report[..], &["--candidate", "twice/twice-cpp"]].concat();
    scenario.run(&named).expect_exit(0).expect_stdout(&["twice/twice-cpp: winners/twice/twice-cpp.json"]);
    let written = std::fs::read(scenario.path().join("winners/twice/twice-cpp.json")).expect("a solution");
    let written: serde_json::Value = serde_json::from_slice(&written).expect("a document");
    for field in ["name", "definition", "sources"] {
        outcome.expect_equal(&written[field], &solution[field], field);
    }
    for field in ["language", "entry_point"] {
        outcome.expect_equal(&written["spec"][field], &solution["spec"][field], field);
    }
    scenario.run(&named).expect_exit(3).expect_stderr(&["twice-cpp.json exists"]);
    // Sources are not written if they have changed since they were judged.
    scenario.write("imported/kernels/twice/twice-cpp/main.cpp", "int run() { return 0; }");
    let elsewhere =
        ["report", "imported/runs/plan", "--solutions", "other", "--candidate", "twice/twice-cpp"];
    scenario.run(&elsewhere).expect_exit(2).expect_stderr(&["its sources have changed"]);
}

#[test]
fn import_says_what_to_install_if_there_is_no_torch() {
    let scenario = Scenario::create();
    let answer = r#"{"version": [3, 11, 0], "free_threaded": false, "folders": [], "libraries": [], "torch": null,
        "libtorch": {"include": [], "libraries": [], "flags": []}}"#;
    set_mode(&scenario.write("python", format!("#!/bin/sh\necho '{answer}'\n")), 0o755);
    for python in ["./python", "no-such-interpreter"] {
        let outcome = scenario.run(&["import", "kernelforge", "project", "--python", python]).expect_exit(3);
        outcome.expect_stderr(&["importing needs Python with PyTorch", "`pip install torch`", "--python"]);
    }
    assert!(!scenario.path().join("plan.toml").exists(), "nothing is written");
}

#[test]
fn output_of_an_import_must_be_a_plan() {
    let outcome = Scenario::create().run(&["import", "kernelforge", "project", "-o", ".."]).expect_exit(2);
    outcome.expect_stderr(&["names a folder, not a plan"]);
}
