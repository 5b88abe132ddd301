//! Lists all protections that a sandbox can have. A machine may be unable to enforce some of them.
//!
//! For each protection, the list says what it stops, how it is tested, and what to do if it is missing. Canaries test
//! the protections before a run, and the first runner of each worker reports which of them it could enforce on itself.

use serde::{Deserialize, Serialize};

/// A protection, and whether it is in force on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    pub name: String,
    pub present: bool,
    /// The reason why the protection is missing or, if it is present, the variant that is in force.
    pub detail: String,
}

impl Protection {
    pub fn new(name: &str, present: bool, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), present, detail: detail.into() }
    }

    /// Writes `+name: detail` or `-name: detail` on one line.
    pub fn line(&self) -> String {
        let sign = if self.present { '+' } else { '-' };
        format!("{sign}{}: {}", self.name, self.detail.replace('\n', " "))
    }

    pub fn from_line(line: &str) -> Option<Self> {
        let present = match line.as_bytes().first()? {
            b'+' => true,
            b'-' => false,
            _ => return None,
        };
        let (name, detail) = line.get(1..)?.split_once(": ")?;
        Some(Self::new(name, present, detail))
    }
}

/// The facts about a protection that are the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionKind {
    pub name: &'static str,
    /// True if candidates should not be run on a machine that lacks this protection.
    pub needed: bool,
    pub stops: &'static str,
    /// What a canary did in a successful test, and how this ended, as a fragment in the past tense.
    pub proof: &'static str,
    pub remedy: &'static str,
    /// The operations that a canary attempts in order to test the protection. Empty if the supervisor tests the
    /// protection from outside.
    pub attempts: &'static [Attempt],
}

