//! Measures replays on a simulated card with a virtual clock, on which kernels and copies take as long as a model says.
//! With perfect overlap, a replay takes as long as the longer of copying and computing.
//!
//! No time here says anything about a real card. The benchmark only shows how well the pool's thread overlaps copies
//! with calls.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use opt_tests::devices::{Device, Script, Twin, device, with_card, with_context};
use serde_json::Value;

use super::product::{binary, generate};
use super::verify_large::tempdir;

/// The number of inputs. Each takes up a whole page of the pool, because a card allocates pages of 2 MiB.
const ENTRIES: u32 = 6;
const PAGE: u64 = 2 << 20;
/// The size of an input, in rows of 1024 float32 values.
const ROWS: u32 = 64;
/// The device memory that NVML's twin reports for a context, in MiB.
const CONTEXT_MIB: u64 = 300;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often to go through all inputs
    #[arg(long, default_value_t = 4)]
    passes: usize,
    /// The time of an instruction of a warp, in nanoseconds
    #[arg(long, default_value_t = 4000)]
    instruction_ns: u64,
    /// The speeds of copies from the host, in bytes per microsecond; each is a row of the table
    #[arg(long, value_delimiter = ',', default_values_t = [4, 1])]
    speeds: Vec<u64>,
    /// How many steps ahead tensors are loaded
    #[arg(long, default_value_t = 2)]
    prefetch: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let folder = tempdir()?;
    generate(
        &["op", "--name", "softmax", "--shape", &format!("{ROWS},1024"), "--entries", &ENTRIES.to_string()],
        &folder.join("rows"),
    )?;
    println!(
        "| bytes a us | pool, inputs | moved MiB | evictions | wall ms | stall ms | copy ms | compute ms | wall / max |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut good = true;
    for speed in &arguments.speeds {
        let results = replayed(arguments, &folder, *speed)?;
        for (slots, result) in (3..).zip(&results) {
            let of = |key: &str| result[key].as_f64().unwrap_or(f64::NAN);
            let longer = of("copy_ms").max(of("compute_ms"));
            good &= of("peak_pool_bytes") <= (slots * PAGE) as f64;
            println!(
                "| {speed} | {slots} of {ENTRIES} | {:.2} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.3} |",
                of("bytes_moved") / f64::from(1 << 20),
                of("evictions"),
                of("total_ms"),
                of("stall_ms"),
                of("copy_ms"),
                of("compute_ms"),
                of("total_ms") / longer
            );
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(good)
}

/// Runs a replay for each size of the pool, from the floor (three inputs) to one that holds all inputs.
fn replayed(arguments: &Arguments, folder: &Path, speed: u64) -> Result<Vec<Value>> {
    std::fs::write(folder.join("plan.toml"), plan(arguments)?)?;
    // Copies within the device are so fast in this model that they take no noticeable time.
    let model = format!("{} 1000000 {speed}", arguments.instruction_ns);
    std::fs::write(folder.join("cuda-clock"), model)?;
    let processes = vec![with_context(&[(0, CONTEXT_MIB)])];
    let card = Script { devices: vec![Device { processes, ..device() }], ..Script::default() };
    let nvml = Twin::install(folder, &card)?;
    let mut command = Command::new(binary("opt-supervisor")?);
    command.args(["run", "plan.toml", "--json"]).current_dir(folder);
    let output = with_card(folder, &nvml, &mut command).output().context("starting opt-supervisor")?;
    let summary: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no result: {}", String::from_utf8_lossy(&output.stderr)))?;
    let replays = summary["replays"].as_array().context("the summary has no replays")?;
    for replay in replays {
        ensure!(replay["status"] == "PASSED", "a replay did not pass: {replay}");
    }
    Ok(replays.iter().map(|replay| replay["result"].clone()).collect())
}

fn plan(arguments: &Arguments) -> Result<String> {
    let ptx = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/cuda/ptx/softmax.ptx").canonicalize()?;
    let mut text = format!(
        "[run]\nname = \"replay\"\ndevice = \"cuda:0\"\nstages = [\"build\", \"verify\"]\n\
         [verify]\ncall_timeout = \"60s\"\n[limits]\nmemory = \"64MiB\"\n\
         [[job]]\nname = \"rows\"\ncaptures = \"rows\"\nentries = [\"entry_*.pt\"]\nbaseline = \"naive\"\n\
         [[job.candidate]]\nname = \"naive\"\nsources = [{ptx:?}]\n[[job.candidate.launch]]\nsymbol = \"naive\"\n\
         grid = \"ceil_div(input.numel / input.shape[-1], 32)\"\nblock = 32\n\
         args = [\"input\", \"out\", \"input.numel / input.shape[-1]\", \"input.shape[-1]:i32\"]\n"
    );
    let pass: Vec<String> = (0..ENTRIES).map(|entry| format!("[\"rows\", \"entry_{entry:06}\"]")).collect();
    let steps = vec![pass.join(", "); arguments.passes.max(1)].join(", ");
    for slots in 3..=u64::from(ENTRIES) {
        write!(
            text,
            "[[replay]]\nname = \"of-{slots}\"\nsteps = [{steps}]\nbudget = \"{}B\"\nprefetch = {}\n",
            slots * PAGE,
            arguments.prefetch
        )?;
    }
    Ok(text)
}
