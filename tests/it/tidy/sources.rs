//! Checks the form of every source file (documentation, length, name, and comments), and that dependencies have
//! comments and versions in the right places.

use super::{assert_none, read, texts};

/// The maximum length of a source file. `MAY_BE_LONGER` lists exceptions with their reasons.
const MAX_LINES: usize = 500;
const MAY_BE_LONGER: [(&str, &str); 0] = [];

/// File names that do not say what the file contains.
const MEANINGLESS_NAMES: [&str; 5] = ["utils", "util", "helpers", "common", "misc"];

#[test]
fn every_file_begins_with_its_documentation() {
    let wrong: Vec<String> = texts("", &[".rs"])
        .iter()
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| file.path.clone())
        .collect();
    assert_none("files that do not begin with `//!`", &wrong);
}

#[test]
fn no_file_is_too_long() {
    let files = texts("", &[".rs"]);
    let wrong: Vec<String> = files
        .iter()
        .map(|file| (file, file.text.lines().count()))
        .filter(|(file, lines)| {
            MAX_LINES < *lines && !MAY_BE_LONGER.iter().any(|(path, _)| *path == file.path)
        })
        .map(|(file, lines)| format!("{}: {lines}", file.path))
        .collect();
    assert_none("files longer than 500 lines: divide them by what they own", &wrong);
    for (path, reason) in MAY_BE_LONGER {
        assert!(!reason.is_empty(), "{path} has no reason");
        assert!(files.iter().any(|file| file.path == path), "{path} is gone");
    }
}

#[test]
fn no_file_has_a_meaningless_name() {
    let wrong: Vec<String> = texts("", &[".rs"])
        .iter()
        .map(|file| file.path.clone())
        .filter(|path| path.split(['/', '.']).any(|part| MEANINGLESS_NAMES.contains(&part)))
        .collect();
    assert_none("files whose name does not describe the contents", &wrong);
}

#[test]
fn comments_contain_no_todo() {
    // Build the words from parts, so that the test does not find them in this file.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("HA", "CK:")];
    let wrong: Vec<String> = texts("", &[".rs", ".h", ".c", ".cpp", ".toml", ".md", ".sh"])
        .iter()
        .flat_map(|file| {
            let found = file
                .text
                .lines()
                .enumerate()
                .filter(|(_, line)| words.iter().any(|word| line.contains(word)));
            found
                .map(|(index, line)| format!("{}:{}: {}", file.path, index + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_none("comments about open work, which belongs in an issue", &wrong);
}

#[test]
fn no_file_names_a_path_or_host_of_one_machine() {
    let words = [
        concat!("/wo", "rk/"),
        concat!("/tm", "p/w/"),
        concat!("index.crates", ".io"),
        concat!("/ro", "ot/"),
        concat!("DES", "IGN"),
    ];
    let wrong: Vec<String> =
        texts("", &[".rs", ".h", ".c", ".cpp", ".py", ".toml", ".md", ".json", ".sh", "run"])
            .iter()
            .flat_map(|file| {
                let found = file
                    .text
                    .lines()
                    .enumerate()
                    .filter(|(_, line)| words.iter().any(|word| line.contains(word)));
                found.map(|(index, _)| format!("{}:{}", file.path, index + 1)).collect::<Vec<_>>()
            })
            .collect();
    assert_none("paths and hosts of one particular machine", &wrong);
}

/// A comment applies to all dependencies up to the next blank line.
#[test]
fn dependencies_have_comments_and_take_their_versions_from_the_workspace() {
    let manifest = read("Cargo.toml");
    let section = manifest.split("[workspace.dependencies]\n").nth(1).expect("the section");
    let section = section.split("\n[").next().unwrap_or(section);
    let mut covered = false;
    let mut wrong = Vec::new();
    for line in section.lines() {
        match line.trim() {
            "" => covered = false,
            comment if comment.starts_with('#') => covered = true,
            dependency if !covered => wrong.push(dependency.to_owned()),
            _ => {}
        }
    }
    assert_none("dependencies without a comment above them", &wrong);
    // Only the workspace's `Cargo.toml` may contain versions.
    let members =
        ["emulator", "emulator/twin", "shared", "supervisor", "worker", "tests", "tests/nvml-twin", "tools"];
    let own_versions: Vec<String> = members
        .iter()
        .flat_map(|member| {
            let text = read(&format!("{member}/Cargo.toml"));
            let section = |name: &str| {
                let after = text.split(&format!("[{name}]\n")).nth(1).unwrap_or_default().to_owned();
                after.split("\n[").next().unwrap_or_default().to_owned()
            };
            let lines = section("dependencies") + "\n" + &section("dev-dependencies");
            lines
                .lines()
                .filter(|line| {
                    !line.is_empty() && !line.starts_with('#') && !line.contains("workspace = true")
                })
                .map(|line| format!("{member}: {line}"))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_none("dependencies whose version is not in the workspace's Cargo.toml", &own_versions);
}

/// An image with another version of Rust would install the pinned one while it builds the program, or could not.
#[test]
fn container_is_built_with_the_pinned_version_of_rust() {
    let pinned = read("rust-toolchain.toml");
    let pinned = pinned.split("channel = \"").nth(1).and_then(|rest| rest.split('"').next());
    let container = read("Dockerfile");
    let image = container.split("FROM rust:").nth(1).and_then(|rest| rest.split('-').next());
    let (pinned, image) = (pinned.expect("a channel"), image.expect("an image of Rust"));
    assert!(pinned.starts_with(&format!("{image}.")), "{image} is not the start of {pinned}");
}
