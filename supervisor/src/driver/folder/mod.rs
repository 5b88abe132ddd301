//! The run's folder: made once, never overwritten, locked while a supervisor works in it.
//!
//! Also the short temporary folder in which the one-shot sockets of workers lie (a socket path holds 107 bytes).
//! What a killed supervisor left in either is cleared at the next start; whose it is the lock tells, not a pid.
//! A supervisor's death frees its lock an instant before its workers die of it: what they may still touch or hold
//! is asked for again, for a bounded time.

pub(super) mod books;
pub(super) mod evidence;
mod finish;
pub(super) mod ranking;
pub(super) mod reads;
pub(super) mod register;
pub(super) mod resume;
mod score;
pub(super) mod summaries;
pub(super) mod writer;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} exists and is not a run of this plan (choose another --dir, or continue with --resume)")]
    Exists { path: PathBuf },
    #[error("{path} is not a run folder (it has neither run.sqlite nor lock)")]
    NoRun { path: PathBuf },
    #[error("there is no earlier run of this plan below {path} to resume")]
    NothingToResume { path: PathBuf },
    #[error("another supervisor works in {path} (wait for it, or stop it with Ctrl-C)")]
    Locked { path: PathBuf },
    #[error("more than {limit} runs named `{name}` (delete some)")]
    TooMany { limit: u32, name: String },
}

/// Where runs are, beside their plan, unless they are told to be elsewhere.
pub(crate) const RUNS: &str = "runs";
/// Runs of one name that are looked for.
const MOST_RUNS: u32 = 100_000;
/// A worker caught between fork and exec by the death of its supervisor holds the lock for an instant longer.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Processes that are being killed may still write into the folder that is cleared.
const CLEARING_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// Supervisors of one number that may live at a time, each in a pid namespace of its own.
const MOST_NAMESAKES: u32 = 64;

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> FolderError + 'a {
    move |source| FolderError::Io { action, path: path.to_owned(), source }
}

