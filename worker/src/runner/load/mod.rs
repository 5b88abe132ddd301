//! Loads an artifact with the launcher of its language, and returns functions through which it can be called.

pub(super) mod dlopen;
mod interpreter;

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use opt_shared::language::Launcher;

use super::abi::Function;
use super::control::ControlPage;
use super::cudart;
use super::ffi_error::RaisedErrors;
use super::frame::{Setup, WireCall};
use super::python::{self, Interpreter};
use super::returned::ReturnedTensors;

pub(super) struct Loaded {
    pub(super) run: Function,
    pub(super) plan: Option<Function>,
    pub(super) raised: Raised,
    /// True if the candidate returns its outputs. They are then copied into their slots before the call ends.
    pub(super) returned: bool,
    /// True if the functions may be built with tvm-ffi, which refuses calls whose arguments have another form.
    pub(super) may_refuse: bool,
    /// Takes the tensors that functions built with tvm-ffi return.
    pub(super) tensors: Option<ReturnedTensors>,
    /// The `self` argument for each entry. Empty if the functions take none.
    pub(super) entries: Vec<*mut c_void>,
}

/// The place from which the error text of a failed call is read.
pub(super) enum Raised {
    Library(RaisedErrors),
    Interpreter,
}

impl Raised {
    /// Takes the error text of the last failed call.
    pub(super) fn take(&self) -> Option<String> {
        match self {
            Self::Library(errors) => errors.take(),
            Self::Interpreter => python::take_raised(),
        }
    }
}

pub(super) struct LoadInputs {
    pub(super) artifact: OwnedFd,
    pub(super) libraries: Vec<OwnedFd>,
    /// The interpreter that hosts this process.
    pub(super) interpreter: Option<Interpreter>,
    /// The calls of the entries that an interpreter calls, each with the number of arguments before the outputs.
    pub(super) calls: Vec<(WireCall, usize)>,
    /// The number of inputs, and the number of outputs that are passed separately. Both are the same for every entry.
    pub(super) arity: (usize, usize),
}

/// Loads the artifact. The error says why it cannot be loaded.
pub(super) fn load(setup: &Setup, given: LoadInputs, page: &ControlPage) -> Result<Loaded, String> {
    let LoadInputs { artifact, libraries, interpreter, calls, arity } = given;
    match (setup.launcher, interpreter) {
        (Launcher::Dlopen, _) => dlopen::load(setup, artifact, libraries, page),
        (Launcher::CudaRuntime, _) => dlopen::load(setup, artifact, libraries, page).map_err(cudart::explain),
        (Launcher::CudaLibtorch, _) => {
            dlopen::load_over_libtorch(setup, artifact, libraries, arity, page).map_err(cudart::explain)
        }
        (Launcher::Libtorch, _) => dlopen::load_over_libtorch(setup, artifact, libraries, arity, page),
        (Launcher::Interpreter | Launcher::Triton | Launcher::Graphs, Some(interpreter)) => {
            interpreter::load(interpreter, setup, artifact, &libraries, &calls, page)
        }
        (Launcher::Interpreter | Launcher::Triton | Launcher::Graphs, None) => {
            Err("there is no interpreter in this process".to_owned())
        }
        (Launcher::Kernel, _) => {
            Err("a runner cannot launch a kernel without host code; the worker does that".to_owned())
        }
    }
}
