//! Paths of the repository, the test data and the built programs.

use std::path::{Path, PathBuf};

/// The root folder of the workspace.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the workspace")
}

/// A file or folder below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    repository().join("tests/data").join(path)
}

/// The path of a program of this workspace, built with the same profile as this process.
pub fn built(name: &str) -> Result<PathBuf, String> {
    let own_executable =
        std::env::current_exe().map_err(|error| format!("locating the current executable: {error}"))?;
    // Programs are in `target/<profile>`, and tests are in its subfolder `deps`.
    let folder = own_executable
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"))
        .unwrap_or(&own_executable);
    let path = folder.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "{} is missing: build it first, with `cargo build --workspace --bins` for the same profile",
        path.display()
    ))
}

/// The built program `opt-supervisor`.
pub fn binary() -> PathBuf {
    built("opt-supervisor").unwrap_or_else(|missing| panic!("{missing}"))
}

/// Returns all files, sockets and links below a folder, sorted. Folders that vanish during the search are left out.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => files.push(entry.path()),
            }
        }
    }
    files.sort();
    files
}
