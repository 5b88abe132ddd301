//! Checks that the index of files in ARCHITECTURE.md repeats the first sentence of each file's documentation.

use std::fmt::Write as _;

use super::{Text, read, root, texts};

/// The line of ARCHITECTURE.md after which the rest of the page is the index.
const HEADING: &str = "## Index of files\n";
/// The folders whose files are in the index.
const INDEXED: [&str; 6] =
    ["shared/src", "supervisor/src", "worker/src", "emulator/src", "tools/src", "tests/src"];

#[test]
fn index_of_files_has_the_first_sentence_of_every_file() {
    let page = read("ARCHITECTURE.md");
    let (before, index) = page.split_once(HEADING).expect("a section with the index");
    let expected = expected_index();
    if index != expected {
        let new = root().join("ARCHITECTURE.md.new");
        std::fs::write(&new, format!("{before}{HEADING}{expected}")).expect("the page is written");
        panic!("files or their first sentences have changed (move {} over ARCHITECTURE.md)", new.display());
    }
}

fn expected_index() -> String {
    let mut text = String::from(
        "\nThe first sentence of the documentation of every Rust file in these folders, except most files that have only\n\
         tests. A test keeps this list up to date.\n",
    );
    let mut files: Vec<Text> = INDEXED.iter().flat_map(|folder| texts(folder, &[".rs"])).collect();
    files.retain(|file| !has_only_tests(&file.path));
    // Sort the files of a folder before those of its subfolders.
    files.sort_by_key(|file| folder_and_name(&file.path));
    let mut current = String::new();
    for file in &files {
        let (folder, name) = folder_and_name(&file.path);
        if folder != current {
            write!(text, "\n**`{folder}`**\n\n").expect("a string cannot fail");
            current = folder;
        }
        writeln!(text, "- `{name}`: {}", first_sentence(&file.text)).expect("a string cannot fail");
    }
    text
}

fn folder_and_name(path: &str) -> (String, String) {
    let (folder, name) = path.rsplit_once('/').expect("a file in a folder");
    (folder.to_owned(), name.to_owned())
}

/// Returns whether the file contains only tests or support for tests. Files below `tests/` do not count.
fn has_only_tests(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "testkit" || part.ends_with("tests.rs"))
        && !path.starts_with("tests/")
}

/// Returns the first sentence of a file's `//!` comment, on one line.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    match paragraph.split_once(". ") {
        Some((sentence, _)) => format!("{sentence}."),
        None => paragraph,
    }
}

#[test]
fn first_sentence_ends_at_a_full_stop_before_a_space() {
    assert_eq!(first_sentence("//! Reads a\n//! file. Then more.\n//!\n//! Next.\nuse x;"), "Reads a file.");
    assert_eq!(first_sentence("//! Reads `a.b`.\n"), "Reads `a.b`.");
}

#[test]
fn files_with_only_tests_are_recognised_by_their_paths() {
    assert!(has_only_tests("worker/src/stage/profile/tests/mod.rs"));
    assert!(has_only_tests("shared/src/plan_tests.rs"));
    assert!(!has_only_tests("tests/src/scenario.rs"));
    assert!(!has_only_tests("worker/src/stage/calls.rs"));
}
