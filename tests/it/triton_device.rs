//! Tests Triton kernels on the emulated device. The repository contains the PTX that Triton compiled from them, so
//! running this PTX needs no Triton. The tests that compile the sources need a Python interpreter with torch and
//! Triton.

use std::path::Path;

use opt_tests::processes::{kill_if, pids};
use opt_tests::summary::list;
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, data};
use serde_json::Value;

use crate::control::client::LiveRun;
use crate::triton::interpreter;

/// A kernel that is called with one entry. It has the launch, the status and parts of the detail.
struct Kernel {
    name: &'static str,
    file: &'static str,
    captures: &'static str,
    entry: &'static str,
    launch: &'static str,
    status: &'static str,
    says: &'static [&'static str],
}

const RELU: &str = "torch_nn_functional_relu";
const SOFTMAX: &str = "torch_nn_functional_softmax";
const FIRST: &str = "entry_000000";
const BY_128: &str =
    r#"grid = "ceil_div(out.numel, 128)", block = 128, args = ["input", "out", "out.numel:i32"]"#;
const BY_256: &str =
    r#"grid = "ceil_div(out.numel, 256)", block = 128, args = ["arg0", "out", "out.numel:i32"]"#;
const BY_ROW: &str =
    r#"grid = "out.numel / out.shape[-1]", block = 32, args = ["input", "out", "out.shape[-1]:i32"]"#;

const fn right(
    name: &'static str,
    captures: &'static str,
    entry: &'static str,
    launch: &'static str,
) -> Kernel {
    Kernel { name, file: "kernels", captures, entry, launch, status: "PASSED", says: &[] }
}

const fn wrong(
    name: &'static str,
    captures: &'static str,
    launch: &'static str,
    status: &'static str,
    says: &'static [&'static str],
) -> Kernel {
    Kernel { name, file: "mistakes", captures, entry: FIRST, launch, status, says }
}

const KERNELS: [Kernel; 13] = [
    right("relu", RELU, FIRST, BY_128),
    right("softmax", SOFTMAX, FIRST, BY_ROW),
    right(
        "layer_norm",
        "torch_nn_functional_layer_norm",
        FIRST,
        r#"grid = "out.numel / out.shape[-1]", block = 64, args = ["input", "weight", "bias", "out", "out.shape[-1]:i32", "eps:f32"]"#,
    ),
    right("gelu", "torch_nn_functional_gelu", FIRST, BY_256),
    right("gelu_tanh", "torch_nn_functional_gelu", "entry_000001", BY_256),
    right(
        "matmul",
        "torch_matmul",
        FIRST,
        r#"grid = ["ceil_div(out.shape[0], 16)", "ceil_div(out.shape[1], 16)"], block = 64, args = ["arg0", "arg1", "out", "out.shape[0]:i32", "out.shape[1]:i32", "arg0.shape[1]:i32"]"#,
    ),
    right(
        "linear",
        "torch_nn_functional_linear",
        "entry_000001",
        r#"grid = ["ceil_div(out.numel / out.shape[-1], 32)", "ceil_div(out.shape[-1], 32)"], block = 128, args = ["input", "weight", "out", "out.numel / out.shape[-1]:i32", "out.shape[-1]:i32", "weight.shape[1]:i32"]"#,
    ),
    right(
        "embedding",
        "torch_nn_functional_embedding",
        FIRST,
        r#"grid = "input.numel", block = 32, args = ["input", "weight", "out", "weight.shape[1]:i32"]"#,
    ),
    right(
        "attention",
        "torch_nn_functional_scaled_dot_product_attention",
        FIRST,
        r#"grid = ["out.shape[2]", "out.shape[1]"], block = 128, args = ["arg0", "arg1", "arg2", "out", "out.shape[2]:i32", "arg1.shape[2]:i32", "0.125:f32"]"#,
    ),
    wrong("forgets_the_mask", RELU, BY_128, "OUT_OF_BOUNDS", &["output", "PTX line", "mistakes.py"]),
    wrong("forgets_the_maximum_of_the_sum", SOFTMAX, BY_ROW, "INCORRECT_NUMERICAL", &["elements"]),
    wrong("skips_the_last_element", RELU, BY_128, "UNWRITTEN_OUTPUT", &["elements"]),
    wrong("writes_into_its_input", RELU, BY_128, "INPUT_MUTATED", &["input"]),
];

