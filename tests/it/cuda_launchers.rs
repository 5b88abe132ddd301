//! Tests CUDA sources with host code on the emulated device. The tests need nvcc, which they look for in the folder
//! that OPT_TEST_CUDA names, in `target/nvcc` (which `.ci/run` creates), and in `/usr/local/cuda`.

use std::path::PathBuf;

use opt_tests::{Scenario, Summary, data, repository};

use crate::report::browser::skipped;

/// The launchers. Each row has the launcher, its job, its status, and parts of its detail.
pub const LAUNCHERS: [(&str, &str, &str, &[&str]); 30] = [
    ("relu", "right", "PASSED", &[]),
    ("relu", "side_stream", "PASSED", &[]),
    ("relu", "by_the_host", "PASSED", &[]),
    ("relu", "takes_structures", "PASSED", &[]),
    ("relu", "prepares_memory", "PASSED", &[]),
    (
        "relu",
        "writes_past_the_end",
        "OUT_OF_BOUNDS",
        &["directly past the end", "in launch 1", "PTX line", "thread", "output 0"],
    ),
    ("relu", "wrong_result", "INCORRECT_NUMERICAL", &["elements"]),
    ("relu", "writes_an_input", "INPUT_MUTATED", &["in launch 2", "input 0"]),
    ("relu", "copies_into_an_input", "INPUT_MUTATED", &["while memory was being set", "input 0"]),
    ("relu", "never_launches", "UNWRITTEN_OUTPUT", &["elements"]),
    ("relu", "host_reads_the_device", "CRASHED", &["SIGSEGV"]),
    ("relu", "loops_on_the_host", "TIMEOUT", &["2s"]),
    ("relu", "loops_on_the_device", "TIMEOUT", &["2s"]),
    ("relu", "misaligned", "CRASHED", &["misaligned", "PTX line"]),
    ("relu", "too_many_threads", "RUNTIME_ERROR", &["refused the request in launch 1", "2048"]),
    ("relu", "uses_a_graph", "UNSUPPORTED", &["cudaGraphCreate"]),
    ("relu", "captures_a_stream", "UNSUPPORTED", &["cudaStreamBeginCapture"]),
    ("relu", "launches_a_cluster", "UNSUPPORTED", &["does not support clusters"]),
    ("relu", "launches_cooperatively", "UNSUPPORTED", &["does not support cooperative launches"]),
    ("relu", "uses_the_runtime", "PASSED", &[]),
    ("relu", "takes_much_shared_memory", "PASSED", &[]),
    ("relu", "relu_in_a_pipeline", "PASSED", &[]),
    ("relu", "does_not_ask_for_shared_memory", "RUNTIME_ERROR", &["65536", "cudaFuncSetAttribute"]),
    ("relu", "forges_success", "UNWRITTEN_OUTPUT", &["elements"]),
    ("relu", "does_not_compile", "COMPILE_ERROR", &["nvcc exited with code 2"]),
    ("softmax", "forgets_a_barrier", "NONDETERMINISTIC", &["race", "PTX line"]),
    ("softmax", "softmax", "PASSED", &[]),
    ("softmax", "softmax_in_two_launches", "PASSED", &[]),
    ("matmul", "matmul", "PASSED", &[]),
    ("matmul", "matmul_on_tensor_cores", "PASSED", &[]),
];

/// The launcher whose kernel never ends. Plans for a simulated card leave it out, because its launches return only when
/// their kernels have ended.
pub const ENDLESS: &str = "loops_on_the_device";

/// The blame that goes with a status of a launcher.
pub fn blame_for(status: &str) -> Option<&'static str> {
    match status {
        "PASSED" => None,
        "UNSUPPORTED" => Some("host"),
        _ => Some("candidate"),
    }
}

/// The option for PTX alone. By default, builds for a card make machine code too, which a simulated card cannot run.
pub const PTX_ONLY: &str = "-gencode=arch=compute_80,code=compute_80";

