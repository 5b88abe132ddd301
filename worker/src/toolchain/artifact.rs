//! Built libraries, kept in the run's `artifacts` folder under their digests.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use opt_shared::outcome::Artifact;
use opt_shared::units::Bytes;

use super::{BuildError, file};

/// Largest library that is taken.
const LARGEST_ARTIFACT: Bytes = Bytes::gib(1);

/// Moves a library under its digest, atomically; a second build of the same bytes finds the first.
pub(crate) fn keep(library: &Path, artifacts: &Path) -> Result<Artifact, BuildError> {
    fs::create_dir_all(artifacts).map_err(file("making the folder", artifacts))?;
    let mut source = fs::File::open(library).map_err(file("opening", library))?;
    let size = source.metadata().map_err(file("asking for the size of", library))?.len();
    if LARGEST_ARTIFACT < Bytes::new(size) {
        let error = io::Error::other(format!("{} is over the limit of {LARGEST_ARTIFACT}", Bytes::new(size)));
        return Err(file("keeping", library)(error));
    }
    let part = artifacts.join(format!(".part-{}", std::process::id()));
    let mut target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // Readable by the runner's own user; nobody executes it but the loader.
        .mode(0o644)
        .open(&part)
        .map_err(file("writing", &part))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let read = io::Read::read(&mut source, &mut buffer).map_err(file("reading", library))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        target.write_all(&buffer[..read]).map_err(file("writing", &part))?;
    }
    target.sync_all().map_err(file("writing", &part))?;
    let digest = hasher.finalize().to_hex().to_string();
    let path = artifacts.join(format!("{digest}.so"));
    fs::rename(&part, &path).map_err(file("renaming to", &path))?;
    Ok(Artifact { digest, path })
}
