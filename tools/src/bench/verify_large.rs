//! Measures the verification of a large capture set: the peak owed memory, the pages left in the page cache, and the
//! time compared with `cat` of the same files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::product::{binary, run_json_of};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A folder of captures made by `gen-captures embedding`; generated if it does not exist
    #[arg(long, default_value = "/tmp/opt-bench-embedding")]
    captures: PathBuf,
    /// Builds of opt-supervisor to compare, alternating; by default, the program beside this one
    #[arg(long)]
    product: Vec<PathBuf>,
    /// Runs of each kind
    #[arg(long, default_value_t = 3)]
    runs: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    if !arguments.captures.exists() {
        let status = Command::new(binary("gen-captures")?)
            .args(["embedding", "--entries", "20", "--out"])
            .arg(&arguments.captures)
            .status()
            .context("starting gen-captures")?;
        ensure!(status.success(), "gen-captures failed");
    }
    let products = match arguments.product.as_slice() {
        [] => vec![binary("opt-supervisor")?],
        some => some.to_vec(),
    };
    let files = captures(&arguments.captures)?;
    let bytes: u64 = files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|it| it.len()).sum();
    let folder = tempdir()?;
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/kernels/naive/embedding.c");
    let kernel = kernel.canonicalize().context("finding the naive embedding kernel")?;
    let plan = folder.join("plan.toml");
    let text = format!(
        "[run]\nname = \"verify-large\"\nstages = [\"build\", \"verify\"]\n[build]\nlibraries = [\"m\"]\n\
         [[job]]\ncaptures = {:?}\nbaseline = {:?}\n",
        arguments.captures.canonicalize()?,
        kernel
    );
    std::fs::write(&plan, text)?;
    println!("{} files, {:.2} GiB\n", files.len(), bytes as f64 / f64::from(1 << 30));
    println!(
        "| what | cache before | seconds | GB/s of file bytes | peak owed MiB | predicted MiB | left in cache MiB |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut good = true;
    for state in ["cold", "warm"] {
        let mut cats = Vec::new();
        let mut runs: Vec<(Vec<f64>, String)> = products.iter().map(|_| Default::default()).collect();
        for _ in 0..arguments.runs {
            prepare(&files, state)?;
            let start = Instant::now();
            ensure!(
                Command::new("cat").args(&files).stdout(std::process::Stdio::null()).status()?.success(),
                "cat failed"
            );
            cats.push(start.elapsed().as_secs_f64());
            for (product, (seconds, last)) in products.iter().zip(&mut runs) {
                prepare(&files, state)?;
                let before = cached(&files)?;
                let summary = run_json_of(product, &plan, &[])?;
                let candidate = &summary["jobs"][0]["candidates"][0];
                good &= candidate["status"] == "PASSED";
                seconds.push(candidate["verify"]["ms"].as_f64().context("no time in the summary")? / 1e3);
                let mib = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN) / f64::from(1 << 20);
                let memory = &summary["memory"];
                good &= mib(&memory["peak_owed_bytes"]) <= 64.0;
                *last = format!(
                    "{:.1} | {:.1} | {}",
                    mib(&memory["peak_owed_bytes"]),
                    mib(&memory["predicted_peak_owed_bytes"]),
                    cached(&files)?.saturating_sub(before) >> 20
                );
            }
        }
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let cat = median(&mut cats);
        println!("| `cat` of all files | {state} | {cat:.2} | {:.2} | – | – | – |", rate(cat));
        for (product, (seconds, last)) in products.iter().zip(&mut runs) {
            let run = median(seconds);
            let which = if 1 < products.len() { format!(" by {}", product.display()) } else { String::new() };
            println!("| verify, all entries{which} | {state} | {run:.3} | {:.2} | {last} |", rate(run));
        }
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(good)
}

/// Returns the captures in a folder, sorted. Fails if there are none.
pub(crate) fn captures(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pt"))
        .collect();
    files.sort();
    ensure!(!files.is_empty(), "no captures in {}", folder.display());
    Ok(files)
}

/// Reads the files into the page cache if `state` is `warm`. Otherwise, drops them from it.
pub(crate) fn prepare(files: &[PathBuf], state: &str) -> Result<()> {
    for file in files {
        let mut open = std::fs::File::open(file)?;
        if state == "warm" {
            std::io::copy(&mut open, &mut std::io::sink())?;
        } else {
            rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Returns how many bytes of the files are in the page cache, according to `fincore` of util-linux. Fails if `fincore`
/// is missing.
fn cached(files: &[PathBuf]) -> Result<u64> {
    let output = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES"])
        .args(files)
        .output()
        .context("starting fincore (install util-linux)")?;
    ensure!(output.status.success(), "fincore: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let sizes: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    ensure!(sizes.len() == files.len(), "fincore listed {} of {} files", sizes.len(), files.len());
    Ok(sizes.iter().sum())
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the folder of this process for temporary files. All calls return the same folder.
pub(crate) fn tempdir() -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("opt-bench-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(path)
}
