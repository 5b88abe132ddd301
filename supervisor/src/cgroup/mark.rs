//! Marks a run as alive by keeping the folder of its control group `home` locked.
//!
//! The groups of different runs may be side by side. A supervisor removes the groups that a killed supervisor left, but
//! it must not remove those of a live run, even while they are empty.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// How long to wait for the lock. Supervisors of other runs hold it only while they look for, and remove, groups that a
/// killed supervisor left.
const LOCK_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// The mark of this run. Dropping it unlocks the folder.
#[derive(Debug)]
pub(super) struct Mark {
    folder: PathBuf,
    _locked: Locked,
}

impl Mark {
    /// Creates the folder if it does not exist, and locks it.
    pub(super) fn set(folder: &Path) -> std::io::Result<Self> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match std::fs::create_dir(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            match lock(folder) {
                Ok(Some(locked)) => return Ok(Self { folder: folder.to_owned(), _locked: locked }),
                Ok(None) if deadline <= Instant::now() => return Err(std::io::ErrorKind::TimedOut.into()),
                Err(error) if deadline <= Instant::now() => return Err(error),
                Ok(None) | Err(_) => std::thread::sleep(LOCK_PAUSE),
            }
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether a live supervisor holds the lock of this folder.
    #[cfg(test)]
    pub(super) fn is_set(folder: &Path) -> bool {
        NotSet::hold(folder).is_none()
    }
}

/// A locked folder. If this process forks, the child also has the folder open until it executes a program. While it
/// does, closing the folder here would not unlock it, so `drop` unlocks it explicitly.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the folder is unlocked as soon as no process has it open any more.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Proves that no live supervisor has set the mark. While this value exists, no supervisor can set it either, provided
/// that the mark's folder exists.
pub(super) struct NotSet {
    _locked: Option<Locked>,
}

impl NotSet {
    /// Locks the folder if it exists. Returns `None` if a live supervisor has set its mark there.
    pub(super) fn hold(folder: &Path) -> Option<Self> {
        let Ok(file) = File::open(folder) else { return Some(Self { _locked: None }) };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => None,
            _ => Some(Self { _locked: Some(Locked(file)) }),
        }
    }
}

/// Locks a folder. Returns `None` if the folder is locked already, or if it was replaced by a new one before it could
/// be locked. Returns an error if the folder was removed.
fn lock(folder: &Path) -> std::io::Result<Option<Locked>> {
    let file = File::open(folder)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        other => other?,
    }
    let locked = Locked(file);
    let (held, there) = (locked.0.metadata()?, std::fs::metadata(folder)?);
    Ok(((held.dev(), held.ino()) == (there.dev(), there.ino())).then_some(locked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_set_until_it_is_dropped() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("mark");
        assert!(!Mark::is_set(&path), "there is no folder");
        let mark = Mark::set(&path).expect("sets");
        assert!(Mark::is_set(&path));
        assert!(Mark::set(&path).is_err(), "it is set already");
        drop(mark);
        assert!(!Mark::is_set(&path) && path.is_dir());
        let again = Mark::set(&path).expect("sets an old mark");
        assert!(Mark::is_set(&path));
        // A forked process that has not executed a program yet has the folder open in the same way.
        let _forked = again._locked.0.try_clone().expect("a second descriptor");
        drop(again);
        assert!(!Mark::is_set(&path), "it is unlocked, although it is still open");
    }
}
