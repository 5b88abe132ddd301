//! Makes folders, and removes those that a candidate's program may have filled.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Creates a folder unless its path exists. Its parent is not created. Otherwise, if the run's folder was moved, a
/// second one would appear at the old path.
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

/// Moves all folders below `root` into `root` itself, so that no path is long.
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
        // A link to a folder is not a folder.
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
        // A path of this length cannot be opened, so the folders are nested from the inside to the outside.
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
