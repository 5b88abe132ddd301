//! Packs capture sets into stores that contain every tensor once, and unpacks and checks stores.
//!
//! Files are read and written in chunks, on at most `MAX_THREADS` threads. The pages that this brings into the page
//! cache are dropped again. A command can be killed at any moment without damage to the store.

pub mod check;
mod claims;
mod files;
mod journal;
mod layout;
mod pack;
mod sources;
pub mod unpack;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) use files::resolved;
pub use pack::{Added, Origin, Packed, add, pack};

use opt_shared::capture::CaptureError;
use opt_shared::capture::store::{IndexError, ManifestError};
use opt_shared::units::Bytes;

/// The maximum number of threads. More threads would hardly be faster, because the disk limits the speed.
const MAX_THREADS: usize = 4;
const CHUNK: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CapturesError {
    /// The given files or folders cannot be used.
    #[error("{0}")]
    Refused(String),
    #[error("{doing} {}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(
        "{needed} must be written to {}, which has {free} free (free some space, or use another folder)",
        path.display()
    )]
    NoSpace { needed: Bytes, free: Bytes, path: PathBuf },
    #[error("{} was modified during reading (run the command again when no program writes to it)", path.display())]
    Changed { path: PathBuf },
    #[error("reading the index of the store {}", path.display())]
    Index { path: PathBuf, source: IndexError },
    #[error("reading the manifest {}", path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("{}: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("stopped because another thread failed")]
    GivenUp,
}

impl CapturesError {
    pub fn exit(&self) -> crate::exit::Exit {
        match self {
            Self::Refused(_) => crate::exit::Exit::Usage,
            // The error only says that the file could not be read. Whether the capture is good is therefore unknown.
            Self::Capture(error) if error.kind == opt_shared::capture::ErrorKind::Io => {
                crate::exit::Exit::Host
            }
            // The command ran, but found that the captures or the store are bad.
            Self::Index { .. } | Self::Manifest { .. } | Self::Damaged { .. } | Self::Capture(_) => {
                crate::exit::Exit::NonePassed
            }
            Self::Io { .. } | Self::NoSpace { .. } | Self::Changed { .. } | Self::GivenUp => {
                crate::exit::Exit::Host
            }
        }
    }
}

impl CapturesError {
    /// Returns the path that the error is about. `None` if the error is a refusal, a lack of space or a stopped thread.
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Changed { path }
            | Self::Index { path, .. }
            | Self::Manifest { path, .. }
            | Self::Damaged { path, .. } => Some(path),
            Self::Capture(error) => Some(&error.path),
            Self::Refused(_) | Self::NoSpace { .. } | Self::GivenUp => None,
        }
    }

    fn concerns_file_in(&self, folder: &Path) -> bool {
        self.path().is_some_and(|path| path.starts_with(folder))
    }
}

/// Returns a function for `map_err`, which adds the operation and its path to an error.
fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CapturesError {
    move |source| CapturesError::Io { doing, path: path.to_owned(), source }
}

/// A function that reports progress. Its argument is the number of bytes processed since the previous call.
pub type Tick<'t> = &'t (dyn Fn(Bytes) + Sync);

/// Returns the maximum number of files that are processed in parallel.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// Calls `work` for each item, on several threads. The first error stops all threads, and is returned.
fn in_parallel<T: Sync>(
    items: &[T],
    work: impl Fn(&T, &AtomicBool) -> Result<(), CapturesError> + Sync,
) -> Result<(), CapturesError> {
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let first = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads().min(items.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    if let Err(error) = work(item, &stop) {
                        stop.store(true, Ordering::Relaxed);
                        let mut first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        // `GivenUp` only means that another thread failed earlier.
                        if !matches!(error, CapturesError::GivenUp) {
                            first.get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    match first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
