//! Creates control groups (version 2) on machines that allow it: a leaf with hard limits for every runner and compiler.
//!
//! This module takes over the group in which the supervisor was started, creates leaves below it, and restores
//! everything at the end. Callers decide whether a runner gets a leaf, and how the end of a runner in a leaf is judged.
//! They also pass the path of the group, so that tests can use other folders.
//!
//! ```text
//!  G, where the run was started    cgroup.subtree_control: +memory +pids
//!  ├── opt-run-KEY-home            supervisor and workers: a group with controllers cannot have processes itself
//!  ├── opt-run-KEY-w2-4711         one runner: memory.max, memory.swap.max 0, memory.oom.group 1, pids.max
//!  └── …
//! ```
//! `memory.high` is not set, because it only slows down processes near the limit, which would distort their times.

mod leaf;
mod subtree;

use std::io;
use std::path::{Path, PathBuf};

pub use self::leaf::{Events, Leaf, LeafLimits};
pub use self::subtree::{StartGroup, Subtree};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{path}: version 2 has no `{wanted}` controller here (found: {}; if version 1 has it, boot with version 2 only)", if found.is_empty() { "none" } else { found.as_str() }, path = path.display())]
    NoController { path: PathBuf, wanted: &'static str, found: String },
    #[error("{path} belongs to systemd (start with `systemd-run --scope -p Delegate=yes opt-supervisor …`)", path = path.display())]
    NotDelegated { path: PathBuf },
    #[error("{path} has other processes too (start opt-supervisor in its own group: `systemd-run --user --scope -p Delegate=yes opt-supervisor …`)", path = path.display())]
    Crowded { path: PathBuf },
    #[error("{path}: could not {action}", path = path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl CgroupError {
    fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// Writes a file of a control group. The value must be written in a single call.
fn put(folder: &Path, name: &str, value: &str) -> Result<(), CgroupError> {
    let path = folder.join(name);
    std::fs::write(&path, value).map_err(CgroupError::io("write it", &path))
}
