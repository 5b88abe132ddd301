//! Tests captures of calls that change their arguments. Each call of a kernel gets a writable copy that has the value
//! before the call, and the value after the call is judged like an output. The kernels are in C, in Python, in a
//! PyTorch extension, and on the emulated device.

use std::path::Path;

use opt_tests::{Scenario, Summary, data};

use crate::python_kernels::interpreter;

/// Kernels for `batch_norm` in C, each with its status and a part of its detail.
const IN_C: [(&str, &str, &str); 8] = [
    ("right", "PASSED", ""),
    ("plans", "PASSED", ""),
    ("leaves_it_unchanged", "INCORRECT_NUMERICAL", "at running_mean[0]"),
    ("updates_twice", "INCORRECT_NUMERICAL", "at running_mean[0]"),
    ("updates_once", "NONDETERMINISTIC", "right at first"),
    ("writes_past_the_end", "OUT_OF_BOUNDS", "`running_mean`"),
    ("changes_the_weight", "INPUT_MUTATED", "stored into the input `weight`"),
    ("changes_it_in_its_plan", "INPUT_MUTATED", "stored into the input `running_mean`"),
];

/// Kernels in other languages. Each row has the job, the file, the language, the status and a part of the detail.
const WITH_TORCH: [(&str, &str, &str, &str, &str); 7] = [
    ("batch_norm", "right.py", "python", "PASSED", ""),
    ("batch_norm", "unchanged.py", "python", "INCORRECT_NUMERICAL", "at running_mean[0]"),
    ("batch_norm", "right.cpp", "torch-extension", "PASSED", ""),
    (
        "batch_norm",
        "changes_the_bias.cpp",
        "torch-extension",
        "INPUT_MUTATED",
        "stored into the input `bias`",
    ),
    ("add_", "add.py", "python", "PASSED", ""),
    ("add_", "returns_the_sum.py", "python", "INCORRECT_NUMERICAL", "at input[0"),
    ("add_", "add.cpp", "torch-extension", "PASSED", ""),
];

fn head(stages: &str, python: Option<&Path>) -> String {
    let python = python.map_or(String::new(), |path| format!("python = {path:?}\n"));
    format!(
        "[run]\nstages = {stages}\n[build]\nflags = [\"-O1\"]\nlink_flags = [\"-lm\"]\n{python}[limits]\nthreads = 1\n\
         [profile]\nentry_timeout = \"500ms\"\n"
    )
}

fn job(name: &str, more: &str) -> String {
    format!("[[job]]\nname = {name:?}\ncaptures = {:?}\n{more}", data("changed").join(name))
}

fn candidate(name: &str, language: &str, file: &str) -> String {
    let source = data("kernels/changed").join(file);
    format!("[[job.candidate]]\nname = {name:?}\nlanguage = {language:?}\nsources = [{source:?}]\n")
}

#[test]
fn changed_argument_is_judged_like_an_output() {
    let candidates: String =
        IN_C.iter().map(|(name, ..)| candidate(name, "c", &format!("{name}.c"))).collect();
    let stages = "[\"build\", \"verify\"]";
    let plan =
        head(stages, None) + &job("batch_norm", &candidates) + &job("add_", &candidate("add", "c", "add.c"));
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let expected = IN_C.iter().map(|&(name, status, says)| ("batch_norm", name, status, says));
    for (job, name, status, says) in expected.chain([("add_", "add", "PASSED", "")]) {
        let it = summary.candidate(job, name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}"));
        outcome.expect(
            detail.contains(says),
            format_args!("the detail of {name} contains {says:?}: {detail:?}"),
        );
    }
}

