//! Tests replays of kernels without host code on the emulated device and on a simulated card. Outputs do not depend on
//! the budget. On the emulated device, tensors are moved as often as on the CPU. (The planner's own tests check which
//! tensors are moved.)

use opt_nvml_twin::Script;
use opt_tests::devices::{device, on_a_card, twin, with_context};

use super::*;

const SHAPE: &str = "16,1024";
/// The size of an input, in bytes. It is a multiple of the unit in which a pool is counted, on every device except a
/// card.
const INPUT: u64 = 16 * 1024 * 4;
/// Rows that are a little shorter. Their inputs take up as much of a pool, because pools are counted in units of 256
/// bytes.
const SHORTER: &str = "16,1021";
const STEPS: [u32; 12] = [0, 1, 2, 3, 0, 4, 5, 1, 0, 2, 3, 5];
/// The device memory that a context uses, in MiB.
const HELD: u64 = 300;

fn scenario_with_rows() -> Scenario {
    let scenario = Scenario::create();
    generate(&scenario, "rows", &["op", "--name", "softmax", "--shape", SHAPE, "--entries", "6"]);
    scenario
}

/// A plan whose replays have these names and budgets. On the CPU, a kernel in C makes the calls.
fn rows_plan(device: &str, replays: &[(String, u64)]) -> String {
    let source = |path: &str| repository().join("configs").join(path).display().to_string();
    let kernel = if device == "cpu" {
        format!("sources = ['{}']\n", source("demo/softmax/naive.c"))
    } else {
        format!(
            "sources = ['{}']\n[[job.candidate.launch]]\nsymbol = \"naive\"\n\
             grid = \"ceil_div(input.numel / input.shape[-1], 32)\"\nblock = 32\n\
             args = [\"input\", \"out\", \"input.numel / input.shape[-1]\", \"input.shape[-1]:i32\"]\n",
            source("cuda/ptx/softmax.ptx")
        )
    };
    let mut text = format!(
        "[run]\nstages = [\"build\", \"verify\"]\ndevice = \"{device}\"\n[build]\nlibraries = [\"m\"]\n\
         [verify]\ncall_timeout = \"60s\"\n[limits]\nmemory = \"64MiB\"\n\
         [[job]]\nname = \"rows\"\ncaptures = \"rows\"\nbaseline = \"naive\"\n\
         [[job.candidate]]\nname = \"naive\"\n{kernel}"
    );
    let steps: Vec<String> = STEPS.iter().map(|entry| format!("[\"rows\", \"entry_{entry:06}\"]")).collect();
    for (name, budget) in replays {
        let _ = write!(
            text,
            "[[replay]]\nname = \"{name}\"\nsteps = [{}]\nbudget = \"{budget}B\"\nprefetch = 2\n",
            steps.join(", ")
        );
    }
    text
}

/// The results of replays, by name.
fn results(summary: &Summary, outcome: &Outcome, replays: &[(String, u64)]) -> Vec<Value> {
    let result = |(name, _): &(String, u64)| {
        let it = replay(summary, name);
        outcome.expect_equal(it["status"].as_str(), Some("PASSED"), name);
        let steps = list(&it["result"]["steps"]);
        outcome.expect_equal(steps.len(), STEPS.len(), "steps");
        it["result"].clone()
    };
    replays.iter().map(result).collect()
}

#[test]
fn emulated_replays_have_the_same_outputs_at_every_budget_and_the_move_counts_of_the_cpu() {
    let scenario = scenario_with_rows();
    // The budgets range from the floor (two consecutive steps and the largest tensor) to room for all six inputs.
    let replays: Vec<(String, u64)> = (3..=6).map(|slots| (format!("of_{slots}"), slots * INPUT)).collect();
    let (outcome, summary) = run(&scenario, 0, &rows_plan("cpu", &replays), &[]);
    let on_cpu = results(&summary, &outcome, &replays);
    std::fs::remove_dir_all(scenario.run_folder()).expect("removed");
    let (outcome, summary) = run(&scenario, 0, &rows_plan("emulated", &replays), &[]);
    let emulated = results(&summary, &outcome, &replays);
    for (((_, budget), one), other) in replays.iter().zip(&emulated).zip(&on_cpu) {
        for key in ["floor_bytes", "bytes_moved", "hits", "misses", "evictions", "peak_pool_bytes"] {
            outcome.expect_equal(&one[key], &other[key], key);
        }
        outcome.expect_equal(&one["outputs_digest"], &emulated[0]["outputs_digest"], "outputs");
        outcome.expect_equal(
            one["peak_pool_bytes"].as_u64(),
            Some(*budget),
            "the pool is filled to the byte",
        );
    }
    outcome
        .expect(0 < emulated[0]["evictions"].as_u64().unwrap_or(0), "the smallest budget causes evictions");
    let below = rows_plan("emulated", &[("below".to_owned(), 3 * INPUT - 1)]);
    scenario.write("plan.toml", below);
    scenario.run(&["check", "plan.toml"]).expect_exit(2).expect_stderr(&["is below the floor"]);
}

