//! Lists the keys in which two resolved plans differ. `--resume` uses this list, because a run continues only with the
//! same plan.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

/// Returns the keys whose values differ between two texts of `resolved_toml`, sorted by name. Keys of jobs, candidates,
/// workspaces and replays include the names of these: `job.embedding.candidate.naive.symbol`. A table, job, candidate,
/// workspace or replay that only one text contains counts as one key. A changed order (`job (order)`) also counts as
/// one key, and so do the launches of a candidate.
pub fn changed_keys(old: &str, new: &str) -> Vec<String> {
    if old == new {
        return Vec::new();
    }
    match (old.parse::<Table>(), new.parse::<Table>()) {
        (Ok(old), Ok(new)) => {
            let mut changed = BTreeSet::new();
            compare_tables(&old, &new, "", &mut changed);
            changed.into_iter().collect()
        }
        // One text was damaged after `resolved_toml` had written it, so none of its keys can be relied on.
        _ => vec!["the whole plan".to_owned()],
    }
}

fn compare_tables(old: &Table, new: &Table, path: &str, changed: &mut BTreeSet<String>) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let below = if path.is_empty() {
            super::print::key(key)
        } else {
            format!("{path}.{}", super::print::key(key))
        };
        match (old.get(key), new.get(key)) {
            (Some(Value::Table(old)), Some(Value::Table(new))) => compare_tables(old, new, &below, changed),
            (old, new) if named(old).is_some() || named(new).is_some() => {
                compare_named(
                    &named(old).unwrap_or_default(),
                    &named(new).unwrap_or_default(),
                    &below,
                    changed,
                );
            }
            (old, new) if old != new => {
                changed.insert(below);
            }
            _ => {}
        }
    }
}

/// Returns the tables of an array with their names, in order. `None` if the value is not an array of named tables.
fn named(value: Option<&Value>) -> Option<Vec<(&str, &Table)>> {
    let array = value?.as_array()?;
    if array.is_empty() {
        return None;
    }
    array
        .iter()
        .map(|item| {
            let table = item.as_table()?;
            Some((table.get("name")?.as_str()?, table))
        })
        .collect()
}

fn compare_named(old: &[(&str, &Table)], new: &[(&str, &Table)], path: &str, changed: &mut BTreeSet<String>) {
    let old_by_name: BTreeMap<&str, &Table> = old.iter().copied().collect();
    let new_by_name: BTreeMap<&str, &Table> = new.iter().copied().collect();
    let names: BTreeSet<&str> = old_by_name.keys().chain(new_by_name.keys()).copied().collect();
    for name in names {
        let below = format!("{path}.{}", super::print::key(name));
        match (old_by_name.get(name), new_by_name.get(name)) {
            (Some(old), Some(new)) => compare_tables(old, new, &below, changed),
            _ => {
                changed.insert(below);
            }
        }
    }
    // Jobs and candidates are numbered by position, so a changed order is a difference.
    let order = |these: &[(&str, &Table)], others: &BTreeMap<&str, &Table>| -> Vec<String> {
        these
            .iter()
            .filter(|(name, _)| others.contains_key(name))
            .map(|(name, _)| (*name).to_owned())
            .collect()
    };
    if order(old, &new_by_name) != order(new, &old_by_name) {
        changed.insert(format!("{path} (order)"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_include_names_of_jobs_and_candidates() {
        let old = "[verify]\nseed = 0\n[[job]]\nname = \"a\"\ncaptures = \"x\"\n[[job.candidate]]\nname = \"k/v 1\"\n\
                   symbol = \"run\"\n[[job.candidate]]\nname = \"n\"\n[[job]]\nname = \"b\"\n";
        assert_eq!(changed_keys(old, old), Vec::<String>::new());
        assert_eq!(changed_keys(old, &old.replace("seed = 0", "seed = 1")), ["verify.seed"]);
        assert_eq!(
            changed_keys(old, &old.replace("\"run\"", "\"go\"")),
            ["job.a.candidate.\"k/v 1\".symbol"]
        );
        assert_eq!(changed_keys(old, &old.replace("\"x\"", "\"y\"")), ["job.a.captures"]);
        assert_eq!(changed_keys(old, &old.replace("\"b\"", "\"c\"")), ["job.b", "job.c"]);
        assert_eq!(changed_keys(old, &old.replace("[verify]\nseed = 0\n", "")), ["verify"]);
        let swapped = "[[job]]\nname = \"b\"\n".to_owned() + &old.replace("[[job]]\nname = \"b\"\n", "");
        assert!(
            changed_keys(old, &swapped.replace("[verify]\nseed = 0\n", ""))
                .contains(&"job (order)".to_owned())
        );
        assert_eq!(changed_keys(old, "= broken"), ["the whole plan"]);
    }
}
