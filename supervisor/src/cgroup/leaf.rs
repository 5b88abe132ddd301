//! Provides the leaf, which is the control group of one runner or compiler, with its limits, members and event counts.

use super::CgroupError;
use super::group::{Events, Group, LeafLimits};

/// A control group without child groups. Dropping this value does not remove the group's folders, but [`Leaf::remove`]
/// does.
#[derive(Debug)]
pub struct Leaf {
    group: Group,
    /// The limits that were set. `None` while the leaf's process runs only our own code.
    limits: Option<LeafLimits>,
}

impl Leaf {
    /// Creates a leaf without limits.
    pub(super) fn create(group: Group) -> Result<Self, CgroupError> {
        group.create()?;
        Ok(Self { group, limits: None })
    }

    /// Sets the limits. This must be done before a process in the leaf executes any code of a candidate.
    pub fn limit(&mut self, limits: LeafLimits) -> Result<(), CgroupError> {
        self.group.set_limits(limits)?;
        self.limits = Some(limits);
        Ok(())
    }

    pub fn limits(&self) -> Option<LeafLimits> {
        self.limits
    }

    /// Moves a process into the leaf. The caller must ensure that the process cannot be reaped during the call, because
    /// its pid could then belong to another process.
    pub fn enter(&self, pid: u32) -> Result<(), CgroupError> {
        self.group.enter(pid)
    }