#[test]
fn recorded_launches_make_the_calls_of_a_replay() {
    let Some(toolkit) = crate::cuda_launchers::toolkit() else { return };
    let scenario = scenario_with_rows();
    let replays: Vec<(String, u64)> = [3, 6].map(|slots| (format!("of_{slots}"), slots * INPUT)).into();
    let source = repository().join("tests/data/kernels/cuda/softmax.cu");
    let plan = rows_plan("emulated", &replays);
    let (head, rest) = plan.split_once("sources = ").expect("a candidate");
    let (_, tail) = rest.split_once("[[replay]]").expect("a replay");
    let plan = format!("{head}sources = [{source:?}]\nlanguage = \"cuda-recorded\"\n[[replay]]{tail}");
    let builds = format!("[build]\ntoolchain = [{toolkit:?}]\ntimeout = \"600s\"\n");
    let (outcome, summary) = run(&scenario, 0, &plan.replacen("[build]\n", &builds, 1), &[]);
    let found = results(&summary, &outcome, &replays);
    outcome.expect_equal(&found[0]["outputs_digest"], &found[1]["outputs_digest"], "outputs");
}

/// While a kernel runs, a tensor may be loaded into the memory of an evicted tensor only if it fits there.
#[test]
fn larger_tensor_is_not_loaded_into_the_memory_of_a_smaller_one() {
    let scenario = scenario_with_rows();
    generate(&scenario, "shorter", &["op", "--name", "softmax", "--shape", SHORTER, "--entries", "3"]);
    let rows = rows_plan("emulated", &[]);
    let (head, job) = rows.split_once("[[job]]").expect("a job");
    let shorter = job.replace("\"rows\"", "\"shorter\"");
    // The steps make the replay evict and load tensors of both sizes in turns.
    let steps: Vec<String> =
        [("shorter", 0), ("shorter", 1), ("rows", 0), ("shorter", 2), ("rows", 1), ("rows", 2)]
            .iter()
            .map(|(job, entry)| format!("[\"{job}\", \"entry_{entry:06}\"]"))
            .collect();
    let steps = vec![steps.join(", "); 3].join(", ");
    let budget = 3 * INPUT;
    let text = format!(
        "{head}[[job]]{job}[[job]]{shorter}[[replay]]\nname = \"mixed\"\nsteps = [{steps}]\nbudget = \"{budget}B\"\nprefetch = 3\n"
    );
    let (outcome, summary) = run(&scenario, 0, &text, &[]);
    let mixed = replay(&summary, "mixed");
    outcome.expect_equal(mixed["status"].as_str(), Some("PASSED"), "the replay");
    outcome.expect(0 < mixed["result"]["evictions"].as_u64().unwrap_or(0), "tensors are evicted");
}

/// The driver of a card allocates pages of 2 MiB, so each tensor counts as one such page.
#[test]
fn replay_on_a_simulated_card_gives_the_outputs_of_the_emulated_device() {
    let scenario = scenario_with_rows();
    let replays: Vec<(String, u64)> = [3, 6].map(|slots| (format!("of_{slots}"), slots << 21)).to_vec();
    let (outcome, summary) = run(&scenario, 0, &rows_plan("emulated", &replays), &[]);
    let emulated = results(&summary, &outcome, &replays);
    std::fs::remove_dir_all(scenario.run_folder()).expect("removed");
    scenario.write("plan.toml", rows_plan("cuda:0", &replays));
    let card = Script {
        devices: vec![opt_nvml_twin::Device { processes: vec![with_context(&[(0, HELD)])], ..device() }],
        ..Script::default()
    };
    let nvml = twin(&scenario, &card);
    let arguments = ["run", "plan.toml", "--dir", "runs/plan"];
    let child = on_a_card(&scenario, &nvml, &mut scenario.command(&arguments)).spawn().expect("started");
    let outcome = scenario.finish(child, &arguments).expect_exit(0);
    let summary = Summary::read(&scenario.run_folder(), &outcome);
    let on_card = results(&summary, &outcome, &replays);
    for (one, other) in on_card.iter().zip(&emulated) {
        outcome.expect_equal(&one["outputs_digest"], &other["outputs_digest"], "outputs");
    }
    let figure = |result: &Value, key: &str| result[key].as_u64().expect("a figure");
    outcome.expect_equal(figure(&on_card[0], "floor_bytes"), 3 << 21, "the floor");
    for ((_, budget), result) in replays.iter().zip(&on_card) {
        outcome.expect_equal(figure(result, "peak_pool_bytes"), *budget, "the peak");
    }
    outcome.expect(0 < figure(&on_card[0], "evictions"), "the smallest budget causes evictions");
    outcome.expect_equal(figure(&on_card[1], "bytes_moved"), 6 * INPUT, "every input was moved once");
}
