//! Checks the repository against its own rules: dependencies of modules, the form of source files, words that were
//! given up, and documentation that agrees with the code.
//!
//! These tests only read text. The only program that they start is `cargo metadata`.

mod circles;
mod documentation;
mod edges;
mod index;
mod patches;
mod sources;
mod words;

use std::path::{Path, PathBuf};

/// The root folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder in the workspace").to_owned()
}

/// A text file of the repository.
struct Text {
    /// The path relative to the root, with `/` as separator.
    path: String,
    text: String,
}

/// The folders that contain build outputs, runs, dependencies, or git's own files.
const EXCLUDED_FOLDERS: [&str; 4] = [".git", "target", "runs", "node_modules"];

/// Returns every file below `folder` that has one of these endings, sorted by path.
fn texts(folder: &str, endings: &[&str]) -> Vec<Text> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("an entry of a folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_symlink() || EXCLUDED_FOLDERS.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = std::fs::read_to_string(&path)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let below = path.strip_prefix(&root).expect("below the root");
                found.push(Text { path: below.to_string_lossy().into_owned(), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no file in {folder} ends in {endings:?}");
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Text {
    /// Returns the lines with their numbers, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.split_once(" // ").map_or(line, |(code, _)| code)))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// Panics if there are findings, and lists them all.
fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}
