//! Samples of memory, and nothing but samples: what a process owes, what the machine has, what a control group
//! allows. What follows from a number is decided elsewhere.
//!
//! Every path starts at a root that is an argument (`/` or `/proc` in production), so that tests can build one.
//! What does not exist is never taken for zero: an absent figure is `None`, a process that is gone is
//! [`Seen::Gone`].

pub mod cgroup;
pub mod device;
pub mod disturbance;
pub mod features;
pub mod host;
pub mod machine;
pub mod pressure;
pub mod procfs;
mod text;
pub mod tree;

use std::path::{Path, PathBuf};

use opt_shared::units::Bytes;

/// What a look at a process found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    Alive(T),
    /// It has given its memory back (a zombie, not reaped yet) or never had any (a kernel thread).
    NoMemory,
    /// There is no such process, or it is no longer the one that was opened.
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

/// Why a sample could not be taken. That a process has gone is no error.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error("{path}: could not {operation} (is it mounted, and may this user read it?)")]
    Io {
        path: PathBuf,
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{path}: `{line}` is not {wanted} (a kernel that writes it differently is not supported)")]
    Line { path: PathBuf, line: String, wanted: &'static str },
    #[error("{path}: longer than {limit} bytes (the kernel writes less)")]
    TooLong { path: PathBuf, limit: usize },
    #[error("{path}: has no `{wanted}` (kernels without it are not supported)")]
    Absent { path: PathBuf, wanted: &'static str },
    #[error("{path}: more than {limit} descendants of one process (the others are not counted)")]
    TooMany { path: PathBuf, limit: usize },
}

impl SampleError {
    fn line(path: &Path, line: &[u8], wanted: &'static str) -> Self {
        // Lines of proc are short; a long one is shown by its head.
        const SHOWN: usize = 120;
        let shown = &line[..line.len().min(SHOWN)];
        Self::Line { path: path.to_owned(), line: String::from_utf8_lossy(shown).into_owned(), wanted }
    }

    fn io(path: &Path, operation: &'static str, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), operation, source }
    }
}

/// Page size of this machine; 4 KiB, 16 KiB and 64 KiB all occur.
pub fn page_size() -> Bytes {
    Bytes::from(rustix::param::page_size())
}
