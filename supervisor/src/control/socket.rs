//! Chooses the paths of control sockets, and finds the sockets of runs. Each user has a folder that contains two things
//! for each run: a socket, and a link to the run's folder.
//!
//! If the lock of its run is free, a socket is stale. Callers must check the lock, because neither a connection attempt
//! nor a pid can show that a socket is stale.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The maximum length of a socket's path, in bytes.
const MAX_PATH_BYTES: usize = 107;
/// The environment variable that sets the folder of sockets. A relative path is ignored.
const RUNTIME_VARIABLE: &str = "OPT_SUPERVISOR_RUNTIME_DIR";
/// The name of the link to the socket in the run's folder.
pub const LINK: &str = "control.sock";
/// The suffix of a socket.
const SOCKET: &str = "sock";
/// The suffix of a link to a run's folder.
const RUN: &str = "run";
/// The length of a socket's name, in hexadecimal digits.
const NAME_LENGTH: usize = 16;
/// The maximum number of directory entries that are read in one folder.
const MAX_RUNS: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("{action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{path} is too long for a folder of sockets, whose paths can have at most {MAX_PATH_BYTES} bytes (set OPT_SUPERVISOR_RUNTIME_DIR to a shorter path)"
    )]
    TooLong { path: PathBuf },
    #[error(
        "{path} is not a folder that belongs to you (remove it, or set OPT_SUPERVISOR_RUNTIME_DIR to another folder)"
    )]
    Foreign { path: PathBuf },
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SocketError + 'a {
    move |source| SocketError::Io { action, path: path.to_owned(), source }
}

/// The socket of one run. Dropping it removes the socket and both links.
#[derive(Debug)]
pub struct RunSocket {
    run: PathBuf,
    socket: PathBuf,
    run_link: PathBuf,
    link: PathBuf,
}

impl RunSocket {
    /// Prepares the socket's path for a run. The caller must hold the run's lock. Existing files therefore belong to a
    /// dead supervisor, and are removed.
    pub fn take(run: &Path) -> Result<Self, SocketError> {
        let name = name_of(run);
        let all = folders();
        let fits = |folder: &&PathBuf| {
            folder.as_os_str().len() + 1 + NAME_LENGTH + 1 + SOCKET.len() <= MAX_PATH_BYTES
        };
        let Some(folder) = all.iter().find(fits).cloned() else {
            return Err(SocketError::TooLong { path: all.into_iter().next().unwrap_or_else(fallback) });
        };
        make_private(&folder)?;
        let socket = Self {
            run: run.to_owned(),
            socket: folder.join(&name).with_extension(SOCKET),
            run_link: folder.join(&name).with_extension(RUN),
            link: run.join(LINK),
        };
        for path in [&socket.socket, &socket.run_link, &socket.link] {
            remove(path).map_err(failed("removing the file of a dead supervisor", path))?;
        }
        Ok(socket)
    }

    pub fn path(&self) -> &Path {
        &self.socket
    }

    /// Creates the links between the run's folder and the socket, one in each direction.
    pub(super) fn publish(&self) -> Result<(), SocketError> {
        symlink(&self.run, &self.run_link).map_err(failed("creating the link", &self.run_link))?;
        symlink(&self.socket, &self.link).map_err(failed("creating the link", &self.link))
    }
}

impl Drop for RunSocket {
    fn drop(&mut self) {
        for path in [&self.link, &self.run_link, &self.socket] {
            let _ = remove(path);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// A run with a socket in one of the folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub run: PathBuf,
    pub socket: PathBuf,
}

/// Returns the runs that have a link in one of the folders, whether they are still running or not.
pub fn runs() -> Vec<Found> {
    let mut found = Vec::new();
    for folder in folders() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten().take(MAX_RUNS) {
            let run_link = entry.path();
            if run_link.extension().is_some_and(|it| it == RUN)
                && let Ok(run) = fs::read_link(&run_link)
            {
                found.push(Found { run, socket: run_link.with_extension(SOCKET) });
            }
        }
    }
    found.sort_by(|one, other| one.run.cmp(&other.run));
    found.dedup();
    found
}

/// Removes the socket of a dead run, and the link beside it. The caller must hold the run's lock.
pub fn clear(found: &Found) {
    for path in [&found.socket.with_extension(RUN), &found.socket] {
        let _ = remove(path);
    }
}

/// Returns the socket's name, which depends only on the run's folder.
fn name_of(run: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    blake3::hash(run.as_os_str().as_bytes()).to_hex()[..NAME_LENGTH].to_owned()
}

/// Returns the folders that may contain sockets, the preferred one first. If the user sets a folder, it is the only
/// one.
fn folders() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from).filter(|it| it.is_absolute()) {
        return vec![named];
    }
    let preferred = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute() && folder.is_dir())
        .map(|folder| folder.join("opt-supervisor"));
    preferred.into_iter().chain([fallback()]).collect()
}

fn fallback() -> PathBuf {
    PathBuf::from(format!("/tmp/opt-supervisor-{}", rustix::process::geteuid().as_raw()))
}

/// Returns the folder of sockets, and creates it if necessary. It is private to the user, and shared by all of the
/// user's runs.
pub fn runtime_folder() -> Result<PathBuf, SocketError> {
    let folder = folders().into_iter().next().unwrap_or_else(fallback);
    make_private(&folder)?;
    Ok(folder)
}

fn make_private(folder: &Path) -> Result<(), SocketError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed("creating the folder", folder))?;
    let metadata = fs::symlink_metadata(folder).map_err(failed("reading the metadata of", folder))?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(SocketError::Foreign { path: folder.to_owned() });
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
        .map_err(failed("restricting access to", folder))
}
