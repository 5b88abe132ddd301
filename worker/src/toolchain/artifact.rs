//! Stores artifacts in the run's `artifacts` folder, under the names of their digests.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use opt_shared::folder::make_folder;
use opt_shared::language::ArtifactKind;
use opt_shared::outcome::Artifact;
use opt_shared::units::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{BuildError, file};

#[derive(Debug)]
pub(crate) enum Kept {
    Artifact(Artifact),
    /// The artifact is larger than the limit, so it was not stored.
    TooLarge {
        bytes: Bytes,
    },
}

/// Opens a file that a build has written. Returns `None` if the file cannot be opened or is not a regular file.
///
/// Symbolic links are refused, because a build that runs its source could leave a link to a file that only the worker
/// can read.
pub(crate) fn open_written(path: &Path) -> Option<fs::File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let opened = match rustix::fs::openat2(rustix::fs::CWD, path, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, a link can be refused only if it is the last component of the path.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(path, flags, Mode::empty()),
        other => other,
    };
    let file = fs::File::from(opened.ok()?);
    file.metadata().ok()?.is_file().then_some(file)
}

/// Copies an artifact of at most `limit` bytes to the folder `artifacts`. The copy appears there atomically, even if
/// the folder already contains the same artifact. `source_path` is used only in messages.
pub(crate) fn keep(
    source: fs::File,
    source_path: &Path,
    artifacts: &Path,
    kind: ArtifactKind,
    limit: Bytes,
) -> Result<Kept, BuildError> {
    make_folder(artifacts).map_err(file("making the folder", artifacts))?;
    let size = source.metadata().map_err(file("reading the size of", source_path))?.len();
    let bytes = Bytes::new(size);
    if limit < bytes {
        return Ok(Kept::TooLarge { bytes });
    }
    // If the file grows from now on, only the first `size` bytes are copied.
    let mut source = source.take(size);
    let part = artifacts.join(format!(".part-{}", std::process::id()));
    let mut target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        // The runner's own user must be able to read the file. The file is never started as a program, so it needs no
        // execute bit.
        .mode(0o644)
        .open(&part)
        .map_err(file("writing", &part))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let read = source.read(&mut buffer).map_err(file("reading", source_path))?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        target.write_all(&buffer[..read]).map_err(file("writing", &part))?;
    }
    target.sync_all().map_err(file("writing", &part))?;
    let digest = hasher.finalize().to_hex().to_string();
    let path = artifacts.join(kind.file_name(&digest));
    fs::rename(&part, &path).map_err(file("moving the artifact to", &path))?;
    // The new name survives a crash of the machine only if its folder is synced.
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
        let keep = |limit| {
            let source = open_written(&library).expect("a regular file");
            keep(source, &library, &artifacts, ArtifactKind::SharedLibrary, Bytes::new(limit))
                .expect("readable")
        };
        let kept = keep(99);
        assert!(matches!(kept, Kept::TooLarge { bytes } if bytes == Bytes::new(100)), "{kept:?}");
        assert_eq!(fs::read_dir(&artifacts).expect("a folder").count(), 0);
        let kept = keep(100);
        let Kept::Artifact(artifact) = kept else { panic!("{kept:?}") };
        assert_eq!((artifact.bytes, fs::read(artifact.path).expect("kept").len()), (Bytes::new(100), 100));
    }

    #[test]
    fn folder_of_a_run_that_was_moved_is_not_created_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = folder.path().join("k.so");
        fs::write(&library, [7; 100]).expect("written");
        let run = folder.path().join("run");
        let source = open_written(&library).expect("a regular file");
        let kept = keep(source, &library, &run.join("artifacts"), ArtifactKind::SharedLibrary, Bytes::mib(1));
        assert!(kept.is_err() && !run.exists(), "{kept:?}");
    }

    #[test]
    fn only_regular_files_that_are_no_links_count_as_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = fs::canonicalize(folder.path()).expect("resolved");
        let path = |name: &str| folder.join(name);
        fs::write(path("file"), "x").expect("written");
        fs::create_dir(path("sub")).expect("a folder");
        fs::write(path("sub/file"), "x").expect("written");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("a link");
        std::os::unix::fs::symlink(path("sub"), path("linked")).expect("a link");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("a pipe");
        for (name, is_written) in [
            ("file", true),
            ("sub/file", true),
            ("link", false),
            ("linked/file", false),
            ("sub", false),
            ("pipe", false),
            ("none", false),
        ] {
            assert_eq!(open_written(&path(name)).is_some(), is_written, "{name}");
        }
    }
}