/// If a timed call began with the values that the previous call left, the running statistics would drift, and `input`
/// would grow.
#[test]
fn every_timed_call_starts_with_the_value_before_the_call() {
    let names = ["right", "plans", "stops_updating"];
    let kernels: String = names.iter().map(|name| candidate(name, "c", &format!("{name}.c"))).collect();
    let jobs = job("batch_norm", &format!("baseline = \"right\"\n{kernels}"))
        + &job("add_", &candidate("add", "c", "add.c"));
    let scenario = Scenario::with_plan(&(head("[\"build\", \"verify\", \"profile\"]", None) + &jobs));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for (job, name) in [("batch_norm", "right"), ("batch_norm", "plans"), ("add_", "add")] {
        let it = summary.candidate(job, name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
        let timed = it["profile"]["median_time_ms"].as_f64().is_some_and(|it| 0.0 < it);
        outcome.expect(timed, format_args!("{name} is timed: {}", it["profile"]));
    }
    let it = summary.candidate("batch_norm", "stops_updating");
    let what = format_args!("stops_updating: {}", it["detail"]);
    outcome.expect_equal(it["status"].as_str(), Some("NONDETERMINISTIC"), what);
}

/// Because the other input is constant, only new values of the changed argument can show that a kernel remembers its
/// results.
#[test]
fn argument_that_the_call_changes_has_its_own_value_in_every_timed_call() {
    let kernels = candidate("add", "c", "add.c") + &candidate("remembers", "c", "remembers.c");
    let more = format!("constant = [\"other\"]\nbaseline = \"add\"\n{kernels}");
    let scenario =
        Scenario::with_plan(&(head("[\"build\", \"verify\", \"profile\"]", None) + &job("add_", &more)));
    let (outcome, summary) = scenario.run_plan(1, &[]);
    let honest = summary.candidate("add_", "add");
    outcome.expect_equal(
        honest["status"].as_str(),
        Some("PASSED"),
        format_args!("add: {}", honest["detail"]),
    );
    outcome.expect_equal(
        &honest["profile"]["entries"][0]["varied"],
        &serde_json::json!(["input"]),
        "what varied",
    );
    let it = summary.candidate("add_", "remembers");
    let what = format_args!("remembers: {}", it["detail"]);
    outcome.expect_equal(it["status"].as_str(), Some("NONDETERMINISTIC"), what);
}

/// The change is smaller than the tolerance, so comparing values would not show that the change is missing.
#[test]
fn kernel_that_leaves_a_small_change_undone_does_not_pass() {
    let expected = [
        ("add", "PASSED"),
        ("does_nothing", "INCORRECT_NUMERICAL"),
        ("adds_to_one_in_eight", "INCORRECT_NUMERICAL"),
    ];
    let kernels: String =
        expected.iter().map(|(name, _)| candidate(name, "c", &format!("{name}.c"))).collect();
    let plan = head("[\"build\", \"verify\"]", None) + &job("small", &kernels);
    let (outcome, summary) = Scenario::with_plan(&plan).run_plan(0, &[]);
    for (name, status) in expected {
        let it = summary.candidate("small", name);
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {}", it["detail"]));
    }
}

/// The change is hardly larger than the rounding error. Timed calls are compared with twice the tolerance, so the norm
/// of the error does not show that most of the change was left out.
#[test]
fn timed_calls_make_a_change_of_the_size_of_rounding() {
    let expected = [
        ("scales", "scales.c", "-DGOES_ON", "PASSED", ""),
        (
            "does_nothing",
            "does_nothing.c",
            "-DGOES_ON",
            "INCORRECT_NUMERICAL",
            "relative L2 error over the tensor",
        ),
        (
            "stops",
            "scales.c",
            "-DSTOPS",
            "NONDETERMINISTIC",
            "each element of `input` is within its tolerance",
        ),
    ];
    let kernels: String = expected
        .iter()
        .map(|(name, file, flag, ..)| {
            candidate(name, "c", file) + &format!("build = {{ extra_flags = [{flag:?}] }}\n")
        })
        .collect();
    for vary in ["auto", "none"] {
        let more = format!("baseline = \"scales\"\nprofile = {{ vary = {vary:?} }}\n{kernels}");
        let plan = head("[\"build\", \"verify\", \"profile\"]", None) + &job("tiny", &more);
        let (outcome, summary) = Scenario::with_plan(&plan).run_plan(1, &[]);
        for (name, .., status, detail) in expected {
            let it = summary.candidate("tiny", name);
            let what = format_args!("{name} with vary = {vary}: {}", it["detail"]);
            outcome.expect_equal(it["status"].as_str(), Some(status), what);
            outcome.expect(it["detail"].as_str().unwrap_or_default().contains(detail), what);
        }
        let varied = &summary.candidate("tiny", "scales")["profile"]["entries"][0]["varied"];
        let count = varied.as_array().map(Vec::len);
        outcome.expect_equal(count, Some(usize::from(vary == "auto")), "inputs that vary");
    }
}

/// The order in which a kernel writes does not matter if the indices of a row, or the pairs of indices, stay distinct.
#[test]
fn new_indices_stay_distinct() {
    let backward = "build = { extra_flags = [\"-DBACKWARD\"] }\n";
    let indices =
        [("scatter", "scatters.c", &["index"][..]), ("index_put", "puts.c", &["indices[0]", "indices[1]"])];
    let jobs: String = indices
        .iter()
        .map(|(name, file, _)| {
            let kernels = candidate("forward", "c", file) + &candidate("backward", "c", file) + backward;
            job(name, &format!("baseline = \"forward\"\n{kernels}"))
        })
        .collect();
    let scenario = Scenario::with_plan(&(head("[\"build\", \"verify\", \"profile\"]", None) + &jobs));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for (job, _, indices) in indices {
        for name in ["forward", "backward"] {
            let it = summary.candidate(job, name);
            let what = format_args!("{job} {name}: {}", it["detail"]);
            outcome.expect_equal(it["status"].as_str(), Some("PASSED"), what);
            let varied = it["profile"]["entries"][0]["varied"].as_array();
            let has = |index| varied.is_some_and(|names| names.iter().any(|it| it == index));
            outcome.expect(indices.iter().all(|&it| has(it)), format_args!("{job} {name} vary: {varied:?}"));
        }
    }
}

/// On a device, too, a kernel gets a copy with the value before the call. The copy has its own guard bands.
#[test]
fn kernel_on_a_device_changes_an_argument_in_place() {
    let expected = [("add", "PASSED"), ("add_past", "OUT_OF_BOUNDS"), ("change_other", "INPUT_MUTATED")];
    let source = data("kernels/changed/add.ptx");
    let kernels: String = expected
        .iter()
        .map(|(name, _)| {
            format!(
                "[[job.candidate]]\nname = {name:?}\nsources = [{source:?}]\n[[job.candidate.launch]]\n\
                 symbol = {name:?}\ngrid = \"ceil_div(input.numel + 1, 128)\"\nblock = 128\n\
                 args = [\"input\", \"other\", \"input.shape[0]\", \"input.shape[1]\", \"input.stride[0]\", \"alpha:f32\"]\n"
            )
        })
        .collect();
    let scenario = Scenario::with_plan(&format!("[run]\ndevice = \"emulated\"\n{}", job("add_", &kernels)));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for (name, status) in expected {
        let it = summary.candidate("add_", name);
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {}", it["detail"]));
    }
}

#[test]
fn check_names_the_arguments_that_a_call_changes() {
    let plan =
        head("[\"build\", \"verify\"]", None) + &job("batch_norm", &candidate("right", "c", "right.c"));
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["check", "plan.toml", "--signature"]).expect_exit(0);
    outcome.expect_stdout(&["running_mean tensor float32 1-D, to be changed in place"]);
    let outcome = scenario.run(&["check", "plan.toml"]).expect_exit(0);
    outcome.expect(!outcome.stdout.contains("in-place-damage"), "the capture has both values");
}

