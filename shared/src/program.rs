//! Finds the file of a program that a plan names.

use std::ffi::OsStr;
use std::path::PathBuf;

/// Returns the path of a program, given either its path or a name that is looked up in `PATH`. `None` if there is no
/// such file.
pub fn find(name: &str) -> Option<PathBuf> {
    find_in(name, std::env::var_os("PATH").as_deref())
}

fn find_in(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    if name.contains('/') {
        return std::fs::canonicalize(name).ok().filter(|program| program.is_file());
    }
    std::env::split_paths(path?).map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_found_by_name_or_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("its path");
        std::fs::create_dir(folder.join("empty")).expect("made");
        std::fs::write(folder.join("mine"), "").expect("written");
        let path = std::env::join_paths([folder.join("empty"), folder.clone()]).expect("a path");
        let find = |name: &str| find_in(name, Some(&path));
        assert_eq!(find("mine"), Some(folder.join("mine")));
        assert_eq!(find("yours"), None);
        assert_eq!(find("empty"), None, "a folder is not a program");
        assert_eq!(find_in("mine", None), None);
        for name in ["mine", "empty/../mine"] {
            assert_eq!(find(&folder.join(name).display().to_string()), Some(folder.join("mine")));
        }
        assert_eq!(find(&folder.join("yours").display().to_string()), None);
        assert_eq!(find(&folder.display().to_string()), None);
    }
}
