//! That the papers say what is: commands, keys, files and tests that they name exist.

use std::collections::BTreeSet;

use super::{none, read, root, texts};

/// The fence after this line of the README holds the one command that runs all tests.
const TEST_COMMAND_MARK: &str = "<!-- the test command -->";

/// Lines of the fenced block that follows `mark`.
fn fenced(text: &str, mark: &str) -> Vec<String> {
    let after = text.split(mark).nth(1).unwrap_or_else(|| panic!("{mark} is gone"));
    let block = after.split("```").nth(1).expect("a fence");
    block.lines().skip(1).filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_readme_and_the_checks_name_one_test_command() {
    let command = fenced(&read("README.md"), TEST_COMMAND_MARK);
    let [command] = command.as_slice() else { panic!("one line, not {command:?}") };
    let checks = read(".ci/run");
    let same = checks.lines().filter(|line| line == command).count();
    assert_eq!(same, 1, ".ci/run has no line that is exactly `{command}`");
    let tests: Vec<&str> = checks.lines().filter(|line| line.contains("cargo test")).collect();
    assert_eq!(tests, [command], "tests are run by the README's command alone");
}

#[test]
fn the_changelog_has_a_place_for_what_comes() {
    let text = read("CHANGELOG.md");
    assert!(text.lines().any(|line| line == "## [Unreleased]"), "CHANGELOG.md has no `## [Unreleased]`");
}

/// `[table]` headings and keys of the file that holds all defaults, as `table.key`.
fn keys_with_defaults() -> BTreeSet<String> {
    let mut table = String::new();
    let mut keys = BTreeSet::new();
    for line in read("configs/default.toml").lines() {
        // `name` has no default, and stands there as a comment.
        let line = line.strip_prefix("# name = ").map_or(line.to_owned(), |rest| format!("name = {rest}"));
        if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = heading.to_owned();
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            keys.insert(format!("{table}.{key}"));
        }
    }
    assert!(40 < keys.len(), "{keys:?}");
    keys
}

#[test]
fn every_key_of_a_plan_is_documented() {
    let text = read("docs/reference/plan.md");
    let documented: BTreeSet<String> = {
        let mut table = String::new();
        let mut keys = BTreeSet::new();
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("## `[").and_then(|rest| rest.split(']').next()) {
                table = heading.to_owned();
            } else if line.starts_with("## ") {
                table.clear();
            } else if let Some(key) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) {
                keys.insert(format!("{table}.{key}"));
            }
        }
        keys
    };
    let defaults = keys_with_defaults();
    let missing: Vec<String> = defaults.difference(&documented).cloned().collect();
    none("keys that docs/reference/plan.md does not name", &missing);
    // Of the tables that have defaults, it names no key that is none.
    let tables: BTreeSet<&str> = defaults.iter().filter_map(|key| key.split('.').next()).collect();
    let unknown: Vec<String> = documented
        .difference(&defaults)
        .filter(|key| key.split('.').next().is_some_and(|table| tables.contains(table)))
        .cloned()
        .collect();
    none("keys of docs/reference/plan.md that are none", &unknown);
}

/// Links between papers, and the files and tests that ARCHITECTURE.md builds on.
#[test]
fn what_the_papers_refer_to_exists() {
    let mut wrong = Vec::new();
    for file in texts("", &[".md"]) {
        let folder = root().join(&file.path).parent().expect("a folder").to_owned();
        for link in file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let external = target.is_empty() || target.contains("://");
            if !external && !folder.join(target).exists() {
                wrong.push(format!("{}: {link}", file.path));
            }
        }
    }
    for quoted in read("ARCHITECTURE.md").split('`').skip(1).step_by(2) {
        // `file.rs::test` names a test, `folder/file` a file; everything else is prose.
        let (path, test) = quoted.split_once("::").map_or((quoted, None), |(path, test)| (path, Some(test)));
        let ours = ["shared/", "supervisor/", "worker/", "tests/", "tools/", "configs/", "docs/"];
        if !ours.iter().any(|start| path.starts_with(start)) || path.contains(['{', '*', ' ']) {
            continue;
        }
        match std::fs::read_to_string(root().join(path)) {
            Ok(text) => {
                if let Some(test) = test.filter(|test| !text.contains(&format!("fn {test}("))) {
                    wrong.push(format!("ARCHITECTURE.md: {path} has no test {test}"));
                }
            }
            Err(_) if root().join(path).is_dir() && test.is_none() => {}
            Err(error) => wrong.push(format!("ARCHITECTURE.md: {path}: {error}")),
        }
    }
    none("papers that refer to what is not there", &wrong);
}

#[test]
fn every_law_names_a_test() {
    let text = read("ARCHITECTURE.md");
    let laws =
        text.split("\n## The laws").nth(1).expect("the laws").split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> =
        laws.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| law")).collect();
    assert_eq!(rows.len(), 10, "ten laws, each a row: {rows:#?}");
    let wrong: Vec<String> =
        rows.iter().filter(|row| !row.contains("::")).map(|row| (*row).to_owned()).collect();
    none("laws that no test keeps", &wrong);
}
