//! Kills `captures pack` fifty times. Every blob with its final name must be complete, and when packing is continued,
//! the store must equal one that was packed without interruption. Other tests cover the messages about unfinished
//! stores.

use std::path::Path;

use opt_tests::paths::files_below;
use opt_tests::storm::Chance;
use opt_tests::waiting::until;
use opt_tests::{Scenario, data};
use serde_json::Value;

use super::{captures_below, pack, tree};
use crate::report::browser::skipped;

const KILLS: u32 = 50;
/// The limit for the random number of new files that the test waits for before each kill.
const MAX_FILES: u64 = 40;

/// Asserts that two stores are equal except for the start time in the index and the index's digest.
fn assert_same_store(one: &Path, other: &Path) {
    let (mut one, mut other) = (tree(one), tree(other));
    let index = |files: &mut std::collections::BTreeMap<_, Vec<u8>>| {
        files.remove(Path::new("captures.blake3")).expect("a digest");
        let text = files.remove(Path::new("captures.json")).expect("an index");
        let mut index: Value = serde_json::from_slice(&text).expect("JSON");
        index["provenance"]["started"] = Value::Null;
        index
    };
    assert_eq!(index(&mut one), index(&mut other));
    assert!(one == other, "{:?} and {:?}", one.keys(), other.keys());
}

#[test]
fn interrupted_pack_continues_to_the_same_store() {
    let scenario = Scenario::create();
    let uninterrupted = pack(&scenario, &data(""), "whole");
    let source = data("");
    let arguments = ["captures", "pack", source.to_str().expect("UTF-8"), "store"];
    let store = scenario.path().join("store");
    let mut chance = Chance(20);
    let (mut kills, mut finished) = (0, 0);
    while kills < KILLS {
        // If the last kill came too late, the store is already complete, and `pack` refuses to pack it again.
        let was_whole = store.join("captures.json").exists();
        let target =
            files_below(&store).len() + usize::try_from(chance.below(MAX_FILES)).expect("the number fits");
        let mut child = scenario.command(&arguments).spawn().expect("started");
        let mut ended = None;
        until("the end, or enough files", || {
            ended = child.try_wait().expect("the child can be waited for");
            ended.is_some() || target <= files_below(&store).len()
        });
        child.kill().expect("killed or dead");
        child.wait().expect("reaped");
        // Every blob with its final name is complete. If the kill came very early, there are no blobs yet.
        let blobs = store.join("blobs");
        for (name, bytes) in if blobs.exists() { tree(&blobs) } else { Default::default() } {
            let digest = blake3::hash(&bytes).to_hex().to_string();
            assert_eq!(name.file_name().expect("a name").to_string_lossy(), digest);
        }
        match ended {
            None => kills += 1,
            Some(status) => {
                assert!(status.success() || was_whole, "{status}");
                assert_same_store(&uninterrupted, &store);
                std::fs::remove_dir_all(&store).expect("removed");
                finished += 1;
            }
        }
    }
    // Continue, unless the last kill came too late and the store is complete.
    if !store.join("captures.json").exists() || store.join("partial").exists() {
        scenario.run(&arguments).expect_exit(0);
    }
    assert_same_store(&uninterrupted, &store);
    println!("{kills} kills, {finished} stores finished in between");
}

#[test]
fn unfinished_store_is_reported_as_unfinished() {
    let scenario = Scenario::create();
    let folder = data("captures/torch_matmul");
    let store = pack(&scenario, &folder, "store");
    // Recreate the state before the last step of packing, which writes the index.
    let index: Value =
        serde_json::from_slice(&std::fs::read(store.join("captures.json")).expect("an index")).expect("JSON");
    std::fs::remove_file(store.join("captures.json")).expect("removed");
    let elsewhere = serde_json::json!({
        "tool": "t", "packed_by": "u@h", "started": "now", "source": index["provenance"]["source"],
    });
    scenario.write("store/partial/journal", format!("{elsewhere}\n{{\"torn"));
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(2).expect_stderr(&["is not finished"]);
    scenario.run(&["captures", "check", "store"]).expect_exit(1).expect_stdout(&["packing was interrupted"]);
    scenario.write("plan.toml", "[[job]]\ncaptures = \"store\"\nbaseline = \"k.c\"\n");
    scenario.write("k.c", "");
    scenario.run(&["check", "plan.toml"]).expect_exit(2).expect_stderr(&["not finished"]);
    let other =
        scenario.run(&["captures", "pack", data("demo").to_str().expect("UTF-8"), "store"]).expect_exit(2);
    other.expect_stderr(&["was begun from"]);
    let folder_text = folder.to_str().expect("UTF-8");
    scenario.run(&["captures", "pack", folder_text, "store"]).expect_exit(0);
    scenario.run(&["captures", "check", "store"]).expect_exit(0);
}

/// A capture that changed after an interrupted `pack` is packed again, and its old content is removed from the store.
#[test]
fn changed_capture_is_packed_again() {
    let scenario = Scenario::create();
    let set = scenario.copy_captures(&data("captures/torch_matmul"), "set");
    let arguments = ["captures", "pack", "set", "store"];
    let store = scenario.path().join("store");
    let mut child = scenario.command(&arguments).spawn().expect("started");
    until("the end, or a second entry", || {
        store.join("entries/entry_000001.pt").exists()
            || child.try_wait().expect("the child can be waited for").is_some()
    });
    child.kill().expect("killed or dead");
    child.wait().expect("reaped");
    if store.join("captures.json").exists() {
        skipped("a changed capture after an interrupted `pack`: it finished before it could be killed");
        return;
    }
    let other = data("captures/torch_matmul/entry_000007.pt");
    std::fs::copy(other, set.join("entry_000001.pt")).expect("changed");
    std::fs::remove_file(set.join("entry_000000.pt")).expect("removed");
    // Recreate the state after a kill between writing an entry and writing its line in the journal.
    std::fs::write(store.join("entries/entry_000000.pt"), "not in the journal").expect("written");
    scenario.run(&arguments).expect_exit(0);
    scenario.run(&["captures", "check", "store"]).expect_exit(0);
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(0);
    assert!(captures_below(&set) == captures_below(&scenario.path().join("out")));
}
