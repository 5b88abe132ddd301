//! Finds the control groups (version 1 or 2) that contain this process, and their lowest limits on memory and
//! processes.
//!
//! This module only reads. The supervisor's `cgroup` module creates groups.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use opt_shared::units::Bytes;

use super::SampleError;
use super::text::{lines, number, read_small, words};

/// The maximum size of `mountinfo`, which has a line for each mount. Hosts with many containers have thousands of
/// mounts.
const MOUNTINFO_BYTES: usize = 8 << 20;
/// The maximum size of `/proc/self/cgroup`, which has a line with a path for each hierarchy.
const CGROUP_BYTES: usize = 64 << 10;
/// The maximum size of a file that contains one number.
const LIMIT_BYTES: usize = 64;
/// The maximum size of a file that contains a few counts.
const EVENTS_BYTES: usize = 256;
/// Numbers of at least this size mean "no limit". In version 1, this is a number just below 2^63, rounded down to a
/// multiple of the page size. No machine has an exbibyte of memory, so smaller numbers are real limits.
const NO_LIMIT: u64 = 1 << 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    pub limit: Bytes,
    /// The file that contains the limit.
    pub path: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    const fn limit_file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }
}

/// Returns the lowest memory limit of the groups that contain this process, or `None` if none is found. `root` is `/`
/// except in tests.
pub fn memory_limit(root: &Path) -> Result<Option<GroupLimit>, SampleError> {
    let mut lowest: Option<GroupLimit> = None;
    for (version, folder) in groups_with(root, "memory")? {
        let path = folder.join(version.limit_file());
        let limit = read_limit(&path)?.filter(|&limit| limit < NO_LIMIT).map(Bytes::new);
        if let Some(limit) = limit
            && lowest.as_ref().is_none_or(|lowest| limit < lowest.limit)
        {
            lowest = Some(GroupLimit { limit, path });
        }
    }
    Ok(lowest)
}

/// Returns how many more processes and threads the groups that contain this process allow, or `None` if no limit is
/// found.
pub fn pids_left(root: &Path) -> Result<Option<u64>, SampleError> {
    let mut least: Option<u64> = None;
    for (_, folder) in groups_with(root, "pids")? {
        let Some(limit) = read_limit(&folder.join("pids.max"))? else { continue };
        let Some(current) = read_limit(&folder.join("pids.current"))? else { continue };
        let left = limit.saturating_sub(current);
        least = Some(least.map_or(left, |least| least.min(left)));
    }
    Ok(least)
}

/// Returns the files in which Linux counts how often control groups refused to start a process or thread. Depending on
/// the version of Linux, a file counts either the refusals that its own group's limit caused, or all refusals within
/// its group, whichever group's limit caused them.
pub fn pids_refusal_files(root: &Path) -> Result<Vec<PathBuf>, SampleError> {
    let folders = groups_with(root, "pids")?;
    let file = |folder: PathBuf| {
        // Since Linux 6.11, `pids.events` of a version 2 group includes the counts of the groups below.
        let local = folder.join("pids.events.local");
        if local.exists() { local } else { folder.join("pids.events") }
    };
    Ok(folders.into_iter().map(|(_, folder)| file(folder)).filter(|file| file.exists()).collect())
}

/// Returns the sum of the counts in these files. A file that cannot be read counts as 0.
pub fn pids_refusals(files: &[PathBuf]) -> u64 {
    let count = |file: &PathBuf| {
        let text = read_small(file, EVENTS_BYTES).ok()??;
        let mut lines = lines(&text).map(words);
        lines.find_map(|mut words| (words.next() == Some(b"max")).then(|| number(words.next()?))?)
    };
    files.iter().filter_map(count).sum()
}

