//! Measures how much room there still is for files and processes, before and during a run. The core decides what
//! follows from a shortage.
//!
//! During a run, a separate thread takes the readings, because a disk can hang.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use opt_shared::room::Room;
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::Run;
use crate::captures::resolved;
use crate::core::event::Event;
use crate::core::room::Shortage;
use crate::driver::RunError;
use crate::memory::pids;

/// The time between two readings.
const READ_EVERY: Duration = Duration::from_secs(1);
/// The longest path of a run's folder, in bytes. SQLite allows 511 for the path of a file, and the longest name of its
/// files is `run.sqlite-journal`.
const MAX_PATH: usize = 492;
/// The largest length of the suffix (such as `-12345`) that a run's name gets if a folder of that name already exists.
const MAX_NUMBER: usize = 6;
/// The stack size of the thread, in bytes.
const STACK: usize = 128 * 1024;

/// The reason why a folder cannot be used for a run.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFolder {
    #[error("there is no room for a run in {path}: {shortage}", path = path.display())]
    NoRoom { path: PathBuf, shortage: Shortage },
    #[error(
        "{path} is on a file system that is mounted with `noexec`, so compiled kernels cannot be loaded from it (choose another folder with --dir)",
        path = path.display()
    )]
    NoExec { path: PathBuf },
    #[error(
        "the path of the run's folder, {path}, is not UTF-8, so it cannot be passed to workers (choose another folder with --dir)",
        path = path.display()
    )]
    NotUtf8 { path: PathBuf },
    #[error(
        "the path of the run's folder, {path}, can be up to {bytes} bytes long, but SQLite can open its database only if the path has at most {MAX_PATH} bytes (choose a shorter one with --dir)",
        path = path.display()
    )]
    TooLong { path: PathBuf, bytes: usize },
}

/// Checks that a run can use the folder `folder`. If `name` is given, checks that a folder for a run of this name can
/// be created in it. `folder` need not exist yet. Its path must be UTF-8 and short enough. Its file system must have
/// room. If the run loads libraries, the file system must not be mounted with `noexec`.
pub(in crate::driver) fn check(
    folder: &Path,
    name: Option<&str>,
    loads_libraries: bool,
) -> Result<(), UnusableFolder> {
    let path = resolved(folder).unwrap_or_else(|_| folder.to_owned());
    let bytes = path.as_os_str().len() + name.map_or(0, |name| 1 + name.len() + MAX_NUMBER);
    if path.to_str().is_none() {
        return Err(UnusableFolder::NotUtf8 { path });
    }
    if MAX_PATH < bytes {
        let path = path.join(name.unwrap_or_default());
        return Err(UnusableFolder::TooLong { path, bytes });
    }
    let existing = path.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/"));
    let is_noexec = statvfs(existing).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if loads_libraries && is_noexec {
        return Err(UnusableFolder::NoExec { path });
    }
    read(existing).map_or(Ok(()), |room| require_room(&path, &room))
}

fn require_room(path: &Path, room: &Room) -> Result<(), UnusableFolder> {
    match Shortage::of(room) {
        Some(shortage) => Err(UnusableFolder::NoRoom { path: path.to_owned(), shortage }),
        None => Ok(()),
    }
}

/// Reads how much room there is. Returns `None` if the disk cannot be read, for example because the folder was removed.
/// If the number of processes cannot be read, it counts as unlimited.
fn read(folder: &Path) -> Option<Room> {
    let disk = Room::on_disk_of(folder).ok()?;
    Some(Room { pids: processes_left(), ..disk })
}

/// Returns how many processes and threads can still be started. `None` if there is no limit, or none that can be read.
pub(crate) fn processes_left() -> Option<u64> {
    let root = Path::new("/");
    pids::left(root).ok().flatten().into_iter().chain(pids::left_for_user(root)).min()
}

/// The error that the machine allows too few processes for a run.
#[derive(Debug, thiserror::Error)]
#[error("a run cannot begin: {shortage}")]
pub struct NoProcesses {
    shortage: Shortage,
}

/// Checks that a run can start its processes and threads.
pub(crate) fn check_processes() -> Result<(), NoProcesses> {
    let room = Room { pids: processes_left(), ..Room::default() };
    Shortage::of(&room).map_or(Ok(()), |shortage| Err(NoProcesses { shortage }))
}

/// The latest reading, until the main loop takes it.
type Latest = Arc<Mutex<Option<Room>>>;

pub(crate) struct RoomWatch {
    latest: Latest,
    /// A channel that nothing is sent on. Dropping this end of it ends the thread.
    _end: Sender<()>,
}

impl RoomWatch {
    /// Starts the thread, which takes the first reading at once.
    pub(crate) fn start(folder: PathBuf) -> std::io::Result<Self> {
        let (end, ended) = bounded(0);
        let latest = Latest::default();
        let shared = Arc::clone(&latest);
        let watch = move || loop {
            if let Some(room) = read(&folder) {
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(room);
            }
            if ended.recv_timeout(READ_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        };
        std::thread::Builder::new().name("room".to_owned()).stack_size(STACK).spawn(watch)?;
        Ok(Self { latest, _end: end })
    }

    fn take(&self) -> Option<Room> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Run<'_> {
    pub(super) fn read_room(&mut self) -> Result<(), RunError> {
        match self.machine.room.as_ref().and_then(RoomWatch::take) {
            Some(room) => self.feed(Event::Room(room)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use opt_shared::units::Bytes;

    use super::*;

    #[test]
    fn shortage_names_the_folder_and_what_to_do() {
        let room = Room { disk: Some(Bytes::mib(5)), ..Room::default() };
        let error = require_room(Path::new("/a/runs"), &room).expect_err("no room").to_string();
        let text = "there is no room for a run in /a/runs: 5.00 MiB are free on the disk of the run's folder, and \
                    builds need 32.0 MiB (delete files to make space)";
        assert_eq!(error, text);
    }

    #[test]
    fn folders_that_cannot_be_used_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let nested = folder.path().join("no/such/folder");
        let is_ok = |path: &Path| check(path, None, false).is_ok();
        assert_eq!(is_ok(&nested), is_ok(folder.path()), "the folder need not exist");
        let not_utf8 = Path::new(std::ffi::OsStr::from_bytes(b"/a/\xff"));
        assert!(matches!(check(not_utf8, None, false), Err(UnusableFolder::NotUtf8 { .. })));
        let of_length = |length: usize| PathBuf::from(format!("/{}", "a".repeat(length - 1)));
        let is_too_long = |length, name| {
            matches!(check(&of_length(length), name, false), Err(UnusableFolder::TooLong { .. }))
        };
        assert!(!is_too_long(MAX_PATH, None) && is_too_long(MAX_PATH + 1, None));
        assert!(!is_too_long(MAX_PATH - MAX_NUMBER - 2, Some("a")) && is_too_long(MAX_PATH, Some("a")));
    }

    #[test]
    fn watch_takes_a_reading() {
        let folder = tempfile::tempdir().expect("a folder");
        let watch = RoomWatch::start(folder.path().to_owned()).expect("started");
        let room = loop {
            if let Some(room) = watch.take() {
                break room;
            }
            std::thread::yield_now();
        };
        assert!(room.disk.is_some(), "{room:?}");
    }
}
