//! Runs the kernels of `tests/data/kernels/naive` on the entries of `tests/data/captures` whose floats are float16,
//! bfloat16, float32 or float64. Every entry must pass.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use opt_tests::{Scenario, Summary, binary, data, repository, summary::list};

/// Each op, with the number of its entries that are selected if `dtypes` names the four float dtypes. Entries with
/// complex or float8 tensors, and entries without any float tensor, are not selected.
const OPS: &[(&str, u64)] = &[
    ("embedding", 6),
    ("linear", 5),
    ("layer_norm", 4),
    ("softmax", 5),
    ("gelu", 4),
    ("relu", 3),
    ("conv2d", 4),
    ("scaled_dot_product_attention", 5),
    ("matmul", 4),
    ("pad", 2),
    ("max_pool2d", 5),
    ("batch_norm", 5),
];

/// For each dtype, the number of entries of each op that are selected if `dtypes` names only that dtype.
const BY_DTYPE: &[(&str, &[(&str, u64)])] = &[
    (
        "float32",
        &[("embedding", 3), ("linear", 2), ("relu", 2), ("gelu", 2), ("scaled_dot_product_attention", 3)],
    ),
    ("float64", &[("embedding", 1), ("linear", 1), ("gelu", 1), ("matmul", 1), ("batch_norm", 1)]),
    ("float16", &[("embedding", 1), ("linear", 1), ("relu", 1), ("softmax", 1), ("max_pool2d", 1)]),
    ("bfloat16", &[("embedding", 1), ("linear", 1), ("layer_norm", 1), ("conv2d", 1), ("max_pool2d", 1)]),
];

/// The parameters of attention and their defaults. The plan must name them, because these captures have no signature,
/// and the order of their keywords differs between entries.
const ATTENTION: &str = r#"params = ["arg0", "arg1", "arg2", "attn_mask", "dropout_p", "is_causal", "scale"]
defaults = { attn_mask = "none", dropout_p = 0.0, is_causal = false, scale = "none" }
"#;

/// Returns the name of the folder with an op's captures.
fn folder_of(op: &str) -> String {
    match op {
        "matmul" => "torch_matmul".to_owned(),
        _ => format!("torch_nn_functional_{op}"),
    }
}

fn job(op: &str, dtypes: &str) -> String {
    let folder = folder_of(op);
    let parameters = if op == "scaled_dot_product_attention" { ATTENTION } else { "" };
    format!(
        "[[job]]\nname = \"{op}\"\ncaptures = '{}'\nbaseline = '{}'\ndtypes = [{dtypes}]\n{parameters}\n",
        data(&format!("captures/{folder}")).display(),
        data(&format!("kernels/naive/{op}.c")).display(),
    )
}

fn plan_head() -> String {
    format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\ninclude = ['{}']\n\n",
        data("kernels/naive").display()
    )
}

#[test]
fn naive_kernels_pass_every_float_entry() {
    let dtypes = "\"float32\", \"float64\", \"float16\", \"bfloat16\"";
    let jobs: String = OPS.iter().map(|(op, _)| job(op, dtypes)).collect();
    let scenario = Scenario::with_plan(&(plan_head() + &jobs));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let wrong: Vec<String> = OPS
        .iter()
        .filter_map(|(op, entries)| {
            let candidate = summary.candidate(op, op);
            let verify = &candidate["verify"];
            let right = candidate["status"] == "PASSED"
                && verify["entries_run"] == *entries
                && verify["entries_passed"] == *entries;
            (!right).then(|| {
                let (status, detail) = (&candidate["status"], &candidate["detail"]);
                format!(
                    "{op}: {status} ({detail}), {} of {} entries passed, expected {entries}",
                    verify["entries_passed"], verify["entries_run"]
                )
            })
        })
        .collect();
    outcome.expect(wrong.is_empty(), format_args!("every op passes\n{}", wrong.join("\n")));
    outcome.expect_equal(summary.jobs().len(), OPS.len(), "number of jobs");
    // These kernels allocate nothing, so the measured memory may differ from the prediction by at most ten percent or 8
    // MiB, whichever is more.
    for phase in list(&summary.document["memory"]["phases"]).iter().filter(|it| it["stage"] == "verify") {
        let figure =
            |field: &str| phase[field].as_u64().unwrap_or_else(|| outcome.fail(format_args!("{phase}")));
        let (predicted, measured) = (figure("predicted_bytes"), figure("peak_owed_bytes"));
        outcome.expect(
            measured.abs_diff(predicted) <= (8 << 20).max(predicted / 10),
            format_args!("measured and predicted memory differ too much: {phase}"),
        );
    }
}

/// Up to 64 entries may share a runner, but a runner with at most 64 open descriptors (`ulimit -n 64`) cannot hold the
/// descriptors of 64 entries at once.
#[test]
fn shared_runners_work_with_few_descriptors() {
    let linear = data("captures/torch_nn_functional_linear");
    let plan = plan_head()
        + "[[job]]\nname = \"linear\"\ncaptures = 'captures'\nbaseline = 'linear.c'\ndtypes = [\"float32\"]\n";
    let scenario = Scenario::with_plan(&plan);
    scenario.write("linear.c", std::fs::read(data("kernels/naive/linear.c")).expect("a kernel"));
    for number in 0..80 {
        let entry = std::fs::read(linear.join("entry_000000.pt")).expect("a capture");
        scenario.write(&format!("captures/entry_{number:06}.pt"), entry);
    }
    let binary = binary();
    let script = "ulimit -n 64 && exec \"$0\" run plan.toml";
    let arguments = [OsStr::new("-c"), OsStr::new(script), binary.as_os_str()];
    let mut command = scenario.command_of(Path::new("/bin/sh"), &arguments);
    let outcome = scenario.finish(command.spawn().expect("started"), &arguments).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let candidate = summary.candidate("linear", "linear");
    outcome.expect_equal(candidate["verify"]["entries_passed"].as_u64(), Some(80), &candidate["detail"]);
}

#[test]
fn dtypes_select_entries() {
    for (dtype, ops) in BY_DTYPE {
        let jobs: String = ops.iter().map(|(op, _)| job(op, &format!("{dtype:?}"))).collect();
        let scenario = Scenario::with_plan(&(plan_head() + &jobs));
        let outcome = scenario.run(&["check", "plan.toml", "--json"]).expect_exit(0);
        let document = outcome.json();
        let found: Vec<(Option<&str>, Option<u64>)> = document["jobs"]
            .as_array()
            .unwrap_or_else(|| outcome.fail("the document lists jobs"))
            .iter()
            .map(|job| (job["name"].as_str(), job["entries"].as_u64()))
            .collect();
        let expected: Vec<(Option<&str>, Option<u64>)> =
            ops.iter().map(|(op, entries)| (Some(*op), Some(*entries))).collect();
        outcome.expect_equal(found, expected, dtype);
    }
}

#[test]
fn ops_has_every_capture_folder() {
    let folders = std::fs::read_dir(repository().join("tests/data/captures")).expect("the captures");
    let found: BTreeSet<String> = folders
        .map(|folder| folder.expect("a readable folder").file_name().into_string().expect("UTF-8"))
        .collect();
    let expected: BTreeSet<String> = OPS.iter().map(|(op, _)| folder_of(op)).collect();
    assert_eq!(found, expected);
}
