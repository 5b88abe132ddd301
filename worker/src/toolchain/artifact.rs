//! Stores artifacts in the run's `artifacts` folder, named by their digests.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use opt_shared::language::ArtifactKind;
use opt_shared::outcome::Artifact;
use opt_shared::units::Bytes;

use super::{BuildError, file};

/// The result of storing an artifact.
#[derive(Debug)]
pub(crate) enum Kept {
    Artifact(Artifact),
    /// The artifact exceeds the limit, and was not stored.
    TooLarge {
        bytes: Bytes,
    },
}

/// Copies an artifact of at most `limit` to the folder, atomically. If the same bytes were built before, the copy
/// replaces the identical file.
pub(crate) fn keep(
    library: &Path,
    artifacts: &Path,
    kind: ArtifactKind,
    limit: Bytes,
) -> Result<Kept, BuildError> {
    fs::create_dir_all(artifacts).map_err(file("making the folder", artifacts))?;
    let source = fs::File::open(library).map_err(file("opening", library))?;
    let size = source.metadata().map_err(file("reading the size of", library))?.len();
    let bytes = Bytes::new(size);
    if limit < bytes {
        return Ok(Kept::TooLarge { bytes });
    }
    // If the file grows after this, the copy is truncated and does not load.
    let mut source = source.take(size);
    let part = artifacts.join(format!(".part-{}", std::process::id()));
    let mut target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // The runner's own user must be able to read the file. Only the loader maps it, so it needs no execute bit.
        .mode(0o644)
        .open(&part)
        .map_err(file("writing", &part))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let read = source.read(&mut buffer).map_err(file("reading", library))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        target.write_all(&buffer[..read]).map_err(file("writing", &part))?;
    }
    target.sync_all().map_err(file("writing", &part))?;
    let digest = hasher.finalize().to_hex().to_string();
    let path = artifacts.join(format!("{digest}.{}", kind.suffix()));
    fs::rename(&part, &path).map_err(file("renaming to", &path))?;
    // A new name survives a crash only if its folder is synced.
    fs::File::open(artifacts).and_then(|folder| folder.sync_all()).map_err(file("writing", artifacts))?;
    Ok(Kept::Artifact(Artifact { digest, path, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_over_the_limit_is_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (library, artifacts) = (folder.path().join("k.so"), folder.path().join("artifacts"));
        fs::write(&library, [7; 100]).expect("written");
        let kept = keep(&library, &artifacts, ArtifactKind::SharedLibrary, Bytes::new(99)).expect("readable");
        assert!(matches!(kept, Kept::TooLarge { bytes } if bytes == Bytes::new(100)), "{kept:?}");
        assert_eq!(fs::read_dir(&artifacts).expect("a folder").count(), 0);
        let kept =
            keep(&library, &artifacts, ArtifactKind::SharedLibrary, Bytes::new(100)).expect("readable");
        let Kept::Artifact(artifact) = kept else { panic!("{kept:?}") };
        assert_eq!((artifact.bytes, fs::read(artifact.path).expect("kept").len()), (Bytes::new(100), 100));
    }
}
