//! Builds C++ candidates that use PyTorch's tensors. The sources are compiled together with glue code, which makes
//! their function callable through the candidate interface, and are linked to the libtorch of the plan's interpreter.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;

use super::c::{Parts, operand, step};
use super::{Folders, Recipe, Toolchain};
use crate::interpreter;

/// C++ code that includes the candidate's first source, and wraps the candidate's function in a C function.
const GLUE: &str = include_str!("../../include/opt_torch_glue.cpp");

/// Advice for a build that took too long or used too much memory.
const LIGHTER_HEADERS: &str = "`torch/extension.h` brings in all of PyTorch; `ATen/ATen.h` or `torch/types.h` has the tensors \
                               and their functions, and compiles in a third of the time and half the memory";

pub(super) struct TorchExtension;

/// The files that a build adds to the candidate's files, and the candidate's other sources.
pub(super) struct Glue {
    /// The file that includes the candidate's first source.
    pub(super) source: PathBuf,
    /// The file that tells the linker which symbols the library exports.
    pub(super) exported: PathBuf,
    pub(super) others: Vec<PathBuf>,
}

/// Writes the glue code to a file with this suffix.
pub(super) fn glue(task: &BuildTask, folders: &Folders<'_>, suffix: &str) -> Result<Glue, Box<Recipe>> {
    let Some((first, others)) = folders.files.sources.split_first() else {
        return Err(Box::new(Recipe::Refused(format!(
            "a candidate in `{}` needs at least one source",
            task.source.language.name()
        ))));
    };
    let Some(included) = first.relative.to_str().filter(|name| !name.contains(['"', '\\'])) else {
        return Err(Box::new(Recipe::Refused(
            "the name of the first source is not UTF-8, or contains a quotation mark or a backslash (rename it)"
                .to_owned(),
        )));
    };
    let symbol = &task.source.symbol;
    let entry = format!("__tvm_ffi_{symbol}");
    let source = folders.include.join(format!("opt_torch_glue.{suffix}"));
    let exported = folders.include.join("opt_torch_glue.map");
    let text = format!(
        "#define OPT_SOURCE \"{included}\"\n#define OPT_FUNCTION {symbol}\n#define OPT_ENTRY {entry}\n#line 1\n{GLUE}"
    );
    let map = format!("{{ global: {entry}; opt_parameters; TVMFFIErrorMoveFromRaised; local: *; }};\n");
    for (path, text) in [(&source, &text), (&exported, &map)] {
        fs::write(path, text)
            .map_err(|error| Box::new(Recipe::Unavailable(format!("writing {}: {error}", path.display()))))?;
    }
    let others = others.iter().map(|source| source.relative.clone()).collect();
    Ok(Glue { source, exported, others })
}

impl Toolchain for TorchExtension {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let interpreter = match interpreter::find(&task.build.python) {
            Ok(found) => found,
            Err(why) => return Recipe::Unavailable(why),
        };
        let Glue { source, exported, others } = match glue(task, folders, "cpp") {
            Ok(glue) => glue,
            Err(recipe) => return *recipe,
        };
        let torch = &interpreter.libtorch;
        let mut flags: Vec<OsString> = torch.flags.iter().map(OsString::from).collect();
        flags.extend([
            // This lets a PYBIND11_MODULE compile. The module is never called, so the linker leaves it out, and the
            // library can be loaded without an interpreter.
            "-DTORCH_EXTENSION_NAME=candidate".into(),
            "-ffunction-sections".into(),
            "-fdata-sections".into(),
            "-Wl,--gc-sections".into(),
            format!("-Wl,--version-script={}", exported.display()).into(),
            "-iquote".into(),
            ".".into(),
        ]);
        let sources =
            std::iter::once(source.into()).chain(others.iter().map(|source| operand(source))).collect();
        Recipe::Run(step(
            task,
            folders,
            Parts {
                flags,
                sources,
                system_include: torch.include.clone(),
                library_path: torch.libraries.clone(),
                libraries: ["-ltorch_cpu", "-lc10"].map(OsString::from).into(),
            },
        ))
    }

    fn advice(&self, status: Status, log: &str) -> Option<String> {
        advice(status, log)
    }
}

pub(super) fn advice(status: Status, log: &str) -> Option<String> {
    if matches!(status, Status::CompileTimeout | Status::HostMemoryLimit) {
        return Some(LIGHTER_HEADERS.to_owned());
    }
    if log.contains("fatal error: Python.h") || log.contains("'Python.h' file not found") {
        return Some(
            "`torch/extension.h` needs Python's headers (install them: Debian has them in libpython3-dev); \
             `ATen/ATen.h` and `torch/types.h` do not need them"
                .to_owned(),
        );
    }
    let says = ["was not declared in this scope", "use of undeclared identifier", "is undefined"];
    let of_glue = |line: &str| line.contains("opt_torch_glue.c") && says.iter().any(|it| line.contains(it));
    log.lines().any(of_glue).then(|| {
        "the first source must define the function that `symbol` names (`launch` by default)".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_covers_known_failures() {
        let advice = |status, log| TorchExtension.advice(status, log).unwrap_or_default();
        let undeclared =
            "opt_torch_glue.cpp:9:1: error: \u{2018}launch\u{2019} was not declared in this scope";
        for (status, log, part) in [
            (Status::CompileTimeout, "", "ATen/ATen.h"),
            (Status::HostMemoryLimit, "", "ATen/ATen.h"),
            (
                Status::CompileError,
                "torch/python.h:1:10: fatal error: Python.h: No such file",
                "libpython3-dev",
            ),
            (Status::CompileError, undeclared, "`symbol`"),
        ] {
            assert!(advice(status, log).contains(part), "{log}");
        }
        for log in [
            "./k.cu(3): error: identifier \"oops\" is undefined\n1 error detected in the compilation of \"/scratch/opt_torch_glue.cu\".",
            "In file included from /scratch/opt_torch_glue.cpp:12:\nk.cpp:1:1: error: use of undeclared identifier 'oops'",
            "k.cpp:1:1: error: \u{2018}oops\u{2019} was not declared in this scope",
            "k.cpp:2:1: error: expected `;`",
        ] {
            assert_eq!(advice(Status::CompileError, log), "", "{log}");
        }
    }
}
