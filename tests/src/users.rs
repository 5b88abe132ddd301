//! The users as which tests run the program: the current user and, if that is root, also an ordinary user.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::paths::binary;
use crate::scenario::Scenario;

/// The first of a range of user ids that are rarely in use, so other processes are unlikely to have such an id.
const FIRST: u32 = 61_000;
/// The number of ids for one test process. Concurrent test processes very likely use different ids.
const IDS_PER_PROCESS: u32 = 16;
const PROCESSES: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Own,
    /// A user given by its id, without groups or privileges.
    Ordinary(u32),
}

/// The users as which this process can run the program. Only root can switch users.
pub fn users() -> Vec<User> {
    std::iter::once(User::Own).chain(User::ordinary()).collect()
}

impl User {
    /// A user that very likely no other test uses; `None` if this process cannot switch users.
    pub fn ordinary() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % IDS_PER_PROCESS;
        let block = std::process::id() % PROCESSES;
        rustix::process::geteuid()
            .is_root()
            .then_some(Self::Ordinary(FIRST + block * IDS_PER_PROCESS + number))
    }

    /// The built program at a path from which the user can start it.
    pub fn program(self, scenario: &Scenario) -> PathBuf {
        match self {
            Self::Own => binary(),
            Self::Ordinary(_) => {
                let copy = scenario.path().join("opt-supervisor");
                // A separate process makes the copy. If this process had the copy open for writing while another test
                // starts a process, the new process would inherit the descriptor, and the copy could not be executed
                // ("text file busy").
                let copied = Command::new("cp").args([&binary(), &copy]).status();
                assert!(copied.is_ok_and(|status| status.success()), "the program is copied");
                copy
            }
        }
    }

    /// Makes this user the owner of the scenario and everything in it, without changing modes.
    pub fn take_ownership(self, scenario: &Scenario) {
        if let Self::Ordinary(number) = self {
            give(scenario.path(), number);
        }
    }

    pub fn apply_to(self, command: &mut Command) {
        if let Self::Ordinary(number) = self {
            // If the parent is root, `uid` also drops supplementary groups.
            command.uid(number).gid(number);
        }
    }
}

fn give(path: &Path, number: u32) {
    std::os::unix::fs::lchown(path, Some(number), Some(number))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.is_symlink() || !path.is_dir() {
        return;
    }
    for entry in fs::read_dir(path).expect("root reads any folder") {
        give(&entry.expect("an entry").path(), number);
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
