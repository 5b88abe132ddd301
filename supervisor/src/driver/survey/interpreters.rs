//! What `[build] python` means on this machine, for those candidates of a plan that need it.
//!
//! A process of ours asks, because the answer is a worker's business: which folders and libraries it has, and whether torch.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::language::Launcher;
use opt_shared::message::ASK_INTERPRETER;

use crate::plan::Plan;
use crate::pool::{Canary, Executable};

/// Several may be asked, each of which may take a minute on a disk that is slow to wake.
const TIMEOUT: Duration = Duration::from_mins(5);

/// What an interpreter is, or why it cannot be used.
pub type Asked = Result<String, String>;

/// By what plans call them.
pub fn ask_all(plan: &Plan) -> BTreeMap<String, Asked> {
    let mut found = BTreeMap::new();
    let needed =
        |it: &&crate::plan::CandidatePlan| it.source.language.kind().launcher == Launcher::Interpreter;
    let candidates = plan.jobs.iter().flat_map(|job| &job.candidates);
    for candidate in candidates.filter(needed) {
        let named = &candidate.build.python;
        if !found.contains_key(named) {
            found.insert(named.clone(), ask(named));
        }
    }
    found
}

pub fn ask(named: &str) -> Asked {
    let path = std::env::var("PATH").unwrap_or_default();
    let said = Executable::open()
        .map_err(|error| error.to_string())
        .and_then(|executable| {
            Canary::start(&executable, &[ASK_INTERPRETER, named, &path])
                .and_then(|mut canary| canary.hear(TIMEOUT))
                .map_err(|error| error.to_string())
        })
        .map_err(|error| format!("nobody could ask `{named}`: {error}"))?;
    match said.trim().split_once(' ') {
        Some(("yes", what)) => Ok(what.to_owned()),
        Some(("no", why)) => Err(why.to_owned()),
        _ => Err(format!("nobody could ask `{named}`")),
    }
}
