//! The order that makes a process a compiler.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::sandbox::confine::Confinement;

/// What a process of a build runs, and with which protections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileOrder {
    /// The program to execute, or the path of a library to load (NVRTC). Empty for the recorder.
    pub program: PathBuf,
    pub kind: CompilerKind,
    pub arguments: Vec<OsString>,
    pub work: PathBuf,
    pub confinement: Confinement,
}

/// What a process of a build runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompilerKind {
    /// A program, which replaces our own code.
    Program,
    /// NVRTC, a library that the process loads.
    Nvrtc,
    /// Our own code, which records the launches of a candidate's host code.
    Recorder,
}