fn groups_with(root: &Path, controller: &str) -> Result<Vec<(Version, PathBuf)>, SampleError> {
    let mut folders = Vec::new();
    let Some(groups) = read_small(&root.join("proc/self/cgroup"), CGROUP_BYTES)? else { return Ok(folders) };
    let Some(mounts) = read_small(&root.join("proc/self/mountinfo"), MOUNTINFO_BYTES)? else {
        return Ok(folders);
    };
    for line in lines(&groups) {
        let Some((version, group)) = group_with(line, controller) else { continue };
        let Some((mount_point, below)) = locate(root, &mounts, version, &group, controller) else { continue };
        folders.extend(below.ancestors().map(|ancestor| (version, mount_point.join(ancestor))));
    }
    Ok(folders)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnGroup {
    pub folder: PathBuf,
    /// Whether this is the highest group that the process can see.
    pub topmost: bool,
}

/// The groups that contain this process. A field is `None` if its hierarchy is not mounted, or if the mounted part of
/// the hierarchy does not contain the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnGroups {
    pub version_2: Option<OwnGroup>,
    /// The group in the version 1 hierarchy of the memory controller.
    pub memory: Option<OwnGroup>,
    /// The group in the version 1 hierarchy of the `pids` controller, which limits processes.
    pub pids: Option<OwnGroup>,
    /// The group in systemd's own version 1 hierarchy, if that hierarchy exists. Otherwise the version 2 group.
    pub systemd: Option<OwnGroup>,
}

/// Finds the groups of this process.
pub fn own_groups(root: &Path) -> Result<OwnGroups, SampleError> {
    let Some(groups) = read_small(&root.join("proc/self/cgroup"), CGROUP_BYTES)? else {
        return Ok(OwnGroups::default());
    };
    let Some(mounts) = read_small(&root.join("proc/self/mountinfo"), MOUNTINFO_BYTES)? else {
        return Ok(OwnGroups::default());
    };
    let own = |wanted: Version, controller: &str| {
        let (version, group) = lines(&groups)
            .filter_map(|line| group_with(line, controller))
            .find(|(version, _)| *version == wanted)?;
        // A group outside the mounted part of the tree cannot be used.
        is_visible(&mounts, version, &group, controller).then_some(())?;
        let (mount_point, below) = locate(root, &mounts, version, &group, controller)?;
        Some(OwnGroup {
            topmost: below.as_os_str().is_empty(),
            // Joining an empty path would add a slash.
            folder: if below.as_os_str().is_empty() { mount_point } else { mount_point.join(below) },
        })
    };
    let version_2 = own(Version::Two, "memory");
    Ok(OwnGroups {
        systemd: own(Version::One, "name=systemd").or_else(|| version_2.clone()),
        version_2,
        memory: own(Version::One, "memory"),
        pids: own(Version::One, "pids"),
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mounted {
    pub version_1: bool,
    pub version_2: bool,
}

/// Returns which versions of control groups are mounted. Version 1 counts only if its memory controller is mounted.
pub fn mounted(root: &Path) -> Result<Mounted, SampleError> {
    let mut mounted = Mounted::default();
    let Some(mounts) = read_small(&root.join("proc/self/mountinfo"), MOUNTINFO_BYTES)? else {
        return Ok(mounted);
    };
    for mount in lines(&mounts).filter_map(|line| mount(line, "memory")) {
        match mount.version {
            Version::One => mounted.version_1 = true,
            Version::Two => mounted.version_2 = true,
        }
    }
    Ok(mounted)
}

/// Returns the mount point of the group's hierarchy, and the group's path below it.
fn locate(
    root: &Path,
    mounts: &[u8],
    version: Version,
    group: &Path,
    controller: &str,
) -> Option<(PathBuf, PathBuf)> {
    let mounted =
        lines(mounts).filter_map(|line| mount(line, controller)).find(|mount| mount.version == version)?;
    // In a container, the group's path may be its path on the host, although the mount shows only a part of the tree.
    // In this case, the group at the mount point is used.
    let below = group.strip_prefix(&mounted.root).unwrap_or(Path::new(""));
    let below: PathBuf = below.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    Some((root.join(mounted.point.strip_prefix("/").unwrap_or(&mounted.point)), below))
}

fn is_visible(mounts: &[u8], version: Version, group: &Path, controller: &str) -> bool {
    let mounted =
        lines(mounts).filter_map(|line| mount(line, controller)).find(|mount| mount.version == version);
    let escapes = group.components().any(|part| part == Component::ParentDir);
    mounted.is_some_and(|mount| !escapes && group.starts_with(&mount.root))
}

/// Parses a line such as `7:memory:/path` or `0::/path`. Returns `None` for version 1 hierarchies without the
/// controller.
fn group_with(line: &[u8], controller: &str) -> Option<(Version, PathBuf)> {
    let mut parts = line.splitn(3, |&byte| byte == b':');
    let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let path = PathBuf::from(OsString::from_vec(path.to_vec()));
    if hierarchy == b"0" && controllers.is_empty() {
        return Some((Version::Two, path));
    }
    let has_controller = controllers.split(|&byte| byte == b',').any(|other| other == controller.as_bytes());
    has_controller.then_some((Version::One, path))
}

/// A mounted hierarchy of control groups.
struct Mount {
    version: Version,
    /// The group that appears at the mount point.
    root: PathBuf,
    point: PathBuf,
}

/// Parses a line such as `31 23 0:28 /root /point rw - cgroup2 cgroup2 rw`. Returns `None` for other file systems, and
/// for version 1 hierarchies without the controller.
fn mount(line: &[u8], controller: &str) -> Option<Mount> {
    let mut fields = words(line);
    let (root, point) = (fields.nth(3)?, fields.next()?);
    let mut after_dash = fields.skip_while(|&field| field != b"-").skip(1);
    let version = match after_dash.next()? {
        b"cgroup2" => Version::Two,
        b"cgroup" => {
            let options = after_dash.nth(1)?;
            if !options.split(|&byte| byte == b',').any(|option| option == controller.as_bytes()) {
                return None;
            }
            Version::One
        }
        _ => return None,
    };
    Some(Mount { version, root: unescape(root), point: unescape(point) })
}

/// Unescapes a path from `mountinfo`, in which spaces, tabs, newlines and backslashes are written as a backslash and
/// three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = octal {
            plain.push(byte);
            rest = &after[3..];
        } else {
            plain.push(first);
            rest = after;
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&plain))
}

