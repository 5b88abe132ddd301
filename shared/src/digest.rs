//! Digests of contents, which the supervisor and the workers must compute in the same way.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::kernel_files::{self, KernelFiles};

/// BLAKE3, in hex, of a candidate's sources in their order, followed by its copied headers. The content of each file is
/// followed by its length. The error names the file.
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

/// BLAKE3 of a file's bytes, in hex.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}
