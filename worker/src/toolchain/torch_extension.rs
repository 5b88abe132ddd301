//! C++ on PyTorch tensors. The sources are compiled together with glue, which makes their function callable through the
//! candidate interface, and are linked to the libtorch of the plan's interpreter.

use std::ffi::OsString;
use std::fs;

use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;

use super::c::{Parts, operand, step};
use super::{Folders, Recipe, Toolchain};
use crate::interpreter;

/// C++ code that includes the candidate's first source, and wraps the function to call as a C function.
const GLUE: &str = include_str!("../../include/opt_torch_glue.cpp");

/// Advice for a build that took too long or too much memory.
const LIGHTER_HEADERS: &str = "`torch/extension.h` brings in all of PyTorch; `ATen/ATen.h` or `torch/types.h` has the tensors \
                               and their functions, in a third of the time and half the memory";

pub(super) struct TorchExtension;

impl Toolchain for TorchExtension {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let interpreter = match interpreter::find(&task.build.python) {
            Ok(found) => found,
            Err(why) => return Recipe::Unavailable(why),
        };
        let Some((first, others)) = folders.files.sources.split_first() else {
            return Recipe::Refused("a torch-extension needs at least one source".to_owned());
        };
        let Some(source) = first.relative.to_str().filter(|name| !name.contains(['"', '\\'])) else {
            return Recipe::Refused(
                "the name of the first source contains a quotation mark or a backslash, or is not UTF-8"
                    .to_owned(),
            );
        };
        let symbol = &task.source.symbol;
        let entry = format!("__tvm_ffi_{symbol}");
        let glue = folders.include.join("opt_torch_glue.cpp");
        let exported = folders.include.join("opt_torch_glue.map");
        let map = format!("{{ global: {entry}; opt_parameters; TVMFFIErrorMoveFromRaised; local: *; }};\n");
        for (path, text) in [(&glue, GLUE), (&exported, map.as_str())] {
            if let Err(error) = fs::write(path, text) {
                return Recipe::Unavailable(format!("writing {}: {error}", path.display()));
            }
        }
        let torch = &interpreter.libtorch;
        let mut flags: Vec<OsString> = torch.flags.iter().map(OsString::from).collect();
        flags.extend([
            format!("-DOPT_SOURCE=\"{source}\"").into(),
            format!("-DOPT_FUNCTION={symbol}").into(),
            format!("-DOPT_ENTRY={entry}").into(),
            // Lets a PYBIND11_MODULE compile. The module is never called, so the linker leaves it out, and the library
            // loads without an interpreter.
            "-DTORCH_EXTENSION_NAME=candidate".into(),
            "-ffunction-sections".into(),
            "-fdata-sections".into(),
            "-Wl,--gc-sections".into(),
            format!("-Wl,--version-script={}", exported.display()).into(),
            "-iquote".into(),
            ".".into(),
        ]);
        let sources = std::iter::once(glue.into())
            .chain(others.iter().map(|source| operand(&source.relative)))
            .collect();
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
        if matches!(status, Status::CompileTimeout | Status::HostMemoryLimit) {
            return Some(LIGHTER_HEADERS.to_owned());
        }
        if log.contains("fatal error: Python.h") || log.contains("'Python.h' file not found") {
            return Some(
                "`torch/extension.h` needs Python's headers: install them (Debian has them in libpython3-dev), or \
                 include `ATen/ATen.h` or `torch/types.h`, which do not need them"
                    .to_owned(),
            );
        }
        let is_undeclared =
            log.contains("was not declared in this scope") || log.contains("use of undeclared identifier");
        (is_undeclared && log.contains("opt_torch_glue.cpp:")).then(|| {
            "the first source must define the function that `symbol` names (`launch` by default)".to_owned()
        })
    }
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
            "k.cpp:1:1: error: \u{2018}oops\u{2019} was not declared in this scope",
            "k.cpp:2:1: error: expected `;`",
        ] {
            assert_eq!(advice(Status::CompileError, log), "", "{log}");
        }
    }
}
