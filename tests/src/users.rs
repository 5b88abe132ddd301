//! The users that tests run the program as: the current user and, if that is root, also an ordinary user.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::paths::binary;
use crate::scenario::Scenario;

/// The first user id of a range that is rarely in use, so that no other process is likely to have such an id.
const FIRST: u32 = 61_000;
/// The number of user ids for each test process. Concurrent test processes very likely use different ids.
const IDS_PER_PROCESS: u32 = 16;
const PROCESSES: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Own,
    /// A user given by its id, without groups or privileges.
    Ordinary(u32),
}

/// Returns the users that this process can run the program as. Only root can switch users.
pub fn users() -> Vec<User> {
    std::iter::once(User::Own).chain(User::ordinary()).collect()
}

impl User {
    /// Returns a user that very likely no other test uses, or `None` if this process cannot switch users.
    pub fn ordinary() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % IDS_PER_PROCESS;
        let block = std::process::id() % PROCESSES;
        rustix::process::geteuid()
            .is_root()
            .then_some(Self::Ordinary(FIRST + block * IDS_PER_PROCESS + number))
    }

    /// Returns a path of the built program at which the user may execute it.
    pub fn program(self, scenario: &Scenario) -> PathBuf {
        match self {
            Self::Own => binary(),
            Self::Ordinary(_) => {
                let copy = scenario.path().join("opt-supervisor");
                // Let a separate process make the copy. If this process wrote the copy, another test might start a
                // process at the same moment. That process would inherit the open descriptor, and the copy could not be
                // executed ("text file busy").
                let copied = Command::new("cp").args([&binary(), &copy]).status();
                assert!(copied.is_ok_and(|status| status.success()), "the program is copied");
                copy
            }
        }
    }

    /// Makes this user the owner of the scenario and of everything in it, without changing modes.
    pub fn take_ownership(self, scenario: &Scenario) {
        if let Self::Ordinary(number) = self {
            give(scenario.path(), number);
        }
    }

    pub fn apply_to(self, command: &mut Command) {
        if let Self::Ordinary(number) = self {
            // If the parent is root, `uid` also drops the supplementary groups.
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
