//! `opt-supervisor inspect`: shows the contents of a capture, without executing anything that it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use opt_shared::arguments::{Entry, SignatureBuilder, bind, class_key, judged};
use opt_shared::capture::{CaptureFile, inspect as reader};
use opt_shared::causes::chain;
use opt_shared::units::Bytes;

use super::{CommandResult, Failure, InspectArguments, print_out};
use crate::driver::survey::facts::stem;
use crate::exit::Exit;
use crate::report::figures::{counted, one_line};

pub(super) fn inspect(arguments: &InspectArguments) -> CommandResult {
    if arguments.path.is_dir() {
        return folder(&arguments.path, arguments.json);
    }
    if arguments.json || arguments.digests {
        let document = reader::document(&arguments.path, arguments.digests);
        let mut text = serde_json::to_string_pretty(&document).map_err(Failure::host)?;
        text.push('\n');
        print_out(&text)?;
        let good = document.get("outcome").and_then(|outcome| outcome.as_str()) == Some("ok");
        return Ok(if good { Exit::Good } else { Exit::NonePassed });
    }
    let capture = CaptureFile::open(&arguments.path)
        .map_err(|error| Failure { exit: Exit::NonePassed, error: error.into() })?;
    print_out(&reader::tree(&capture))?;
    Ok(Exit::Good)
}

/// Prints the signature classes of a folder, with their counts and sizes.
fn folder(path: &Path, json: bool) -> CommandResult {
    let files = captures_in(path)?;
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    let mut unreadable = Vec::new();
    for file in &files {
        match open(file) {
            Ok((_, entry)) => builder.observe(&stem(file), &entry),
            Err(why) => unreadable.push((stem(file), why)),
        }
    }
    let signature = builder.finish().map_err(|errors| {
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure {
            exit: Exit::NonePassed,
            error: anyhow::anyhow!("the captures have no common signature: {}", text.join("; ")),
        }
    })?;
    let mut classes: BTreeMap<String, (u64, Bytes, String)> = BTreeMap::new();
    for file in &files {
        let Ok((bytes, entry)) = open(file) else { continue };
        let class = bind(&entry, &signature).map_err(|error| chain(&error)).and_then(|arguments| {
            judged(&entry, &arguments)
                .map(|output_tensors| class_key(&arguments, &output_tensors))
                .map_err(|error| chain(&error))
        });
        match class {
            Ok(class) => {
                let row = classes.entry(class).or_insert_with(|| (0, Bytes::ZERO, stem(file)));
                row.0 += 1;
                row.1 += bytes;
            }
            Err(why) => unreadable.push((stem(file), why)),
        }
    }
    if json {
        let document = serde_json::json!({
            "parameters": signature.params,
            "classes": classes.iter().map(|(class, (count, bytes, first))| serde_json::json!({
                "class": class, "entries": count, "bytes": bytes.get(), "first": first,
            })).collect::<Vec<_>>(),
            "unreadable": unreadable.iter().map(|(entry, why)| serde_json::json!({
                "entry": entry, "why": why,
            })).collect::<Vec<_>>(),
        });
        print_out(&format!("{document:#}\n"))?;
    } else {
        let mut text = format!(
            "{} of {}\n\n entries      bytes  first         class\n",
            counted(files.len(), "entry", "entries"),
            one_line(&path.to_string_lossy())
        );
        for (class, (count, bytes, first)) in &classes {
            text.push_str(&format!("{count:>8} {bytes:>10}  {:<13} {}\n", one_line(first), one_line(class)));
        }
        for (entry, why) in &unreadable {
            text.push_str(&format!("{}\n", one_line(&format!("{entry}: {why}"))));
        }
        print_out(&text)?;
    }
    Ok(if unreadable.is_empty() { Exit::Good } else { Exit::NonePassed })
}

/// Returns the size of a capture's file, and the recorded call. The error says why the call cannot be read.
pub(super) fn open(file: &Path) -> Result<(Bytes, Entry), String> {
    let capture = CaptureFile::open(file).map_err(|error| chain(&error))?;
    let entry = Entry::from_value(capture.root()).map_err(|error| chain(&error))?;
    Ok((capture.file_bytes(), entry))
}

/// Returns the `.pt` files of a folder, or the entries of a store, sorted by name.
pub(super) fn captures_in(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let path = &opt_shared::capture::store::entries_folder(path);
    let entries = std::fs::read_dir(path).map_err(|error| {
        Failure::usage(anyhow::Error::new(error).context(format!("listing {}", path.display())))
    })?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "pt"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Failure::usage(anyhow::anyhow!("there is no `.pt` file in {}", path.display())));
    }
    Ok(files)
}
