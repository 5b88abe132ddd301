//! Who runs the program: the one who runs the tests and, if that is root, an ordinary user as well.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Scenario, binary};

/// A user that no system hands out, so that nobody else's processes count as its own.
const ORDINARY: u32 = 61_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Own,
    /// By number, without groups or rights.
    Ordinary,
}

/// Only root can become another.
pub fn users() -> &'static [User] {
    if rustix::process::geteuid().is_root() { &[User::Own, User::Ordinary] } else { &[User::Own] }
}

impl User {
    /// The built program where the user can start it.
    pub fn program(self, scenario: &Scenario) -> PathBuf {
        match self {
            Self::Own => binary(),
            Self::Ordinary => {
                let copy = scenario.path().join("opt-supervisor");
                fs::copy(binary(), &copy).expect("room for a copy of the program");
                copy
            }
        }
    }

    /// Gives the scenario with all that is in it to this user. Modes stay as they are.
    pub fn owns(self, scenario: &Scenario) {
        if self == Self::Ordinary {
            give(scenario.path());
        }
    }

    pub fn becomes(self, command: &mut Command) {
        if self == Self::Ordinary {
            // As root, `uid` also drops all other groups.
            command.uid(ORDINARY).gid(ORDINARY);
        }
    }
}

fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(ORDINARY), Some(ORDINARY))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if path.is_symlink() || !path.is_dir() {
        return;
    }
    for entry in fs::read_dir(path).expect("root reads any folder") {
        give(&entry.expect("an entry").path());
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
