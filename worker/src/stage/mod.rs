//! The stages of a candidate: policy only. `session` runs kernels; nothing here deals with processes.

pub(crate) mod build;
pub(crate) mod calls;
pub(crate) mod failure;
pub(crate) mod profile;
pub mod replay;
pub(crate) mod verify;

use opt_shared::outcome::RunnerEnd;
use opt_shared::units::Bytes;

/// Poisons of successive calls. The first is NaN in every float type and -1 in every signed one; no two agree in
/// any byte, so an element that equals its poison twice was not written.
pub(crate) const POISONS: [u8; 4] = [0xff, 0x5a, 0xa5, 0x3c];

/// Tells the supervisor how far a stage has come: entries done, of how many, captured bytes verified. If the supervisor is
/// gone this worker ends, so there is no answer to wait for.
pub(crate) type Progress<'a> = &'a dyn Fn(u32, u32, Bytes);

/// What a report keeps of the end of a runner.
pub(crate) fn kept(end: RunnerEnd) -> Option<RunnerEnd> {
    (end.signal.is_some() || end.exit_code.is_some() || !end.stderr_tail.is_empty()).then_some(end)
}
