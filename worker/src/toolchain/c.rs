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
        let (compiler, arguments) = command(task, folders.include, &output);
        let sources = task.source.sources.iter();
        let mut readable: Vec<PathBuf> = sources
            .filter_map(|source| source.parent().map(Path::to_owned))
            .chain(task.build.include.iter().cloned())
            .chain(task.build.library_path.iter().cloned())
            .collect();
        readable.sort();
        readable.dedup();
        Recipe::Run(Step { compiler, arguments, output, readable })
    }
}

/// `CC FLAGS EXTRA -shared -fPIC -I… -o OUT SOURCES LINK_FLAGS -L… -Wl,-rpath… LIBRARIES`.
fn command(task: &BuildTask, own_include: &Path, built: &Path) -> (String, Vec<OsString>) {
    let build = &task.build;
    let compiler = match task.source.language.kind().toolchain {
        language::Toolchain::Cxx => &build.cxx,
        _ => &build.cc,
    };
    let mut arguments: Vec<OsString> = Vec::new();
    arguments.extend(build.flags.iter().chain(&build.extra_flags).map(OsString::from));
    arguments.extend(["-shared", "-fPIC"].map(OsString::from));
    for folder in build.include.iter().map(PathBuf::as_path).chain([own_include]) {
        arguments.push("-I".into());
        arguments.push(folder.into());
    }
    arguments.push("-o".into());
    arguments.push(built.into());
    arguments.extend(task.source.sources.iter().map(OsString::from));
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
