//! Measures the cost of an entry compared with a bare process: one verifier verifies many prebuilt candidates with a
//! few small entries each. Several builds of the product can be compared. They alternate (A, B, A, B) within one run of
//! the benchmark.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::figures::{Figures, conditions, show};
use super::product::{binary, run_json_of};
use super::verify_large::{captures, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many candidates to verify
    #[arg(long, default_value_t = 200)]
    candidates: u32,
    /// How many rounds to make; each runs every product once
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Builds of opt-supervisor to compare; by default, the program beside this one
    #[arg(long)]
    product: Vec<PathBuf>,
    /// How many bare processes to run in each round
    #[arg(long, default_value_t = 200)]
    bare: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let folder = tempdir()?;
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").canonicalize()?;
    let entries = data.join("captures/torch_nn_functional_relu");
    let count = captures(&entries)?.len();
    libraries(&folder, &data, arguments.candidates)?;
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        format!(
            "[run]\nname = \"many\"\nverifiers = 1\nstages = [\"build\", \"verify\"]\n\
             [[job]]\ncaptures = {entries:?}\ncandidates = [\"kernels/*.so\"]\n"
        ),
    )?;
    let products = if arguments.product.is_empty() {
        vec![binary("opt-supervisor")?]
    } else {
        arguments.product.clone()
    };
    let conditions = conditions("warm")?;
    let mut bare = Figures::default();
    let mut walls: Vec<Figures> = products.iter().map(|_| Figures::default()).collect();
    let mut passed = true;
    for _ in 0..arguments.rounds {
        bare.push_us(bare_process(arguments.bare)?);
        for (product, walls) in products.iter().zip(&mut walls) {
            let began = Instant::now();
            let summary = run_json_of(product, &plan, &[])?;
            walls.push(began.elapsed().as_secs_f64());
            let candidates =
                summary["jobs"][0]["candidates"].as_array().context("the summary has no candidates")?;
            passed &= candidates.len() == arguments.candidates as usize;
            passed &= candidates.iter().all(|candidate| candidate["status"] == "PASSED");
        }
    }
    let total = f64::from(arguments.candidates);
    let per_entry = |wall: f64| wall * 1e6 / total / count as f64;
    let rows: Vec<_> = products
        .iter()
        .zip(&walls)
        .map(|(product, walls)| {
            let wall = walls.median();
            json!({ "product": product, "seconds": wall, "candidates_per_second": total / wall,
                    "entry_us": per_entry(wall), "bare_processes": per_entry(wall) / bare.median() })
        })
        .collect();
    let sheet = json!({ "conditions": conditions, "candidates": arguments.candidates, "entries": count,
                        "bare_us": bare.to_json("us"), "products": rows });
    show(arguments.json, &sheet, || {
        println!("{} candidates, {count} entries each; a bare process takes {:.0} µs", total, bare.median());
        println!(
            "\n| product | s | candidates/s | µs per entry | bare processes per entry |\n|---|---|---|---|---|"
        );
        for row in &rows {
            let of = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
            println!(
                "| {} | {:.2} | {:.1} | {:.0} | {:.2} |",
                row["product"],
                of("seconds"),
                of("candidates_per_second"),
                of("entry_us"),
                of("bare_processes")
            );
        }
    })?;
    std::fs::remove_dir_all(&folder)?;
    Ok(passed)
}

/// Creates libraries with the same code but different digests, by appending bytes that the loader ignores to each copy.
pub(crate) fn libraries(folder: &Path, data: &Path, count: u32) -> Result<()> {
    let built = folder.join("relu.so");
    let status = Command::new("cc")
        .args(["-O3", "-shared", "-fPIC", "-I"])
        .arg(data.join("../../worker/include"))
        .arg("-o")
        .arg(&built)
        .arg(data.join("kernels/naive/relu.c"))
        .arg("-lm")
        .status()
        .context("starting cc")?;
    ensure!(status.success(), "cc failed");
    std::fs::create_dir_all(folder.join("kernels"))?;
    let library = std::fs::read(&built)?;
    for number in 0..count {
        let mut file = std::fs::File::create(folder.join(format!("kernels/relu_{number:04}.so")))?;
        file.write_all(&library)?;
        file.write_all(&number.to_le_bytes())?;
    }
    Ok(())
}

/// Returns the average time that a process that does nothing takes from start to end.
fn bare_process(count: u32) -> Result<std::time::Duration> {
    let began = Instant::now();
    for _ in 0..count {
        ensure!(Command::new("/bin/true").stdin(Stdio::null()).status()?.success(), "/bin/true failed");
    }
    Ok(began.elapsed() / count)
}
