//! Compiles Triton kernels for a device ahead of time, with the Triton of the plan's interpreter.
//!
//! The types of a kernel's parameters are taken from the arguments of the plan's launches in the job's first entry. The
//! number of warps is computed from the size of the launches' blocks. The result is PTX that is launched like any other
//! PTX.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use opt_shared::arguments::{Argument, ArgumentValue, Entry, OutputTensor, Signature, bind, judged};
use opt_shared::capture::{CaptureFile, DType};
use opt_shared::causes::chain;
use opt_shared::language::ArtifactKind;
use opt_shared::launch::{Pointer, ResolvedStep, ScalarType, Value, resolve};
use opt_shared::message::BuildTask;
use opt_shared::outcome::Status;
use serde::Serialize;

use super::{Folders, Recipe, Step, Toolchain};
use crate::interpreter;

/// The Python program that compiles the kernels.
const COMPILE: &str = include_str!("triton_compile.py");
/// The prefix of messages that the program itself prints.
const OWN_PREFIX: &str = "triton-device: ";

/// The toolchain of Triton kernels that are compiled ahead of time.
pub(super) struct Triton;

impl Toolchain for Triton {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let [source] = folders.files.sources.as_slice() else {
            return Recipe::Refused("Triton kernels for a device must be in one Python file".to_owned());
        };
        let interpreter = match interpreter::find(&task.build.python) {
            Ok(found) => found,
            Err(why) => return Recipe::Unavailable(why),
        };
        let version = match interpreter.with_triton() {
            Ok(version) => version,
            Err(why) => return Recipe::Unavailable(why),
        };
        let request = match request(task, &interpreter.folders) {
            Ok(request) => request,
            Err(Failed::Candidate(why)) => return Recipe::Refused(why),
            Err(Failed::Entry(why)) => return Recipe::Unavailable(why),
        };
        let program = folders.include.join("triton_compile.py");
        if let Err(error) = fs::write(&program, COMPILE) {
            return Recipe::Unavailable(format!("writing {}: {error}", program.display()));
        }
        let output = folders.scratch.join("candidate.ptx");
        let arguments = [source.relative.clone().into(), output.clone().into(), request.into()];
        Recipe::Run(Step::of_python(&interpreter, version, program, arguments, output, ArtifactKind::Ptx))
    }

    fn advice(&self, status: Status, log: &str) -> Option<String> {
        // The last line is the message of the program, or that of a Python exception.
        let line = log.lines().rev().find(|line| !line.trim().is_empty())?;
        (status == Status::CompileError)
            .then(|| line.strip_prefix(OWN_PREFIX).unwrap_or(line).trim().to_owned())
    }
}

/// The input of the Python program, which is passed as JSON.
#[derive(Debug, Serialize)]
struct Request<'a> {
    kernels: Vec<Kernel>,
    /// The values of the kernels' constants by name, as the plan writes them.
    constants: BTreeMap<String, String>,
    /// The folders from which the interpreter imports modules.
    folders: &'a [PathBuf],
    /// The compute capability of the run's card, such as 90; `None` for the emulated device.
    card: Option<u32>,
}

/// A kernel to compile.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Kernel {
    symbol: String,
    /// The type of each argument in Triton's notation, such as `*fp32`. The text is empty if the first entry does not
    /// show the type.
    types: Vec<String>,
    /// The number of threads in a block of the launch.
    threads: u32,
    /// The dynamic shared memory of the launch, in bytes.
    shared: u32,
}

/// The reason why no request could be made.
enum Failed {
    /// The candidate is to blame. The text says why.
    Candidate(String),
    /// The entry cannot be read, so no candidate is to blame. The text says why.
    Entry(String),
}

/// Returns the request for all kernels that the plan launches, as JSON.
fn request(task: &BuildTask, folders: &[PathBuf]) -> Result<String, Failed> {
    let Some((recorded, first)) = task.recorded.as_ref().and_then(|it| Some((it, it.entries.first()?)))
    else {
        return Err(Failed::Entry(
            "the job has no entry that shows the types of the kernels' parameters".to_owned(),
        ));
    };
    let (arguments, outputs) = call(first, &recorded.signature).map_err(Failed::Entry)?;
    let resolved = resolve(&task.launch, &arguments, &outputs)
        .map_err(|error| Failed::Candidate(format!("{}: {error}", first.display())))?;
    let mut kernels: Vec<Kernel> = Vec::new();
    for step in &resolved.steps {
        let kernel = kernel(step, &arguments, &outputs);
        match kernels.iter().find(|known| known.symbol == kernel.symbol) {
            None => kernels.push(kernel),
            Some(known) if *known == kernel => {}
            Some(_) => {
                let why = format!(
                    "`{}` has launches with different types, blocks or shared memory, but is compiled only once \
                     (write a second kernel that calls the same function)",
                    kernel.symbol
                );
                return Err(Failed::Candidate(why));
            }
        }
    }
    let constants = constants(&task.build.extra_flags).map_err(Failed::Candidate)?;
    let card = task.card.map(|card| card.capability.number());
    serde_json::to_string(&Request { kernels, constants, folders, card })
        .map_err(|error| Failed::Entry(error.to_string()))
}

