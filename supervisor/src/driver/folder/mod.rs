//! Creates, locks and cleans up the run's folder. It is never overwritten, and stays locked while a supervisor uses it.
//!
//! This module also manages the temporary folder for the sockets of workers. That folder has a short path, because a
//! socket path is limited to 107 bytes. Files that a killed supervisor has left are removed: from the temporary folder
//! when the next supervisor starts, and from the run's folder when the run is resumed. A folder is in use if it is
//! locked. The pid in its name does not show this.

pub(super) mod evidence;
mod finish;
pub(super) mod ranking;
pub(super) mod reads;
pub(super) mod records;
pub(super) mod register;
pub(super) mod resume;
mod score;
pub(super) mod summaries;
mod times;
pub(super) mod writer;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use opt_shared::folder::remove_tree;
use rustix::fs::{FlockOperation, OFlags, flock};

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{path} already exists and is not empty (choose another folder with --dir, or continue the run in it with --resume)"
    )]
    Exists { path: PathBuf },
    #[error("{path} is not the folder of a run (it contains neither run.sqlite nor lock)")]
    NoRun { path: PathBuf },
    #[error(
        "there is no run of this plan in {path} to resume (start one without --resume, or name its folder with --dir)"
    )]
    NothingToResume { path: PathBuf },
    #[error("another supervisor is using {path} (wait until it ends, or stop it with Ctrl-C)")]
    Locked { path: PathBuf },
    #[error("there are already {limit} runs named `{name}` (delete some of them)")]
    TooMany { limit: u32, name: String },
}

/// The folder beside the plan in which runs are created if the command names no other folder.
pub(crate) const RUNS: &str = "runs";
/// The file in a run's folder that its supervisor keeps locked.
const LOCK: &str = "lock";
/// The largest number of runs with the same name.
const MAX_RUNS: u32 = 100_000;
/// How long locking is retried. If a supervisor dies while a worker is between fork and exec, the worker holds the lock
/// for an instant.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// How long clearing a folder is retried. Processes that are being killed may still be writing to the folder.
const CLEARING_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// The largest number of supervisors with the same pid at the same time, each in its own pid namespace.
const MAX_WITH_SAME_PID: u32 = 64;

/// The longest `XDG_RUNTIME_DIR`, in bytes, for which the path of a worker's socket has at most 107 bytes. The path
/// continues with `/opt-supervisor/w`, a name with a pid (11 bytes), and ipc-channel's `/.tmpXXXXXX/socket`. If the
/// path were longer, ipc-channel would cut off its end.
const MAX_RUNTIME_FOLDER: usize = 107 - 17 - 11 - 18;

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FolderError + 'a {
    move |source| FolderError::Io { action, path: path.to_owned(), source }
}

/// The folder of a run, which this process has locked.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    lock: File,
}

/// Where a run's folder is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    Unchanged,
    /// Renamed to this path.
    Moved(PathBuf),
    Removed,
}

impl RunFolder {
    /// Creates and locks `wanted`. By default, this is the first free one of `runs/<name>`, `runs/<name>-2` and so on.
    pub fn create(base: &Path, name: &str, wanted: Option<&Path>) -> Result<Self, FolderError> {
        let path = match wanted {
            Some(path) => {
                if path.exists() {
                    let empty =
                        fs::read_dir(path).map_err(io_error("reading the folder", path))?.next().is_none();
                    if !empty {
                        return Err(FolderError::Exists { path: path.to_owned() });
                    }
                }
                fs::create_dir_all(path).map_err(io_error("making the folder", path))?;
                path.to_owned()
            }
            None => {
                let runs = base.join(RUNS);
                fs::create_dir_all(&runs).map_err(io_error("making the folder", &runs))?;
                Self::next_free(&runs, name)?
            }
        };
        let path = fs::canonicalize(&path).map_err(io_error("resolving the path", &path))?;
        let lock = Self::lock(&path)?;
        if wanted.is_none() {
            point_latest(&path);
        }
        let folder = Self { path, lock };
        folder.create_folders()?;
        Ok(folder)
    }

    /// Locks the folder of an existing run, which is `wanted` if given. Otherwise, it is the run with the highest
    /// number among `runs/<name>`, `runs/<name>-2` and so on, up to the first number that is missing.
    pub fn resume(base: &Path, name: &str, wanted: Option<&Path>) -> Result<Self, FolderError> {
        let path = match wanted {
            Some(path) => path.to_owned(),
            None => {
                let runs = base.join(RUNS);
                Self::newest(&runs, name).ok_or(FolderError::NothingToResume { path: runs })?
            }
        };
        if !is_run(&path) {
            return Err(FolderError::NoRun { path });
        }
        let path = fs::canonicalize(&path).map_err(io_error("resolving the path", &path))?;
        let lock = Self::lock(&path)?;
        let folder = Self { path, lock };
        folder.create_folders()?;
        Ok(folder)
    }

