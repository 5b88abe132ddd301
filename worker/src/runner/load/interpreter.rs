//! Loads modules of an interpreted language, with the interpreter that hosts this runner.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::{Loaded, Raised};
use crate::runner::control::{ControlPage, Phase};
use crate::runner::frame::{Setup, WireCall};
use crate::runner::python::{self, Interpreter};

/// Loads the module, or the graphs in `libraries`. `entries` contains the call of each entry, and the number of
/// arguments before its outputs. The error says what failed. If the module raised an exception, it is the exception's
/// text.
pub(super) fn load(
    interpreter: Interpreter,
    setup: &Setup,
    artifact: OwnedFd,
    libraries: &[OwnedFd],
    entries: &[(WireCall, usize)],
    page: &ControlPage,
) -> Result<Loaded, String> {
    page.phase.store(Phase::Loading as u32, Ordering::SeqCst);
    let calls = python::load(interpreter, setup, artifact, libraries, entries)?;
    page.phase.store(Phase::Loaded as u32, Ordering::SeqCst);
    Ok(Loaded {
        run: python::run,
        plan: calls.has_plan.then_some(python::plan),
        raised: Raised::Interpreter,
        returned: calls.returned,
        may_refuse: false,
        tensors: None,
        entries: calls.entries,
    })
}