/// Reads the first entry, and returns the arguments and outputs of its call.
fn call(first: &Path, signature: &Signature) -> Result<(Vec<Argument>, Vec<OutputTensor>), String> {
    let failed = |error: &dyn std::error::Error| format!("{}: {}", first.display(), chain(error));
    let capture = CaptureFile::open(first).map_err(|error| failed(&error))?;
    let entry = Entry::from_value(capture.root()).map_err(|error| failed(&error))?;
    let arguments = bind(&entry, signature).map_err(|error| failed(&error))?;
    let outputs = judged(&entry, &arguments).map_err(|error| failed(&error))?;
    Ok((arguments, outputs))
}

/// Returns the kernel that a launch calls.
fn kernel(step: &ResolvedStep, arguments: &[Argument], outputs: &[OutputTensor]) -> Kernel {
    let pointer = |dtype: DType| format!("*{}", of_dtype(dtype).unwrap_or("i8"));
    let type_of = |value: &Value| match value {
        Value::Scalar(scalar) => of_scalar(scalar.kind()).to_owned(),
        Value::Pointer(Pointer::Argument(index)) => match arguments.get(*index).map(|it| &it.value) {
            Some(ArgumentValue::Tensor(tensor)) => pointer(tensor.dtype),
            _ => String::new(),
        },
        Value::Pointer(Pointer::Output(index)) => {
            outputs.get(*index).map_or_else(String::new, |output| pointer(output.tensor.dtype))
        }
        // Only the kernel knows the element type of a workspace, or of an argument that this call left out.
        Value::Pointer(Pointer::Workspace(_)) | Value::Null | Value::Bytes { .. } => String::new(),
    };
    Kernel {
        symbol: step.symbol.clone(),
        types: step.args.iter().map(type_of).collect(),
        threads: step.block.iter().product(),
        shared: step.shared_mem,
    }
}

/// Returns Triton's name for an element type, or `None` if Triton has no name for it.
fn of_dtype(dtype: DType) -> Option<&'static str> {
    Some(match dtype.name() {
        "float16" => "fp16",
        "bfloat16" => "bf16",
        "float32" => "fp32",
        "float64" => "fp64",
        "bool" => "i1",
        "int8" => "i8",
        "int16" => "i16",
        "int32" => "i32",
        "int64" => "i64",
        "uint8" => "u8",
        "uint16" => "u16",
        "uint32" => "u32",
        "uint64" => "u64",
        "float8_e4m3fn" => "fp8e4nv",
        "float8_e5m2" => "fp8e5",
        _ => return None,
    })
}

/// Returns Triton's name for a scalar type.
fn of_scalar(kind: ScalarType) -> &'static str {
    match kind {
        ScalarType::Bool => "u1",
        ScalarType::F16 => "fp16",
        ScalarType::F32 => "fp32",
        ScalarType::F64 => "fp64",
        other => other.name(),
    }
}

/// Reads `-DNAME=VALUE` options.
fn constants(flags: &[String]) -> Result<BTreeMap<String, String>, String> {
    let read = |flag: &String| {
        let (name, value) = flag.strip_prefix("-D").and_then(|it| it.split_once('='))?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    flags
        .iter()
        .map(|flag| {
            read(flag).ok_or_else(|| {
                format!(
                    "`{flag}` in extra_flags: Triton's compiler takes only constants, such as `-DBLOCK=256`"
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_from_extra_flags() {
        let read = |flags: &[&str]| constants(&flags.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        let expected = BTreeMap::from([("BLOCK".to_owned(), "256".to_owned())]);
        assert_eq!(read(&["-DBLOCK=256"]), Ok(expected));
        assert_eq!(read(&[]), Ok(BTreeMap::new()));
        for flag in ["-O3", "-DBLOCK", "BLOCK=1"] {
            assert!(read(&[flag]).is_err_and(|why| why.contains(flag)), "{flag}");
        }
    }

    #[test]
    fn last_line_of_a_failed_build_is_the_advice() {
        let advice = |log: &str| Triton.advice(Status::CompileError, log);
        assert_eq!(advice("warning\ntriton-device: no kernel\n\n").as_deref(), Some("no kernel"));
        assert_eq!(advice("  NameError: x is not defined\n").as_deref(), Some("NameError: x is not defined"));
        assert_eq!(advice(""), None);
        assert_eq!(Triton.advice(Status::Passed, "triton-device: no kernel"), None);
    }
}