    fn next_free(runs: &Path, name: &str) -> Result<PathBuf, FolderError> {
        for number in 1..=MAX_RUNS {
            let path = numbered(runs, name, number);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error("making the folder", &path)(error)),
            }
        }
        Err(FolderError::TooMany { limit: MAX_RUNS, name: name.to_owned() })
    }

    fn newest(runs: &Path, name: &str) -> Option<PathBuf> {
        (1..=MAX_RUNS)
            .map(|number| numbered(runs, name, number))
            .take_while(|path| path.is_dir())
            .filter(|path| is_run(path))
            .last()
    }

    /// Locks the folder. If another process holds the lock, waits up to `LOCK_TIMEOUT`, and then fails.
    fn lock(path: &Path) -> Result<File, FolderError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Self::try_lock(path) {
                Err(FolderError::Locked { .. }) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                result => return result,
            }
        }
    }

    fn try_lock(path: &Path) -> Result<File, FolderError> {
        let lock_path = path.join(LOCK);
        let file = open_own(&lock_path).map_err(io_error("opening", &lock_path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::AGAIN => FolderError::Locked { path: path.to_owned() },
            other => FolderError::Io { action: "locking", path: lock_path.clone(), source: other.into() },
        })?;
        Ok(file)
    }

    /// Creates the subfolders, and removes unfinished files of an earlier supervisor.
    fn create_folders(&self) -> Result<(), FolderError> {
        let scratch = self.scratch();
        clear(&scratch).map_err(io_error("clearing", &scratch))?;
        for folder in [self.artifacts(), self.worker_logs(), scratch] {
            fs::create_dir_all(&folder).map_err(io_error("making the folder", &folder))?;
        }
        self.clear_parts();
        Ok(())
    }

    /// Removes artifacts that a killed worker had not finished copying.
    fn clear_parts(&self) {
        let Ok(entries) = fs::read_dir(self.artifacts()) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(".part-") {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds the folder again by its lock file. This process has the file open, so Linux can name its current path.
    pub fn whereabouts(&self) -> Whereabouts {
        let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
        let Ok(held) = self.lock.metadata() else { return Whereabouts::Unchanged };
        let is_here = |path: &Path| {
            fs::metadata(path.join(LOCK)).is_ok_and(|found| identity(&found) == identity(&held))
        };
        if is_here(&self.path) {
            return Whereabouts::Unchanged;
        }
        let link = format!("/proc/self/fd/{}", self.lock.as_raw_fd());
        let now = fs::read_link(link).ok().and_then(|lock| Some(lock.parent()?.to_owned()));
        match now {
            Some(now) if is_here(&now) => Whereabouts::Moved(now),
            _ => Whereabouts::Removed,
        }
    }

    pub fn artifacts(&self) -> PathBuf {
        self.path.join("artifacts")
    }

    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    pub fn worker_logs(&self) -> PathBuf {
        self.path.join("workers")
    }

    /// Removes what is not needed after the run: scratch files, unfinished artifacts and empty logs.
    pub fn remove_temporary_files(&self) {
        let _ = clear(&self.scratch());
        self.clear_parts();
        // A link may lead to a folder that is not this run's.
        let is_own = fs::symlink_metadata(self.worker_logs()).is_ok_and(|it| it.is_dir());
        if is_own && let Ok(entries) = fs::read_dir(self.worker_logs()) {
            for entry in entries.flatten() {
                if entry.metadata().is_ok_and(|metadata| metadata.len() == 0) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        let _ = fs::remove_dir(self.worker_logs());
    }
}

/// Opens a file of this program in a run's folder for appending, and creates it if necessary. Fails on anything but a
/// regular file. Does not block, because opening a pipe would otherwise wait for a reader.
pub(crate) fn open_own(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = File::options().create(true).append(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::other("it is not a regular file (remove it)"))
}

/// Returns whether a folder belongs to a run. After a kill right after locking, `lock` may be the only file in it.
fn is_run(path: &Path) -> bool {
    path.join("run.sqlite").is_file() || path.join(LOCK).is_file()
}

/// Removes a folder and everything in it. While a dying process still adds files, retries for up to `CLEARING_TIMEOUT`.
fn clear(path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + CLEARING_TIMEOUT;
    loop {
        match remove_tree(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

fn numbered(runs: &Path, name: &str, number: u32) -> PathBuf {
    if number == 1 { runs.join(name) } else { runs.join(format!("{name}-{number}")) }
}

/// Points the link `runs/latest` at this run, replacing it atomically. Errors are ignored, because the link is only a
/// convenience.
fn point_latest(path: &Path) {
    let (Some(runs), Some(name)) = (path.parent(), path.file_name()) else { return };
    // All runs use the same temporary name, so the next run replaces a link that a killed run left.
    let fresh = runs.join(".latest.new");
    let _ = fs::remove_file(&fresh);
    if symlink(name, &fresh).is_ok() && fs::rename(&fresh, runs.join("latest")).is_err() {
        let _ = fs::remove_file(&fresh);
    }
}

/// Returns whether a supervisor is using this run folder. The check takes the lock for an instant.
pub fn is_locked(path: &Path) -> bool {
    path.join(LOCK).is_file() && matches!(RunFolder::try_lock(path), Err(FolderError::Locked { .. }))
}

/// Calls `clear` if no supervisor is using the run folder. The run's lock is held during the call, so that no
/// supervisor can start in the meantime. If the folder no longer exists, `clear` is called without a lock. If the
/// folder exists but has no lock file, `clear` is not called.
pub(crate) fn clear_if_dead(path: &Path, clear: impl FnOnce()) {
    if path.join(LOCK).is_file() {
        if let Ok(_lock) = RunFolder::try_lock(path) {
            clear();
        }
    } else if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        clear();
    }
}

/// The folder for the sockets of workers. It is removed when this value is dropped. If this process is killed, the next
/// supervisor removes it.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    _lock: File,
}

impl TemporaryFolder {
    /// Creates a folder below `XDG_RUNTIME_DIR`, or below `/tmp` if that path is too long or not UTF-8. Removes the
    /// folders of supervisors that have ended.
    pub fn create() -> Result<Self, FolderError> {
        let parent = Self::parent(std::env::var("XDG_RUNTIME_DIR").ok());
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&parent)
            .map_err(io_error("making the folder", &parent))?;
        let metadata = fs::symlink_metadata(&parent).map_err(io_error("inspecting", &parent))?;
        let owner = metadata.uid();
        if owner != rustix::process::geteuid().as_raw() || !metadata.is_dir() {
            let source = io::Error::other(
                "it is not a folder that this user owns (remove it, or set XDG_RUNTIME_DIR to a folder of your own)",
            );
            return Err(FolderError::Io { action: "using", path: parent, source });
        }
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700))
            .map_err(io_error("restricting access to", &parent))?;
        // Only one supervisor at a time may create a folder, because a new folder looks abandoned until it is locked.
        // The parent folder serves as the lock, so that no extra lock file has to be created.
        let gate = File::open(&parent).map_err(io_error("opening", &parent))?;
        rustix::io::retry_on_intr(|| flock(&gate, FlockOperation::LockExclusive))
            .map_err(|errno| io_error("locking", &parent)(errno.into()))?;
        clear_abandoned(&parent);
        // A supervisor in another pid namespace may have the same pid.
        let pid = std::process::id();
        for number in 0..MAX_WITH_SAME_PID {
            let path = parent.join(if number == 0 { pid.to_string() } else { format!("{pid}-{number}") });
            match fs::create_dir(&path) {
                Ok(()) => {
                    let lock = RunFolder::lock(&path)?;
                    return Ok(Self { path, _lock: lock });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error("making the folder", &path)(error)),
            }
        }
        let source = io::Error::other("every name for the folder is taken");
        Err(FolderError::Io { action: "making a folder below", path: parent, source })
    }

    /// Returns the parent of temporary folders. `runtime` is the value of `XDG_RUNTIME_DIR`, if that is UTF-8.
    fn parent(runtime: Option<String>) -> PathBuf {
        let uid = rustix::process::geteuid().as_raw();
        match runtime {
            Some(folder) if folder.len() <= MAX_RUNTIME_FOLDER && Path::new(&folder).is_dir() => {
                Path::new(&folder).join("opt-supervisor").join("w")
            }
            _ => PathBuf::from(format!("/tmp/opt-supervisor-{uid}")),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = remove_tree(&self.path);
    }
}

fn clear_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // A folder is removed only if its name is one that `create` gives and its lock is free.
        let name = entry.file_name();
        let ours = name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if ours && RunFolder::try_lock(&path).is_ok() {
            let _ = remove_tree(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_folder_is_used_only_if_the_paths_of_sockets_below_it_are_short_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let is_used = |length: usize| {
            let path = folder.path().join("r".repeat(length - folder.path().as_os_str().len() - 1));
            fs::create_dir(&path).expect("made");
            TemporaryFolder::parent(path.to_str().map(str::to_owned)).starts_with(&path)
        };
        assert!(is_used(MAX_RUNTIME_FOLDER) && !is_used(MAX_RUNTIME_FOLDER + 1));
    }

    #[test]
    fn run_folder_is_never_overwritten_and_never_shared() {
        let base = tempfile::tempdir().expect("a folder");
        let first = RunFolder::create(base.path(), "demo", None).expect("made");
        let second = RunFolder::create(base.path(), "demo", None).expect("made");
        assert!(first.path().ends_with("runs/demo"));
        assert!(second.path().ends_with("runs/demo-2"));
        let latest = fs::canonicalize(base.path().join("runs/latest")).expect("it points somewhere");
        assert_eq!(latest, second.path());
        assert!(matches!(
            RunFolder::create(base.path(), "demo", Some(first.path())),
            Err(FolderError::Exists { .. })
        ));
        assert!(matches!(
            RunFolder::resume(base.path(), "other", None),
            Err(FolderError::NothingToResume { .. })
        ));
        assert!(matches!(
            RunFolder::resume(base.path(), "demo", Some(first.path())),
            Err(FolderError::Locked { .. })
        ));
        let path = first.path().to_owned();
        drop(first);
        assert_eq!(RunFolder::resume(base.path(), "demo", Some(&path)).expect("free now").path(), path);
        let newest = second.path().to_owned();
        drop(second);
        // This run was killed before it had a database. It has no results, but it is the newest run.
        assert_eq!(RunFolder::resume(base.path(), "demo", None).expect("free now").path(), newest);
        let strange = tempfile::tempdir().expect("a folder");
        assert!(matches!(
            RunFolder::resume(base.path(), "demo", Some(strange.path())),
            Err(FolderError::NoRun { .. })
        ));
    }

    #[test]
    fn whereabouts_distinguish_a_moved_folder_from_a_removed_one() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(base.path(), "demo", None).expect("made");
        assert_eq!(folder.whereabouts(), Whereabouts::Unchanged);
        let elsewhere = fs::canonicalize(base.path()).expect("resolved").join("elsewhere");
        fs::rename(folder.path(), &elsewhere).expect("moved");
        assert_eq!(folder.whereabouts(), Whereabouts::Moved(elsewhere.clone()));
        // Another folder at the old path is not the run's.
        fs::create_dir(folder.path()).expect("made");
        fs::write(folder.path().join(LOCK), "").expect("written");
        assert_eq!(folder.whereabouts(), Whereabouts::Moved(elsewhere.clone()));
        fs::remove_dir_all(&elsewhere).expect("removed");
        assert_eq!(folder.whereabouts(), Whereabouts::Removed);
    }

    #[test]
    fn resume_clears_files_of_a_killed_supervisor() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(base.path(), "demo", None).expect("made");
        let (work, part) = (folder.scratch().join("build-1"), folder.artifacts().join(".part-7"));
        let path = folder.path().to_owned();
        fs::create_dir(&work).expect("made");
        fs::write(&part, "half").expect("written");
        drop(folder);
        let folder = RunFolder::resume(base.path(), "demo", None).expect("resumed");
        assert!(!work.exists() && !part.exists());
        // At the end of the run, files of a killed worker are cleared, too.
        fs::write(&part, "half").expect("written");
        folder.remove_temporary_files();
        assert!(!part.exists() && !path.join("scratch").exists());
    }

    #[test]
    fn lock_that_is_a_pipe_or_a_link_is_an_error() {
        let base = tempfile::tempdir().expect("a folder");
        let path = base.path().join(LOCK);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).expect("a pipe");
        assert!(matches!(RunFolder::try_lock(base.path()), Err(FolderError::Io { action: "opening", .. })));
        fs::remove_file(&path).expect("removed");
        symlink("elsewhere", &path).expect("a link");
        assert!(matches!(RunFolder::try_lock(base.path()), Err(FolderError::Io { action: "opening", .. })));
        assert!(!base.path().join("elsewhere").exists());
    }
}
