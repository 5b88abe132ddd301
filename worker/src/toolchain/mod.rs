//! From sources to an artifact: what a language's toolchain has to do.
//!
//! A toolchain says which command makes an artifact, and runs nothing: `stage::build` does, in a confined process
//! (`compiler`). A new language is a row of `opt_shared`'s table of languages, a toolchain here, and a launcher for it.

pub(crate) mod artifact;
mod c;
pub(crate) mod compiler;
pub(crate) mod log;
pub(crate) mod nvrtc;
mod prebuilt;
mod python;
mod torch_extension;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use opt_shared::kernel_files::KernelFiles;
use opt_shared::language::{self, ArtifactKind, Language};
use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;

use self::compiler::CompilerError;

/// The worker could not do its part of a build; nobody's kernel is to blame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error("{action} {path}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("running the compiler {compiler}")]
    Compiler { compiler: String, source: CompilerError },
}

/// Names what was done to which file when it failed.
pub(crate) fn file<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BuildError + 'a {
    move |source| BuildError::File { action, path: path.to_owned(), source }
}

/// What makes an artifact of some sources.
pub(crate) enum Recipe {
    /// This file is the artifact. `by`: what it is for, where that is known.
    Keep { artifact: PathBuf, by: Option<String> },
    /// This command, run in a confined process, writes it.
    Run(Step),
    /// There is none; the reason, for whoever wrote the candidate.
    Refused(String),
    /// This machine lacks what is needed; the reason, for whoever runs it.
    Unavailable(String),
}

/// One command of a build.
pub(crate) struct Step {
    /// As the plan names it.
    pub(crate) compiler: String,
    pub(crate) program: Program,
    pub(crate) arguments: Vec<OsString>,
    /// What it writes.
    pub(crate) output: PathBuf,
    pub(crate) artifact: ArtifactKind,
    /// Folders it may read, beyond the system's and the scratch folder.
    pub(crate) readable: Vec<PathBuf>,
    /// Folders whose programs and libraries it needs, beyond those that the plan names.
    pub(crate) toolchain: Vec<PathBuf>,
}

/// What carries a command out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The compiler, where the name says or PATH has it.
    OnPath,
    /// This library, loaded by a process of ours.
    Nvrtc(PathBuf),
}

/// Folders of one build.
pub(crate) struct Folders<'a> {
    /// Ours, with `opt_candidate.h` in it.
    pub(crate) include: &'a Path,
    /// Gone when the build is over.
    pub(crate) scratch: &'a Path,
    /// The candidate's files. A command finds copies of them, at their relative paths, in its working folder.
    pub(crate) files: &'a KernelFiles,
}

impl Folders<'_> {
    /// Where a command runs, with copies of the candidate's files.
    pub(crate) fn work(&self) -> PathBuf {
        self.scratch.join("work")
    }
}

pub(crate) trait Toolchain {
    /// What has to be done for these sources.
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe;

    /// What a user can do about a build that ended with `status` and this log, where the toolchain knows something.
    fn advice(&self, _: Status, _log: &str) -> Option<String> {
        None
    }
}

/// The toolchain of a language.
pub(crate) fn of(language: Language) -> &'static dyn Toolchain {
    match language.kind().toolchain {
        language::Toolchain::Cc | language::Toolchain::Cxx => &c::C,
        language::Toolchain::Prebuilt => &prebuilt::Prebuilt,
        language::Toolchain::Python => &python::Python,
        language::Toolchain::Torch => &python::Torch,
        language::Toolchain::Triton => &python::Triton,
        language::Toolchain::TorchExtension => &torch_extension::TorchExtension,
        language::Toolchain::Nvrtc => &nvrtc::Nvrtc,
        language::Toolchain::Nvcc => &Missing,
    }
}

/// What this version cannot build; the table of languages says why.
struct Missing;

impl Toolchain for Missing {
    fn recipe(&self, task: &BuildTask, _: &Folders<'_>) -> Recipe {
        let kind = task.source.language.kind();
        Recipe::Refused(kind.missing.unwrap_or("this version has no toolchain for it").to_owned())
    }
}
