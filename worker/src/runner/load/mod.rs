//! From an artifact to functions that can be called, by the launcher that its language needs.

mod dlopen;
mod interpreter;

use std::os::fd::OwnedFd;

use opt_shared::language::{Launcher, NO_CUDA};

use super::abi::Function;
use super::control::ControlPage;
use super::ffi_error::RaisedErrors;
use super::frame::Setup;

/// What was found in the candidate's library.
pub(super) struct Loaded {
    pub(super) run: Function,
    pub(super) plan: Option<Function>,
    pub(super) raised: RaisedErrors,
}

/// Loads the artifact; the error is the loader's own text.
pub(super) fn load(
    setup: &Setup,
    artifact: OwnedFd,
    libraries: Vec<OwnedFd>,
    page: &ControlPage,
) -> Result<Loaded, String> {
    match setup.launcher {
        Launcher::Dlopen => dlopen::load(setup, artifact, libraries, page),
        Launcher::Interpreter => interpreter::load(),
        // It has no host code to be run in a process of its own.
        Launcher::Kernel => Err(NO_CUDA.to_owned()),
    }
}
