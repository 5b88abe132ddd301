//! Compiles the recorded function ahead of time, with the PyTorch of the plan's interpreter.
//!
//! `torch.compile` starts compilers from the process that makes the calls, but a runner must not start any process. So
//! a build compiles each different call of the job to a shared library, with the same compiler (AOTInductor), and
//! runners load these libraries.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use opt_shared::arguments::{Argument, Call, Entry, Form, bind, call};
use opt_shared::capture::CaptureFile;
use opt_shared::causes::chain;
use opt_shared::language::ArtifactKind;
use opt_shared::message::{BuildTask, RecordedCalls};
use opt_shared::outcome::Status;
use serde::Serialize;

use super::{Folders, Recipe, Step, Toolchain};
use crate::graphs::{CallForm, MAX_GRAPHS};
use crate::interpreter;

/// The Python program that compiles the calls.
const COMPILE: &str =
    concat!(include_str!("../runner/python/recorded_call.py"), include_str!("torch_compile.py"));
/// The prefix of messages that the program itself prints.
const OWN_PREFIX: &str = "torch.compile: ";

pub(super) struct TorchCompile;

impl Toolchain for TorchCompile {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let interpreter = match interpreter::find(&task.build.python) {
            Ok(found) => found,
            Err(why) => return Recipe::Unavailable(why),
        };
        let Some((recorded, function)) =
            task.recorded.as_ref().and_then(|it| Some((it, it.function.as_deref()?)))
        else {
            return Recipe::Unavailable("the captures do not name the function to compile".to_owned());
        };
        let calls = match different_calls(recorded) {
            Ok(calls) if calls.len() <= MAX_GRAPHS => calls,
            Ok(_) => {
                return Recipe::Refused(format!(
                    "the entries make more than {MAX_GRAPHS} different calls, and no more can be compiled (select fewer \
                     entries with `entries`)"
                ));
            }
            Err(why) => return Recipe::Unavailable(why),
        };
        let scratch = folders.scratch.display().to_string();
        if scratch.contains(|it: char| it.is_whitespace() || "\"'\\".contains(it)) {
            return Recipe::Unavailable(format!(
                "PyTorch's compiler cannot use the folder {scratch}, because its name contains a space, a quotation mark \
                 or a backslash (choose another folder for the run with `--dir`)"
            ));
        }
        let output = folders.scratch.join("calls.graphs");
        let request = Request {
            function,
            calls: calls
                .iter()
                .map(|(key, (call, arguments))| KeyedCall { key, form: CallForm::new(call, arguments) })
                .collect(),
            threads: recorded.threads,
            folders: &interpreter.folders,
            cxx: &task.build.cxx,
            output: &output,
        };
        let program = folders.include.join("torch_compile.py");
        let request_file = folders.include.join("torch_compile.json");
        let written = serde_json::to_vec(&request).map_err(std::io::Error::other);
        let written = written.and_then(|text| fs::write(&request_file, text));
        for (path, written) in [(&request_file, written), (&program, fs::write(&program, COMPILE))] {
            if let Err(error) = written {
                return Recipe::Unavailable(format!("writing {}: {error}", path.display()));
            }
        }
        let version = format!("{}, compiled", interpreter.version);
        let arguments = [request_file.into()];
        Recipe::Run(Step::of_python(&interpreter, version, program, arguments, output, ArtifactKind::Graphs))
    }

    fn advice(&self, status: Status, log: &str) -> Option<String> {
        match status {
            Status::CompileError => {
                // A compiler's output may follow the message of the program. If the program printed no message of its
                // own, the last line is that of a Python exception.
                let own = log.lines().rev().find_map(|line| line.strip_prefix(OWN_PREFIX));
                let line = own.or_else(|| log.lines().rev().find(|line| !line.trim().is_empty()))?;
                Some(line.trim().to_owned())
            }
            Status::CompileTimeout => Some(
                "each different call of the job takes several seconds to compile (select fewer entries with `entries`)"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// The input of the Python program, which is passed as JSON.
#[derive(Serialize)]
struct Request<'a> {
    function: &'a str,
    calls: Vec<KeyedCall<'a>>,
    threads: u32,
    /// The folders from which the interpreter imports modules.
    folders: &'a [PathBuf],
    cxx: &'a str,
    output: &'a Path,
}

#[derive(Serialize)]
struct KeyedCall<'a> {
    key: &'a str,
    #[serde(flatten)]
    form: CallForm<'a>,
}

/// Reads the entries until they have all been read or contain more than `MAX_GRAPHS` different calls. Returns the
/// different calls with their arguments, by the calls' keys.
fn different_calls(recorded: &RecordedCalls) -> Result<BTreeMap<String, (Call, Vec<Argument>)>, String> {
    let mut calls = BTreeMap::new();
    for path in &recorded.entries {
        let failed = |error: &dyn std::error::Error| format!("{}: {}", path.display(), chain(error));
        let capture = CaptureFile::open(path).map_err(|error| failed(&error))?;
        let entry = Entry::from_value(capture.root()).map_err(|error| failed(&error))?;
        let arguments = bind(&entry, &recorded.signature).map_err(|error| failed(&error))?;
        let call =
            call(&entry, &recorded.signature, &arguments, Form::Recorded).map_err(|error| failed(&error))?;
        let key = CallForm::new(&call, &arguments).key().map_err(|error| failed(&error))?;
        calls.entry(key).or_insert((call, arguments));
        if MAX_GRAPHS < calls.len() {
            break;
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use opt_shared::arguments::SignatureBuilder;

    use super::*;

    #[test]
    fn entries_with_equal_calls_are_compiled_once() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/captures/torch_nn_functional_relu");
        let first = folder.join("entry_000001.pt");
        let capture = CaptureFile::open(&first).expect("a fixture");
        let mut builder = SignatureBuilder::new(None, BTreeMap::new());
        builder.observe("entry_000001.pt", &Entry::from_value(capture.root()).expect("an entry"));
        let recorded = RecordedCalls {
            entries: vec![first.clone(), first],
            signature: builder.finish().expect("a signature"),
            function: None,
            threads: 1,
        };
        let calls = different_calls(&recorded).expect("fixtures");
        assert_eq!(calls.len(), 1);
        let missing = RecordedCalls { entries: vec!["/nowhere/entry.pt".into()], ..recorded };
        assert!(different_calls(&missing).expect_err("no file").starts_with("/nowhere/entry.pt: "));
    }

    #[test]
    fn advice_is_the_message_of_a_failed_program() {
        let advice = |status, log| TorchCompile.advice(status, log);
        let log =
            "instruction set: avx512\ntorch.compile: `torch.nonzero` cannot be compiled\ncc1plus: error\n";
        assert_eq!(advice(Status::CompileError, log).as_deref(), Some("`torch.nonzero` cannot be compiled"));
        assert!(advice(Status::CompileTimeout, log).is_some_and(|it| it.contains("`entries`")));
        assert_eq!(
            advice(Status::CompileError, "a\nImportError: torch\n").as_deref(),
            Some("ImportError: torch")
        );
        assert_eq!(advice(Status::InfraError, log), None);
    }
}
