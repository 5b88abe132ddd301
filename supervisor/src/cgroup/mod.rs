//! Creates a control group with hard limits, called a leaf, for every runner and compiler, on machines that allow it.
//!
//! This module takes over the group in which the supervisor was started, creates leaves below it, and restores
//! everything at the end.
//!
//! ```text
//!  G, where the run was started     cgroup.subtree_control: +memory +pids
//!  ├── opt-run-KEY-home             supervisor and workers: a group with controllers cannot have processes itself
//!  ├── opt-run-KEY-worker-2-4711    one runner: memory.max, memory.swap.max 0, memory.oom.group 1, pids.max
//!  ├── opt-run-KEY-worker-2-4712-98 a process, with its start time, that is not a runner yet: no limits
//!  └── …
//! ```
//! `memory.high` is not set, because it only slows down processes near the limit, which would distort their times.
//!
//! If version 2 lacks the controllers, this module uses version 1. In version 1, each controller has its own tree of
//! groups, so a leaf has a folder in each of two trees. A version 1 group can have both members and children, so the
//! supervisor and its workers stay where they are, and the group `home` only marks a live run. A version 1 group cannot
//! be killed as a whole, so its limit on processes is set to 0, and then each member is killed. Before a kill, a
//! version 2 group is frozen until the reason is recorded. A version 1 group is not frozen, because a frozen process in
//! it dies only once it is thawed, and the supervisor may be killed before it can thaw the group.

mod group;
mod leaf;
mod mark;
mod members;
mod subtree;

use std::io;
use std::path::{Path, PathBuf};

pub use self::group::{Events, Group, LeafLimits};
pub use self::leaf::Leaf;
pub use self::subtree::{StartGroup, Subtree};

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{path}: there is no `{wanted}` controller here (found: {})", if found.is_empty() { "none" } else { found.as_str() }, path = path.display())]
    NoController { path: PathBuf, wanted: &'static str, found: String },
    #[error("{path} is a control group that belongs to systemd (start the run with `systemd-run --scope -p Delegate=yes opt-supervisor …`)", path = path.display())]
    NotDelegated { path: PathBuf },
    #[error("{path}: the memory of groups below this control group does not count towards its limit (write 1 to memory.use_hierarchy there, or start Linux with only version 2 of control groups)", path = path.display())]
    NotHierarchical { path: PathBuf },
    #[error("{path} contains processes other than this supervisor (start opt-supervisor in its own group: `systemd-run --user --scope -p Delegate=yes opt-supervisor …`)", path = path.display())]
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
    /// Returns whether the error means that a process could not enter a group because the process has ended.
    pub fn is_of_a_dead_process(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(libc::ESRCH))
    }

    fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// The maximum number of bytes to read from a file. The longest files are lists of members.
const FILE_BYTES: u64 = 64 << 10;

fn read(path: &Path) -> Result<String, CgroupError> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text))
        .map_err(CgroupError::io("read it", path))?;
    Ok(text)
}

/// Writes a value to a file of a group in a single call, as Linux requires.
fn put(folder: &Path, name: &str, value: &str) -> Result<(), CgroupError> {
    let path = folder.join(name);
    std::fs::write(&path, value).map_err(CgroupError::io("write it", &path))
}
