//! A leaf: the control group of one runner or compiler, with its limits, members and event counts.

use std::io;
use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

use super::{CgroupError, put};

/// The size limit of the files of a group that are read, such as `memory.events`, which has a few short lines.
const EVENTS_BYTES: usize = 4 << 10;

/// The limits for all members of a leaf together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafLimits {
    pub memory: Bytes,
    pub tasks: u32,
}

/// The kernel's counts for a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The number of members that the kernel killed for lack of memory, in the group or on the whole machine.
    pub oom_kill: u64,
    /// The number of times that the memory limit was reached, whether or not a process was killed.
    pub max: u64,
}

/// A group without children. Dropping it does not remove its folder; see [`Leaf::remove`].
#[derive(Debug)]
pub struct Leaf {
    path: PathBuf,
    limits: LeafLimits,
}

impl Leaf {
    pub(super) fn create(path: PathBuf, limits: LeafLimits) -> Result<Self, CgroupError> {
        std::fs::create_dir(&path).map_err(CgroupError::io("create the group", &path))?;
        let leaf = Self { path, limits };
        match leaf.write_limits() {
            Ok(()) => Ok(leaf),
            Err(error) => {
                let _ = leaf.remove();
                Err(error)
            }
        }
    }

    fn write_limits(&self) -> Result<(), CgroupError> {
        put(&self.path, "memory.max", &self.limits.memory.get().to_string())?;
        put(&self.path, "pids.max", &self.limits.tasks.to_string())?;
        put(&self.path, "memory.oom.group", "1")?;
        match put(&self.path, "memory.swap.max", "0") {
            // A kernel without swap, or without swap accounting, has no such file.
            Err(CgroupError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    pub fn limits(&self) -> LeafLimits {
        self.limits
    }

    /// Moves a process with all its threads into the leaf. The caller must ensure that the process cannot be reaped
    /// meanwhile, because its pid could then belong to another process.
    pub fn enter(&self, pid: u32) -> Result<(), CgroupError> {
        put(&self.path, "cgroup.procs", &pid.to_string())
    }

    /// Kills all members at once. Fails before Linux 5.14, and the caller must then send signals.
    pub fn kill(&self) -> Result<(), CgroupError> {
        kill(&self.path)
    }

    pub fn events(&self) -> Result<Events, CgroupError> {
        let path = self.path.join("memory.events");
        let text = read(&path)?;
        let mut events = Events::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let figure = match words.next() {
                Some("oom_kill") => &mut events.oom_kill,
                Some("max") => &mut events.max,
                _ => continue,
            };
            *figure = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| {
                CgroupError::io("parse a count in it", &path)(io::ErrorKind::InvalidData.into())
            })?;
        }
        Ok(events)
    }

    /// Removes the folder if the leaf has no members. Otherwise returns the leaf.
    pub fn remove(self) -> Result<(), Self> {
        if remove(&self.path) { Ok(()) } else { Err(self) }
    }
}

pub(super) fn kill(path: &Path) -> Result<(), CgroupError> {
    put(path, "cgroup.kill", "1")
}

/// Removes a group, and returns whether it is gone. A group is busy until its last member is dead.
pub(super) fn remove(path: &Path) -> bool {
    match std::fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(EVENTS_BYTES as u64).read_to_string(&mut text))
        .map_err(CgroupError::io("read it", path))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LeafLimits = LeafLimits { memory: Bytes::mib(600), tasks: 8 };

    #[test]
    fn leaf_has_its_limits_before_it_has_members() {
        let group = tempfile::tempdir().expect("folder");
        let path = group.path().join("leaf");
        let leaf = Leaf::create(path.clone(), LIMITS).expect("is made");
        let file = |name: &str| std::fs::read_to_string(path.join(name)).expect("is written");
        assert_eq!(file("memory.max"), (600_u64 << 20).to_string());
        assert_eq!((file("memory.swap.max").as_str(), file("memory.oom.group").as_str()), ("0", "1"));
        assert_eq!(file("pids.max"), "8");
        assert!(!path.join("cgroup.procs").exists() && !path.join("memory.high").exists());
        leaf.enter(4711).expect("enters");
        leaf.kill().expect("kills");
        assert_eq!((file("cgroup.procs").as_str(), file("cgroup.kill").as_str()), ("4711", "1"));
        assert!(Leaf::create(path, LIMITS).is_err(), "a name is used once");
    }

    #[test]
    fn events_reads_the_kernels_counts() {
        let group = tempfile::tempdir().expect("folder");
        let leaf = Leaf::create(group.path().join("leaf"), LIMITS).expect("is made");
        assert!(leaf.events().is_err(), "there is no file yet");
        let events = group.path().join("leaf/memory.events");
        std::fs::write(&events, "low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 1\n")
            .expect("writes");
        assert_eq!(leaf.events().expect("reads"), Events { oom_kill: 1, max: 31 });
        std::fs::write(&events, "oom_kill many\n").expect("writes");
        assert!(leaf.events().expect_err("nonsense").to_string().contains("memory.events"));
    }

    #[test]
    fn busy_leaf_is_returned() {
        let group = tempfile::tempdir().expect("folder");
        let path = group.path().join("leaf");
        let leaf = Leaf::create(path.clone(), LIMITS).expect("is made");
        // A folder with files cannot be removed, like a group with members.
        let leaf = leaf.remove().expect_err("busy");
        for file in std::fs::read_dir(&path).expect("lists") {
            std::fs::remove_file(file.expect("an entry").path()).expect("removes");
        }
        leaf.remove().expect("is gone");
        assert!(!path.exists());
    }
}
