//! Tests that `captures check` finds all damage to a store: a flipped bit in any byte, and every missing or superfluous
//! file.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use opt_shared::units::to_index;
use opt_supervisor::captures::check::{Checked, check};
use opt_tests::{Scenario, data};

use super::{blobs, pack, tree};

fn checked(store: &Path) -> Checked {
    check(store, |_| {}, &|_| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn small_store(scenario: &Scenario) -> std::path::PathBuf {
    let folder = data("captures/torch_matmul");
    std::fs::create_dir(scenario.path().join("set")).expect("the folder is created");
    // Use the smallest entry, because the duration of this test grows with the size of the store.
    std::fs::copy(folder.join("entry_000004.pt"), scenario.path().join("set/entry_000004.pt"))
        .expect("copied");
    pack(scenario, &scenario.path().join("set"), "store")
}

#[test]
fn flipped_bit_in_any_byte_is_found() {
    let scenario = Scenario::create();
    let store = small_store(&scenario);
    assert!(checked(&store).findings.is_empty());
    let files = tree(&store);
    assert!(files.len() > 4, "{:?}", files.keys());
    for (name, bytes) in files {
        let path = store.join(&name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("writable");
        for at in 0..bytes.len() {
            let bit = at % 8;
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            std::fs::write(&path, &flipped).expect("written");
            let found = checked(&store).findings;
            assert!(!found.is_empty(), "bit {bit} of byte {at} of {}", name.display());
        }
        std::fs::write(&path, &bytes).expect("written");
    }
    assert!(checked(&store).findings.is_empty());
}

#[test]
fn missing_and_superfluous_files_are_named() {
    let scenario = Scenario::create();
    let store = small_store(&scenario);
    let all = blobs(&store);
    let away = scenario.path().join("away");
    for path in &all {
        std::fs::rename(path, &away).expect("moved");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let found = checked(&store).findings;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&name) && found[0].contains("missing"), "{found:?}");
        assert!(found[0].contains("entry_000004.pt"), "{found:?}");
        std::fs::rename(&away, path).expect("moved back");
    }
    let unknown = blake3::hash(b"an unreferenced blob").to_hex().to_string();
    let cases = [
        (format!("blobs/{}/{unknown}", &unknown[..2]), "no entry needs it"),
        (format!("blobs/00/{unknown}"), "it is not a blob"),
        ("blobs/notes.txt".to_owned(), "it is not a blob"),
        ("entries/entry_9.pt".to_owned(), "it is not a file that the index names"),
        ("entries/below/entry_9.pt".to_owned(), "it is not a file that the index names"),
        ("notes.txt".to_owned(), "does not belong to a store"),
        ("partial/journal".to_owned(), "packing was interrupted"),
    ];
    for (name, what) in cases {
        scenario.write(&format!("store/{name}"), "an unreferenced blob");
        let found = checked(&store).findings;
        assert!(found.len() == 1 && found[0].contains(what), "{name}: {found:?}");
        std::fs::remove_file(store.join(&name)).expect("removed");
        let folder = store.join(&name).parent().expect("a folder").to_owned();
        // This removes only empty folders.
        let _ = std::fs::remove_dir(folder);
    }
    std::fs::rename(store.join("entries/entry_000004.pt"), &away).expect("moved");
    let found = checked(&store).findings;
    assert!(found.iter().any(|finding| finding.contains("opening the manifest")), "{found:?}");
    assert!(
        !found.iter().any(|finding| finding.contains("no entry needs it")),
        "an unread manifest: {found:?}"
    );
    let outcome = scenario.run(&["captures", "check", "store"]).expect_exit(1);
    outcome.expect_stdout(&["entries/entry_000004.pt", "damaged: 1 entry"]);
    std::fs::rename(&away, store.join("entries/entry_000004.pt")).expect("moved back");
    scenario.run(&["captures", "check", "store"]).expect_exit(0);
    scenario.run(&["captures", "check", "set"]).expect_exit(2).expect_stderr(&["is not a capture store"]);
}

/// A malicious store cannot make `unpack` write outside the target folder or reveal files outside the store.
#[test]
fn hostile_store_does_not_affect_files_outside_it() {
    let scenario = Scenario::create();
    let store = small_store(&scenario);
    let index = std::fs::read_to_string(store.join("captures.json")).expect("an index");
    let with_index = |text: &str| {
        std::fs::write(store.join("captures.json"), text).expect("written");
        let digest = blake3::hash(text.as_bytes()).to_hex();
        std::fs::write(store.join("captures.blake3"), format!("{digest}  captures.json\n")).expect("written");
    };
    for name in ["../escaped.pt", "/tmp/escaped.pt", "a/../../escaped.pt"] {
        with_index(&index.replace("entry_000004.pt", name));
        let refused = scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(1);
        refused.expect_stderr(&["is not a valid name of an entry"]);
    }
    with_index(&index);
    // Replace a blob with a link to a file of the same length. No command may read that file through the link.
    let blob = blobs(&store).remove(0);
    let secret = scenario.write("secret", vec![7; to_index(std::fs::metadata(&blob).expect("a blob").len())]);
    std::fs::remove_file(&blob).expect("removed");
    std::os::unix::fs::symlink(&secret, &blob).expect("linked");
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(1);
    scenario
        .run(&["inspect", "store/entries/entry_000004.pt"])
        .expect_exit(1)
        .expect_stderr(&["cannot be opened"]);
    scenario.run(&["captures", "check", "store"]).expect_exit(1).expect_stdout(&["it is not a blob"]);
    assert!(!scenario.path().join("out/entry_000004.pt").exists());
    assert!(!scenario.path().join("escaped.pt").exists());
}