/// A plan with a job for each kernel. `build` contains the keys of `[build]`, and `source` returns the path and the
/// keys of a candidate.
fn plan(build: &str, source: impl Fn(&Kernel) -> String) -> String {
    let mut plan = format!(
        "[run]\ndevice = \"emulated\"\n[build]\n{build}\n[verify]\nstop_after = 1\ncall_timeout = \"60s\"\n"
    );
    for kernel in &KERNELS {
        let captures = data("captures").join(kernel.captures);
        plan += &format!(
            "[[job]]\nname = {name:?}\ncaptures = {captures:?}\nentries = [\"{entry}.pt\"]\n\
             [[job.candidate]]\nname = {name:?}\n{source}\nlaunch = [{{ symbol = {name:?}, {launch} }}]\n",
            name = kernel.name,
            entry = kernel.entry,
            source = source(kernel),
            launch = kernel.launch,
        );
    }
    plan
}

fn expect_verdicts(plan: &str) -> Summary {
    let scenario = Scenario::with_plan(plan);
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for kernel in &KERNELS {
        let name = kernel.name;
        let it = summary.candidate(name, name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(
            it["status"].as_str(),
            Some(kernel.status),
            format_args!("{name}: {detail}: {}", it["build"]["log_head"]),
        );
        for part in kernel.says {
            outcome.expect(detail.contains(part), format_args!("{name}: {detail:?} contains {part:?}"));
        }
        outcome.expect_equal(it["tier"].as_str(), Some("A"), format_args!("{name}'s tier"));
        outcome.expect(it["profile"].is_null(), format_args!("{name} is not timed"));
    }
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    summary
}

#[test]
fn ptx_that_triton_made_ends_as_expected() {
    let folder = data("kernels/triton_device/ptx");
    expect_verdicts(&plan("", |kernel| {
        format!("sources = [{:?}]", folder.join(format!("{}.ptx", kernel.name)))
    }));
}

fn from_source(python: &Path, file: &str) -> (String, String) {
    let source = data("kernels/triton_device").join(format!("{file}.py"));
    (format!("python = {python:?}"), format!("language = \"triton-device\"\nsources = [{source:?}]"))
}

#[test]
fn triton_kernels_are_compiled_for_the_device_and_end_as_expected() {
    let Some(python) = interpreter() else { return };
    let (build, _) = from_source(&python, "kernels");
    let summary = expect_verdicts(&plan(&build, |kernel| from_source(&python, kernel.file).1));
    let compiler = &summary.candidate("relu", "relu")["build"]["compiler"];
    assert!(compiler.to_string().contains("triton"), "the version of Triton is recorded: {compiler}");
}

/// Two kernels of one file are compiled into one module. An annotation gives the type of the workspace. An autotuned
/// kernel gets the constants of the configuration whose number of warps fits the kernel's block.
#[test]
fn triton_kernels_in_two_launches_share_a_workspace() {
    let Some(python) = interpreter() else { return };
    let (build, source) = from_source(&python, "in_two_launches");
    let captures = data("captures").join(SOFTMAX);
    let plan = |block: u32| {
        format!(
            "[run]\ndevice = \"emulated\"\n[build]\n{build}\n[[job]]\nname = \"softmax\"\ncaptures = {captures:?}\n\
             entries = [\"{FIRST}.pt\"]\n[[job.candidate]]\nname = \"two\"\n{source}\n\
             workspace = [{{ name = \"total\", bytes = \"out.numel / out.shape[-1] * 4\" }}]\nlaunch = [\n\
             {{ symbol = \"sums\", grid = \"out.numel / out.shape[-1]\", block = 32, args = [\"input\", \"total\", \"out.shape[-1]:i32\"] }},\n\
             {{ symbol = \"shares\", grid = \"out.numel / out.shape[-1]\", block = {block}, args = [\"input\", \"total\", \"out\", \"out.shape[-1]:i32\"] }},\n]\n"
        )
    };
    // With 40 columns, the constant of the first configuration would leave out elements.
    let expected = [
        (64, "PASSED", ""),
        (32, "UNWRITTEN_OUTPUT", "elements"),
        (128, "COMPILE_ERROR", "no configuration with 4 warps"),
    ];
    for (block, status, says) in expected {
        let scenario = Scenario::with_plan(&plan(block));
        let outcome = scenario.run(&["run", "plan.toml"]);
        let summary = Summary::read(&scenario.run_folder(), &outcome);
        let it = summary.candidate("softmax", "two");
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(
            it["status"].as_str(),
            Some(status),
            format_args!("{block} threads: {detail}: {}", it["build"]["log_head"]),
        );
        outcome.expect(detail.contains(says), format_args!("{detail:?} contains {says:?}"));
    }
}

#[test]
fn triton_kernel_that_does_not_fit_its_launch_is_explained() {
    let Some(python) = interpreter() else { return };
    // Each row has the name, the kernel and the launch of a candidate, and a part of its detail.
    let mistakes: [(&str, &str, &str, &str); 5] = [
        ("constant", "has_no_constant", BY_128, "-DBLOCK="),
        (
            "warps",
            "forgets_the_mask",
            r#"grid = 1, block = 96, args = ["input", "out", "out.numel:i32"]"#,
            "96 threads",
        ),
        (
            "many",
            "forgets_the_mask",
            r#"grid = 1, block = 32, args = ["input", "out", "out.numel:i32", "1:i32"]"#,
            "gives 4",
        ),
        ("few", "forgets_the_mask", r#"grid = 1, block = 32, args = ["input", "out"]"#, "parameter `n`"),
        ("name", "forgets", BY_128, "no kernel `forgets`"),
    ];
    let (build, source) = from_source(&python, "mistakes");
    let captures = data("captures").join(RELU);
    let mut plan = format!(
        "[run]\ndevice = \"emulated\"\n[build]\n{build}\n[[job]]\nname = \"relu\"\ncaptures = {captures:?}\nentries = [\"{FIRST}.pt\"]\n"
    );
    for (name, symbol, launch, _) in mistakes {
        plan += &format!(
            "[[job.candidate]]\nname = {name:?}\n{source}\nlaunch = [{{ symbol = {symbol:?}, {launch} }}]\n"
        );
    }
    plan += &format!(
        "[[job.candidate]]\nname = \"given\"\n{source}\nbuild = {{ extra_flags = [\"-DBLOCK=128\"] }}\n\
         launch = [{{ symbol = \"has_no_constant\", {BY_128} }}]\n"
    );
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (name, _, _, says) in mistakes {
        let it = summary.candidate("relu", name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(
            it["status"].as_str(),
            Some("COMPILE_ERROR"),
            format_args!("{name}: {detail}: {}", it["build"]["log_head"]),
        );
        outcome.expect(detail.contains(says), format_args!("{name}: {detail:?} contains {says:?}"));
    }
    // The kernel was compiled, but its result is wrong, because it copies its input.
    let given = &summary.candidate("relu", "given");
    outcome.expect_equal(given["status"].as_str(), Some("INCORRECT_NUMERICAL"), &given["detail"]);
}

/// A source that the compiler runs. It ends its own process with SIGKILL every time.
const ENDS_ITSELF: &str = "import resource
resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
while True:
    pass
";

/// A build runs the source, so the source may have caused the first SIGKILL. The second SIGKILL proves that it did.
#[test]
fn triton_source_that_ends_two_builds_by_sigkill_is_blamed() {
    let Some(_) = interpreter() else { return };
    let (outcome, candidate) = build_of(ENDS_ITSELF, || {});
    outcome.expect_equal(candidate["status"].as_str(), Some("COMPILE_ERROR"), &candidate["detail"]);
    let attempts: Vec<_> = list(&candidate["attempts"]).iter().map(|it| it["status"].as_str()).collect();
    outcome.expect_equal(attempts, vec![Some("INFRA_ERROR"), Some("COMPILE_ERROR")], "the attempts");
}

#[test]
fn triton_build_that_is_killed_once_is_repeated() {
    let Some(_) = interpreter() else { return };
    let kernels = std::fs::read_to_string(data("kernels/triton_device/kernels.py")).expect("readable");
    let source =
        format!("import time\ntime.sleep(3)\n{kernels}").replace("\"\"\"Correct Triton kernels.\"\"\"", "");
    let (outcome, candidate) = build_of(&source, || {
        let of_the_build = |pid: &u32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains("killed_in_its_build.py")
        };
        until("the build runs", || {
            let Some(pid) = pids().find(of_the_build) else { return false };
            kill_if(pid, || of_the_build(&pid))
        });
    });
    outcome.expect_equal(candidate["status"].as_str(), Some("PASSED"), &candidate["detail"]);
    outcome.expect(1 < list(&candidate["attempts"]).len(), "the build was repeated");
}

/// Builds this source for the emulated device, and calls `during` meanwhile. Returns the outcome and the candidate.
fn build_of(source: &str, during: impl FnOnce()) -> (Outcome, Value) {
    let python = interpreter().expect("the caller has asked");
    let scenario = Scenario::with_plan(&format!(
        "[run]\nstages = [\"build\"]\ndevice = \"emulated\"\n[build]\npython = {python:?}\n[[job]]\nname = \"relu\"\n\
         captures = {:?}\nentries = [\"{FIRST}.pt\"]\n[[job.candidate]]\nname = \"built\"\n\
         language = \"triton-device\"\nsources = [\"killed_in_its_build.py\"]\nlaunch = [{{ symbol = \"relu\", {BY_128} }}]\n",
        data("captures").join(RELU),
    ));
    scenario.write("killed_in_its_build.py", source);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    during();
    let outcome = run.finish_any();
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let candidate = summary.candidate("relu", "built").clone();
    (outcome, candidate)
}
