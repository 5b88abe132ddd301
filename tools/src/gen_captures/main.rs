//! `gen-captures`: writes captures for measurements, in the format of PyTorch but without PyTorch.
//!
//! Prints one line per file and a summary to standard output, and progress to standard error if this is a terminal.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "made-up values and scaled counts, rounded on purpose"
)]

mod archive;
mod capture;
mod embedding;
mod folder;
mod incident;
mod numbers;
mod ops;
mod pickle;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use opt_shared::units::Bytes;

use crate::capture::Capture;
use crate::embedding::EmbeddingSet;
use crate::ops::{Op, OpSet};

/// Write captures (`entry_NNNNNN.pt`) for measurements; `torch.load` can read them
#[derive(Parser)]
#[command(
    name = "gen-captures",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct CommandLine {
    #[command(subcommand)]
    set: Option<Set>,
    /// Write a capture set of 51.3 GiB, and plans that run it; it imitates the set of the incident that led to this
    /// project, in which a verifier took 53.9 GB of memory
    #[arg(long, required = true)]
    incident: bool,
    /// For --incident: the output folder; it is created if it does not exist, and must not contain captures
    #[arg(long, required = true)]
    out: Option<PathBuf>,
    /// For --incident: the fraction of the rows of its tables to write, such as 0.1
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// For --incident: the random seed; the same seed gives the same files
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Subcommand)]
enum Set {
    /// Lookups in two bfloat16 tables that alternate between entries; each entry saves its whole table: 8.4 GB with the
    /// defaults
    Embedding {
        #[command(flatten)]
        common: Common,
        /// The number of captures
        #[arg(long, default_value_t = 20)]
        entries: u32,
        /// The approximate size of the set, such as 8GB or 512MiB; determines the number of rows of the tables
        #[arg(long)]
        total: Option<Bytes>,
    },
    /// One op on float32 inputs, with outputs computed in float64
    Op {
        #[command(flatten)]
        common: Common,
        /// The op to record
        #[arg(long, value_enum)]
        name: Op,
        /// The shape of the input, such as 64,1024; the op works along the last axis
        #[arg(long, value_delimiter = ',', required = true)]
        shape: Vec<u64>,
        /// The width of linear's output; by default, that of the input
        #[arg(long)]
        out_features: Option<u64>,
        /// The number of captures
        #[arg(long, default_value_t = 4)]
        entries: u32,
        /// The factor by which the first axis of the shape is made longer or shorter
        #[arg(long, default_value_t = 1.0)]
        scale: f64,
    },
}

#[derive(Args)]
struct Common {
    /// The output folder; it is created if it does not exist, and must not contain captures
    #[arg(long)]
    out: PathBuf,
    /// The random seed; the same seed gives the same files
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gen-captures: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: CommandLine) -> Result<()> {
    match command.set {
        None => {
            let out = command.out.context("--incident needs a folder (pass --out)")?;
            let set = incident::set(command.scale, command.seed)?;
            write_set(&out, set.entries, |entry| set.capture(entry))?;
            incident::write_plans(&out)
        }
        Some(Set::Embedding { common, entries, total }) => {
            let set = EmbeddingSet::new(entries, total, common.seed)?;
            write_set(&common.out, set.entries, |entry| set.capture(entry))
        }
        Some(Set::Op { common, name, shape, out_features, entries, scale }) => {
            let set = OpSet::new(name, &shape, out_features, scale, common.seed)?;
            write_set(&common.out, entries, |entry| set.capture(entry))
        }
    }
}

fn write_set<'a>(out: &Path, entries: u32, capture: impl Fn(u32) -> Capture<'a>) -> Result<()> {
    let needed: Bytes = (0..entries).map(|entry| capture(entry).estimate()).sum();
    folder::prepare(out, needed)?;
    let started = Instant::now();
    let mut total = Bytes::ZERO;
    for entry in 0..entries {
        progress(&format!("entry {} of {entries}, {total} of {needed}", entry + 1));
        let written = capture(entry).write(&folder::entry_path(out, entry))?;
        progress("");
        total += written.bytes;
        println!("{}  {}  {}", written.path.display(), written.bytes, written.tensors.join(", "));
    }
    println!("{entries} captures, {total}, in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Updates the progress line if standard error is a terminal.
fn progress(text: &str) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // Ignore errors, because progress is only informative.
        let _ignored = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
    }
}
