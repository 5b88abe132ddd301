//! A plan in which every job is one cycle: its candidates are verified side by side, the verifiers end, and a new
//! profiler times the two correct candidates.
//!
//! Each candidate owes 16 MiB, so that samples of memory can tell a working process from an idle one.

pub mod evidence;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::{built, repository};

#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    /// The number of jobs in the plan.
    pub count: u32,
    pub verifiers: u32,
    pub spare: bool,
}

/// The number of candidates per job that are correct and therefore timed.
pub const TIMED: u32 = 2;

/// A relu kernel that fills 16 MiB of scratch memory in its first call. Each value of `VARIANT` gives a different
/// artifact, and `RIGHT` decides whether the kernel is correct.
const KERNEL: &str = r#"
#include <string.h>
#include "opt_candidate.h"
static char scratch[16 << 20];
int variant = VARIANT;
int run(void *self, const OptAny *args, int32_t n, OptAny *ret) {
    const OptTensor *in = args[0].value.v_ptr;
    OptTensor *out = args[n - 1].value.v_ptr;
    int64_t count = 1;
    (void)self; (void)ret;
    if (!scratch[0]) memset(scratch, 1, sizeof scratch);
    for (int d = 0; d < in->ndim; d++) count *= in->shape[d];
    for (int64_t i = 0; i < count; i++) {
        float value = ((const float *)in->data)[i];
        ((float *)out->data)[i] = value > 0 ? value * RIGHT : 0;
    }
    return 0;
}
"#;

/// Creates captures, prebuilt candidates (at least one per verifier) and the plan. Returns the plan's path.
pub fn prepare(folder: &Path, cycles: Cycles) -> Result<PathBuf, String> {
    let fail = |error: std::io::Error| format!("making {}: {error}", folder.display());
    let kernels = folder.join("kernels");
    fs::create_dir_all(&kernels).map_err(fail)?;
    run_to_success(
        Command::new(built("gen-captures")?)
            .args(["op", "--name", "relu", "--shape", "8,8", "--entries", "1", "--out"])
            .arg(folder.join("relu")),
    )?;
    let source = folder.join("relu.c");
    fs::write(&source, KERNEL).map_err(fail)?;
    for variant in 0..cycles.verifiers.max(TIMED) {
        let right = u32::from(variant < TIMED);
        run_to_success(
            Command::new("cc")
                .args([
                    "-O2",
                    "-shared",
                    "-fPIC",
                    &format!("-DVARIANT={variant}"),
                    &format!("-DRIGHT={right}"),
                    "-I",
                ])
                .arg(repository().join("worker/include"))
                .arg(&source)
                .arg("-o")
                .arg(kernels.join(format!("relu{variant}.so"))),
        )?;
    }
    let plan = folder.join("plan.toml");
    fs::write(&plan, text(cycles)).map_err(fail)?;
    Ok(plan)
}

fn run_to_success(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("starting {command:?}: {error}"))?;
    let failure = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(failure()) }
}

fn text(cycles: Cycles) -> String {
    let Cycles { count, verifiers, spare } = cycles;
    // Replace the profiler after it has timed the candidates of one cycle, and a verifier after it has built and
    // verified one candidate.
    let mut text = format!(
        "[run]\nname = \"cycles\"\ndevice = \"cpu\"\nverifiers = {verifiers}\n[memory]\nspare = {spare}\n\
         [recycle]\nbefore_profile = \"always\"\nafter_leases = {TIMED}\n\
         [limits]\nmemory = \"64MiB\"\nthreads = 1\n\
         [profile]\nprotocol = \"kernelforge\"\nentry_timeout = \"1s\"\n"
    );
    for cycle in 1..=count {
        text +=
            &format!("[[job]]\nname = \"c{cycle}\"\ncaptures = \"relu\"\ncandidates = [\"kernels/*.so\"]\n");
    }
    text
}
