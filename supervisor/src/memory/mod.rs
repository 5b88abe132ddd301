//! Samples how much memory processes owe, how much the machine has, and how much control groups allow. Also samples how
//! many processes can still be started.
//!
//! Functions that read files take the root folder as an argument (`/` or `/proc` in production), so that tests can pass
//! a fake one. An absent figure is `None`, never 0. A process that no longer exists is reported as [`Seen::Gone`].

pub mod cgroup;
pub mod code;
pub mod device;
pub mod disturbance;
pub mod features;
pub mod host;
pub mod machine;
pub mod pids;
pub mod pressure;
pub mod procfs;
mod text;
pub mod tree;

use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    Alive(T),
    /// The process has no memory, because it is a zombie or a kernel thread.
    NoMemory,
    /// The process no longer exists, or its pid belongs to another process.
    Gone,
}

impl<T> Seen<T> {
    pub fn alive(self) -> Option<T> {
        match self {
            Self::Alive(value) => Some(value),
            Self::NoMemory | Self::Gone => None,
        }
    }
}

/// An error during a sample. The end of a process is not an error; it is reported as [`Seen::NoMemory`] or
/// [`Seen::Gone`].
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error(
        "{path}: could not {operation} (check that its file system is mounted and that this user may read it)"
    )]
    Io {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: `{line}` is not {wanted} (this version of Linux is not supported)")]
    Line { path: PathBuf, line: String, wanted: &'static str },
    #[error("{path} has {limit} bytes or more, so it is not read")]
    TooLong { path: PathBuf, limit: usize },
    #[error("{path} has no `{wanted}` (this version of Linux is not supported)")]
    Absent { path: PathBuf, wanted: &'static str },
    #[error("{path}: there are more than {limit} processes, which is too many to list")]
    TooMany { path: PathBuf, limit: usize },
}

impl SampleError {
    fn line(path: &Path, line: &[u8], wanted: &'static str) -> Self {
        // Lines in `/proc` are usually short. Of a long line, the beginning is enough for an error message.
        const MAX_SHOWN: usize = 120;
        let shown = &line[..line.len().min(MAX_SHOWN)];
        Self::Line { path: path.to_owned(), line: String::from_utf8_lossy(shown).into_owned(), wanted }
    }

    fn io(path: &Path, operation: &'static str, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), operation, source }
    }
}

/// Returns the page size of this machine: 4, 16 or 64 KiB.
pub fn page_size() -> Bytes {
    Bytes::from(rustix::param::page_size())
}
