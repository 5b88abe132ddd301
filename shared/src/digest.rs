//! Content digests that both sides must compute alike.

use std::fs::File;
use std::io;
use std::path::PathBuf;

/// BLAKE3 over the contents of a candidate's sources in order, each followed by its length, in hex. The error names
/// the file.
pub fn of_sources(sources: &[PathBuf]) -> Result<String, (PathBuf, io::Error)> {
    let mut hasher = blake3::Hasher::new();
    for path in sources {
        let mut source = File::open(path).map_err(|error| (path.clone(), error))?;
        let bytes = io::copy(&mut source, &mut hasher).map_err(|error| (path.clone(), error))?;
        hasher.update(&bytes.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}
