//! Prepares the folder to which a set is written. Existing captures are never overwritten, and a set that does not fit
//! on the disk is refused before anything is written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use opt_shared::units::Bytes;

/// The space that must stay free on the disk after the set was written, because a full disk harms other programs too.
const HEADROOM: Bytes = Bytes::mib(64);

pub(crate) fn entry_path(folder: &Path, entry: u32) -> PathBuf {
    folder.join(format!("entry_{entry:06}.pt"))
}

/// Creates the folder. Fails if the folder contains captures, or if its disk does not have room for `needed` bytes and
/// `HEADROOM`.
pub(crate) fn prepare(folder: &Path, needed: Bytes) -> Result<()> {
    refuse_to_overwrite(folder)?;
    let existing = nearest_existing(folder)?;
    let disk = rustix::fs::statvfs(&existing)
        .with_context(|| format!("cannot read the free space of `{}`", existing.display()))?;
    let free = Bytes::new(disk.f_bavail).saturating_mul(disk.f_frsize);
    ensure!(
        needed + HEADROOM <= free,
        "`{}` has {free} free, but the captures need {needed}, and {HEADROOM} must stay free (free some space, or ask for a smaller set)",
        existing.display()
    );
    fs::create_dir_all(folder).with_context(|| format!("cannot create `{}`", folder.display()))
}

fn refuse_to_overwrite(folder: &Path) -> Result<()> {
    let listing = match fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list `{}`", folder.display())),
    };
    for item in listing {
        let name = item.with_context(|| format!("cannot list `{}`", folder.display()))?.file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "pt") {
            bail!(
                "`{}` already contains `{}`, and captures are not overwritten (remove it, or pass another --out)",
                folder.display(),
                name.display()
            );
        }
    }
    Ok(())
}

fn nearest_existing(folder: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(folder)
        .with_context(|| format!("cannot make `{}` an absolute path", folder.display()))?;
    let existing = absolute.ancestors().find(|ancestor| ancestor.is_dir());
    existing.map(Path::to_owned).with_context(|| format!("no folder above `{}` exists", absolute.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gen-captures-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _gone_already = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn captures_are_not_overwritten() {
        let scratch = Scratch::new("overwrite");
        prepare(&scratch.0, Bytes::ZERO).unwrap();
        fs::write(entry_path(&scratch.0, 3), b"").unwrap();
        let error = prepare(&scratch.0, Bytes::ZERO).unwrap_err().to_string();
        assert!(error.contains("already contains `entry_000003.pt`"), "{error}");
    }

    #[test]
    fn set_larger_than_the_disk_is_refused() {
        let scratch = Scratch::new("room");
        let folder = scratch.0.join("below/it");
        let error = prepare(&folder, Bytes::MAX).unwrap_err().to_string();
        assert!(error.contains("free some space") && !folder.exists(), "{error}");
    }
}
