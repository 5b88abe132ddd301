//! Operates a control group through its folders: sets limits, moves, stops and kills members, and reads counts of
//! events. A version 2 group has one folder. A version 1 group has a folder for each controller.

use std::io;
use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

use super::{CgroupError, members, put, read};

/// The limits that all members of a leaf share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafLimits {
    pub memory: Bytes,
    pub tasks: u32,
}

/// The difference between the combined limit on memory and swap and the limit on memory. It is larger than a huge page
/// (2 MiB), because Linux may count memory in steps of that size.
const SWAP_MARGIN: Bytes = Bytes::mib(4);

/// The counts of events that Linux keeps for a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The number of members that Linux killed for lack of memory, in the group or on the whole machine.
    pub oom_kill: u64,
    /// The number of times that the leaf's own limit left no memory for an allocation. In version 1, this includes
    /// allocations that succeeded after Linux had freed cached pages of files.
    pub at_limit: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// A version 1 group. Both folders are the same if the two controllers are mounted together.
    One { memory: PathBuf, pids: PathBuf },
    /// A version 2 group.
    Two { folder: PathBuf },
}

impl Group {
    pub(super) fn folders(&self) -> impl Iterator<Item = &Path> {
        let (first, second) = match self {
            Self::One { memory, pids } => (memory, Some(pids).filter(|pids| *pids != memory)),
            Self::Two { folder } => (folder, None),
        };
        std::iter::once(first).chain(second).map(PathBuf::as_path)
    }

