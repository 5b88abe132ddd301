//! C and C++: one command of a compiler's driver, from sources to a shared library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use opt_shared::language;
use opt_shared::message::BuildTask;

use super::{Folders, Recipe, Step, Toolchain};

pub(super) struct C;

impl Toolchain for C {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let output = folders.scratch.join("candidate.so");
        let (compiler, arguments) = command(task, folders, &output);
        let mut readable: Vec<PathBuf> =
            task.build.include.iter().chain(&task.build.library_path).cloned().collect();
        readable.sort();
        readable.dedup();
        Recipe::Run(Step { compiler, arguments, output, readable })
    }
}

/// `CC FLAGS EXTRA -shared -fPIC -I… -o OUT SOURCES LINK_FLAGS -L… LIBRARIES`. Sources are named as they lie in their folder,
/// so what a compiler prints of them is short, and the same for every build.
fn command(task: &BuildTask, folders: &Folders<'_>, built: &Path) -> (String, Vec<OsString>) {
    let build = &task.build;
    let compiler = match task.source.language.kind().toolchain {
        language::Toolchain::Cxx => &build.cxx,
        _ => &build.cc,
    };
    let mut arguments: Vec<OsString> = Vec::new();
    arguments.extend(build.flags.iter().chain(&build.extra_flags).map(OsString::from));
    arguments.extend(debug_paths(&arguments, folders));
    arguments.extend(["-shared", "-fPIC"].map(OsString::from));
    for folder in build.include.iter().map(PathBuf::as_path).chain([folders.include]) {
        arguments.push("-I".into());
        arguments.push(folder.into());
    }
    arguments.push("-o".into());
    arguments.push(built.into());
    arguments.extend(folders.files.sources.iter().map(|source| operand(&source.relative)));
    arguments.extend(build.link_flags.iter().map(OsString::from));
    for folder in &build.library_path {
        let mut flag = OsString::from("-L");
        flag.push(folder);
        arguments.push(flag);
    }
    for library in &build.libraries {
        arguments.push(if library.contains('/') || library.starts_with('-') {
            library.into()
        } else {
            format!("-l{library}").into()
        });
    }
    (compiler.clone(), arguments)
}

/// A path that cannot be taken for an option.
fn operand(relative: &Path) -> OsString {
    match relative.as_os_str().as_encoded_bytes().first() {
        Some(b'-' | b'@') => Path::new(".").join(relative).into(),
        _ => relative.into(),
    }
}

/// Debuggers look for the sources where they came from, not where their copies were.
fn debug_paths(flags: &[OsString], folders: &Folders<'_>) -> Option<OsString> {
    flags.iter().any(|flag| flag.as_encoded_bytes().starts_with(b"-g") && flag != "-g0").then(|| {
        let mut flag = OsString::from("-fdebug-prefix-map=");
        flag.push(folders.work());
        flag.push("=");
        flag.push(&folders.files.root);
        flag
    })
}