/// A run's folder, locked by us.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// `runs/<name>`, then `runs/<name>-2` …, or `wanted`.
    pub fn create(base: &Path, name: &str, wanted: Option<&Path>) -> Result<Self, FolderError> {
        let path = match wanted {
            Some(path) => {
                if path.exists() {
                    let empty = fs::read_dir(path).map_err(io_error("looking into", path))?.next().is_none();
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
        let path = fs::canonicalize(&path).map_err(io_error("resolving", &path))?;
        let lock = Self::lock(&path)?;
        if wanted.is_none() {
            point_latest(&path);
        }
        let folder = Self { path, _lock: lock };
        folder.furnish()?;
        Ok(folder)
    }

    /// The newest run of this name, or `wanted`.
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
        let path = fs::canonicalize(&path).map_err(io_error("resolving", &path))?;
        let lock = Self::lock(&path)?;
        let folder = Self { path, _lock: lock };
        folder.furnish()?;
        Ok(folder)
    }

    fn next_free(runs: &Path, name: &str) -> Result<PathBuf, FolderError> {
        for number in 1..=MOST_RUNS {
            let path = numbered(runs, name, number);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error("making the folder", &path)(error)),
            }
        }
        Err(FolderError::TooMany { limit: MOST_RUNS, name: name.to_owned() })
    }

    fn newest(runs: &Path, name: &str) -> Option<PathBuf> {
        (1..=MOST_RUNS)
            .map(|number| numbered(runs, name, number))
            .take_while(|path| path.is_dir())
            .filter(|path| is_run(path))
            .last()
    }

    /// Waits out an instant's hold, and is refused by one that lasts.
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
        let lock_path = path.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io_error("opening", &lock_path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::AGAIN => FolderError::Locked { path: path.to_owned() },
            other => FolderError::Io { action: "locking", path: lock_path.clone(), source: other.into() },
        })?;
        Ok(file)
    }

    /// Makes the folders inside, and clears what an earlier supervisor left half done.
    fn furnish(&self) -> Result<(), FolderError> {
        let scratch = self.scratch();
        clear(&scratch).map_err(io_error("clearing", &scratch))?;
        for folder in [self.artifacts(), self.worker_logs(), scratch] {
            fs::create_dir_all(&folder).map_err(io_error("making the folder", &folder))?;
        }
        self.clear_parts();
        Ok(())
    }

    /// Artifacts that a killed worker had not copied to their end.
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

    pub fn artifacts(&self) -> PathBuf {
        self.path.join("artifacts")
    }

    pub fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    pub fn worker_logs(&self) -> PathBuf {
        self.path.join("workers")
    }

    /// Removes what only a running supervisor needs.
    pub fn tidy(&self) {
        let _ = clear(&self.scratch());
        self.clear_parts();
        // Logs of workers that had nothing to say.
        if let Ok(entries) = fs::read_dir(self.worker_logs()) {
            for entry in entries.flatten() {
                if entry.metadata().is_ok_and(|metadata| metadata.len() == 0) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        let _ = fs::remove_dir(self.worker_logs());
    }
}

/// A folder that a supervisor has made its own, however soon it was killed after that.
fn is_run(path: &Path) -> bool {
    path.join("run.sqlite").is_file() || path.join("lock").is_file()
}

/// Removes a folder and all it holds, though somebody who is dying may still add to it.
fn clear(path: &Path) -> io::Result<()> {
    let deadline = Instant::now() + CLEARING_TIMEOUT;
    loop {
        match fs::remove_dir_all(path) {
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

/// `runs/latest`, replaced in one step. A convenience: that it cannot be made stops nothing.
fn point_latest(path: &Path) {
    let (Some(runs), Some(name)) = (path.parent(), path.file_name()) else { return };
    // One name for all: what a kill leaves behind is replaced by the next run.
    let fresh = runs.join(".latest.new");
    let _ = fs::remove_file(&fresh);
    if symlink(name, &fresh).is_ok() && fs::rename(&fresh, runs.join("latest")).is_err() {
        let _ = fs::remove_file(&fresh);
    }
}

/// Whether a supervisor works in this run folder now. The lock is its word for it, and is held for an instant to ask.
pub fn is_locked(path: &Path) -> bool {
    path.join("lock").is_file() && matches!(RunFolder::try_lock(path), Err(FolderError::Locked { .. }))
}

/// Clears what belongs to a run that nobody works in, holding its lock so that nobody can begin to meanwhile.
pub(crate) fn clear_if_dead(path: &Path, clear: impl FnOnce()) {
    if path.join("lock").is_file() {
        if let Ok(_lock) = RunFolder::try_lock(path) {
            clear();
        }
    } else if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        clear();
    }
}

/// The folder for sockets; removed with this value, or by the next supervisor.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    _lock: File,
}

impl TemporaryFolder {
    /// Makes one below `/tmp` (or `XDG_RUNTIME_DIR`), and clears those whose supervisor is gone.
    pub fn create() -> Result<Self, FolderError> {
        let parent = Self::parent();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&parent)
            .map_err(io_error("making the folder", &parent))?;
        let metadata = fs::symlink_metadata(&parent).map_err(io_error("looking at", &parent))?;
        let owner = std::os::unix::fs::MetadataExt::uid(&metadata);
        if owner != rustix::process::geteuid().as_raw() || !metadata.is_dir() {
            let source = io::Error::other("it belongs to somebody else");
            return Err(FolderError::Io { action: "using", path: parent, source });
        }
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o700))
            .map_err(io_error("closing to others", &parent))?;
        // One at a time: a folder that is made and not yet locked looks abandoned. The folder itself is the lock, so that
        // no file of it is left behind.
        let gate = File::open(&parent).map_err(io_error("opening", &parent))?;
        rustix::io::retry_on_intr(|| flock(&gate, FlockOperation::LockExclusive))
            .map_err(|errno| io_error("locking", &parent)(errno.into()))?;
        clear_abandoned(&parent);
        // Another pid namespace may have a living supervisor of this number.
        let pid = std::process::id();
        for number in 0..MOST_NAMESAKES {
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
        let source = io::Error::other("every name for it is taken");
        Err(FolderError::Io { action: "making a folder below", path: parent, source })
    }

    fn parent() -> PathBuf {
        let uid = rustix::process::geteuid().as_raw();
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(folder) if Path::new(&folder).is_dir() => {
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
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn clear_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // Only our own kind of folder, and only where nobody holds its lock.
        let name = entry.file_name();
        let ours = name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if ours && RunFolder::try_lock(&path).is_ok() {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_folder_is_never_used_twice_and_never_by_two() {
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
        // Killed before it had a database: there is nothing to go on with, but it is this run and no older one.
        assert_eq!(RunFolder::resume(base.path(), "demo", None).expect("free now").path(), newest);
        let strange = tempfile::tempdir().expect("a folder");
        assert!(matches!(
            RunFolder::resume(base.path(), "demo", Some(strange.path())),
            Err(FolderError::NoRun { .. })
        ));
    }

    #[test]
    fn what_a_killed_supervisor_left_is_cleared() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(base.path(), "demo", None).expect("made");
        let (work, part) = (folder.scratch().join("build-1"), folder.artifacts().join(".part-7"));
        let path = folder.path().to_owned();
        fs::create_dir(&work).expect("made");
        fs::write(&part, "half").expect("written");
        drop(folder);
        let folder = RunFolder::resume(base.path(), "demo", None).expect("taken up");
        assert!(!work.exists() && !part.exists());
        // And what a killed worker left, at the end of the run.
        fs::write(&part, "half").expect("written");
        folder.tidy();
        assert!(!part.exists() && !path.join("scratch").exists());
    }
}