    /// Returns the folder that names the group in messages.
    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::One { memory, .. } => memory,
            Self::Two { folder } => folder,
        }
    }

    pub(super) fn child(&self, name: &str) -> Self {
        match self {
            Self::One { memory, pids } => Self::One { memory: memory.join(name), pids: pids.join(name) },
            Self::Two { folder } => Self::Two { folder: folder.join(name) },
        }
    }

    /// Creates the folders. If one cannot be created, removes the others.
    pub(super) fn create(&self) -> Result<(), CgroupError> {
        for (index, folder) in self.folders().enumerate() {
            if let Err(error) = std::fs::create_dir(folder) {
                for created in self.folders().take(index) {
                    let _ = std::fs::remove_dir(created);
                }
                return Err(CgroupError::io("create the group", folder)(error));
            }
        }
        Ok(())
    }

    pub(super) fn set_limits(&self, limits: LeafLimits) -> Result<(), CgroupError> {
        let (memory, tasks) = (limits.memory.get().to_string(), limits.tasks.to_string());
        match self {
            Self::Two { folder } => {
                put(folder, "memory.max", &memory)?;
                put(folder, "pids.max", &tasks)?;
                put(folder, "memory.oom.group", "1")?;
                // Linux without swap, or without swap accounting, does not have this file.
                if_there(put(folder, "memory.swap.max", "0"))
            }
            Self::One { memory: folder, pids } => {
                put(pids, "pids.max", &tasks)?;
                put(folder, "memory.limit_in_bytes", &memory)?;
                // The combined limit must not be lower than the limit on memory, so it is set second. If both were
                // equal, the combined limit would be reached first, and newer versions of Linux do not count that.
                let with_swap = (limits.memory + SWAP_MARGIN).get().to_string();
                if_there(put(folder, "memory.memsw.limit_in_bytes", &with_swap))?;
                if_there(put(folder, "memory.swappiness", "0"))?;
                // Without this, the group inherits its parent's setting, with which members may hang at the limit
                // instead of being killed.
                if_there(put(folder, "memory.oom_control", "0"))
            }
        }
    }

    /// Moves a process with all its threads into the group.
    pub(super) fn enter(&self, pid: u32) -> Result<(), CgroupError> {
        self.folders().try_for_each(|folder| put(folder, "cgroup.procs", &pid.to_string()))
    }

    /// Stops all members at once, including processes that they start meanwhile. In version 2, this fails before Linux
    /// 5.2.
    ///
    /// In version 1, this does nothing, because a frozen member that is killed dies only once it is thawed, and the
    /// supervisor may be killed before it can thaw the group.
    pub(super) fn freeze(&self) -> Result<(), CgroupError> {
        match self {
            Self::Two { folder } => put(folder, "cgroup.freeze", "1"),
            Self::One { .. } => Ok(()),
        }
    }

    /// Kills all members. In version 2, this fails before Linux 5.14.
    pub(super) fn kill(&self) -> Result<(), CgroupError> {
        match self {
            Self::Two { folder } => put(folder, "cgroup.kill", "1"),
            Self::One { memory, pids } => {
                // This limit keeps members from starting further processes. If it cannot be set, the members are killed
                // anyway.
                let _ = put(pids, "pids.max", "0");
                members::kill(memory)
            }
        }
    }

    pub(super) fn events(&self) -> Result<Events, CgroupError> {
        match self {
            Self::Two { folder } => {
                let path = folder.join("memory.events");
                let text = read(&path)?;
                let count = |name| count_of(&text, name, &path).map(Option::unwrap_or_default);
                // The line `oom` is used instead of `max`, because `max` also counts allocations that succeeded after
                // cached pages of files had been freed.
                Ok(Events { oom_kill: count("oom_kill")?, at_limit: count("oom")? })
            }
            Self::One { memory, .. } => {
                let path = memory.join("memory.oom_control");
                // Versions of Linux before 4.13 have no such count.
                let oom_kill = count_of(&read(&path)?, "oom_kill", &path)?.unwrap_or_default();
                Ok(Events { oom_kill, at_limit: number(&memory.join("memory.failcnt"))? })
            }
        }
    }

    /// Returns whether the limit of a group above this one refused tasks. This is the case if `pids.events` counts a
    /// refusal although the group never had as many tasks as its own limit allows. In version 2 since Linux 6.11, this
    /// function returns false, because only the group whose limit was reached counts refusals.
    pub(super) fn limit_above_refused_tasks(&self, limit: u32) -> Result<bool, CgroupError> {
        let folder = match self {
            Self::One { pids, .. } => pids,
            Self::Two { folder } => folder,
        };
        let (events, peak) = (folder.join("pids.events"), folder.join("pids.peak"));
        // Older versions of Linux lack one or both of these files.
        let (Some(events_text), Some(peak_text)) = (if_read(read(&events))?, if_read(read(&peak))?) else {
            return Ok(false);
        };
        // In version 1, `kill` sets the limit to 0, so refusals may come from the group itself.
        if number(&folder.join("pids.max"))? != u64::from(limit) {
            return Ok(false);
        }
        let refused = count_of(&events_text, "max", &events)?.unwrap_or_default();
        let most: u64 = peak_text.trim().parse().map_err(|_| no_count(&peak))?;
        Ok(0 < refused && most < u64::from(limit))
    }

    /// Removes the folders. Returns false if the group is busy, which is the case until its last member is dead.
    pub(super) fn remove(&self) -> bool {
        // Continue after a failure, so that as few folders as possible remain.
        self.folders().filter(|folder| !remove(folder)).count() == 0
    }
}

pub(super) fn remove(folder: &Path) -> bool {
    // Only a busy folder is worth another try. Any other error, such as that of a read-only file system, would occur
    // again.
    let is_busy = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty)
    };
    std::fs::remove_dir(folder).err().is_none_or(|error| !is_busy(&error))
}

/// Returns the count in the line that begins with `name`, or `None` if there is no such line.
fn count_of(text: &str, name: &str, path: &Path) -> Result<Option<u64>, CgroupError> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let Some(mut words) = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words)) else {
        return Ok(None);
    };
    words.next().and_then(|word| word.parse().ok()).map(Some).ok_or_else(|| no_count(path))
}

fn number(path: &Path) -> Result<u64, CgroupError> {
    read(path)?.trim().parse().map_err(|_| no_count(path))
}

fn no_count(path: &Path) -> CgroupError {
    CgroupError::io("parse a count in it", path)(io::ErrorKind::InvalidData.into())
}

/// Returns the text that was read from a file, or `None` if the file does not exist.
fn if_read(text: Result<String, CgroupError>) -> Result<Option<String>, CgroupError> {
    match text {
        Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Ignores the error of a write if the file does not exist. For a missing file, Linux may also report that permission
/// is denied, because nobody may create files in a control group.
fn if_there(written: Result<(), CgroupError>) -> Result<(), CgroupError> {
    match written {
        Err(CgroupError::Io { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
        {
            Ok(())
        }
        other => other,
    }
}
