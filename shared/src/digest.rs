//! Computes the digests of files and of a candidate's sources, in the same way for the supervisor and the workers.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::kernel_files::{self, KernelFiles};

/// The BLAKE3 digest, in hex, of a candidate's sources in their order, and then of its copied headers. After the
/// content of each file, the file's length is added to the digest. The error names the file.
pub fn of_files(files: &KernelFiles) -> Result<String, (PathBuf, io::Error)> {
    let mut hasher = blake3::Hasher::new();
    for file in files.all() {
        let failed = |error| (file.path.clone(), error);
        let mut source = kernel_files::open(&file.path).map_err(failed)?;
        let bytes = io::copy(&mut source, &mut hasher).map_err(failed)?;
        hasher.update(&bytes.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The BLAKE3 digest of a file's bytes, in hex.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}
