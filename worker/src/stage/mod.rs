//! The stages of a candidate: policy only. What runs kernels is `session`'s; nothing here knows a process.

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

/// Tells the supervisor how far a stage has come: entries done, of how many, captured bytes gone through. One that is
/// gone ends this worker, so that nobody waits for an answer.
pub(crate) type Progress<'a> = &'a dyn Fn(u32, u32, Bytes);

/// The end of a runner that lives on in the report.
pub(crate) fn kept(end: RunnerEnd) -> Option<RunnerEnd> {
    (end.signal.is_some() || end.exit_code.is_some() || !end.stderr_tail.is_empty()).then_some(end)
}
