//! Writes and reads the files of capture sets and stores. A file is written as a draft, flushed and renamed. Files are
//! read in chunks, and the pages that the reads bring into the page cache are dropped again.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use opt_shared::cache::CacheGuard;
use opt_shared::capture::store::{MAX_MANIFEST_BYTES, open_plain};
use opt_shared::units::Bytes;
use rustix::fs::{Advice, CWD, FlockOperation, OFlags, RenameFlags, fadvise, flock, renameat_with};
use rustix::io::Errno;

use super::{CHUNK, CapturesError, Tick, failed};

/// The number of written bytes after which a draft is flushed to disk.
const FLUSH_EVERY: u64 = 256 << 20;
/// The number of bytes after which the pages that have been read are dropped from the page cache.
const DROP_EVERY: u64 = 16 << 20;

/// A file that is read from start to end, except where `seek` goes back to a part that must be read again.
pub(super) struct Stream {
    path: PathBuf,
    file: Arc<File>,
    guard: CacheGuard,
    position: u64,
    /// The position up to which pages have been dropped. If `seek` has gone back since then, the position that it went
    /// to.
    dropped: u64,
}

impl Stream {
    pub(super) fn new(path: &Path, file: File) -> Self {
        let file = Arc::new(file);
        let guard = CacheGuard::watch(file.clone(), true);
        Self { path: path.to_owned(), file, guard, position: 0, dropped: 0 }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn seek(&mut self, position: u64) {
        self.position = position;
        self.dropped = self.dropped.min(position);
    }

    /// Fills the buffer. Fails if the file has too few bytes left.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<(), CapturesError> {
        self.file.read_exact_at(buffer, self.position).map_err(failed("reading", &self.path))?;
        self.position += buffer.len() as u64;
        if self.dropped + DROP_EVERY <= self.position {
            self.guard.drop_before(self.position);
            self.dropped = self.position;
        }
        Ok(())
    }

    /// Passes the next `bytes` bytes of the file to `take`, in chunks.
    pub(super) fn each_chunk(
        &mut self,
        bytes: u64,
        buffer: &mut [u8],
        tick: Tick<'_>,
        mut take: impl FnMut(&[u8]) -> Result<(), CapturesError>,
    ) -> Result<(), CapturesError> {
        let mut bytes_left = bytes;
        while 0 < bytes_left {
            let length = usize::try_from(bytes_left).unwrap_or(usize::MAX).min(CHUNK).min(buffer.len());
            let chunk = &mut buffer[..length];
            self.fill(chunk)?;
            take(chunk)?;
            tick(Bytes::from(length));
            bytes_left -= length as u64;
        }
        Ok(())
    }
}

/// A file that is being written. Dropping it removes the file, unless it was renamed to its final name.
pub(super) struct Draft {
    path: PathBuf,
    file: File,
    unflushed: u64,
    placed: bool,
}