/// Reads a limit from a file. Returns `None` if the file does not exist or contains `max`.
fn read_limit(path: &Path) -> Result<Option<u64>, SampleError> {
    let Some(text) = read_small(path, LIMIT_BYTES)? else { return Ok(None) };
    let word = text.trim_ascii();
    if word == b"max" {
        return Ok(None);
    }
    number(word).map(Some).ok_or_else(|| SampleError::line(path, &text, "a number, or `max`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        let all = [("proc/self/cgroup", cgroup), ("proc/self/mountinfo", mountinfo)];
        for (name, text) in all.iter().chain(files) {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("writes");
        }
        root
    }

    const TWO: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn memory_limit_is_the_lowest_of_all_ancestors() {
        /// Groups, mounts, limit files, and the expected limit.
        type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Option<u64>);
        let cases: &[Case<'_>] = &[
            (
                "0::/a/b\n",
                TWO,
                &[("sys/fs/cgroup/a/b/memory.max", "max\n"), ("sys/fs/cgroup/a/memory.max", "5000\n")],
                Some(5000),
            ),
            (
                "0::/a/b\n",
                TWO,
                &[("sys/fs/cgroup/a/b/memory.max", "10\n"), ("sys/fs/cgroup/a/memory.max", "5000\n")],
                Some(10),
            ),
            ("0::/\n", TWO, &[("sys/fs/cgroup/memory.max", "77\n")], Some(77)),
            ("0::/a\n", TWO, &[("sys/fs/cgroup/a/memory.max", "max\n")], None),
            ("0::/a\n", "", &[("sys/fs/cgroup/a/memory.max", "5\n")], None),
            // Version 1, where "no limit" is a large number, beside a version 2 hierarchy that is not mounted.
            (
                "5:cpu:/x\n4:cpuset,memory:/pod/c\n0::/\n",
                "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 31 0:32 / /sys/fs/cgroup/mem rw - cgroup cgroup rw,memory\n",
                &[
                    ("sys/fs/cgroup/mem/pod/c/memory.limit_in_bytes", "9223372036854771712\n"),
                    ("sys/fs/cgroup/mem/pod/memory.limit_in_bytes", "2000\n"),
                    ("sys/fs/cgroup/cpu/pod/memory.limit_in_bytes", "1\n"),
                ],
                Some(2000),
            ),
            // In a container, the mount shows only the container's part of the tree. In this case, the mount point
            // contains a space.
            (
                "0::/docker/abc/x\n",
                "30 23 0:26 /docker/abc /my\\040groups rw - cgroup2 c rw\n",
                &[("my groups/x/memory.max", "33\n")],
                Some(33),
            ),
            ("0::/../../other\n", TWO, &[("sys/fs/cgroup/memory.max", "8\n")], Some(8)),
        ];
        for (cgroup, mounts, files, wanted) in cases {
            let root = fake(cgroup, mounts, files);
            let limit = memory_limit(root.path()).expect("reads").map(|group| group.limit.get());
            assert_eq!(limit, *wanted, "{cgroup}");
        }
    }

    #[test]
    fn own_groups_are_found_below_their_mount_points() {
        for (groups, mounts, folder, topmost) in [
            ("4:memory:/x\n0::/user.slice/run-7.scope\n", TWO, "sys/fs/cgroup/user.slice/run-7.scope", false),
            ("0::/\n", TWO, "sys/fs/cgroup", true),
        ] {
            let root = fake(groups, mounts, &[]);
            let found = own_groups(root.path()).expect("reads");
            let group = Some(OwnGroup { folder: root.path().join(folder), topmost });
            let systemd = group.clone();
            assert_eq!(found, OwnGroups { version_2: group, memory: None, pids: None, systemd });
            assert_eq!(mounted(root.path()).expect("reads"), Mounted { version_1: false, version_2: true });
        }
        let root = fake("4:memory:/x\n", TWO, &[]);
        assert_eq!(own_groups(root.path()).expect("reads"), OwnGroups::default());
        let one = "35 31 0:32 / /groups/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /groups/pids rw - cgroup cgroup rw,pids\n";
        let root = fake("8:pids:/\n4:memory:/pod/c\n", one, &[]);
        let group = |folder: &str, topmost| Some(OwnGroup { folder: root.path().join(folder), topmost });
        let (memory, pids) = (group("groups/memory/pod/c", false), group("groups/pids", true));
        let wanted = OwnGroups { version_2: None, memory, pids, systemd: None };
        assert_eq!(own_groups(root.path()).expect("reads"), wanted);
        // The process is in a group outside the mounted part of the tree, or the mount begins above the highest group
        // that the process can see.
        for (groups, mounts) in [
            ("0::/../../other\n", TWO),
            ("0::/pod/a\n", "30 23 0:26 /pod/b /sys/fs/cgroup rw - cgroup2 c rw\n"),
            ("0::/a\n", "30 23 0:26 /.. /sys/fs/cgroup rw - cgroup2 c rw\n"),
        ] {
            let root = fake(groups, mounts, &[]);
            assert_eq!(own_groups(root.path()).expect("reads"), OwnGroups::default(), "{groups}");
        }
    }

    #[test]
    fn pids_left_is_the_smallest_room_of_all_ancestors() {
        let pids = "35 31 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        for (groups, mounts, folder) in
            [("0::/a/b\n", TWO, "sys/fs/cgroup"), ("4:memory:/x\n3:pids:/a/b\n", pids, "sys/fs/cgroup/pids")]
        {
            let files = [
                ("a/b/pids.max", "max\n"),
                ("a/b/pids.current", "7\n"),
                ("a/pids.max", "100\n"),
                ("a/pids.current", "60\n"),
                ("pids.current", "900\n"),
            ]
            .map(|(name, text)| (format!("{folder}/{name}"), text));
            let files = files.each_ref().map(|(name, text)| (name.as_str(), *text));
            assert_eq!(pids_left(fake(groups, mounts, &files).path()).expect("reads"), Some(40));
            assert_eq!(pids_left(fake(groups, mounts, &files[..2]).path()).expect("reads"), None);
            // A limit may be lower than the current number of processes.
            let over =
                [files[3], ("sys/fs/cgroup/a/pids.max", "10\n"), ("sys/fs/cgroup/pids/a/pids.max", "10\n")];
            assert_eq!(pids_left(fake(groups, mounts, &over).path()).expect("reads"), Some(0));
        }
    }

    #[test]
    fn memory_limit_reports_a_malformed_file() {
        let root = fake("0::/\n", TWO, &[("sys/fs/cgroup/memory.max", "-5\n")]);
        let error = memory_limit(root.path()).expect_err("refuses").to_string();
        assert!(error.contains("memory.max") && error.contains("-5"), "{error}");
    }

    #[test]
    fn memory_limit_is_read_on_this_machine() {
        memory_limit(Path::new("/")).expect("reads");
    }
}
