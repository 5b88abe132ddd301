//! `opt-supervisor captures`: packs a capture set into a store that contains each repeated tensor only once, and
//! unpacks and checks such stores.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use opt_shared::units::Bytes;
use serde_json::json;

use super::{CommandResult, Failure, print_out};
use crate::captures::{self, Added, CapturesError, Packed, check, unpack};
use crate::exit::Exit;
use crate::record::UtcTime;
use crate::report::figures::counted;

#[derive(Args)]
pub(super) struct CapturesArguments {
    #[command(subcommand)]
    command: CapturesCommand,
}

#[derive(Subcommand)]
enum CapturesCommand {
    /// Write the captures of a folder into a store; an interrupted command can be repeated to continue
    Pack {
        /// Folder to pack: its `.pt` files and those in its subfolders
        dir: PathBuf,
        /// The store to create
        store: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Add `.pt` files to a store; creates the store if there is none
    Add {
        /// The store
        store: PathBuf,
        /// The files to add
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The name of the entry, such as `op/entry_000003.pt`, instead of the file's name; only for a single file
        #[arg(long, value_name = "ENTRY")]
        name: Option<String>,
        /// Replace existing entries
        #[arg(long)]
        replace: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Restore the `.pt` files of a store, byte for byte
    Unpack {
        /// The store to read
        store: PathBuf,
        /// Folder to write to
        dir: PathBuf,
        /// Only this entry, such as `entry_000003` or `op/entry_000003.pt`
        #[arg(long, value_name = "ENTRY")]
        entry: Vec<String>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Read a whole store: compare all digests, and list missing and unused files
    Check {
        /// The store to read
        store: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn captures(arguments: &CapturesArguments) -> CommandResult {
    match &arguments.command {
        CapturesCommand::Pack { dir, store, json } => {
            let bar = bar("packing");
            let tick = |bytes: Bytes| bar.inc(bytes.get());
            let packed = captures::pack(dir, store, origin(), |total| bar.set_length(total.get()), &tick)
                .map_err(failure);
            bar.finish_and_clear();
            print_packed(&packed?, store, *json)
        }
        CapturesCommand::Add { store, files, name, replace, json } => {
            let added = named(files, name.as_deref())?;
            let bar = bar("adding");
            let tick = |bytes: Bytes| bar.inc(bytes.get());
            let packed = captures::add(store, &added, *replace, origin(), &tick).map_err(failure);
            bar.finish_and_clear();
            print_packed(&packed?, store, *json)
        }
        CapturesCommand::Unpack { store, dir, entry, json } => {
            let bar = bar("unpacking");
            let tick = |bytes: Bytes| bar.inc(bytes.get());
            let unpacked = unpack::unpack(store, dir, entry, |total| bar.set_length(total.get()), &tick)
                .map_err(failure);
            bar.finish_and_clear();
            let unpacked = unpacked?;
            for failed in &unpacked.failed {
                super::print_err(format_args!("not unpacked: {failed}"));
            }
            let document = json!({
                "written": unpacked.written, "bytes": unpacked.bytes, "found": unpacked.found,
                "failed": unpacked.failed,
            });
            let existing = match unpacked.found {
                0 => String::new(),
                found => format!(", {found} already existed"),
            };
            let text = format!(
                "{} written ({}){existing}: {}\n",
                counted(unpacked.written, "file", "files"),
                unpacked.bytes,
                dir.display()
            );
            print_out(&if *json { format!("{document:#}\n") } else { text })?;
            Ok(exit_of(&unpacked.failed))
        }
        CapturesCommand::Check { store, json } => {
            let bar = bar("checking");
            let tick = |bytes: Bytes| bar.inc(bytes.get());
            let checked = check::check(store, |total| bar.set_length(total.get()), &tick).map_err(failure);
            bar.finish_and_clear();
            let checked = checked?;
            let document = json!({
                "entries": checked.entries, "blobs": checked.blobs, "blob_bytes": checked.blob_bytes,
                "findings": checked.findings, "more_findings": checked.more_findings,
            });
            let good = checked.findings.is_empty();
            let mut text: String = checked.findings.iter().map(|finding| format!("{finding}\n")).collect();
            if checked.more_findings != 0 {
                text.push_str(&format!("… and {} more\n", checked.more_findings));
            }
            text.push_str(&format!(
                "{}: {}, {} ({})\n",
                if good { "good" } else { "damaged" },
                counted(checked.entries, "entry", "entries"),
                counted(checked.blobs, "blob", "blobs"),
                checked.blob_bytes
            ));
            print_out(&if *json { format!("{document:#}\n") } else { text })?;
            Ok(if good { Exit::Good } else { Exit::NonePassed })
        }
    }
}

/// Returns each file with the name that its entry gets.
fn named(files: &[PathBuf], name: Option<&str>) -> Result<Vec<Added>, Failure> {
    match (files, name) {
        ([file], Some(name)) => Ok(vec![Added { path: file.clone(), name: name.to_owned() }]),
        (_, Some(_)) => Err(Failure::usage(anyhow::anyhow!(
            "`--name` names the entry of a single file (leave it out, or add the files one by one)"
        ))),
        (_, None) => {
            let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok(files.iter().map(|path| Added { path: path.clone(), name: name(path) }).collect())
        }
    }
}

/// Prints what was packed, and warnings about captures that were left out or kept as a whole.
fn print_packed(packed: &Packed, store: &Path, json: bool) -> CommandResult {
    for whole in &packed.kept_whole {
        super::print_err(format_args!("kept as one blob: {whole}"));
    }
    for left_out in &packed.left_out {
        super::print_err(format_args!("left out: {left_out}"));
    }
    let document = json!({
        "entries": packed.entries, "found_done": packed.found_done, "bytes": packed.bytes,
        "blobs": packed.blobs, "blob_bytes": packed.blob_bytes, "kept_whole": packed.kept_whole,
        "left_out": packed.left_out,
    });
    let resumed = match packed.found_done {
        0 => String::new(),
        done => format!(" ({done} already packed)"),
    };
    let text = format!(
        "{} ({}){resumed} in {} ({}): {}\n",
        counted(packed.entries, "entry", "entries"),
        packed.bytes,
        counted(packed.blobs, "blob", "blobs"),
        packed.blob_bytes,
        store.display()
    );
    print_out(&if json { format!("{document:#}\n") } else { text })?;
    Ok(exit_of(&packed.left_out))
}

/// Returns the exit code: `Good` if nothing failed, and `NonePassed` otherwise.
fn exit_of(failed: &[String]) -> Exit {
    if failed.is_empty() { Exit::Good } else { Exit::NonePassed }
}

fn failure(error: CapturesError) -> Failure {
    Failure { exit: error.exit(), error: error.into() }
}

/// Returns a progress bar, which is shown only on a terminal.
fn bar(doing: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{prefix} {bar:24} {bytes}/{total_bytes} at {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(doing);
    bar
}

fn origin() -> captures::Origin {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
    let user = user.map_or_else(|| nix::unistd::Uid::effective().to_string(), |user| user.name);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    captures::Origin {
        tool: format!("opt-supervisor {}", env!("CARGO_PKG_VERSION")),
        packed_by: format!("{user}@{}", host.trim()),
        started: UtcTime::now().to_string(),
    }
}
