//! Builds C and C++ candidates: one command of a compiler driver makes a shared library from the sources.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use opt_shared::language::{self, ArtifactKind};
use opt_shared::message::BuildTask;
use opt_shared::settings::BuildSettings;

use super::{Folders, Program, Recipe, Step, Toolchain};

pub(super) struct C;

impl Toolchain for C {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let sources = folders.files.sources.iter().map(|source| operand(&source.relative)).collect();
        Recipe::Run(step(task, folders, Parts { sources, ..Parts::default() }))
    }
}

/// The arguments that the toolchain of a language adds to a command.
#[derive(Default)]
pub(super) struct Parts {
    /// Options that are placed before the plan's own flags, so that the plan's flags can override them.
    pub(super) flags: Vec<OsString>,
    pub(super) sources: Vec<OsString>,
    /// Header folders that are searched after the plan's. The compiler prints no warnings about their headers
    /// (`-isystem`).
    pub(super) system_include: Vec<PathBuf>,
    pub(super) library_path: Vec<PathBuf>,
    /// Libraries that are placed after the plan's own libraries.
    pub(super) libraries: Vec<OsString>,
}

impl Parts {
    /// The folders that a command with these parts may read.
    pub(super) fn readable(&self, build: &BuildSettings) -> Vec<PathBuf> {
        let of_plan = build.include.iter().chain(&build.library_path);
        let folders: BTreeSet<&PathBuf> =
            of_plan.chain(&self.system_include).chain(&self.library_path).collect();
        folders.into_iter().cloned().collect()
    }
}

/// Returns the argument for a library of the plan. A path or an option stays as it is, and a name gets the prefix `-l`.
pub(super) fn library_argument(library: &str) -> OsString {
    let is_name = !library.contains('/') && !library.starts_with('-');
    if is_name { format!("-l{library}").into() } else { library.into() }
}

/// Returns the command `COMPILER FLAGS [-fdebug-prefix-map=…] -shared -fPIC -I… -isystem… -o OUT SOURCES LINK_FLAGS -L…
/// LIBRARIES`. `FLAGS` are the flags of `parts`, then the plan's `flags` and `extra_flags`. The paths of sources are
/// relative to their folder, so that messages are short.
pub(super) fn step(task: &BuildTask, folders: &Folders<'_>, parts: Parts) -> Step {
    let build = &task.build;
    let compiler = match task.source.language.kind().toolchain {
        language::Toolchain::Cc => &build.cc,
        _ => &build.cxx,
    };
    let output = folders.scratch.join("candidate.so");
    let readable = parts.readable(build);
    let mut arguments = parts.flags;
    arguments.extend(build.flags.iter().chain(&build.extra_flags).map(OsString::from));
    arguments.extend(debug_paths(&arguments, folders));
    arguments.extend(["-shared", "-fPIC"].map(OsString::from));
    for folder in build.include.iter().map(PathBuf::as_path).chain([folders.include]) {
        arguments.push("-I".into());
        arguments.push(folder.into());
    }
    for folder in parts.system_include {
        arguments.push("-isystem".into());
        arguments.push(folder.into());
    }
    arguments.push("-o".into());
    arguments.push(output.clone().into());
    arguments.extend(parts.sources);
    arguments.extend(build.link_flags.iter().map(OsString::from));
    for folder in build.library_path.iter().chain(&parts.library_path) {
        let mut flag = OsString::from("-L");
        flag.push(folder);
        arguments.push(flag);
    }
    arguments.extend(build.libraries.iter().map(|library| library_argument(library)));
    arguments.extend(parts.libraries);
    Step {
        compiler: compiler.clone(),
        program: Program::OnPath,
        version: None,
        arguments,
        output,
        artifact: ArtifactKind::SharedLibrary,
        readable,
        toolchain: Vec::new(),
        next: None,
    }
}

/// Returns a form of this path that cannot be mistaken for an option.
pub(super) fn operand(relative: &Path) -> OsString {
    match relative.as_os_str().as_encoded_bytes().first() {
        Some(b'-' | b'@') => Path::new(".").join(relative).into(),
        _ => relative.into(),
    }
}

/// Returns the flag that makes debug information refer to the original sources, because the copies are deleted after
/// the build. Returns `None` if no flag requests debug information.
fn debug_paths(flags: &[OsString], folders: &Folders<'_>) -> Option<OsString> {
    flags.iter().any(|flag| flag.as_encoded_bytes().starts_with(b"-g") && flag != "-g0").then(|| {
        let mut flag = OsString::from("-fdebug-prefix-map=");
        flag.push(folders.work());
        flag.push("=");
        flag.push(&folders.files.root);
        flag
    })
}
