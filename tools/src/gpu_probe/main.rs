//! `gpu-probe`: tests the properties of a CUDA driver on which this project's device support depends, and prints a
//! Markdown table.
//!
//! The built program is a single file: copy it to a machine with a driver and run it. It needs no toolkit, compiler or
//! network. Each section is a separate process with a time limit, so a section that hangs or crashes loses only its own
//! rows.

mod confined;
mod context;
mod cuda;
mod nvml;
mod pinned;
mod pool;
mod reads;
mod table;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;

use crate::table::Row;

/// The time limit of one section; all of them take less than three minutes.
const SECTION_LIMIT: Duration = Duration::from_secs(20);
const NO_DRIVER: u8 = 3;

/// Test the properties of a GPU driver on which this project depends. Prints a Markdown table; exits with status 3 if
/// there is no driver
#[derive(Parser)]
#[command(name = "gpu-probe", version)]
struct Arguments {
    /// The number of the device
    #[arg(long, default_value_t = 0)]
    device: i32,
    /// A folder in which a file of 512 MiB can be written and read; the file is removed afterwards
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    #[arg(long, hide = true)]
    section: Option<Section>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    Context,
    Pool,
    Pinned,
    Reads,
    Nvml,
    Kill,
    Confined,
    // The rest are child processes of the sections above.
    HoldContext,
    HoldMemory,
    UnderDataLimit,
    UnderFilesRules,
    UnderCallFilter,
    UnderAll,
}

const SECTIONS: [(Section, &str); 7] = [
    (Section::Context, "context"),
    (Section::Pool, "pool"),
    (Section::Pinned, "pinned memory"),
    (Section::Reads, "reads into pinned memory"),
    (Section::Nvml, "NVML"),
    (Section::Kill, "SIGKILL"),
    (Section::Confined, "confinement"),
];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(section) = arguments.section {
        return match answer(section, &arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let driver = match cuda::describe(arguments.device) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("gpu-probe: no CUDA driver to ask: {error:#}");
            return ExitCode::from(NO_DRIVER);
        }
    };
    println!("# GPU probe\n\n{driver}\n");
    println!("{}", table::HEAD);
    for (section, name) in SECTIONS {
        match run(section, &arguments) {
            Ok(rows) => rows.iter().for_each(|row| println!("{row}")),
            Err(error) => println!("{}", Row::new(name, "no answer", format!("{error:#}"))),
        }
    }
    ExitCode::SUCCESS
}

fn answer(section: Section, arguments: &Arguments) -> Result<()> {
    let device = arguments.device;
    let rows = match section {
        Section::Context => context::rows(device)?,
        Section::Pool => pool::rows(device)?,
        Section::Pinned => pinned::rows(device)?,
        Section::Reads => reads::rows(device, &arguments.dir)?,
        Section::Nvml => nvml::rows(device)?,
        Section::Kill => context::kill_rows(device)?,
        Section::Confined => confined::rows(device)?,
        Section::HoldContext => return context::hold(device, 0),
        Section::HoldMemory => return context::hold(device, context::HELD),
        Section::UnderDataLimit => return confined::under_data_limit(device),
        Section::UnderFilesRules => return confined::under_files_rules(device),
        Section::UnderCallFilter => return confined::under_call_filter(device),
        Section::UnderAll => return confined::under_all(device),
    };
    rows.iter().for_each(|row| println!("{}", row.line()));
    Ok(())
}

/// Returns the command that runs this program again, for one section.
fn command(section: Section, device: i32) -> Result<Command> {
    let name = clap::ValueEnum::to_possible_value(&section).context("a section without a name")?;
    let mut command = Command::new(std::env::current_exe().context("finding this program's file")?);
    command.arg("--section").arg(name.get_name()).arg("--device").arg(device.to_string());
    Ok(command)
}

fn run(section: Section, arguments: &Arguments) -> Result<Vec<Row>> {
    let mut command = command(section, arguments.device)?;
    command.arg("--dir").arg(&arguments.dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting the section")?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for the section")? {
            break Some(status);
        }
        if SECTION_LIMIT < started.elapsed() {
            child.kill().context("ending the section")?;
            child.wait().context("waiting for the section")?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // A section prints a few lines, which fit into a pipe, so the output can be read after the section has ended.
    let mut text = [String::new(), String::new()];
    child.stdout.take().map(|mut out| out.read_to_string(&mut text[0])).transpose()?;
    child.stderr.take().map(|mut out| out.read_to_string(&mut text[1])).transpose()?;
    let [out, said] = text;
    let rows: Vec<Row> = out.lines().filter_map(Row::from_line).collect();
    match status {
        None => anyhow::bail!("it took longer than {} s", SECTION_LIMIT.as_secs()),
        Some(status) if !status.success() && rows.is_empty() => anyhow::bail!("{status}: {}", said.trim()),
        Some(_) => Ok(rows),
    }
}