/// The name of an attempt, and the results that prove the protection. There may be more than one such result, because
/// Linux can refuse some attempts in several ways.
pub type Attempt = (&'static str, &'static [&'static str]);

const REFUSED: &[&str] = &["EPERM"];
const NO_MEMORY: &[&str] = &["ENOMEM"];
const OK: &[&str] = &["ok"];

const fn kind(
    name: &'static str,
    needed: bool,
    stops: &'static str,
    proof: &'static str,
    remedy: &'static str,
    attempts: &'static [Attempt],
) -> ProtectionKind {
    ProtectionKind { name, needed, stops, proof, remedy, attempts }
}

pub const CGROUP_LEAF: &str = "cgroup_leaf";
pub const POLL_AND_KILL: &str = "poll_and_kill";

const USE_REAL_LINUX: &str = "run on Linux 5.13 or later, not under an emulator";
const ALLOW_NAMESPACES: &str =
    "allow user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces), or run as root";

/// All protections: first the limits, then the isolation of a candidate.
pub const PROTECTIONS: &[ProtectionKind] = &[
    kind(
        CGROUP_LEAF,
        false,
        "the memory of a runner and its children taken together, including page tables and what Linux itself \
         allocates for them",
        "filled memory past its group's memory limit; Linux killed it and counted the kill in the group",
        "start in a delegated group: systemd-run --user --scope -p Delegate=yes opt-supervisor …",
        &[],
    ),
    kind(
        "memory_limit",
        true,
        "private memory: mappings, the heap, reserved memory made writable",
        "asked for more with mmap, brk and mprotect; all were refused",
        USE_REAL_LINUX,
        &[
            ("map_within", OK),
            ("map_beyond", NO_MEMORY),
            ("heap_beyond", NO_MEMORY),
            ("reserve_beyond", NO_MEMORY),
        ],
    ),
    kind(
        "address_space_limit",
        true,
        "the page tables of sparse mappings",
        "asked for more read-only mappings; all were refused",
        USE_REAL_LINUX,
        &[("read_beyond", NO_MEMORY)],
    ),
    kind(
        "stack_limit",
        true,
        "growth of the stack",
        "recursed without end; the overflow killed it",
        USE_REAL_LINUX,
        &[("overflow", &["SIGSEGV"])],
    ),
    kind(
        "file_size_limit",
        true,
        "files and memory files that grow",
        "wrote past the limit; the write was refused",
        USE_REAL_LINUX,
        &[("file_within", OK), ("file_beyond", &["EFBIG"])],
    ),
    kind(
        "sealed_memory",
        true,
        "outputs and streams that grow, and new shared memory",
        "tried to grow, shrink and write past the end of a sealed memory file, and to create another memory file or a \
         shared mapping; all were refused",
        USE_REAL_LINUX,
        &[
            ("write_within", OK),
            ("grow", REFUSED),
            ("shrink", REFUSED),
            ("write_beyond", REFUSED),
            ("memory_file", REFUSED),
            ("segment", REFUSED),
            ("share", REFUSED),
        ],
    ),
    kind(
        "process_limit",
        false,
        "unlimited threads",
        "started threads until one was refused",
        "run as an ordinary user, or as root where a runner can be given its own user",
        &[("threads", &["EAGAIN"])],
    ),
    kind(
        POLL_AND_KILL,
        true,
        "all other owed memory, shortly after it exceeds the limit",
        "filled memory; the sampler saw it exceed its limit and killed it",
        "mount /proc so that this user sees its own processes",
        &[],
    ),
    kind(
        "pid_namespace",
        false,
        "seeing, signalling or outliving other processes",
        "looked at its own pid, and tried to signal the process that started it",
        ALLOW_NAMESPACES,
        &[("own_pid", &["1"]), ("signal_parent", &["EPERM", "ESRCH"])],
    ),
    kind(
        "ipc_namespace",
        false,
        "System V memory of other processes",
        "tried to attach a segment that belongs to the process that started it",
        ALLOW_NAMESPACES,
        &[("attach_segment", &["EINVAL"])],
    ),
    kind(
        "session",
        true,
        "signals from the terminal",
        "looked up its session",
        USE_REAL_LINUX,
        &[("session", &["true"])],
    ),
    kind(
        "dies_with_worker",
        true,
        "runners that outlive their worker",
        "looked up its parent-death signal",
        USE_REAL_LINUX,
        &[("death_signal", &["9"])],
    ),
    kind(
        "own_user",
        false,
        "access to processes and files of the same user",
        "tried to become root again",
        "run as root: an ordinary user cannot give a runner another user",
        &[("become_root", REFUSED)],
    ),
    kind(
        "no_capabilities",
        true,
        "acting as an administrator",
        "tried to change its root folder",
        USE_REAL_LINUX,
        &[("change_root", REFUSED)],
    ),
    kind(
        "not_dumpable",
        true,
        "core dumps, and inspection by other processes",
        "looked up whether it can be dumped",
        USE_REAL_LINUX,
        &[("dumpable", &["0"])],
    ),
    kind(
        "no_new_privileges",
        true,
        "programs that raise privileges",
        "looked up whether it can gain privileges",
        USE_REAL_LINUX,
        &[("no_new_privileges", &["1"])],
    ),
    kind(
        "files",
        false,
        "access to files that the candidate was not given",
        "tried to read a world-readable file, and to create one",
        "enable Landlock (Linux 5.13; add `landlock` to the boot parameter `lsm=`)",
        &[("read_file", &["EACCES"]), ("make_file", &["EACCES", "EPERM"])],
    ),
    kind(
        "no_tcp",
        false,
        "network connections",
        "tried to open a socket",
        "run Linux 6.7 or later (in older versions, the system call filter refuses sockets)",
        &[("socket", REFUSED)],
    ),
    kind(
        "signals_scoped",
        false,
        "signals to processes outside its sandbox",
        "tried to signal the process that started it",
        "run Linux 6.12 or later (in older versions, the system call filter refuses every pid but its own)",
        &[("signal_parent", &["EPERM", "ESRCH"])],
    ),
    kind(
        "system_calls",
        true,
        "fork, exec, sockets, new memory files, System V memory, changes of limits",
        "tried each; all were refused",
        "run a Linux that was built with seccomp filters (CONFIG_SECCOMP_FILTER)",
        &[
            ("fork", REFUSED),
            ("exec", REFUSED),
            ("socket", REFUSED),
            ("memory_file", REFUSED),
            ("segment", REFUSED),
            ("raise_limit", REFUSED),
        ],
    ),
    kind(
        "sealed_inputs",
        false,
        "a candidate that changes its own view of an input",
        "tried to unmap a sealed mapping, and to make it writable",
        "run Linux 6.10 or later",
        &[("seal_input", OK), ("make_input_writable", REFUSED), ("unmap_input", REFUSED)],
    ),
];

pub fn known(name: &str) -> Option<&'static ProtectionKind> {
    PROTECTIONS.iter().find(|kind| kind.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_parses_back_to_its_protection() {
        for protection in [
            Protection::new("files", true, "Landlock ABI 7"),
            Protection::new("own_user", false, "not root: nobody"),
            Protection::new("session", true, ""),
        ] {
            assert_eq!(Protection::from_line(&protection.line()), Some(protection));
        }
        assert_eq!(Protection::new("a", true, "b\nc").line(), "+a: b c");
        for line in ["", "files: x", "+files", "é"] {
            assert_eq!(Protection::from_line(line), None, "{line}");
        }
    }

    #[test]
    fn protections_are_listed_once_and_have_attempts_unless_tested_from_outside() {
        for (index, kind) in PROTECTIONS.iter().enumerate() {
            assert_eq!(PROTECTIONS.iter().position(|it| it.name == kind.name), Some(index), "{}", kind.name);
        }
        // A protection without attempts must be tested from outside, because otherwise it would never be found to be
        // present.
        let from_outside: Vec<&str> =
            PROTECTIONS.iter().filter(|kind| kind.attempts.is_empty()).map(|kind| kind.name).collect();
        assert_eq!(from_outside, [CGROUP_LEAF, POLL_AND_KILL]);
        assert_eq!(known("files").map(|kind| kind.needed), Some(false));
        assert!(known("magic").is_none());
    }
}
