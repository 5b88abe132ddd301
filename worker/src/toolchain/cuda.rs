//! Builds CUDA candidates with host code: nvcc makes a shared library, whose calls of the CUDA runtime are redirected
//! to the runtime of the emulated device.

use std::ffi::OsString;
use std::path::PathBuf;

use opt_shared::language::ArtifactKind;
use opt_shared::message::BuildTask;

use super::c::{Parts, library_argument, operand};
use super::nvrtc::{PTX_FOR, name_that_a_shell_changes, nvcc};
use super::{Folders, Program, Recipe, Step, Toolchain};
use crate::runner::cudart::FUNCTIONS;

/// Options that select an architecture. If a plan contains one of them, the default architecture is not passed.
const ARCHITECTURE: [&str; 5] = ["-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code"];

pub(super) struct Cuda;

impl Toolchain for Cuda {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let sources = folders.files.sources.iter().map(|source| operand(&source.relative)).collect();
        recipe(task, folders, Parts { sources, ..Parts::default() })
    }
}

/// Returns the command `NVCC -shared … FLAGS -I… -isystem… -o OUT SOURCES LINK_FLAGS -L… LIBRARIES`. The command has
/// the candidate's `extra_flags`, but not `[build] flags`, because those are for a C compiler.
pub(super) fn recipe(task: &BuildTask, folders: &Folders<'_>, parts: Parts) -> Recipe {
    let build = &task.build;
    let Some(nvcc) = nvcc(&build.toolchain) else { return Recipe::Unavailable(MISSING.to_owned()) };
    if let Some(why) = name_that_a_shell_changes(folders.files) {
        return Recipe::Refused(why);
    }
    let (output, readable) = (folders.scratch.join("candidate.so"), parts.readable(build));
    let fixed = ["-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "--no-compress", "-lineinfo"];
    let mut arguments: Vec<OsString> = fixed.map(OsString::from).to_vec();
    arguments.extend(parts.flags);
    if !build.extra_flags.iter().any(|flag| names_architecture(flag)) {
        arguments.extend(["-gencode".into(), format!("arch={PTX_FOR},code={PTX_FOR}").into()]);
    }
    arguments.extend(build.extra_flags.iter().map(OsString::from));
    for folder in build.include.iter().map(PathBuf::as_path).chain([folders.include]) {
        arguments.extend(["-I".into(), folder.into()]);
    }
    for folder in &parts.system_include {
        arguments.extend(["-isystem".into(), folder.into()]);
    }
    arguments.extend(["-o".into(), output.clone().into()]);
    arguments.extend(parts.sources);
    for flag in &build.link_flags {
        arguments.extend(["-Xlinker".into(), flag.into()]);
    }
    let redirected: Vec<String> = FUNCTIONS.lines().map(|name| format!("--wrap={name}")).collect();
    arguments.extend(["-Xlinker".into(), redirected.join(",").into()]);
    for folder in build.library_path.iter().chain(&parts.library_path) {
        arguments.extend(["-L".into(), folder.into()]);
    }
    arguments.extend(build.libraries.iter().map(|library| library_argument(library)));
    arguments.extend(parts.libraries);
    Recipe::Run(Step {
        compiler: nvcc.display().to_string(),
        program: Program::OnPath,
        version: None,
        arguments,
        output,
        artifact: ArtifactKind::SharedLibrary,
        readable,
        toolchain: nvcc.parent().and_then(|folder| folder.parent()).map(PathBuf::from).into_iter().collect(),
        next: None,
    })
}

/// Returns true if an option selects an architecture.
pub(super) fn names_architecture(flag: &str) -> bool {
    ARCHITECTURE.iter().any(|option| flag.starts_with(option))
}

const MISSING: &str = "nvcc, the compiler for CUDA with host code, was not found (name a folder of the CUDA toolkit, or of a Python \
     environment with `nvidia-cuda-nvcc`, in [build] toolchain)";

/// Describes the compiler that a build with these folders would use: `yes nvcc, PATH`, or `no` and the reason.
pub(crate) fn describe(toolchain: &[PathBuf]) -> String {
    nvcc(toolchain).map_or_else(|| format!("no {MISSING}"), |path| format!("yes nvcc, {}", path.display()))
}
