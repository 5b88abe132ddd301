//! Creates folders, and removes folder trees that a candidate's program may have filled in a way that hinders their
//! removal.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Creates a folder unless its path exists. The parent folder must exist: if it were created as well, and the run's
/// folder had been moved away, a second run folder would appear at the old path.
pub fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Removes a folder with everything in it. Unlike `std::fs::remove_dir_all`, this succeeds if folders are nested very
/// deeply, or if their mode forbids their owner to list or change them.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        Err(_) => {
            flatten(path)?;
            fs::remove_dir_all(path)
        }
        Ok(()) => Ok(()),
    }
}

/// Moves all folders below `root` directly into `root`, so that no path is too long to be opened.
fn flatten(root: &Path) -> io::Result<()> {
    let mut number = 0_u64;
    let mut unused_name = || loop {
        let name = root.join(format!(".flat-{number}"));
        number += 1;
        if fs::symlink_metadata(&name).is_err() {
            return name;
        }
    };
    let mut open = folders_in(root)?;
    while let Some(folder) = open.pop() {
        for inner in folders_in(&folder)? {
            let moved = unused_name();
            fs::rename(inner, &moved)?;
            open.push(moved);
        }
    }
    Ok(())
}

fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // `file_type` does not follow links, so a link to a folder is not treated as a folder.
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeply_nested_folders_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let root = parent.path().join("root");
        fs::create_dir(&root).expect("a folder");
        // A path of the final length cannot be opened, so the innermost folder is made first, and then moved into the
        // next outer one again and again.
        let mut nested = parent.path().join("n");
        fs::create_dir(&nested).expect("a folder");
        for number in 0..3000 {
            let outer = parent.path().join(format!("o{number}"));
            fs::create_dir(&outer).expect("a folder");
            fs::rename(&nested, outer.join("n")).expect("moved");
            nested = outer;
        }
        fs::rename(&nested, root.join("n")).expect("moved");
        fs::write(root.join(".flat-0"), "a file with this name").expect("written");
        remove_tree(&root).expect("removed");
        assert!(!root.exists());
        assert_eq!(remove_tree(&root).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn closed_folders_are_removed_without_following_links() {
        let parent = tempfile::tempdir().expect("a folder");
        let (root, outside) = (parent.path().join("root"), parent.path().join("outside"));
        fs::create_dir_all(root.join("closed/inner")).expect("folders");
        fs::create_dir(&outside).expect("a folder");
        std::os::unix::fs::symlink(&outside, root.join("closed/link")).expect("a link");
        fs::write(root.join("closed/inner/file"), "x").expect("written");
        fs::set_permissions(root.join("closed"), Permissions::from_mode(0o000)).expect("closed");
        flatten(&root).expect("flat");
        remove_tree(&root).expect("removed");
        assert!(!root.exists() && outside.exists());
    }
}
