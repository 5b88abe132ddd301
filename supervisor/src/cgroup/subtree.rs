//! Takes over the control group in which the supervisor was started, creates leaves below this group, and restores the
//! group at the end.
//!
//! When a supervisor takes over a group, it removes the groups that killed supervisors left there. In groups of its own
//! run, it kills the members first. It removes a group of another run only if the group is empty and that run is not
//! alive.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::group::{Group, LeafLimits, remove};
use super::leaf::Leaf;
use super::mark::{Mark, NotSet};
use super::{CgroupError, put, read};

/// The prefix of the names of all groups that the supervisor creates.
const PREFIX: &str = "opt-run-";
/// The group that marks a live run. In version 2, it contains the supervisor and its workers.
const HOME: &str = "home";
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// How long to wait until a group can be removed. A killed process leaves its group within milliseconds, unless it
/// hangs in a system call. In tests, the timeout is short, because they use plain folders with files, which never
/// become empty.
const REMOVAL_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2_000 });
const REMOVAL_PAUSE: Duration = Duration::from_millis(2);
/// The maximum number of entries of a folder to examine.
const MAX_ENTRIES: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartGroup {
    pub group: Group,
    /// Whether this is the highest group that the process can see. If so, no service manager is above it.
    pub topmost: bool,
    /// The folder whose attributes show whether a service manager has delegated the group.
    pub delegation: PathBuf,
}

/// The group in which the supervisor was started, after this run has taken it over. Dropping this value restores the
/// group. In version 2, the controllers stay enabled if groups of other runs need them.
#[derive(Debug)]
pub struct Subtree {
    start: Group,
    key: String,
    pid: u32,
    enabled: Vec<&'static str>,
    /// Leaves that are no longer used, but are not empty yet.
    dying: Vec<Leaf>,
    /// The marks of this run, which are held while it is alive so that other supervisors do not remove its groups.
    marks: Vec<Mark>,
}

impl Subtree {
    /// Takes over `start`. `key` identifies the run among all live runs, and contains no hyphen. `root` is `/` except
    /// in tests. `pid` is the pid of this process, which is moved into a new group in version 2.
    pub fn take(root: &Path, start: &StartGroup, key: &str, pid: u32) -> Result<Self, CgroupError> {
        match &start.group {
            Group::Two { folder } => require_controllers(folder)?,
            Group::One { memory, .. } => require_hierarchy(memory)?,
        }
        if !may_create_groups(root, start) {
            return Err(CgroupError::NotDelegated { path: start.group.folder().to_owned() });
        }
        let mut subtree = Self {
            start: start.group.clone(),
            key: key.to_owned(),
            pid,
            enabled: Vec::new(),
            dying: Vec::new(),
            marks: Vec::new(),
        };
        // From here on, dropping `subtree` undoes all changes.
        for folder in subtree.home().folders() {
            let mark = Mark::set(folder).map_err(CgroupError::io("create and lock a child group", folder))?;
            subtree.marks.push(mark);
        }
        subtree.remove_stale_groups();
        if let Group::Two { folder } = &start.group {
            subtree.home().enter(pid)?;
            subtree.enable(folder)?;
        }
        Ok(subtree)
    }

