//! Carries out the stages of candidates and replays: build, verify, profile (also as screen and confirm) and replay.
//! This folder contains only policy, because `session` runs kernels and handles processes. The exceptions are
//! compilers, which `build` runs itself.

pub(crate) mod build;
pub(crate) mod calls;
pub(crate) mod failure;
pub(crate) mod profile;
pub mod replay;
pub(crate) mod verify;

use opt_shared::outcome::RunnerEnd;
use opt_shared::units::Bytes;

/// The bytes with which outputs are filled before successive calls. The first poison is -1 in every signed integer
/// type, and NaN in every float type except the two `fnuz` types and `float4_e2m1fn_x2`. The poisons differ from each
/// other, so if an element equals the poison of each of two successive calls, these calls did not write it.
pub(crate) const POISONS: [u8; 4] = [0xff, 0x5a, 0xa5, 0x3c];

/// The function that reports the progress of a stage. Its arguments are the number of entries, steps or tensors that
/// are done, their total number, and the number of captured bytes that were verified so far, or timed in the current
/// batch (0 in a replay).
pub(crate) type Progress<'a> = &'a dyn Fn(u32, u32, Bytes);

/// Returns a runner's end, or `None` if it contains no information: no signal, no exit code and no output.
pub(crate) fn informative_end(end: RunnerEnd) -> Option<RunnerEnd> {
    let has_output = !end.stderr_tail.is_empty() || !end.stdout_tail.is_empty();
    (end.signal.is_some() || end.exit_code.is_some() || has_output).then_some(end)
}

/// Returns what a runner printed, without its signal and exit code, or `None` if it printed nothing. Callers use this
/// if the runner was still alive when its candidate failed. In this case the worker ended the runner, so the signal
/// gives no information about the failure.
pub(crate) fn printed(end: RunnerEnd) -> Option<RunnerEnd> {
    informative_end(RunnerEnd { signal: None, exit_code: None, unknown_sender: false, ..end })
}
