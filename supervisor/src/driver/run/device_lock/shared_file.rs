//! Opens lock files in a folder that all users of the host can write to. Another user may have created the file, or put
//! something else in its place. Such a user can keep this process from taking the lock, but cannot make it write to a
//! different file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The environment variable that names the folder of lock files. All runs that share cards must use the same folder.
pub(super) const FOLDER_VARIABLE: &str = "OPT_SUPERVISOR_LOCK_DIR";
/// The folders that are shared by all users, the preferred one first.
const SHARED: [&str; 2] = ["/run/lock", "/tmp"];
/// The mode of a lock file. Every user may lock the file, and write the name of the lock's holder to it.
const MODE: Mode = Mode::from_raw_mode(0o666);
/// How many times to try if other processes create or remove the file at the same time.
const TRIES: usize = 16;
const BETWEEN_TRIES: std::time::Duration = std::time::Duration::from_millis(1);

const STICKY: u32 = 0o1000;
const WRITABLE_BY_ALL: u32 = 0o002;

/// Why a lock file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("opening the lock {path} of a device{owner}")]
    Open { path: PathBuf, owner: String, source: io::Error },
    #[error("the lock {path} of a device is {found}, not an ordinary file (ask user {uid} to remove it)")]
    Foreign { path: PathBuf, found: &'static str, uid: u32 },
    #[error("found no folder that all users share, for the locks of devices (set {FOLDER_VARIABLE})")]
    NoFolder,
}

/// Returns the folder of lock files. Without the variable, the choice depends only on the folders, so that all users
/// choose the same one.
pub(super) fn folder() -> Result<PathBuf, FileError> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE).filter(|it| !it.is_empty()) {
        return Ok(PathBuf::from(folder));
    }
    let found = SHARED.into_iter().map(Path::new).find(|folder| {
        folder.symlink_metadata().is_ok_and(|it| it.is_dir() && is_shared(it.permissions().mode(), it.uid()))
    });
    found.map(Path::to_owned).ok_or(FileError::NoFolder)
}

/// Returns whether every user can create files in a folder with this mode and owner, and only root can remove other
/// users' files.
fn is_shared(mode: u32, uid: u32) -> bool {
    uid == 0 && mode & STICKY != 0 && mode & WRITABLE_BY_ALL != 0
}

/// Opens a lock file, and creates it if there is none.
pub(super) fn open(path: &Path) -> Result<File, FileError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut errno = Errno::AGAIN;
    for _ in 0..TRIES {
        // Linux may refuse `O_CREAT` for another user's file (`fs.protected_regular`), so opening and creating are two
        // calls.
        let opened = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, MODE).inspect(|file| {
                    // Unlike `open`, this call ignores the umask, which could exclude other users from the lock.
                    let _ = rustix::fs::fchmod(file, MODE);
                })
            }
            other => other,
        };
        match opened {
            Ok(file) => return checked(File::from(file), path),
            // If another user has just created the file and has not set its mode yet, access is denied for a moment.
            Err(error @ (Errno::EXIST | Errno::NOENT | Errno::INTR | Errno::ACCESS)) => {
                errno = error;
                std::thread::sleep(BETWEEN_TRIES);
            }
            Err(error) => return Err(refused(path, error)),
        }
    }
    Err(refused(path, errno))
}

/// Returns whether a path still leads to this open file. The owner may have removed it in the meantime.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(open), Ok(now)) => (open.dev(), open.ino()) == (now.dev(), now.ino()),
        _ => false,
    }
}

/// Refuses everything that is not an ordinary file with exactly one name. A hard link may lead to another file of the
/// user who runs this process.
fn checked(file: File, path: &Path) -> Result<File, FileError> {
    let failed = |source| FileError::Open { path: path.to_owned(), owner: String::new(), source };
    let metadata = file.metadata().map_err(failed)?;
    let found = match kind(&metadata) {
        // If the file has no name, it has just been removed, which `is_at` notices.
        None if metadata.nlink() <= 1 => return Ok(file),
        None => "a hard link",
        Some(kind) => kind,
    };
    Err(FileError::Foreign { path: path.to_owned(), found, uid: metadata.uid() })
}

fn refused(path: &Path, errno: Errno) -> FileError {
    let existing = path.symlink_metadata().ok();
    match existing {
        Some(it) if kind(&it).is_some() => {
            FileError::Foreign { path: path.to_owned(), found: kind(&it).unwrap_or_default(), uid: it.uid() }
        }
        existing => FileError::Open {
            path: path.to_owned(),
            owner: existing
                .map(|it| format!(" (user {} owns it: ask for mode 0666, or for its removal)", it.uid()))
                .unwrap_or_default(),
            source: errno.into(),
        },
    }
}

/// Describes what a path leads to, if that is not an ordinary file.
fn kind(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_symlink() => Some("a symbolic link"),
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a named pipe"),
        () => Some("a special file"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(path: &Path) -> &'static str {
        match open(path) {
            Err(FileError::Foreign { found, .. }) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lock_file_is_created_for_all_users_and_opened_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let first = open(&path).expect("created");
        assert_eq!(first.metadata().expect("metadata").permissions().mode() & 0o777, 0o666);
        let second = open(&path).expect("opened");
        assert!(is_at(&first, &path) && is_at(&second, &path));
        fs::remove_file(&path).expect("removed");
        assert!(!is_at(&first, &path), "there is no file");
        let third = open(&path).expect("created again");
        assert!(!is_at(&first, &path) && is_at(&third, &path));
    }

    #[test]
    fn links_and_special_files_are_refused_and_not_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("own");
        fs::write(&own, "text").expect("written");
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(&own, at("symbolic")).expect("a link");
        std::os::unix::fs::symlink(at("nowhere"), at("dangling")).expect("a link");
        fs::hard_link(&own, at("hard")).expect("a link");
        fs::create_dir(at("folder")).expect("a folder");
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, MODE, 0)
            .expect("a pipe");
        for (name, wanted) in [
            ("symbolic", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("hard", "a hard link"),
            ("folder", "a folder"),
            ("pipe", "a named pipe"),
        ] {
            assert_eq!(found(&at(name)), wanted, "{name}");
        }
        assert_eq!(fs::read_to_string(&own).expect("readable"), "text");
        assert!(!at("nowhere").exists());
    }

    #[test]
    fn folder_is_shared_if_all_can_write_and_only_root_can_remove() {
        for (mode, uid, shared) in
            [(0o41777, 0, true), (0o40777, 0, false), (0o41755, 0, false), (0o41777, 1000, false)]
        {
            assert_eq!(is_shared(mode, uid), shared, "{mode:o} of {uid}");
        }
    }
}
