//! Takes over the group in which the supervisor was started, and restores it.
//!
//! A supervisor first clears the groups that a killed supervisor left. Groups of the same run are cleared with all
//! their members, groups of other runs only if they are empty.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::leaf::{self, Leaf, LeafLimits};
use super::{CgroupError, put};

/// The prefix of the names of all groups that the supervisor creates.
const PREFIX: &str = "opt-run-";
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// The timeout for removing a group. A killed process leaves its group within milliseconds, unless it hangs in the
/// kernel. The timeout is short in tests, because plain folders with files never become empty.
const REMOVAL_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2_000 });
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);
/// The maximum number of files and groups in a folder that are examined.
const MAX_LEFT: usize = 10_000;

/// The group in which the supervisor was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartGroup {
    pub folder: PathBuf,
    /// Whether it is the topmost visible group, so that no service manager is above it.
    pub topmost: bool,
}

/// A group with controllers for its children. Dropping it restores the group, but leaves the controllers on if groups
/// of other runs need them.
#[derive(Debug)]
pub struct Subtree {
    folder: PathBuf,
    key: String,
    pid: u32,
    /// The controllers that were switched on, and must be switched off again.
    enabled: Vec<&'static str>,
    /// Leaves that are no longer used, but are not empty yet.
    dying: Vec<Leaf>,
}