/// Returns the folder of a CUDA toolkit, in the form that `[build] toolchain` accepts. If there is no nvcc, prints a
/// message and returns `None`.
pub fn toolkit() -> Option<PathBuf> {
    let named = std::env::var_os("OPT_TEST_CUDA").map(PathBuf::from);
    let installed = || Some(repository().join("target/nvcc")).filter(|folder| folder.is_dir());
    let usual = || Some(PathBuf::from("/usr/local/cuda")).filter(|folder| folder.join("bin/nvcc").is_file());
    let found = named.or_else(installed).or_else(usual);
    if found.is_none() {
        skipped(
            "CUDA with host code was not tried: there is no nvcc (python3 -m venv target/nvcc && target/nvcc/bin/pip \
             install nvidia-cuda-nvcc nvidia-cuda-cccl, or set OPT_TEST_CUDA)",
        );
    }
    found
}

pub fn plan(toolkit: &std::path::Path, device: &str) -> String {
    let mut plan = format!(
        "[run]\ndevice = \"{device}\"\n[build]\nextra_flags = [\"{PTX_ONLY}\"]\ntoolchain = [{toolkit:?}]\ntimeout = \"600s\"\n\
         [verify]\nstop_after = 1\ncall_timeout = \"60s\"\n"
    );
    let jobs = [
        ("relu", "torch_nn_functional_relu"),
        ("softmax", "torch_nn_functional_softmax"),
        ("matmul", "torch_matmul"),
    ];
    for (job, captures) in jobs {
        let captures = data("captures").join(captures);
        plan +=
            &format!("[[job]]\nname = {job:?}\ncaptures = {captures:?}\nentries = [\"entry_000000.pt\"]\n");
        let is_listed = |name: &str| device == "emulated" || name != ENDLESS;
        for (_, name, ..) in LAUNCHERS.iter().filter(|(of, name, ..)| *of == job && is_listed(name)) {
            let source = data("kernels/cuda").join(format!("{name}.cu"));
            let limit = if name.starts_with("loops") { "verify = { call_timeout = \"2s\" }\n" } else { "" };
            plan += &format!("[[job.candidate]]\nname = {name:?}\nsources = [{source:?}]\n{limit}");
        }
    }
    plan
}

#[test]
fn every_host_launcher_ends_as_expected() {
    let Some(toolkit) = toolkit() else { return };
    let scenario = Scenario::with_plan(&plan(&toolkit, "emulated"));
    let outcome = scenario.run(&["run", "plan.toml"]).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (job, name, status, parts) in LAUNCHERS {
        let it = summary.candidate(job, name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}"));
        for part in parts {
            outcome.expect(
                detail.contains(part),
                format_args!("the detail of {name} contains {part:?}: {detail:?}"),
            );
        }
        outcome.expect_equal(it["blame"].as_str(), blame_for(status), format_args!("the blame of {name}"));
        outcome.expect_equal(it["tier"].as_str(), Some("C"), format_args!("{name}'s tier"));
        outcome.expect(it["profile"].is_null(), format_args!("{name} is not timed"));
        outcome.expect_equal(
            it["not_timed_because"].is_string(),
            status == "PASSED",
            format_args!("{name} has a reason for not being timed, if it passed"),
        );
    }
    outcome.expect_stdout(&["nothing was timed"]);
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
}

#[test]
fn host_launchers_are_refused_where_they_cannot_run() {
    let folder = Scenario::create();
    let source = data("kernels/cuda/right.cu");
    let captures = data("captures/torch_nn_functional_relu");
    let plan =
        format!("[run]\ndevice = \"cpu\"\n[[job]]\ncaptures = {captures:?}\ncandidates = [{source:?}]\n");
    let plan = folder.write("plan.toml", plan).display().to_string();
    let outcome = folder.run(&["check", &plan]).expect_exit(2);
    outcome.expect_stderr(&["`cuda` does not run on the CPU"]);
}