impl Draft {
    /// Creates the file. If anything with this name exists, usually because a command was interrupted, it is removed
    /// and not overwritten, because it could be a link to another user's file.
    pub(super) fn create(path: PathBuf) -> Result<Self, CapturesError> {
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(failed("removing the old draft", &path))?,
        }
        let file = File::options()
            .write(true)
            .create_new(true)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(failed("creating", &path))?;
        Ok(Self { path, file, unflushed: 0, placed: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), CapturesError> {
        self.file.write_all(bytes).map_err(failed("writing", &self.path))?;
        self.unflushed += bytes.len() as u64;
        if FLUSH_EVERY <= self.unflushed {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), CapturesError> {
        self.file.sync_all().map_err(failed("flushing", &self.path))?;
        // If Linux ignores the advice, the only effect is that the bytes stay in the page cache.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        self.unflushed = 0;
        Ok(())
    }

    /// Renames the draft to `target`, and replaces an old file there. After a power failure, `target` either is the
    /// complete new file or is as it was before (absent or old).
    pub(super) fn place(self, target: &Path, mode: u32) -> Result<(), CapturesError> {
        self.finish(target, mode, |draft| fs::rename(draft, target))
    }

    /// Like `place`, but fails if the target exists.
    pub(super) fn place_new(self, target: &Path, mode: u32) -> Result<(), CapturesError> {
        self.finish(target, mode, |draft| {
            match renameat_with(CWD, draft, CWD, target, RenameFlags::NOREPLACE) {
                // The file system does not support `RENAME_NOREPLACE`.
                Err(Errno::INVAL | Errno::NOSYS) if target.symlink_metadata().is_err() => {
                    fs::rename(draft, target)
                }
                renamed => Ok(renamed?),
            }
        })
    }

    fn finish(
        mut self,
        target: &Path,
        mode: u32,
        rename: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), CapturesError> {
        self.file
            .set_permissions(fs::Permissions::from_mode(mode))
            .map_err(failed("setting the mode of", &self.path))?;
        self.flush()?;
        rename(&self.path).map_err(failed("renaming a finished file to", target))?;
        self.placed = true;
        sync_folder(target.parent().unwrap_or(target))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.placed {
            // If the file cannot be removed here, the next command removes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), CapturesError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(failed("flushing the folder", folder))
}

/// Returns the absolute path of a folder, which may not exist yet. Links in the existing part are resolved.
pub(crate) fn resolved(folder: &Path) -> Result<PathBuf, CapturesError> {
    let absolute = std::path::absolute(folder).map_err(failed("resolving", folder))?;
    let existing = absolute.ancestors().find(|parent| parent.exists()).unwrap_or(Path::new("/"));
    let mut resolved = fs::canonicalize(existing).map_err(failed("resolving", existing))?;
    for part in absolute.strip_prefix(existing).unwrap_or(Path::new("")).components() {
        match part {
            // A missing part cannot be a link, but a `..` after it can lead back to an existing one.
            Component::ParentDir => drop(resolved.pop()),
            part => {
                resolved.push(part);
                if resolved.exists() {
                    resolved = fs::canonicalize(&resolved).map_err(failed("resolving", &resolved))?;
                }
            }
        }
    }
    Ok(resolved)
}

/// Creates a folder and its missing parents. The parent of each new folder is flushed.
pub(super) fn make_folder(folder: &Path) -> Result<(), CapturesError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_folder(parent)?;
    }
    match fs::create_dir(folder) {
        // Another thread has created it in the meantime.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed("creating the folder", folder))?,
    }
    sync_folder(parent.unwrap_or(Path::new(".")))
}

/// Reads the bytes of a manifest. If the file is longer than a manifest may be, one byte more than the limit is read,
/// so that parsing refuses it.
pub(super) fn read_manifest(path: &Path) -> Result<Vec<u8>, CapturesError> {
    let file = open_plain(path).map_err(failed("opening the manifest", path))?;
    let mut bytes = Vec::new();
    file.take(MAX_MANIFEST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed("reading the manifest", path))?;
    Ok(bytes)
}

/// Locks an open folder for this process, so that no other process packs into it.
pub(super) fn lock_exclusively(folder: &File, path: &Path) -> Result<(), CapturesError> {
    match flock(folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            Err(CapturesError::Refused(format!("another process is packing into {}", path.display())))
        }
        Err(error) => Err(failed("locking", path)(error.into())),
    }
}

pub(super) fn require_space(folder: &Path, needed: Bytes) -> Result<(), CapturesError> {
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let found = rustix::fs::statvfs(existing)
        .map_err(|error| failed("reading the free space of", existing)(error.into()))?;
    let free = Bytes::new(found.f_bavail).saturating_mul(found.f_frsize);
    if free < needed {
        return Err(CapturesError::NoSpace { needed, free, path: folder.to_owned() });
    }
    Ok(())
}
