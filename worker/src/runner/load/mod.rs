//! From an artifact to functions that can be called, by the launcher that its language needs.

mod dlopen;
mod interpreter;

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use opt_shared::language::{Launcher, NO_CUDA};

use super::abi::Function;
use super::control::ControlPage;
use super::ffi_error::RaisedErrors;
use super::frame::{Setup, WireCall};
use super::python::{self, Interpreter};

/// What was found in the candidate's artifact.
pub(super) struct Loaded {
    pub(super) run: Function,
    pub(super) plan: Option<Function>,
    pub(super) raised: Raised,
    /// Outputs are returned, and copied before the call is over.
    pub(super) returned: bool,
    /// What the functions get as `self`, of each entry; none where they get nothing.
    pub(super) entries: Vec<*mut c_void>,
}

/// Where the error of a failed call can be had.
pub(super) enum Raised {
    Library(RaisedErrors),
    Interpreter,
}

impl Raised {
    /// What the last failed call said, once.
    pub(super) fn take(&self) -> Option<String> {
        match self {
            Self::Library(errors) => errors.take(),
            Self::Interpreter => python::take_raised(),
        }
    }
}

/// What a launcher is given beside the setup.
pub(super) struct Given {
    pub(super) artifact: OwnedFd,
    pub(super) libraries: Vec<OwnedFd>,
    /// The one that hosts this process.
    pub(super) interpreter: Option<Interpreter>,
    /// Of each entry that an interpreter calls: its call and how many arguments stand before its outputs.
    pub(super) calls: Vec<(WireCall, usize)>,
    /// How many inputs and outputs every entry has.
    pub(super) arity: (usize, usize),
}

/// Loads the artifact; the error is the loader's own text.
pub(super) fn load(setup: &Setup, given: Given, page: &ControlPage) -> Result<Loaded, String> {
    let Given { artifact, libraries, interpreter, calls, arity } = given;
    match (setup.launcher, interpreter) {
        (Launcher::Dlopen, _) => dlopen::load(setup, artifact, libraries, page),
        (Launcher::Libtorch, _) => dlopen::load_over_libtorch(setup, artifact, libraries, arity, page),
        (Launcher::Interpreter | Launcher::Triton, Some(interpreter)) => {
            interpreter::load(interpreter, setup, artifact, &calls, page)
        }
        (Launcher::Interpreter | Launcher::Triton, None) => {
            Err("there is no interpreter in this process".to_owned())
        }
        // It has no host code to be run in a process of its own.
        (Launcher::Kernel, _) => Err(NO_CUDA.to_owned()),
    }
}
