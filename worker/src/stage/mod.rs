//! The stages of a candidate. They contain only policy; `session` runs kernels and handles processes, except compilers,
//! which `build` runs itself.

pub(crate) mod build;
pub(crate) mod calls;
pub(crate) mod failure;
pub(crate) mod profile;
pub mod replay;
pub(crate) mod verify;

use opt_shared::outcome::RunnerEnd;
use opt_shared::units::Bytes;

/// The poisons of successive calls. The first is -1 in every signed integer type, and NaN in every float type except
/// the two `fnuz` types and `float4_e2m1fn_x2`. All differ, so an element that equals its call's poison in two
/// successive calls was not written.
pub(crate) const POISONS: [u8; 4] = [0xff, 0x5a, 0xa5, 0x3c];

/// Reports the progress of a stage: how many entries, steps or tensors are done, how many there are, and how many
/// captured bytes were verified so far, or timed in the current batch (0 in a replay).
pub(crate) type Progress<'a> = &'a dyn Fn(u32, u32, Bytes);

/// Returns a runner's end; `None` if the end has no signal, no exit code and no output.
pub(crate) fn informative_end(end: RunnerEnd) -> Option<RunnerEnd> {
    let has_output = !end.stderr_tail.is_empty() || !end.stdout_tail.is_empty();
    (end.signal.is_some() || end.exit_code.is_some() || has_output).then_some(end)
}

/// Returns what a runner printed, without its signal and exit code. Used if the runner was still alive when its
/// candidate failed: the worker then ended it, so the signal says nothing. `None` if the runner printed nothing.
pub(crate) fn printed(end: RunnerEnd) -> Option<RunnerEnd> {
    informative_end(RunnerEnd { signal: None, exit_code: None, unknown_sender: false, ..end })
}
