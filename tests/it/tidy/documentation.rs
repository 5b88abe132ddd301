//! Checks the documentation. Links must lead to existing files and headings, and the files, tests and keys that certain
//! pages name must exist. Every key with a default and every dtype must be documented, every law must name a test, and
//! every page must be listed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use opt_shared::capture::DType;

use super::{Text, assert_none, read, root, texts};

/// The line of the README before the code block that contains the command for running all tests.
const TEST_COMMAND_MARK: &str = "<!-- the test command -->";

/// Returns the lines of the code block that follows `mark`.
fn code_block(text: &str, mark: &str) -> Vec<String> {
    let after = text.split(mark).nth(1).unwrap_or_else(|| panic!("{mark} is gone"));
    let block = after.split("```").nth(1).expect("a fence");
    block.lines().skip(1).filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

#[test]
fn readme_and_checks_use_the_same_test_command() {
    let command = code_block(&read("README.md"), TEST_COMMAND_MARK);
    let [command] = command.as_slice() else { panic!("one line, not {command:?}") };
    let checks = read(".ci/run");
    let same = checks.lines().filter(|line| line == command).count();
    assert_eq!(same, 1, ".ci/run has no line that is exactly `{command}`");
    let tests: Vec<&str> = checks.lines().filter(|line| line.contains("cargo test")).collect();
    assert_eq!(tests, [command], "only the README's command runs tests");
}

#[test]
fn changelog_has_a_section_for_unreleased_changes() {
    let text = read("CHANGELOG.md");
    assert!(text.lines().any(|line| line == "## [Unreleased]"), "CHANGELOG.md has no `## [Unreleased]`");
}

/// Returns the keys in the file with all defaults, as `table.key`.
fn keys_with_defaults() -> BTreeSet<String> {
    let mut table = String::new();
    let mut keys = BTreeSet::new();
    for line in read("configs/default.toml").lines() {
        // `name` has no default, so the file has it only as a comment.
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
fn every_key_with_a_default_is_documented() {
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
    assert_none("keys that are missing in docs/reference/plan.md", &missing);
    // If a table has defaults, every documented key of the table must exist.
    let tables: BTreeSet<&str> = defaults.iter().filter_map(|key| key.split('.').next()).collect();
    let unknown: Vec<String> = documented
        .difference(&defaults)
        .filter(|key| key.split('.').next().is_some_and(|table| tables.contains(table)))
        .cloned()
        .collect();
    assert_none("keys in docs/reference/plan.md that do not exist", &unknown);
}

/// Returns the anchor of a heading. mdBook and GitHub build anchors in the same way.
fn anchor(heading: &str) -> String {
    let anchor = heading.to_lowercase().replace(' ', "-");
    anchor.chars().filter(|char| char.is_alphanumeric() || matches!(char, '-' | '_')).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Returns every link of a page, except those in code blocks and those to other sites. Each item is the target as
/// written, and the path of the page that it leads to.
fn links(file: &Text) -> impl Iterator<Item = (&str, PathBuf)> {
    let folder = root().join(&file.path).parent().expect("a folder").to_owned();
    // If the text is split at its fences, every second part is code.
    let prose = file.text.split("\n```").step_by(2);
    let targets = prose.flat_map(|text| text.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    targets.filter(|link| !link.contains("://")).map(move |link| {
        let target = link.split('#').next().unwrap_or_default();
        let page = if target.is_empty() { root().join(&file.path) } else { folder.join(target) };
        (link, page)
    })
}

#[test]
fn links_lead_to_pages_and_headings() {
    let mut wrong = Vec::new();
    for file in texts("", &[".md"]) {
        for (link, page) in links(&file) {
            let heading = link.split_once('#').map(|(_, heading)| heading);
            let found = page.exists()
                && heading.is_none_or(|heading| {
                    std::fs::read_to_string(&page).is_ok_and(|text| anchors(&text).contains(heading))
                });
            if !found {
                wrong.push(format!("{}: {link}", file.path));
            }
        }
    }
    assert_none("links that lead nowhere", &wrong);
}

/// The book contains only pages of `docs/`, so a link to another folder would be broken in the book.
#[test]
fn pages_of_the_book_link_only_to_each_other() {
    let docs = root().join("docs").canonicalize().expect("the pages");
    let mut wrong = Vec::new();
    for file in texts("docs", &[".md"]) {
        let leaves = |page: &PathBuf| !page.canonicalize().is_ok_and(|page| page.starts_with(&docs));
        wrong.extend(
            links(&file).filter(|(_, page)| leaves(page)).map(|(link, _)| format!("{}: {link}", file.path)),
        );
    }
    assert_none("links out of the book", &wrong);
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let summary = read("docs/SUMMARY.md");
    let wrong: Vec<String> = texts("docs", &[".md"])
        .iter()
        .filter_map(|file| file.path.strip_prefix("docs/"))
        .filter(|page| *page != "SUMMARY.md" && summary.matches(&format!("({page})")).count() != 1)
        .map(str::to_owned)
        .collect();
    assert_none("pages that docs/SUMMARY.md does not name exactly once", &wrong);
}

#[test]
fn every_dtype_of_a_capture_is_documented() {
    let page = read("docs/reference/capture-files.md");
    let missing: Vec<String> = DType::ALL
        .iter()
        .map(|dtype| format!("`{dtype}`"))
        .filter(|name| !page.contains(name.as_str()))
        .collect();
    assert_none("dtypes that docs/reference/capture-files.md does not name", &missing);
}

#[test]
fn files_and_tests_in_the_architecture_exist() {
    let mut wrong = Vec::new();
    for quoted in read("ARCHITECTURE.md").split('`').skip(1).step_by(2) {
        // `file.rs::test` names a test and `folder/file` names a file. Other code spans are ignored.
        let (path, test) = quoted.split_once("::").map_or((quoted, None), |(path, test)| (path, Some(test)));
        let ours =
            ["emulator/", "shared/", "supervisor/", "worker/", "tests/", "tools/", "configs/", "docs/"];
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
    assert_none("names of files and tests that do not exist", &wrong);
}

#[test]
fn every_law_names_a_test() {
    let text = read("ARCHITECTURE.md");
    let laws =
        text.split("\n## The laws").nth(1).expect("the laws").split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> =
        laws.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| law")).collect();
    assert_eq!(rows.len(), 10, "rows, one for each of the ten laws: {rows:#?}");
    let wrong: Vec<String> =
        rows.iter().filter(|row| !row.contains("::")).map(|row| (*row).to_owned()).collect();
    assert_none("laws without a test", &wrong);
}

/// Returns the source folder of the tests with this prefix in `docs/explanation/faults.md`, or `None` if the prefix is
/// unknown. Tests without a prefix are integration tests.
fn folder_of_tests(prefix: Option<&str>) -> Option<&'static str> {
    match prefix {
        None => Some("tests/it"),
        Some("supervisor") => Some("supervisor/src"),
        Some("worker") => Some("worker/src"),
        Some("shared") => Some("shared/src"),
        Some("simulate") => Some("tools/src/simulate"),
        Some(_) => None,
    }
}

#[test]
fn tests_in_the_fault_matrix_exist() {
    let page = read("docs/explanation/faults.md");
    let (mut named, mut wrong) = (0, Vec::new());
    for quoted in page.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
        let (prefix, path) =
            quoted.split_once(": ").map_or((None, quoted), |(prefix, path)| (Some(prefix), path));
        let Some((modules, test)) = path.rsplit_once("::") else { continue };
        let Some(folder) = folder_of_tests(prefix) else {
            wrong.push(format!("`{quoted}` has an unknown prefix"));
            continue;
        };
        named += 1;
        let first = format!("{folder}/{}", modules.split("::").next().unwrap_or_default());
        let module = format!("{folder}/{}.rs", path.replace("::", "/"));
        let is_there = |file: &&Text| {
            if file.path == module {
                return true;
            }
            (file.path.starts_with(&first) || modules == "tests")
                && file.text.contains(&format!("fn {test}("))
        };
        if !texts(folder, &[".rs"]).iter().any(|file| is_there(&file)) {
            wrong.push(format!("`{quoted}`"));
        }
    }
    assert_none("tests that docs/explanation/faults.md names and that do not exist", &wrong);
    assert!(80 < named, "{named} tests are named");
}
