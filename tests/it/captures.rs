//! Tests `captures pack | add | unpack | check`, and runs from a store: bytes and verdicts stay the same, and all
//! damage is found.

mod adding;
mod damage;
mod interrupted;
mod left_out;
mod runs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use opt_shared::capture::inspect::document;
use opt_tests::paths::files_below;
use opt_tests::{Scenario, data};

/// Returns the files below a folder, as relative paths with contents.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let named = |path: PathBuf| {
        let name = path.strip_prefix(folder).expect("below the folder").to_owned();
        (name, std::fs::read(&path).expect("a readable file"))
    };
    files_below(folder).into_iter().map(named).collect()
}

fn captures_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = tree(folder);
    files.retain(|name, _| name.extension().is_some_and(|extension| extension == "pt"));
    files
}

#[track_caller]
fn pack(scenario: &Scenario, folder: &Path, store: &str) -> PathBuf {
    let folder = folder.to_str().expect("UTF-8");
    scenario.run(&["captures", "pack", folder, store]).expect_exit(0);
    scenario.path().join(store)
}

/// The blobs of a store, sorted by name.
fn blobs(store: &Path) -> Vec<PathBuf> {
    tree(&store.join("blobs")).into_keys().map(|name| store.join("blobs").join(name)).collect()
}

#[test]
fn every_fixture_is_unpacked_unchanged() {
    let scenario = Scenario::create();
    let store = pack(&scenario, &data(""), "store");
    let outcome = scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(0);
    let (before, after) = (captures_below(&data("")), tree(&scenario.path().join("out")));
    outcome.expect(100 < before.len(), "there are more than 100 fixtures");
    outcome.expect(before == after, "exactly the same files, byte for byte");
    let checked = scenario.run(&["captures", "check", "store", "--json"]).expect_exit(0);
    checked.expect_equal(&checked.json()["entries"], &before.len().into(), "entries");
    checked.expect_equal(checked.json()["findings"].as_array().map(Vec::len), Some(0), "findings");
    // The name of each blob is the hash of its contents, so no two blobs are equal.
    for path in blobs(&store) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("a readable blob");
        assert_eq!(blake3::hash(&bytes).to_hex().as_str(), name);
    }
}

/// Reading a packed capture gives the same values, digests and errors as reading the original file.
#[test]
fn packed_capture_is_read_like_the_original_file() {
    let scenario = Scenario::create();
    let store = pack(&scenario, &data(""), "store");
    for name in captures_below(&data("")).keys() {
        let (file, packed) = (data("").join(name), store.join("entries").join(name));
        let mut documents = [document(&file, true), document(&packed, true)];
        for document in &mut documents {
            // Remove the path, the only field that must differ.
            document.as_object_mut().expect("an object").retain(|key, _| key != "path");
        }
        let text = documents.map(|document| {
            let text = serde_json::to_string_pretty(&document).expect("JSON");
            let below = [data("").join(name), store.join("entries").join(name)];
            below.iter().fold(text, |text, path| text.replace(&*path.to_string_lossy(), "FILE"))
        });
        assert_eq!(text[0], text[1], "{}", name.display());
    }
}

#[test]
fn store_has_every_storage_once() {
    let scenario = Scenario::create();
    let folder = data("captures/torch_nn_functional_embedding");
    let copies = scenario.copy_captures(&folder, "set");
    for entry in captures_below(&folder).keys() {
        std::fs::copy(folder.join(entry), copies.join(format!("again_{}", entry.display()))).expect("copied");
    }
    let single = pack(&scenario, &folder, "single");
    let double = pack(&scenario, &copies, "double");
    assert_eq!(tree(&single.join("blobs")), tree(&double.join("blobs")));
}

#[test]
fn existing_files_are_not_overwritten() {
    let scenario = Scenario::create();
    let folder = data("captures/torch_matmul");
    let folder = folder.to_str().expect("UTF-8");
    let store = pack(&scenario, Path::new(folder), "store");
    let before = tree(&store);
    let again = scenario.run(&["captures", "pack", folder, "store"]).expect_exit(2);
    again.expect_stderr(&["is a finished store"]);
    scenario.write("full/file", "mine");
    scenario.run(&["captures", "pack", folder, "full"]).expect_exit(2).expect_stderr(&["is not empty"]);
    scenario
        .run(&["captures", "pack", "store", "other"])
        .expect_exit(2)
        .expect_stderr(&["already a capture store"]);
    let set = scenario.copy_captures(Path::new(folder), "set");
    let inside = scenario.run(&["captures", "pack", "set", "set/store"]).expect_exit(2);
    inside.expect_stderr(&["inside the folder"]);
    let deep = scenario.run(&["captures", "pack", "set", "other/../set/a/b"]).expect_exit(2);
    deep.expect_stderr(&["inside the folder"]);
    std::os::unix::fs::symlink("set", scenario.path().join("link")).expect("a link");
    for target in ["link/a", "nowhere/../link/a", "nowhere/../link/a/../b"] {
        let linked = scenario.run(&["captures", "pack", "link", target]).expect_exit(2);
        linked.expect_stderr(&["inside the folder"]);
    }
    let files_left: Vec<_> =
        [set.join("store"), set.join("a"), set.join("b"), scenario.path().join("nowhere")]
            .into_iter()
            .filter(|it| it.exists())
            .collect();
    inside.expect_equal(files_left, Vec::new(), "a refused command leaves no files behind");
    assert!(set.is_dir());
    // If the file already exists, an identical one is accepted, and a different one is refused.
    scenario.run(&["captures", "unpack", "store", "out", "--entry", "entry_000003"]).expect_exit(0);
    assert_eq!(tree(&scenario.path().join("out")).len(), 1);
    let rest = scenario.run(&["captures", "unpack", "store", "out", "--json"]).expect_exit(0);
    rest.expect_equal(&rest.json()["found"], &1.into(), "files that existed already");
    scenario.write("out/entry_000001.pt", "mine");
    let refused = scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(2);
    refused.expect_stderr(&["entry_000001.pt exists with different content"]);
    let missing = scenario.run(&["captures", "unpack", "store", "out", "--entry", "entry_9"]).expect_exit(2);
    missing.expect_stderr(&["no entry `entry_9`"]);
    assert_eq!(tree(&store), before);
}

#[test]
fn store_is_inspected_like_a_folder() {
    let scenario = Scenario::create();
    let folder = data("captures/torch_matmul");
    pack(&scenario, &folder, "store");
    let of_files = scenario.run(&["inspect", "--json", folder.to_str().expect("UTF-8")]).expect_exit(0);
    let of_store = scenario.run(&["inspect", "--json", "store"]).expect_exit(0);
    of_store.expect_equal(of_store.json(), of_files.json(), "signature classes");
}
