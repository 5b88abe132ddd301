//! Locks a card, so that only one run at a time uses it. The lock is named after the card's UUID and shared by all runs
//! on this host, including those of other users.
//!
//! The lock is an `flock`, so Linux releases it when the process that holds it ends. The text in the lock's file tells
//! users which process that is. Because every user can change the text, it is only shown.

mod shared_file;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use self::shared_file::FileError;
use crate::memory::device::DeviceIdentity;
use crate::signal::Signals;

/// How long to wait for another run to release the card.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);
/// The largest number of bytes that are read of the text about the holder.
const MAX_HOLDER: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{device} is still in use by {holder} after {waited:?} (wait until that run ends, or stop it with Ctrl-C)"
    )]
    Held { device: String, holder: String, waited: Duration },
}

/// A lock that is held until this value is dropped.
#[derive(Debug)]
pub(crate) struct DeviceLock {
    _file: File,
}

impl DeviceLock {
    /// Takes the lock of a card. `run` is this run's folder, which is shown to other runs that wait. An interrupt ends
    /// the wait.
    pub(crate) fn take(device: &DeviceIdentity, run: &Path, signals: &Signals) -> Result<Self, LockError> {
        let name = format!("opt-supervisor-device-{}.lock", file_name(&device.uuid));
        let path = shared_file::folder()?.join(name);
        Self::take_at(&path, device, run, &|| signals.take() != 0, TIMEOUT)
    }

    pub(super) fn take_at(
        path: &Path,
        device: &DeviceIdentity,
        run: &Path,
        is_interrupted: &dyn Fn() -> bool,
        timeout: Duration,
    ) -> Result<Self, LockError> {
        let failed = |action| move |source| LockError::Io { action, path: path.to_owned(), source };
        let mut file = shared_file::open(path)?;
        let started = Instant::now();
        let mut warned = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // If the file was removed in the meantime, a lock on it would not keep later runs away from the card.
                Ok(()) if shared_file::is_at(&file, path) => break,
                Ok(()) => file = shared_file::open(path)?,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(failed("locking")(errno.into())),
            }
            let card = format!("{} ({})", device.name, device.uuid);
            let holder = holder(&mut file);
            if is_interrupted() || timeout <= started.elapsed() {
                return Err(LockError::Held { device: card, holder, waited: started.elapsed() });
            }
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!("waiting up to {timeout:?} for {card}, which is in use by {holder}");
            }
            std::thread::sleep(PAUSE);
        }
        let text = format!("process {}, the run in {}", std::process::id(), run.display());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(failed("writing"))?;
        Ok(Self { _file: file })
    }
}

/// Returns the text in the file about the lock's holder, as one line without control characters.
fn holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.take(MAX_HOLDER).read_to_end(&mut bytes));
    let text: String = String::from_utf8_lossy(&bytes).chars().filter(|it| !it.is_control()).collect();
    if read.is_ok() && !text.trim().is_empty() { text } else { "another run".to_owned() }
}

/// Converts a UUID to a file name. UUIDs consist of letters, digits and hyphens. Other characters are replaced, so that
/// the name cannot lead to another folder.
fn file_name(uuid: &str) -> String {
    uuid.chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceIdentity {
        DeviceIdentity { index: 0, uuid: "GPU-1/../2".to_owned(), name: "Card".to_owned() }
    }

    fn take(path: &Path, run: &str, interrupted: bool, timeout: Duration) -> Result<DeviceLock, LockError> {
        DeviceLock::take_at(path, &device(), Path::new(run), &|| interrupted, timeout)
    }

    #[test]
    fn second_run_cannot_take_the_card_and_learns_which_run_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(file_name(&device().uuid));
        let first = take(&path, "/runs/first", false, Duration::ZERO).expect("free");
        let error = take(&path, "/runs/second", false, Duration::ZERO).expect_err("held").to_string();
        for part in ["Card", "GPU-1/../2", "/runs/first", &std::process::id().to_string()] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(take(&path, "/runs/second", true, TIMEOUT).is_err(), "an interrupt ends the wait");
        drop(first);
        take(&path, "/runs/a", false, Duration::ZERO).expect("the lock is released with its holder");
    }

    #[test]
    fn lock_on_a_removed_file_does_not_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let first = take(&path, "/runs/first", false, Duration::ZERO).expect("free");
        let waiting = {
            let path = path.clone();
            std::thread::spawn(move || take(&path, "/runs/second", false, TIMEOUT))
        };
        std::fs::remove_file(&path).expect("removed");
        drop(first);
        let second = waiting.join().expect("no panic").expect("the other run has ended");
        assert!(take(&path, "/runs/third", false, Duration::ZERO).is_err(), "the second run holds the lock");
        drop(second);
    }

    #[test]
    fn text_of_the_holder_cannot_control_the_terminal() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let first = take(&path, "/runs/first", false, Duration::ZERO).expect("free");
        std::fs::write(&path, b"\x1b[2Jprocess 1\n\xff").expect("every user may write");
        let error = take(&path, "/runs/second", false, Duration::ZERO).expect_err("held").to_string();
        assert!(error.contains("[2Jprocess 1") && !error.chars().any(char::is_control), "{error:?}");
        drop(first);
    }

    #[test]
    fn waiting_run_gets_the_card_when_the_other_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let first = take(&path, "/runs/first", false, Duration::ZERO).expect("free");
        let waiting = {
            let path = path.clone();
            std::thread::spawn(move || take(&path, "/runs/second", false, TIMEOUT).map(drop))
        };
        drop(first);
        waiting.join().expect("no panic").expect("the other run has ended");
        assert_eq!(file_name("GPU-1/../2"), "GPU-1----2");
    }
}
