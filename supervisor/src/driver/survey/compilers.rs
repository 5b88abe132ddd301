//! Looks for the C and C++ compilers that a plan's candidates need, before anything is built. Compilers of device code
//! are looked for in `devices.rs`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use opt_shared::language::Toolchain;

use crate::plan::{CandidatePlan, Plan};

/// A compiler that candidates of the plan need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCompiler {
    pub language: &'static str,
    /// The key of `[build]` that names the compiler.
    pub key: &'static str,
    /// The program, as the plan names it.
    pub program: String,
    /// The path of the program, or `None` if there is no such program.
    pub path: Option<PathBuf>,
}

/// The error that this machine does not have a compiler that candidates need.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{language} kernels cannot be compiled: the compiler `{program}` was not found on PATH (install it, or set [build] {setting})"
)]
pub struct MissingCompiler {
    language: &'static str,
    setting: &'static str,
    program: String,
}

impl HostCompiler {
    pub fn missing(&self) -> Option<MissingCompiler> {
        let Self { language, key, program, path } = self;
        path.is_none().then(|| MissingCompiler { language, setting: key, program: program.clone() })
    }
}

/// Returns the compilers that these candidates of the plan need. Each compiler is listed once.
pub fn needed<'p>(candidates: impl Iterator<Item = &'p CandidatePlan>) -> Vec<HostCompiler> {
    let programs: BTreeSet<(&str, &str, &str)> = candidates
        .filter_map(|it| match it.source.language.kind().toolchain {
            Toolchain::Cc => Some(("C", "cc", it.build.cc.as_str())),
            Toolchain::Cxx | Toolchain::TorchExtension | Toolchain::TorchCompiler => {
                Some(("C++", "cxx", it.build.cxx.as_str()))
            }
            _ => None,
        })
        .collect();
    programs
        .into_iter()
        .map(|(language, key, program)| HostCompiler {
            language,
            key,
            program: program.to_owned(),
            path: opt_shared::program::find(program),
        })
        .collect()
}

/// Fails if a compiler of a selected candidate is missing.
pub fn check(plan: &Plan, selected: &[bool]) -> Result<(), MissingCompiler> {
    let candidates = plan.candidates().filter(|it| selected.get(it.id.index()).is_some_and(|&it| it));
    needed(candidates).iter().find_map(HostCompiler::missing).map_or(Ok(()), Err)
}
