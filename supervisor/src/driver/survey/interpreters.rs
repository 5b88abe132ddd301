//! Finds the Python interpreter that `[build] python` stands for on this machine, if candidates of the plan need one.
//!
//! A child process does this, because the code is part of the worker. The child process lists the folders and libraries
//! of the interpreter, and says whether torch is installed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use opt_shared::language::Language;
use opt_shared::message::{ASK_EXECUTABLE, ASK_INTERPRETER};

use crate::plan::Plan;
use crate::pool::{Canary, Executable};

/// The timeout for one query. Several interpreters may be tried, and each may take a minute on a slow disk.
const TIMEOUT: Duration = Duration::from_mins(5);

/// A description of the interpreter, or the reason why it cannot be used.
pub type Described = Result<String, String>;

/// Describes each interpreter that the plan's candidates need. The key is the name that the plan uses.
pub fn ask_all(plan: &Plan) -> BTreeMap<String, Described> {
    let mut named: BTreeMap<&str, bool> = BTreeMap::new();
    for candidate in plan.candidates() {
        let language = candidate.source.language;
        if language.kind().launcher.needs_python() || language.needs_triton() {
            *named.entry(&candidate.build.python).or_default() |= language.needs_triton();
        }
    }
    named.into_iter().map(|(named, triton)| (named.to_owned(), ask(named, triton))).collect()
}

/// Describes the interpreter that `named` stands for. `triton` says whether candidates need Triton as well as torch.
pub fn ask(named: &str, triton: bool) -> Described {
    let path = path();
    let mut arguments = vec![ASK_INTERPRETER, named, &path];
    arguments.extend(triton.then_some(Language::Triton.name()));
    answer(named, &arguments)
}

/// Returns the path of the interpreter that the value `named` of a plan's `python` would stand for. The error says why
/// there is none, without advice.
pub fn locate(named: &str) -> Result<PathBuf, String> {
    answer(named, &[ASK_EXECUTABLE, named, &path()]).map(PathBuf::from)
}

fn path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

/// Asks a child process about the interpreter `named`.
fn answer(named: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Executable::open()
        .map_err(|error| error.to_string())
        .and_then(|executable| {
            Canary::start(&executable, arguments)
                .and_then(|mut canary| canary.output(TIMEOUT))
                .map_err(|error| error.to_string())
        })
        .map_err(|error| format!("the process that asks about the interpreter `{named}` failed: {error}"))?;
    match output.trim().split_once(' ') {
        Some(("yes", what)) => Ok(what.to_owned()),
        Some(("no", why)) => Err(why.to_owned()),
        _ => Err(format!("the process that asks about the interpreter `{named}` gave no answer")),
    }
}
