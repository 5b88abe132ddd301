//! `opt-supervisor import`: turns projects of other tools into plans, by running the Python package `opt_captures`.
//!
//! The importers are written in Python because they need PyTorch. The package is part of this program, which writes it
//! to a temporary folder and runs it there with the user's interpreter.

mod package;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use opt_shared::child;

use super::{CommandResult, Failure};
use crate::driver::survey::interpreters;
use crate::exit::Exit;

/// The environment variable that tells the package where this program is.
const PROGRAM: &str = "OPT_SUPERVISOR";

const CODES: &str = "Exit codes: 0 imported; 1 nothing could be imported, or a file exists; 2 usage error; 3 host error, \
such as an interpreter without PyTorch; 4 interrupted.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(super) struct ImportArguments {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Subcommand)]
enum ImportCommand {
    /// Record KernelBench problems, and write a plan with their `ModelNew` classes as candidates
    Kernelbench {
        /// Files with the class `Model` and the functions `get_inputs` and `get_init_inputs`
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// A file with the class `ModelNew`. If there are several problems, the file's name must begin with the name of
        /// its problem
        #[arg(long, value_name = "FILE")]
        kernel: Vec<PathBuf>,
        /// Calls to record of each problem [default: 3]
        #[arg(long, value_name = "N")]
        calls: Option<u32>,
        /// The seed of the models and their inputs [default: 42]
        #[arg(long, value_name = "N")]
        seed: Option<u32>,
        /// Record the models in training mode, not in eval mode
        #[arg(long)]
        training: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Write a plan for a KernelForge project, with its captures and kernels
    Kernelforge {
        /// The project: a folder with `io/individual_ops` and `kernels`
        #[arg(value_name = "DIR")]
        project: PathBuf,
        /// Compare and time as KernelForge does
        #[arg(long)]
        parity: bool,
        /// Import the CUDA kernels instead of the others, for the emulated device
        #[arg(long, conflicts_with = "parity")]
        cuda: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Record the definitions of a flashinfer-trace data set, and write a plan with its solutions
    FlashinferTrace {
        /// The data set: a folder with `definitions`, `workloads` and `solutions`
        #[arg(value_name = "DIR")]
        data_set: PathBuf,
        /// Workloads to record of each definition [default: 5]
        #[arg(long, value_name = "N")]
        calls: Option<u32>,
        /// The seed of random inputs [default: 0]
        #[arg(long, value_name = "N")]
        seed: Option<u32>,
        #[command(flatten)]
        target: Target,
    },
}

/// The options of all imports.
#[derive(Args)]
struct Target {
    /// The plan to write; captures and kernels go into its folder
    #[arg(short, long, default_value = "plan.toml", value_name = "PLAN")]
    output: PathBuf,
    /// An interpreter that has PyTorch: a path, or the name of a program on PATH
    #[arg(long, default_value = "python3", value_name = "PYTHON")]
    python: String,
}

pub(super) fn import(arguments: ImportArguments) -> CommandResult {
    let (target, arguments) = arguments.command.into_python()?;
    let interpreter = interpreters::locate(&target.python).map_err(|why| {
        Failure::host(anyhow!(
            "importing needs Python with PyTorch: {why} (name an interpreter with --python; `pip install torch` adds \
             PyTorch to it)"
        ))
    })?;
    crate::signal::leave_interrupts_to_child();
    run(&interpreter, &arguments).map_err(Failure::host)
}

impl ImportCommand {
    /// Returns the options of all imports, and the arguments of the package's own command line.
    fn into_python(self) -> Result<(Target, Vec<OsString>), Failure> {
        let (name, inputs, options, target) = match self {
            Self::Kernelbench { files, kernel, calls, seed, training, target } => {
                let mut options: Vec<OsString> =
                    kernel.into_iter().flat_map(|it| [OsString::from("--kernel"), it.into()]).collect();
                options.extend(training.then(|| "--training".into()));
                ("kernelbench", files, [options, number("--calls", calls), number("--seed", seed)], target)
            }
            Self::Kernelforge { project, parity, cuda, target } => {
                let given = [(parity, "--parity"), (cuda, "--cuda")].into_iter();
                let options = given.filter(|(is_set, _)| *is_set).map(|(_, option)| option.into()).collect();
                ("kernelforge", vec![project], [options, Vec::new(), Vec::new()], target)
            }
            Self::FlashinferTrace { data_set, calls, seed, target } => {
                let options = [Vec::new(), number("--calls", calls), number("--seed", seed)];
                ("flashinfer-trace", vec![data_set], options, target)
            }
        };
        let Some(plan) = target.output.file_name() else {
            let path = target.output.display();
            return Err(Failure::usage(anyhow!(
                "--output {path} names a folder, not a plan (write DIR/plan.toml)"
            )));
        };
        let folder =
            target.output.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let mut arguments: Vec<OsString> = vec![name.into(), "--plan".into(), plan.into()];
        arguments.extend(options.into_iter().flatten());
        // The dashes ensure that a path which begins with a dash is not taken for an option.
        arguments.push("--".into());
        arguments.extend(inputs.into_iter().map(OsString::from));
        arguments.push(folder.into());
        Ok((target, arguments))
    }
}

fn number(option: &str, value: Option<u32>) -> Vec<OsString> {
    value.map(|value| [option.into(), value.to_string().into()]).into_iter().flatten().collect()
}

/// Runs the package, and converts its exit status.
fn run(interpreter: &Path, arguments: &[OsString]) -> anyhow::Result<Exit> {
    let folder = tempfile::Builder::new()
        .prefix("opt-supervisor-import-")
        .tempdir()
        .context("creating a temporary folder for the importers")?;
    package::write(folder.path())
        .with_context(|| format!("writing the importers to {}", folder.path().display()))?;
    let program = std::env::current_exe().context("looking up the path of this program")?;
    // The first entry of sys.path is the folder with the package, and not the working directory.
    let mut command = Command::new(interpreter);
    command.arg("-B").arg(folder.path()).args(arguments).env(PROGRAM, program);
    let mut child =
        child::start(&mut command).with_context(|| format!("starting {}", interpreter.display()))?;
    let status = child.wait().context("waiting for the importer")?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(Exit::Good),
        (Some(1), _) => Ok(Exit::NonePassed),
        (Some(2), _) => Ok(Exit::Usage),
        (_, Some(nix::libc::SIGINT)) => Ok(Exit::Interrupted),
        _ => {
            Err(anyhow!("the importer did not complete: {status} (import fewer problems if memory ran out)"))
        }
    }
}