    /// Returns the name of the files that limit memory, for messages.
    pub fn limit_file(&self) -> &'static str {
        match self.start {
            Group::One { .. } => "memory.limit_in_bytes",
            Group::Two { .. } => "memory.max",
        }
    }

    /// Returns the group below which leaves are created.
    pub fn folder(&self) -> &Path {
        self.start.folder()
    }

    fn home(&self) -> Group {
        self.start.child(&home(&self.key))
    }

    fn enable(&mut self, folder: &Path) -> Result<(), CgroupError> {
        let path = folder.join("cgroup.subtree_control");
        let on = read(&path).unwrap_or_default();
        for controller in CONTROLLERS {
            if on.split_ascii_whitespace().any(|it| it == controller) {
                continue;
            }
            match put(folder, "cgroup.subtree_control", &format!("+{controller}")) {
                Ok(()) => self.enabled.push(controller),
                Err(CgroupError::Io { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => {
                    return Err(CgroupError::Crowded { path: folder.to_owned() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Creates a leaf with these limits. Its process must enter it before it executes any code of a candidate.
    pub fn leaf(&mut self, name: &str, limits: LeafLimits) -> Result<Leaf, CgroupError> {
        let mut leaf = self.unlimited_leaf(name)?;
        match leaf.limit(limits) {
            Ok(()) => Ok(leaf),
            Err(error) => {
                self.put_aside(leaf);
                Err(error)
            }
        }
    }

    /// Creates a leaf for a process that runs only our own code until `Leaf::limit` is called.
    pub fn unlimited_leaf(&mut self, name: &str) -> Result<Leaf, CgroupError> {
        self.sweep();
        Leaf::create(self.start.child(&format!("{PREFIX}{}-{name}", self.key)))
    }

    /// Removes a leaf. If it still has members, kills them, and removes the leaf later.
    pub fn give_back(&mut self, leaf: Leaf) {
        if let Err(busy) = leaf.remove() {
            let _ = busy.kill();
            self.dying.push(busy);
        }
    }

    /// Removes a leaf that a live process may have entered. If the leaf is not empty, it is removed when the process
    /// has ended.
    pub fn put_aside(&mut self, leaf: Leaf) {
        if let Err(busy) = leaf.remove() {
            self.dying.push(busy);
        }
    }

    fn sweep(&mut self) {
        self.dying = std::mem::take(&mut self.dying).into_iter().filter_map(|it| it.remove().err()).collect();
    }

    /// Removes the groups that killed supervisors left, as the documentation of this module describes.
    fn remove_stale_groups(&self) {
        for name in names_below(&self.start) {
            let Some(key) = key_of(&name) else { continue };
            let group = self.start.child(&name);
            if key == self.key {
                // This supervisor has set the run's mark, so the supervisor that created this group is dead.
                let is_home = group == self.home();
                // In version 1, `home` has no members.
                if !is_home || matches!(group, Group::Two { .. }) {
                    let _ = group.kill();
                }
                if !is_home {
                    remove_with_timeout(|| group.remove());
                }
                continue;
            }
            // While these locks are held, no supervisor can begin or resume the other run.
            let not_set: Option<Vec<NotSet>> =
                self.start.child(&home(key)).folders().map(NotSet::hold).collect();
            if not_set.is_some() {
                group.remove();
            }
        }
    }

    fn has_groups_of_other_runs(&self) -> bool {
        names_below(&self.start).iter().any(|name| key_of(name).is_some_and(|key| key != self.key))
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
        if let Group::Two { folder } = &self.start {
            // Without the controllers, another run that shares the group would lose its limits.
            if !self.has_groups_of_other_runs() {
                for controller in &self.enabled {
                    let _ = put(folder, "cgroup.subtree_control", &format!("-{controller}"));
                }
            }
            if self.start.enter(self.pid).is_err() {
                // The group `home` stays busy.
                return;
            }
        }
        // Remove only the folders whose mark was set. Any other folder belongs to another supervisor, or was not
        // created.
        for mark in &self.marks {
            remove_with_timeout(|| remove(mark.folder()));
        }
    }
}

fn require_controllers(folder: &Path) -> Result<(), CgroupError> {
    let path = folder.join("cgroup.controllers");
    let found = read(&path)?;
    for wanted in CONTROLLERS {
        if !found.split_ascii_whitespace().any(|it| it == wanted) {
            return Err(CgroupError::NoController { path, wanted, found: found.trim().to_owned() });
        }
    }
    Ok(())
}

/// Fails if the memory of the groups below a version 1 group does not count towards the limit of that group.
fn require_hierarchy(memory: &Path) -> Result<(), CgroupError> {
    // Since Linux 5.11, the memory of groups below always counts.
    match read(&memory.join("memory.use_hierarchy")) {
        Ok(text) if text.trim() == "0" => Err(CgroupError::NotHierarchical { path: memory.to_owned() }),
        _ => Ok(()),
    }
}

fn home(key: &str) -> String {
    format!("{PREFIX}{key}-{HOME}")
}

/// Returns the key of the run that a group belongs to, or `None` if no supervisor created the group.
fn key_of(name: &str) -> Option<&str> {
    Some(name.strip_prefix(PREFIX)?.split_once('-')?.0)
}

/// Returns the names of the files and groups below a group.
fn names_below(group: &Group) -> BTreeSet<String> {
    let entries = group.folders().filter_map(|folder| std::fs::read_dir(folder).ok());
    let names = entries.flat_map(|entries| entries.flatten().take(MAX_ENTRIES));
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Calls `remove` repeatedly until it succeeds, because a group may be busy for a moment. Gives up after
/// `REMOVAL_TIMEOUT`.
fn remove_with_timeout(remove: impl Fn() -> bool) {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    while !remove() && Instant::now() < deadline {
        std::thread::sleep(REMOVAL_PAUSE);
    }
}

/// Returns whether groups may be created below `start`. For an ordinary user, Linux checks the permission when they are
/// created. Root could write anywhere, so for root this returns true for a service manager's group only if the group
/// was delegated.
fn may_create_groups(root: &Path, start: &StartGroup) -> bool {
    let has_manager = root.join("run/systemd/system").is_dir();
    if start.topmost || !has_manager || !rustix::process::geteuid().is_root() {
        return true;
    }
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0u8; 8];
        rustix::fs::getxattr(&start.delegation, *name, &mut value[..])
            .is_ok_and(|length| value.get(..length) == Some(b"1".as_slice()))
    })
}

#[cfg(test)]
mod tests {
    use opt_shared::units::Bytes;

    use super::*;

    const LIMITS: LeafLimits = LeafLimits { memory: Bytes::mib(64), tasks: 4 };

    /// Creates a plain folder that stands for a version 2 group.
    fn fake(controllers: &str) -> (tempfile::TempDir, StartGroup, PathBuf) {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("group");
        std::fs::create_dir(&folder).expect("folder");
        std::fs::write(folder.join("cgroup.controllers"), controllers).expect("writes");
        let group = Group::Two { folder: folder.clone() };
        (root, StartGroup { group, topmost: false, delegation: folder.clone() }, folder)
    }

    /// Creates two plain folders that stand for a version 1 group.
    fn fake_of_version_1() -> (tempfile::TempDir, StartGroup) {
        let root = tempfile::tempdir().expect("folder");
        let [memory, pids] = ["memory", "pids"].map(|name| root.path().join(name));
        std::fs::create_dir(&memory).expect("folder");
        std::fs::create_dir(&pids).expect("folder");
        let delegation = memory.clone();
        (root, StartGroup { group: Group::One { memory, pids }, topmost: false, delegation })
    }

    fn read(path: PathBuf) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    fn empty(folder: &Path) {
        for file in std::fs::read_dir(folder).expect("lists") {
            std::fs::remove_file(file.expect("an entry").path()).expect("removes");
        }
    }

    #[test]
    fn group_is_taken_over_and_restored() {
        let (root, start, folder) = fake("cpu io memory pids\n");
        let mut subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        assert_eq!(read(folder.join("opt-run-k1-home/cgroup.procs")), "77");
        // Two values were written, and a plain file keeps only the last one.
        assert_eq!(read(folder.join("cgroup.subtree_control")), "+pids");
        let leaf = subtree.leaf("w1-5", LIMITS).expect("a leaf");
        assert_eq!(read(folder.join("opt-run-k1-w1-5/pids.max")), "4");
        subtree.give_back(leaf);
        assert_eq!(subtree.dying.len(), 1, "a folder with files is busy");
        for name in ["opt-run-k1-w1-5", "opt-run-k1-home"] {
            empty(&folder.join(name));
        }
        drop(subtree);
        assert_eq!(read(folder.join("cgroup.subtree_control")), "-pids");
        assert_eq!(read(folder.join("cgroup.procs")), "77", "the process is moved back");
        assert!(!folder.join("opt-run-k1-w1-5").exists() && !folder.join("opt-run-k1-home").exists());
    }

    #[test]
    fn groups_of_version_1_are_created_in_both_trees_and_nobody_is_moved() {
        let (root, start) = fake_of_version_1();
        let mut subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        let leaf = subtree.leaf("w1-5", LIMITS).expect("a leaf");
        leaf.enter(5).expect("enters");
        for tree in ["memory", "pids"] {
            let tree = root.path().join(tree);
            assert_eq!(read(tree.join("opt-run-k1-w1-5/cgroup.procs")), "5");
            let files = std::fs::read_dir(tree.join("opt-run-k1-home")).expect("the mark of the run");
            assert_eq!(files.count(), 0);
            empty(&tree.join("opt-run-k1-w1-5"));
        }
        subtree.give_back(leaf);
        drop(subtree);
        for folder in start.group.folders() {
            assert_eq!(std::fs::read_dir(folder).expect("lists").count(), 0);
        }
    }

    #[test]
    fn controllers_that_were_on_stay_on() {
        let (root, start, folder) = fake("memory pids\n");
        std::fs::write(folder.join("cgroup.subtree_control"), "memory pids\n").expect("writes");
        let subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        std::fs::remove_file(folder.join("opt-run-k1-home/cgroup.procs")).expect("removes");
        drop(subtree);
        assert_eq!(read(folder.join("cgroup.subtree_control")), "memory pids\n");
    }

    #[test]
    fn group_without_the_controllers_is_left_alone() {
        for (controllers, wanted) in [("hugetlb\n", "memory"), ("memory\n", "pids"), ("", "memory")] {
            let (root, start, folder) = fake(controllers);
            let error = Subtree::take(root.path(), &start, "k1", 77).expect_err("refuses").to_string();
            assert!(error.contains(&format!("`{wanted}`")) && error.contains(controllers.trim()), "{error}");
            assert_eq!(std::fs::read_dir(&folder).expect("lists").count(), 1);
        }
    }

    #[test]
    fn group_used_as_root_must_be_delegated_by_systemd() {
        let (root, start, _) = fake("memory pids\n");
        std::fs::create_dir_all(root.path().join("run/systemd/system")).expect("folder");
        let taken = Subtree::take(root.path(), &start, "k1", 77);
        if rustix::process::geteuid().is_root() {
            assert!(matches!(taken, Err(CgroupError::NotDelegated { .. })), "{taken:?}");
        } else {
            assert!(taken.is_ok(), "Linux decides: {taken:?}");
        }
        drop(taken);
        let topmost = StartGroup { topmost: true, ..start };
        assert!(Subtree::take(root.path(), &topmost, "k2", 77).is_ok(), "no service manager is above it");
    }

    #[test]
    fn groups_of_a_killed_supervisor_are_cleared() {
        let (root, start, folder) = fake("memory pids\n");
        let make = |name: &str| std::fs::create_dir(folder.join(name)).expect("folder");
        for name in ["opt-run-k1-w1-9", "opt-run-k2-w1-9", "opt-run-k2-home", "somebody.scope"] {
            make(name);
        }
        std::fs::write(folder.join("opt-run-k2-home/cgroup.procs"), "5").expect("writes");
        let _subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        for (name, stays) in [("opt-run-k2-w1-9", false), ("opt-run-k2-home", true), ("somebody.scope", true)]
        {
            assert_eq!(folder.join(name).exists(), stays, "{name}");
        }
        // A plain folder keeps what was written to this file, which shows that the members were killed first.
        assert_eq!(read(folder.join("opt-run-k1-w1-9/cgroup.kill")), "1");
    }

    #[test]
    fn second_run_with_the_same_key_changes_nothing() {
        let (root, start) = fake_of_version_1();
        let mut live = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        let leaf = live.leaf("w1-9", LIMITS).expect("a leaf");
        let error = Subtree::take(root.path(), &start, "k1", 78).expect_err("is taken").to_string();
        assert!(error.contains("opt-run-k1-home"), "{error}");
        for tree in ["memory", "pids"] {
            assert!(root.path().join(tree).join("opt-run-k1-home").exists(), "the live run keeps its mark");
            assert!(root.path().join(tree).join("opt-run-k1-w1-9").exists());
        }
        drop(leaf);
    }

    #[test]
    fn mark_in_the_first_tree_is_removed_if_the_second_tree_is_in_use() {
        let (root, start) = fake_of_version_1();
        let others = root.path().join("pids/opt-run-k1-home");
        let _set = Mark::set(&others).expect("another process sets it");
        Subtree::take(root.path(), &start, "k1", 77).expect_err("refuses");
        assert!(!root.path().join("memory/opt-run-k1-home").exists() && others.exists());
    }

    #[test]
    fn controllers_that_are_mounted_together_share_a_folder() {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("both");
        std::fs::create_dir(&folder).expect("folder");
        let group = Group::One { memory: folder.clone(), pids: folder.clone() };
        let start = StartGroup { group, topmost: false, delegation: folder.clone() };
        let mut subtree = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        subtree.leaf("w1-5", LIMITS).expect("a leaf");
        assert_eq!(read(folder.join("opt-run-k1-w1-5/pids.max")), "4");
    }

    #[test]
    fn group_whose_children_do_not_count_towards_its_limit_is_refused() {
        let (root, start) = fake_of_version_1();
        std::fs::write(root.path().join("memory/memory.use_hierarchy"), "0\n").expect("writes");
        let error = Subtree::take(root.path(), &start, "k1", 77).expect_err("refuses");
        assert!(matches!(error, CgroupError::NotHierarchical { .. }), "{error}");
    }

    #[test]
    fn empty_groups_of_a_live_run_stay() {
        let (root, start) = fake_of_version_1();
        let live = Subtree::take(root.path(), &start, "k1", 77).expect("takes");
        // A leaf is empty until its process has entered it. This one exists only in the second tree, to check that
        // names are looked up in both trees.
        for folder in start.group.child("opt-run-k1-w1-9").folders().skip(1) {
            std::fs::create_dir(folder).expect("folder");
        }
        let other = Subtree::take(root.path(), &start, "k2", 78).expect("takes");
        assert!(root.path().join("pids/opt-run-k1-w1-9").exists());
        drop((live, other));
        let _third = Subtree::take(root.path(), &start, "k3", 79).expect("takes");
        assert!(!root.path().join("pids/opt-run-k1-w1-9").exists(), "its run has ended");
    }
}