#[test]
fn kernels_with_torch_change_arguments_in_place() {
    let Some(python) = interpreter() else { return };
    let of_job = |wanted: &str| {
        let its = WITH_TORCH.iter().filter(|(job, ..)| *job == wanted);
        job(wanted, &its.map(|(_, file, language, ..)| candidate(file, language, file)).collect::<String>())
    };
    let plan = head("[\"build\", \"verify\"]", Some(&python)) + &of_job("batch_norm") + &of_job("add_");
    let scenario = Scenario::with_plan(&plan);
    let outcome = scenario.run(&["run", "plan.toml"]);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    for (job, name, _, status, says) in WITH_TORCH {
        let it = summary.candidate(job, name);
        let detail = it["detail"].as_str().unwrap_or_default();
        outcome.expect_equal(it["status"].as_str(), Some(status), format_args!("{name}: {detail}"));
        outcome.expect(
            detail.contains(says),
            format_args!("the detail of {name} contains {says:?}: {detail:?}"),
        );
    }
}

/// The recorded function is the baseline. It changes its arguments itself.
#[test]
fn recorded_function_is_a_baseline_that_changes_its_arguments() {
    let Some(python) = interpreter() else { return };
    let jobs = job("batch_norm", &format!("baseline = \"torch\"\n{}", candidate("right", "c", "right.c")))
        + &job("add_", &format!("baseline = \"torch\"\n{}", candidate("add", "c", "add.c")));
    let plan = head("[\"build\", \"verify\", \"profile\"]", Some(&python)) + &jobs;
    let scenario = Scenario::with_plan(&plan);
    let (outcome, summary) = scenario.run_plan(0, &[]);
    for (job, name) in [("batch_norm", "torch"), ("batch_norm", "right"), ("add_", "torch"), ("add_", "add")]
    {
        let it = summary.candidate(job, name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), format_args!("{name}: {}", it["detail"]));
        let timed = it["profile"]["median_time_ms"].as_f64().is_some_and(|it| 0.0 < it);
        outcome.expect(timed, format_args!("{job}/{name} is timed: {}", it["profile"]));
    }
}