    /// Stops all members at once. In version 2, this fails before Linux 5.2. In version 1, this does nothing, because a
    /// frozen member that is killed dies only once it is thawed.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        self.group.freeze()
    }

    /// Kills all members. In version 2, this fails before Linux 5.14. The caller must then send signals.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.group.kill()
    }

    pub fn events(&self) -> Result<Events, CgroupError> {
        self.group.events()
    }

    /// Returns whether the limit of a group above the leaf refused tasks, as far as the leaf's files show this.
    pub fn limit_above_refused_tasks(&self) -> Result<bool, CgroupError> {
        self.limits.map_or(Ok(false), |own| self.group.limit_above_refused_tasks(own.tasks))
    }

    /// Removes the folders if the leaf has no members. Otherwise returns the leaf.
    pub fn remove(self) -> Result<(), Self> {
        if self.group.remove() { Ok(()) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use opt_shared::units::Bytes;

    use super::*;

    const LIMITS: LeafLimits = LeafLimits { memory: Bytes::mib(600), tasks: 8 };

    /// A leaf of each version, in plain folders.
    fn leaves(folder: &Path) -> [(Group, Leaf); 2] {
        for name in ["memory", "pids"] {
            std::fs::create_dir(folder.join(name)).expect("folder");
        }
        let one = Group::One { memory: folder.join("memory/leaf"), pids: folder.join("pids/leaf") };
        [one, Group::Two { folder: folder.join("leaf") }].map(|group| {
            let mut leaf = Leaf::create(group.clone()).expect("is made");
            assert_eq!(leaf.limits(), None);
            leaf.limit(LIMITS).expect("is limited");
            (group, leaf)
        })
    }

    #[test]
    fn limits_are_written_to_the_files_of_the_group() {
        let folder = tempfile::tempdir().expect("folder");
        for (group, leaf) in leaves(folder.path()) {
            let (limit, with_swap) = ((600_u64 << 20).to_string(), (604_u64 << 20).to_string());
            let wanted: &[(&str, &str)] = match group {
                Group::One { .. } => &[
                    ("memory.limit_in_bytes", &limit),
                    ("memory.memsw.limit_in_bytes", &with_swap),
                    ("memory.swappiness", "0"),
                    ("memory.oom_control", "0"),
                    ("pids.max", "8"),
                ],
                Group::Two { .. } => &[
                    ("memory.max", &limit),
                    ("memory.swap.max", "0"),
                    ("memory.oom.group", "1"),
                    ("pids.max", "8"),
                ],
            };
            let files = |name: &str| -> Vec<String> {
                group.folders().filter_map(|folder| std::fs::read_to_string(folder.join(name)).ok()).collect()
            };
            for (name, value) in wanted {
                assert_eq!(files(name), [*value], "{name}");
            }
            let files_made = group.folders().map(|it| it.read_dir().expect("lists").count()).sum::<usize>();
            assert_eq!(files_made, wanted.len());
            leaf.enter(4711).expect("enters");
            assert_eq!(files("cgroup.procs"), vec!["4711"; group.folders().count()]);
            assert!(Leaf::create(group).is_err(), "a name is used once");
        }
    }

    #[test]
    fn kill_writes_cgroup_kill_or_forbids_new_processes() {
        let folder = tempfile::tempdir().expect("folder");
        let [(one, leaf), (_, two)] = leaves(folder.path());
        two.kill().expect("kills");
        assert_eq!(std::fs::read_to_string(folder.path().join("leaf/cgroup.kill")).expect("written"), "1");
        assert!(leaf.kill().is_err(), "there is no list of members yet");
        std::fs::write(one.folder().join("cgroup.procs"), "").expect("writes");
        leaf.kill().expect("kills");
        // With this limit, members cannot start further processes while they are being killed.
        let pids = std::fs::read_to_string(folder.path().join("pids/leaf/pids.max")).expect("written");
        assert_eq!(pids, "0");
    }

    #[test]
    fn only_groups_of_version_2_are_frozen() {
        let folder = tempfile::tempdir().expect("folder");
        for (group, leaf) in leaves(folder.path()) {
            leaf.freeze().expect("freezes");
            let written: Vec<String> = group
                .folders()
                .filter_map(|folder| std::fs::read_to_string(folder.join("cgroup.freeze")).ok())
                .collect();
            assert_eq!(written, vec!["1"; usize::from(matches!(group, Group::Two { .. }))], "{group:?}");
        }
    }

    #[test]
    fn events_are_read_from_the_files_of_the_group() {
        let folder = tempfile::tempdir().expect("folder");
        for (group, leaf) in leaves(folder.path()) {
            assert!(leaf.events().is_err(), "there is no file yet");
            let (file, text) = match group {
                Group::One { .. } => ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
                Group::Two { .. } => {
                    ("memory.events", "low 0\nhigh 0\nmax 200\noom 31\noom_kill 1\noom_group_kill 1\n")
                }
            };
            let write =
                |name: &str, text: &str| std::fs::write(group.folder().join(name), text).expect("writes");
            write("memory.failcnt", "31\n");
            write(file, text);
            assert_eq!(leaf.events().expect("reads"), Events { oom_kill: 1, at_limit: 31 });
            write(file, "oom_kill many\n");
            assert!(leaf.events().expect_err("nonsense").to_string().contains(file));
            write(file, "");
            assert_eq!(leaf.events().expect("an old version of Linux").oom_kill, 0);
        }
    }

    #[test]
    fn limit_above_is_distinguished_from_the_leafs_own_limit() {
        let folder = tempfile::tempdir().expect("folder");
        for (group, leaf) in leaves(folder.path()) {
            let write = |name: &str, text: &str| {
                let pids = group.folders().last().expect("a folder");
                std::fs::write(pids.join(name), text).expect("writes");
            };
            assert!(!leaf.limit_above_refused_tasks().expect("an old version of Linux"));
            // The limit is 8.
            for (events, peak, from_above) in [
                ("max 0\n", "3\n", false),
                ("max 1\n", "3\n", true),
                ("max 1\n", "8\n", false),
                ("max 0\n", "8\n", false),
            ] {
                write("pids.events", events);
                write("pids.peak", peak);
                assert_eq!(leaf.limit_above_refused_tasks().expect("reads"), from_above, "{events}{peak}");
            }
            write("pids.events", "max 1\n");
            write("pids.peak", "3\n");
            write("pids.max", "0\n");
            assert!(!leaf.limit_above_refused_tasks().expect("reads"), "it was killed");
            write("pids.max", "8\n");
            write("pids.peak", "many\n");
            assert!(leaf.limit_above_refused_tasks().is_err());
        }
    }

    #[test]
    fn busy_leaf_is_returned() {
        let folder = tempfile::tempdir().expect("folder");
        for (group, leaf) in leaves(folder.path()) {
            // Like a group with members, a folder with files cannot be removed.
            let leaf = leaf.remove().expect_err("busy");
            for folder in group.folders() {
                for file in std::fs::read_dir(folder).expect("lists") {
                    std::fs::remove_file(file.expect("an entry").path()).expect("removes");
                }
            }
            leaf.remove().expect("is gone");
            assert!(group.folders().all(|folder| !folder.exists()));
        }
    }
}
