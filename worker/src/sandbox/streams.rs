//! The standard output and standard error of runners, compilers and zygotes. Each stream is a small memfd whose size is
//! sealed. Excess output neither blocks the candidate nor fills memory, because writes beyond the size fail and their
//! bytes are lost.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use opt_shared::units::Bytes;
use rustix::io::pread;

use crate::memfd;

/// One output stream. `size` is in bytes, and is a multiple of the page size.
pub(crate) struct Stream {
    memfd: OwnedFd,
    size: u64,
}

/// Returns the size of a stream whose output is limited to `limit`, which is the limit rounded up to whole pages.
pub(crate) fn size_for(limit: Bytes) -> Bytes {
    Bytes::new(limit.get().next_multiple_of(rustix::param::page_size() as u64))
}

impl Stream {
    pub(crate) fn create(limit: Bytes) -> rustix::io::Result<Self> {
        let size = size_for(limit);
        Ok(Self { memfd: memfd::fixed("opt-stream", size)?, size: size.get() })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    pub(crate) fn size(&self) -> Bytes {
        Bytes::new(self.size)
    }

    /// Returns the number of bytes written so far, which is the position of the file description that is shared with
    /// the writer. A hostile writer may have moved the position, so the number is clamped to the size.
    fn written(&self) -> u64 {
        rustix::fs::seek(&self.memfd, rustix::fs::SeekFrom::Current(0)).unwrap_or(0).min(self.size)
    }

    /// Returns true if the stream is full, so that output may have been lost.
    pub(crate) fn is_truncated(&self) -> bool {
        self.size <= self.written()
    }

    /// Returns the last `max_bytes` bytes of the output, as text without control characters except newlines and tabs.
    pub(crate) fn tail(&self, max_bytes: usize) -> String {
        let written = self.written();
        let from = written.saturating_sub(max_bytes as u64);
        self.text(from, written)
    }

    /// Returns the first `max_bytes` bytes of the output, in the same form.
    pub(crate) fn head(&self, max_bytes: usize) -> String {
        let to = self.written().min(max_bytes as u64);
        self.text(0, to)
    }

    fn text(&self, from: u64, to: u64) -> String {
        let mut bytes = vec![0u8; usize::try_from(to - from).unwrap_or(0)];
        let length = pread(&self.memfd, &mut bytes, from).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length])
            .chars()
            .filter(|&c| c == '\n' || c == '\t' || !c.is_control())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_output_is_dropped_and_reported() {
        let stream = Stream::create(Bytes::kib(64)).expect("a memfd");
        assert!(!stream.is_truncated());
        rustix::io::write(stream.descriptor(), b"hello\n").expect("fits");
        assert_eq!((stream.head(3).as_str(), stream.tail(3).as_str()), ("hel", "lo\n"));
        let block = vec![b'x'; 5000];
        while rustix::io::write(stream.descriptor(), &block).is_ok() {}
        assert!(stream.is_truncated());
        assert_eq!(stream.tail(10), "xxxxxxxxxx");
    }
}