impl Subtree {
    /// Takes over `start`. `key` identifies the run among all live ones, and `root` is `/`. `pid` is this process,
    /// which is moved into a new group.
    pub fn take(root: &Path, start: &StartGroup, key: &str, pid: u32) -> Result<Self, CgroupError> {
        let folder = start.folder.clone();
        let path = folder.join("cgroup.controllers");
        let found = leaf::read(&path)?;
        for wanted in CONTROLLERS {
            if !found.split_ascii_whitespace().any(|it| it == wanted) {
                return Err(CgroupError::NoController { path, wanted, found: found.trim().to_owned() });
            }
        }
        if !may_create_groups(root, start) {
            return Err(CgroupError::NotDelegated { path: folder });
        }
        let mut subtree = Self { folder, key: key.to_owned(), pid, enabled: Vec::new(), dying: Vec::new() };
        subtree.clear();
        let home = subtree.home();
        match std::fs::create_dir(&home) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(CgroupError::io("create a child group", &subtree.folder)(error));
            }
            _ => {}
        }
        // From here on, dropping `subtree` undoes all changes.
        put(&home, "cgroup.procs", &pid.to_string())?;
        subtree.enable()?;
        Ok(subtree)
    }

    /// Returns the group for the supervisor and its workers.
    fn home(&self) -> PathBuf {
        self.folder.join(format!("{PREFIX}{}-home", self.key))
    }

    fn enable(&mut self) -> Result<(), CgroupError> {
        let path = self.folder.join("cgroup.subtree_control");
        let on = leaf::read(&path).unwrap_or_default();
        for controller in CONTROLLERS {
            if on.split_ascii_whitespace().any(|it| it == controller) {
                continue;
            }
            match put(&self.folder, "cgroup.subtree_control", &format!("+{controller}")) {
                Ok(()) => self.enabled.push(controller),
                Err(CgroupError::Io { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                    return Err(CgroupError::Crowded { path: self.folder.clone() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Creates a leaf for a process, which must enter the leaf before it does anything else.
    pub fn leaf(&mut self, name: &str, limits: LeafLimits) -> Result<Leaf, CgroupError> {
        self.sweep();
        Leaf::create(self.folder.join(format!("{PREFIX}{}-{name}", self.key)), limits)
    }

    /// Takes back the leaf of a dead process. If it is not empty yet, it is removed later.
    pub fn give_back(&mut self, leaf: Leaf) {
        if let Err(busy) = leaf.remove() {
            self.dying.push(busy);
        }
    }

    /// Removes the leaves that have become empty.
    fn sweep(&mut self) {
        self.dying = std::mem::take(&mut self.dying).into_iter().filter_map(|it| it.remove().err()).collect();
    }

    /// Removes the groups that killed supervisors left.
    fn clear(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let mine = format!("{PREFIX}{}-", self.key);
        for entry in entries.flatten().take(MAX_LEFT) {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&mine) {
                // This supervisor holds the run's lock, so the one that created this group is dead.
                let _ = leaf::kill(&entry.path());
                remove_with_timeout(&entry.path());
            } else if name.starts_with(PREFIX) {
                leaf::remove(&entry.path());
            }
        }
    }

    fn has_groups_of_other_runs(&self) -> bool {
        let mine = format!("{PREFIX}{}-", self.key);
        std::fs::read_dir(&self.folder).is_ok_and(|entries| {
            entries.flatten().take(MAX_LEFT).any(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.starts_with(PREFIX) && !name.starts_with(&mine)
            })
        })
    }
}

impl Drop for Subtree {
    fn drop(&mut self) {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while !self.dying.is_empty() {
            self.sweep();
            if deadline <= Instant::now() {
                break;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
        // Without the controllers, another run that shares the group would lose its limits.
        if !self.has_groups_of_other_runs() {
            for controller in &self.enabled {
                let _ = put(&self.folder, "cgroup.subtree_control", &format!("-{controller}"));
            }
        }
        let _ = put(&self.folder, "cgroup.procs", &self.pid.to_string());
        remove_with_timeout(&self.home());
    }
}

fn remove_with_timeout(path: &Path) {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    while !leaf::remove(path) && Instant::now() < deadline {
        std::thread::sleep(REMOVAL_PAUSE);
    }
}

/// Returns whether this process may create groups below `start`. For an ordinary user, the kernel decides that later.
/// Root could write anywhere, so a group of a service manager is used only if it was delegated.
fn may_create_groups(root: &Path, start: &StartGroup) -> bool {
    let has_manager = root.join("run/systemd/system").is_dir();
    if start.topmost || !has_manager || !rustix::process::geteuid().is_root() {
        return true;
    }
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0u8; 8];
        rustix::fs::getxattr(&start.folder, *name, &mut value[..])
            .is_ok_and(|length| value.get(..length) == Some(b"1".as_slice()))
    })
}

#[cfg(test)]
mod tests {
    use opt_shared::units::Bytes;

    use super::*;

    const LIMITS: LeafLimits = LeafLimits { memory: Bytes::mib(64), tasks: 4 };

    fn fake(controllers: &str) -> (tempfile::TempDir, StartGroup) {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("group");
        std::fs::create_dir(&folder).expect("folder");
        std::fs::write(folder.join("cgroup.controllers"), controllers).expect("writes");
        (root, StartGroup { folder, topmost: false })
    }

    fn read(path: PathBuf) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn group_is_taken_over_and_restored() {
        let (root, start) = fake("cpu io memory pids\n");
        let folder = &start.folder;
        let mut subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        assert_eq!(read(folder.join("opt-run-k1-home/cgroup.procs")), "77");
        // There are two writes, and a plain file keeps only the last one.
        assert_eq!(read(folder.join("cgroup.subtree_control")), "+pids");
        let leaf = subtree.leaf("w1-5", LIMITS).expect("a leaf");
        assert_eq!(read(folder.join("opt-run-k1-w1-5/pids.max")), "4");
        subtree.give_back(leaf);
        assert_eq!(subtree.dying.len(), 1, "a folder with files is busy");
        for name in ["opt-run-k1-w1-5", "opt-run-k1-home"] {
            for file in std::fs::read_dir(folder.join(name)).expect("lists") {
                std::fs::remove_file(file.expect("an entry").path()).expect("removes");
            }
        }
        drop(subtree);
        assert_eq!(read(folder.join("cgroup.subtree_control")), "-pids");
        assert_eq!(read(folder.join("cgroup.procs")), "77", "the process is moved back");
        assert!(!folder.join("opt-run-k1-w1-5").exists() && !folder.join("opt-run-k1-home").exists());
    }

    #[test]
    fn controllers_that_were_on_stay_on() {
        let (root, start) = fake("memory pids\n");
        std::fs::write(start.folder.join("cgroup.subtree_control"), "memory pids\n").expect("writes");
        let subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        std::fs::remove_file(start.folder.join("opt-run-k1-home/cgroup.procs")).expect("removes");
        drop(subtree);
        assert_eq!(read(start.folder.join("cgroup.subtree_control")), "memory pids\n");
    }

    #[test]
    fn group_without_the_controllers_is_left_alone() {
        for (controllers, wanted) in [("hugetlb\n", "memory"), ("memory\n", "pids"), ("", "memory")] {
            let (root, start) = fake(controllers);
            let error = Subtree::take(root.path(), &start, "k1", 77).expect_err("refuses").to_string();
            assert!(error.contains(&format!("`{wanted}`")) && error.contains(controllers.trim()), "{error}");
            assert_eq!(std::fs::read_dir(&start.folder).expect("lists").count(), 1);
        }
    }

    #[test]
    fn roots_group_needs_delegation_by_systemd() {
        let (root, start) = fake("memory pids\n");
        std::fs::create_dir_all(root.path().join("run/systemd/system")).expect("folder");
        let taken = Subtree::take(root.path(), &start, "k1", 77);
        if rustix::process::geteuid().is_root() {
            assert!(matches!(taken, Err(CgroupError::NotDelegated { .. })), "{taken:?}");
        } else {
            assert!(taken.is_ok(), "the kernel decides: {taken:?}");
        }
        drop(taken);
        let topmost = StartGroup { topmost: true, ..start };
        assert!(Subtree::take(root.path(), &topmost, "k2", 77).is_ok(), "no service manager is above it");
    }

    #[test]
    fn groups_of_a_killed_supervisor_are_cleared() {
        let (root, start) = fake("memory pids\n");
        let make = |name: &str| std::fs::create_dir(start.folder.join(name)).expect("folder");
        for name in ["opt-run-k1-w1-9", "opt-run-k2-w1-9", "opt-run-k2-home", "somebody.scope"] {
            make(name);
        }
        std::fs::write(start.folder.join("opt-run-k2-home/cgroup.procs"), "5").expect("writes");
        let _subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        for (name, stays) in [("opt-run-k2-w1-9", false), ("opt-run-k2-home", true), ("somebody.scope", true)]
        {
            assert_eq!(start.folder.join(name).exists(), stays, "{name}");
        }
        // The group's members are killed first. In a plain folder, this file shows that.
        assert_eq!(read(start.folder.join("opt-run-k1-w1-9/cgroup.kill")), "1");
    }
}
