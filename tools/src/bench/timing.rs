//! Tests that timing can be relied on: two copies of a kernel must not be told apart, and a kernel that does a tenth
//! less work must win.

use std::path::Path;

use anyhow::Result;

use super::product::{generate, run_json};
use super::verify_large::{median, tempdir};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many runs to make
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// Also time a kernel whose calls take several seconds
    #[arg(long)]
    slow: bool,
}

/// A kernel whose time is proportional to the number of its dependent multiplications. It then computes relu, so that
/// its output can be verified.
pub(super) const KERNEL: &str = r#"
#include "opt_candidate.h"
int run(void *self, const OptAny *args, int32_t n, OptAny *ret) {
    const OptTensor *in = args[0].value.v_ptr;
    OptTensor *out = args[n - 1].value.v_ptr;
    double sum = 0.0;
    // Without -fopenmp, this loop runs in one thread.
    #pragma omp parallel num_threads(2) reduction(+:sum)
    {
        double x = 1.0;
        for (long i = 0; i < SPIN; i++) x = x * 1.0000001 + 1e-9;
        sum += x;
    }
    volatile double keep = sum;
    int64_t count = 1;
    (void)keep; (void)self; (void)ret;
    for (int d = 0; d < in->ndim; d++) count *= in->shape[d];
    for (int64_t i = 0; i < count; i++) {
        float value = ((const float *)in->data)[i];
        ((float *)out->data)[i] = value > 0 ? value : 0;
    }
    return 0;
}
"#;

/// The number of iterations of the baseline, which take about 60 µs.
pub(super) const SPIN: u64 = 40_000;
/// The number of iterations of the faster kernel.
const LESS: u64 = 36_000;
/// The number of iterations of the slow kernel, which take several seconds.
const SLOW: u64 = 3_000_000_000;

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let folder = tempdir()?;
    let captures = folder.join("relu");
    generate(&["op", "--name", "relu", "--shape", "64,64", "--entries", "1"], &captures)?;
    for (name, spin) in [("base", SPIN), ("copy", SPIN), ("faster", LESS), ("slow", SLOW)] {
        std::fs::write(folder.join(format!("{name}.c")), format!("#define SPIN {spin}L\n{KERNEL}"))?;
    }
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        "[run]\nname = \"timing\"\n[build]\nflags = [\"-O2\"]\n[[job]]\ncaptures = \"relu\"\nbaseline = \"base.c\"\n\
         candidates = [\"copy.c\", \"faster.c\"]\n",
    )?;
    println!(
        "| run | copy | its interval | faster | its interval | winner | ranks base/copy/faster | converged |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut good, mut copies, mut faster_ones) = (true, Vec::new(), Vec::new());
    for number in 1..=arguments.runs {
        let summary = run_json(&plan, &[])?;
        let job = &summary["jobs"][0];
        let find = |name: &str| {
            job["candidates"]
                .as_array()
                .and_then(|all| all.iter().find(|it| it["name"] == name))
                .cloned()
                .unwrap_or_default()
        };
        let (base, copy, faster) = (find("base"), find("copy"), find("faster"));
        let speed = |it: &serde_json::Value, field: &str| it["speedup"][field].as_f64().unwrap_or(f64::NAN);
        println!(
            "| {number} | {:.3} | {:.3}–{:.3} | {:.3} | {:.3}–{:.3} | {} | {}/{}/{} | {} {} |",
            speed(&copy, "value"),
            speed(&copy, "ci_low"),
            speed(&copy, "ci_high"),
            speed(&faster, "value"),
            speed(&faster, "ci_low"),
            speed(&faster, "ci_high"),
            job["winner"].as_str().unwrap_or("none"),
            base["rank"],
            copy["rank"],
            faster["rank"],
            copy["profile"]["converged"],
            faster["profile"]["converged"],
        );
        good &= job["winner"] == "faster" && base["rank"] == copy["rank"];
        copies.push(speed(&copy, "value"));
        faster_ones.push(speed(&faster, "value"));
    }
    println!(
        "\nmedian speed-up: copy {:.3}, faster {:.3} (expected: 1.000 and 1.111)",
        median(&mut copies),
        median(&mut faster_ones)
    );
    if arguments.slow {
        good &= slow(&folder)?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(good)
}

fn slow(folder: &Path) -> Result<bool> {
    let plan = folder.join("slow.toml");
    std::fs::write(
        &plan,
        "[run]\nname = \"slow\"\n[build]\nflags = [\"-O2\"]\n[[job]]\ncaptures = \"relu\"\ncandidates = [\"slow.c\"]\n",
    )?;
    let summary = run_json(&plan, &[])?;
    let candidate = &summary["jobs"][0]["candidates"][0];
    let profile = &candidate["profile"];
    println!(
        "slow kernel: {} {} ms a call, {} samples, converged {}",
        candidate["status"], profile["median_time_ms"], profile["samples"], profile["converged"]
    );
    Ok(candidate["status"] == "PASSED" && profile["converged"].is_boolean())
}
