//! Checks that the patches in `tests/defences` match the sources. `switch.patch` makes the worker read the environment
//! variable `OPT_WITHOUT`. Each other patch lets this variable switch off one defence of the clock.

use std::collections::BTreeSet;

use super::{assert_none, read, texts};

/// Returns, for each hunk of a patch, the name of its file and the lines that this file must contain.
fn hunks(patch: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut file = String::new();
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("--- ") {
            file = name.to_owned();
        } else if line.starts_with("@@ ") {
            found.push((file.clone(), String::new()));
        } else if let (Some((_, before)), Some(kept)) = (found.last_mut(), line.strip_prefix([' ', '-'])) {
            before.push_str(kept);
            before.push('\n');
        }
    }
    found
}

#[test]
fn patches_that_remove_defences_match_the_sources() {
    let mut wrong = Vec::new();
    for patch in texts("tests/defences", &[".patch"]) {
        let hunks = hunks(&patch.text);
        assert!(!hunks.is_empty(), "{} changes nothing", patch.path);
        for (file, before) in hunks {
            if read(&file).matches(&before).count() != 1 {
                wrong.push(format!(
                    "{}: these lines are missing from {file}, or occur more than once:\n{before}",
                    patch.path
                ));
            }
        }
    }
    assert_none("patches that no longer apply: change them with the source", &wrong);
}

/// The table shows why each defence is needed, so it must have a row for every patch that switches one off.
#[test]
fn every_patch_is_in_the_table_of_the_documentation() {
    let documented = read("docs/explanation/timing.md");
    let patches: BTreeSet<String> =
        texts("tests/defences", &[".patch"]).into_iter().map(|patch| patch.path).collect();
    let names =
        patches.iter().filter_map(|path| path.strip_prefix("tests/defences/")?.strip_suffix(".patch"));
    let wrong: Vec<String> = names
        .filter(|name| *name != "switch" && !documented.contains(&format!("| `{name}` |")))
        .map(str::to_owned)
        .collect();
    assert_none("patches that docs/explanation/timing.md does not name", &wrong);
}
