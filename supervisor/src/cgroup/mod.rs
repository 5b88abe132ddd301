//! Control groups of our own (version 2), on machines that allow it: a leaf with hard limits for every runner and
//! compiler.
//!
//! Owns taking over the group in which we were started, the leaves below it, and restoring everything. Others
//! decide whether a runner gets a leaf, what an end in one means, and where our group is in the file system.
//! Every path begins at an argument, so that tests can build their own folders.
//!
//! ```text
//!  G, where we were started        cgroup.subtree_control: +memory +pids
//!  ├── opt-run-KEY-home            supervisor and workers: a group with controllers may hold no process itself
//!  ├── opt-run-KEY-w2-4711         one runner: memory.max, memory.swap.max 0, memory.oom.group 1, pids.max
//!  └── …
//! ```
//! `memory.high` is not set: it slows down processes near the limit, which would distort their times, and stops
//! none.

mod leaf;
mod subtree;

use std::io;
use std::path::{Path, PathBuf};

pub use self::leaf::{Events, Leaf, LeafLimits};
pub use self::subtree::{Home, Subtree};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{path}: version 2 has no `{wanted}` controller here, it has {} (version 1 holds it; boot with one hierarchy)", if found.is_empty() { "none" } else { found.as_str() }, path = path.display())]
    NoController { path: PathBuf, wanted: &'static str, found: String },
    #[error("{path} belongs to systemd (start with `systemd-run --scope -p Delegate=yes opt-supervisor …`)", path = path.display())]
    NotDelegated { path: PathBuf },
    #[error("{path} holds other processes too (give opt-supervisor a group of its own: `systemd-run --user --scope -p Delegate=yes opt-supervisor …`)", path = path.display())]
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

/// Writes a file of a control group, which takes a whole value in a single write.
fn put(folder: &Path, name: &str, value: &str) -> Result<(), CgroupError> {
    let path = folder.join(name);
    std::fs::write(&path, value).map_err(CgroupError::io("write it", &path))
}
