//! Tests that `captures add` builds the same store, file by file, as `pack` does at once.

use std::path::Path;

use opt_tests::{Scenario, data};

use super::{blobs, captures_below, pack, tree};

const OP: &str = "captures/torch_nn_functional_embedding";

/// Adds a file of the op, which the store lists as `op/NAME`.
fn add(scenario: &Scenario, file: &str, name: &str, code: i32, more: &[&str]) -> opt_tests::Outcome {
    let path = data(OP).join(file);
    let entry = format!("op/{name}");
    let mut arguments = vec!["captures", "add", "store", path.to_str().expect("UTF-8"), "--name", &entry];
    arguments.extend(more);
    scenario.run(&arguments).expect_exit(code)
}

#[test]
fn files_added_one_by_one_give_the_store_that_pack_makes() {
    let scenario = Scenario::create();
    scenario.copy_captures(&data(OP), "set/op");
    let packed = pack(&scenario, &scenario.path().join("set"), "packed");
    let names: Vec<String> =
        captures_below(&data(OP)).into_keys().map(|name| name.display().to_string()).collect();
    assert!(1 < names.len(), "several captures, which share a table");
    for name in &names {
        add(&scenario, name, name, 0, &[]);
        // The store is complete after each addition.
        scenario.run(&["captures", "check", "store"]).expect_exit(0);
    }
    let store = scenario.path().join("store");
    for part in ["entries", "blobs"] {
        assert!(tree(&store.join(part)) == tree(&packed.join(part)), "{part} are the same byte for byte");
    }
    assert!(!store.join("partial").exists());
    scenario.run(&["inspect", "store/entries/op"]).expect_exit(0);
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(0);
    assert!(captures_below(&scenario.path().join("out/op")) == captures_below(&data(OP)));
}

#[test]
fn entry_is_replaced_only_on_request() {
    let scenario = Scenario::create();
    add(&scenario, "entry_000000.pt", "entry_000000.pt", 0, &[]);
    let before = blobs(&scenario.path().join("store"));
    let refused = add(&scenario, "entry_000001.pt", "entry_000000.pt", 2, &[]);
    refused.expect_stderr(&["already has an entry op/entry_000000.pt (use --replace)"]);
    let again = add(&scenario, "entry_000001.pt", "entry_000000.pt", 0, &["--replace", "--json"]);
    again.expect_equal(&again.json()["entries"], &1.into(), "entries");
    let after = blobs(&scenario.path().join("store"));
    again.expect(after != before, "storages that are no longer referenced are removed");
    scenario.run(&["captures", "check", "store"]).expect_exit(0);
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(0);
    let bytes = |path: &Path| std::fs::read(path).expect("a readable file");
    let restored = bytes(&scenario.path().join("out/op/entry_000000.pt"));
    assert!(
        restored == bytes(&data(OP).join("entry_000001.pt")),
        "the entry has the contents of the second file"
    );
}

#[test]
fn packed_store_takes_more_files() {
    let scenario = Scenario::create();
    scenario.copy_captures(&data("captures/torch_matmul"), "set/matmul");
    pack(&scenario, &scenario.path().join("set"), "store");
    add(&scenario, "entry_000000.pt", "entry_000000.pt", 0, &[]);
    let checked = scenario.run(&["captures", "check", "store", "--json"]).expect_exit(0);
    let expected = captures_below(&data("captures/torch_matmul")).len() + 1;
    checked.expect_equal(&checked.json()["entries"], &expected.into(), "entries");
}

#[test]
fn file_that_cannot_be_added_leaves_the_store_unchanged() {
    let scenario = Scenario::create();
    add(&scenario, "entry_000000.pt", "entry_000000.pt", 0, &[]);
    let before = tree(&scenario.path().join("store"));
    scenario.run(&["captures", "add", "store", "nowhere.pt"]).expect_exit(3);
    add(&scenario, "entry_000001.pt", "../outside.pt", 2, &[])
        .expect_stderr(&["is not a valid name of an entry"]);
    let after = tree(&scenario.path().join("store"));
    assert!(before == after, "no byte of the store changed");
}

#[test]
fn interrupted_addition_is_continued() {
    let scenario = Scenario::create();
    add(&scenario, "entry_000000.pt", "entry_000000.pt", 0, &[]);
    let store = scenario.path().join("store");
    // Recreate the state after a kill: the entry is in the journal, and the index is missing.
    let index = std::fs::read_to_string(store.join("captures.json")).expect("the index");
    let index: serde_json::Value = serde_json::from_str(&index).expect("the index is JSON");
    let entry = &index["entries"][0];
    let stamp = serde_json::json!({ "bytes": entry["bytes"], "modified": 0, "modified_ns": 0 });
    let line = serde_json::json!({ "stamp": stamp, "entry": entry });
    std::fs::create_dir(store.join("partial")).expect("the folder is created");
    std::fs::write(store.join("partial/journal"), format!("{}\n{line}\n", index["provenance"]))
        .expect("written");
    std::fs::write(store.join("partial/0.draft"), "half of a blob").expect("written");
    std::fs::remove_file(store.join("captures.json")).expect("removed");
    let added = add(&scenario, "entry_000001.pt", "entry_000001.pt", 0, &["--json"]);
    added.expect_equal(&added.json()["entries"], &2.into(), "entries");
    scenario.run(&["captures", "check", "store"]).expect_exit(0);
}
