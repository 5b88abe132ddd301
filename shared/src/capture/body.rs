//! Reads the bytes of a capture by their offset in the `.pt` file, whether the capture is a single file or packed in a
//! store.
//!
//! The parsers read by offset, and therefore do not depend on where a capture is stored. `CaptureFile` determines where
//! a storage can be mapped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::store::Packed;

pub(super) enum Body {
    Whole(Arc<File>),
    Packed(Packed),
}

impl Body {
    /// Like `FileExt::read_at`.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::Whole(file) => file.read_at(buffer, offset),
            Self::Packed(packed) => packed.read_at(buffer, offset),
        }
    }

    /// Like `FileExt::read_exact_at`.
    pub(super) fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        if let Self::Whole(file) = self {
            return file.read_exact_at(buffer, offset);
        }
        while !buffer.is_empty() {
            match self.read_at(buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
