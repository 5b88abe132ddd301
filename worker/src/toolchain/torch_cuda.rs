//! Builds CUDA candidates that use PyTorch's tensors. nvcc compiles the sources together with the glue of a torch
//! extension and with an emulation of PyTorch's CUDA device, which uses the runtime of the emulated device.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;

use super::c::{Parts, operand};
use super::torch_extension::{self, Glue};
use super::{Folders, Recipe, Toolchain, cuda};
use crate::interpreter;

/// C++ code that gives PyTorch a CUDA device. The memory of this device is that of the emulated device.
const DEVICE: &str = include_str!("../../include/opt_torch_device.cpp");

/// Options that PyTorch's own build of extensions passes to nvcc, and options that silence warnings about PyTorch's
/// headers.
const AS_PYTORCH: [&str; 7] = [
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "-w",
];

pub(super) struct TorchCuda;

impl Toolchain for TorchCuda {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let interpreter = match interpreter::find(&task.build.python) {
            Ok(found) => found,
            Err(why) => return Recipe::Unavailable(why),
        };
        let Glue { source, exported, others } = match torch_extension::glue(task, folders, "cu") {
            Ok(glue) => glue,
            Err(recipe) => return *recipe,
        };
        let device = folders.include.join("opt_torch_device.cpp");
        if let Err(error) = fs::write(&device, DEVICE) {
            return Recipe::Unavailable(format!("writing {}: {error}", device.display()));
        }
        let torch = &interpreter.libtorch;
        let mut flags: Vec<OsString> = torch.flags.iter().map(OsString::from).collect();
        flags.extend(AS_PYTORCH.map(OsString::from));
        flags.extend(
            ["-DTORCH_EXTENSION_NAME=candidate", "-Xcompiler", "-ffunction-sections,-fdata-sections"]
                .map(OsString::from),
        );
        flags.extend(["-Xlinker", "--gc-sections", "-Xlinker"].map(OsString::from));
        flags.push(format!("--version-script={}", exported.display()).into());
        // The candidate's own folder contains the headers that its sources include.
        flags.extend(["-I".into(), ".".into()]);
        let sources = [source.into(), device.into()]
            .into_iter()
            .chain(others.iter().map(|source| operand(source)))
            .collect();
        let mut system_include = torch.include.clone();
        system_include.extend(beside_torch(&torch.libraries));
        cuda::recipe(
            task,
            folders,
            Parts {
                flags,
                sources,
                system_include,
                library_path: torch.libraries.clone(),
                libraries: ["-ltorch_cpu", "-lc10"].map(OsString::from).into(),
            },
        )
    }

    fn advice(&self, status: Status, log: &str) -> Option<String> {
        torch_extension::advice(status, log)
    }
}

/// Returns the header folders of the CUDA libraries that are installed with torch, such as cuBLAS. Some of torch's
/// headers include these libraries' headers.
fn beside_torch(libraries: &[PathBuf]) -> Vec<PathBuf> {
    let headers = libraries.iter().filter_map(|folder| Some(folder.parent()?.join("include")));
    headers
        .filter(|folder| folder.is_dir() && folder.parent().is_some_and(|parent| !parent.ends_with("torch")))
        .collect()
}
