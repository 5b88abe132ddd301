//! The users that run the program: the current one and, if that is root, an ordinary user too.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::places::binary;
use crate::scenario::Scenario;

/// User ids that no system assigns, so that no other processes count as theirs.
const FIRST: u32 = 61_000;
/// Ids for one test process; other test processes most likely have others.
const OF_A_PROCESS: u32 = 16;
const PROCESSES: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Own,
    /// A user given by number, without groups or rights.
    Ordinary(u32),
}

/// Only root can become another user.
pub fn users() -> Vec<User> {
    std::iter::once(User::Own).chain(User::ordinary()).collect()
}

impl User {
    /// A user whose processes no other test starts; `None` if we cannot become one.
    pub fn ordinary() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % OF_A_PROCESS;
        let block = std::process::id() % PROCESSES;
        rustix::process::geteuid().is_root().then_some(Self::Ordinary(FIRST + block * OF_A_PROCESS + number))
    }

    /// The built program at a path from which the user can start it.
    pub fn program(self, scenario: &Scenario) -> PathBuf {
        match self {
            Self::Own => binary(),
            Self::Ordinary(_) => {
                let copy = scenario.path().join("opt-supervisor");
                fs::copy(binary(), &copy).expect("room for a copy of the program");
                copy
            }
        }
    }

    /// Makes this user the owner of the scenario and everything in it. Modes are unchanged.
    pub fn owns(self, scenario: &Scenario) {
        if let Self::Ordinary(number) = self {
            give(scenario.path(), number);
        }
    }

    pub fn becomes(self, command: &mut Command) {
        if let Self::Ordinary(number) = self {
            // As root, `uid` also drops all other groups.
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
