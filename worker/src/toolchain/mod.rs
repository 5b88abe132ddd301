//! The toolchains of the languages. A toolchain chooses the command that builds an artifact from sources, and writes
//! the files that this command needs in addition to the sources.
//!
//! `stage::build` runs the command in a sandboxed process (`compiler`). A new language needs a row in the language
//! table of `opt_shared`. It also needs a toolchain and a launcher, unless existing ones fit.

pub(crate) mod artifact;
mod c;
pub(crate) mod compiler;
pub(crate) mod cuda;
mod cuda_recorded;
pub(crate) mod log;
pub(crate) mod nvrtc;
mod prebuilt;
mod python;
mod torch_compile;
mod torch_cuda;
mod torch_extension;
mod triton;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use opt_shared::kernel_files::KernelFiles;
use opt_shared::language::{self, ArtifactKind, Language};
use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;

use self::compiler::CompilerError;
use crate::interpreter::Interpreter;

/// An error in the worker's part of a build. No candidate is to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error("{action} {path}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("running the compiler {compiler}")]
    Compiler { compiler: String, source: CompilerError },
}

/// Returns a function for `map_err` that adds the failed action and its path to an I/O error.
pub(crate) fn file<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BuildError + 'a {
    move |source| BuildError::File { action, path: path.to_owned(), source }
}

/// Describes how an artifact is made from sources.
pub(crate) enum Recipe {
    /// The given file already is the artifact. `by` describes the interpreter that runs the artifact, if any.
    Keep { artifact: PathBuf, by: Option<String> },
    /// The artifact is written by this command, which runs in a sandboxed process.
    Run(Step),
    /// The sources cannot be built. The text says why, for the candidate's author.
    Refused(String),
    /// A program or a library is missing on this machine, or a file cannot be read or written. The text says why, for
    /// the user who runs the plan.
    Unavailable(String),
}

pub(crate) struct Step {
    /// The compiler's name or path, or `NVRTC` if the compiler is that library.
    pub(crate) compiler: String,
    pub(crate) program: Program,
    pub(crate) arguments: Vec<OsString>,
    /// The version to record. If it is `None`, the compiler is asked for its version, or NVRTC's output contains it.
    pub(crate) version: Option<String>,
    pub(crate) output: PathBuf,
    pub(crate) artifact: ArtifactKind,
    /// Folders that the command may read, in addition to the system's folders and its scratch folder.
    pub(crate) readable: Vec<PathBuf>,
    /// Folders that contain programs and libraries which the command needs, in addition to the plan's folders.
    pub(crate) toolchain: Vec<PathBuf>,
    /// The command that runs after this one has succeeded, and makes the artifact from its output.
    pub(crate) next: Option<Box<Step>>,
}

impl Step {
    /// Returns a step in which the interpreter runs `program`. `version` describes the interpreter.
    fn of_python(
        interpreter: &Interpreter,
        version: String,
        program: PathBuf,
        arguments: impl IntoIterator<Item = OsString>,
        output: PathBuf,
        artifact: ArtifactKind,
    ) -> Self {
        Self {
            compiler: interpreter.executable.display().to_string(),
            program: Program::OnPath,
            arguments: ["-I".into(), program.into()].into_iter().chain(arguments).collect(),
            version: Some(version),
            output,
            artifact,
            readable: interpreter.folders.clone(),
            // The program starts other programs from these folders: the interpreter itself, or Triton's `ptxas`.
            toolchain: interpreter.folders.iter().cloned().chain(interpreter.home()).collect(),
            next: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The program that `Step::compiler` names. The name is a path, or is looked up on PATH.
    OnPath,
    /// The NVRTC library at this path. A sandboxed process that runs our own executable loads it.
    Nvrtc(PathBuf),
    /// Our own executable, which records the launches of a library's host code.
    Recorder,
}

pub(crate) struct Folders<'a> {
    /// The folder with our own headers (`opt_candidate.h`).
    pub(crate) include: &'a Path,
    /// The folder in which the command writes its outputs. It is deleted after the build.
    pub(crate) scratch: &'a Path,
    /// The candidate's files. The command's working folder contains copies of them, at their relative paths.
    pub(crate) files: &'a KernelFiles,
}

impl Folders<'_> {
    /// Returns the working folder of a command, which contains copies of the candidate's files.
    pub(crate) fn work(&self) -> PathBuf {
        self.scratch.join("work")
    }
}

pub(crate) trait Toolchain {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe;

    /// Returns why an artifact cannot be used, if the toolchain can tell. The process that made the artifact may have run
    /// the candidate. The artifact is at most as large as the plan allows.
    fn objection(&self, _artifact: &File) -> Option<String> {
        None
    }

    /// Returns advice for the user on a build that ended with this status and log, if the toolchain has any.
    fn advice(&self, _status: Status, _log: &str) -> Option<String> {
        None
    }
}

pub(crate) fn of(language: Language) -> &'static dyn Toolchain {
    match language.kind().toolchain {
        language::Toolchain::Cc | language::Toolchain::Cxx => &c::C,
        language::Toolchain::Prebuilt => &prebuilt::Prebuilt,
        language::Toolchain::Python => &python::Python,
        language::Toolchain::Torch => &python::Torch,
        language::Toolchain::TorchCompiler => &torch_compile::TorchCompile,
        language::Toolchain::Triton => &python::Triton,
        language::Toolchain::TritonCompiler => &triton::Triton,
        language::Toolchain::TorchExtension => &torch_extension::TorchExtension,
        language::Toolchain::TorchNvcc => &torch_cuda::TorchCuda,
        language::Toolchain::Nvrtc => &nvrtc::Nvrtc,
        language::Toolchain::Nvcc => &cuda::Cuda,
        language::Toolchain::NvccRecorded => &cuda_recorded::CudaRecorded,
    }
}
