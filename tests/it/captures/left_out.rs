//! Tests that one bad file does not stop a command that reads many files: the command names the bad file, processes the
//! others, and ends with exit code 1. Other tests check that no command follows links or blocks on a FIFO in a store.

use std::os::unix::fs::symlink;
use std::path::Path;

use opt_tests::{Scenario, data};
use rustix::fs::{CWD, Mode, mkfifoat};

use super::{pack, tree};

fn fifo(path: &Path) {
    mkfifoat(CWD, path, Mode::RWXU).expect("a FIFO");
}

/// Creates a folder with captures and three other files. Returns the folder and the names of these three files.
fn mixed_set(scenario: &Scenario) -> (std::path::PathBuf, [&'static str; 3]) {
    let set = scenario.copy_captures(&data("captures/torch_matmul"), "set");
    fifo(&set.join("fifo.pt"));
    symlink("nowhere", set.join("lost.pt")).expect("a link");
    std::fs::write(set.join("text.pt"), "no capture").expect("written");
    (set, ["fifo.pt", "lost.pt", "text.pt"])
}

#[test]
fn pack_names_what_it_leaves_out() {
    let scenario = Scenario::create();
    let (set, _) = mixed_set(&scenario);
    let deep = (0..16).fold(set.clone(), |folder, level| folder.join(format!("level{level}")));
    std::fs::create_dir_all(&deep).expect("the folder is created");
    std::fs::copy(set.join("entry_000000.pt"), deep.join("deep.pt")).expect("copied");
    symlink(data("captures/torch_matmul"), set.join("elsewhere")).expect("a link");
    std::fs::copy(set.join("entry_000000.pt"), set.join("two\nlines.pt")).expect("copied");
    let packed = scenario.run(&["captures", "pack", "set", "store", "--json"]).expect_exit(1);
    packed.expect_stderr(&[
        "left out: ",
        "fifo.pt: it is not a regular file",
        "lost.pt: its metadata cannot be read",
    ]);
    packed.expect_stderr(&["elsewhere: it is a link to a folder", "level15: it is 16 folders deep"]);
    packed.expect_stderr(&["its name is not allowed in a store"]);
    packed.expect_equal(packed.json()["left_out"].as_array().map(Vec::len), Some(5), "files left out");
    // The store keeps a file that is not a capture unchanged.
    packed.expect_equal(packed.json()["kept_whole"].as_array().map(Vec::len), Some(1), "files kept whole");
    scenario.run(&["captures", "check", "store"]).expect_exit(0);
    scenario
        .run(&["captures", "pack", deep.parent().and_then(Path::to_str).expect("UTF-8"), "other"])
        .expect_exit(0);
}

#[test]
fn init_and_inspect_continue_after_a_bad_file() {
    let scenario = Scenario::create();
    let (_, bad) = mixed_set(&scenario);
    let made = scenario.run(&["init", "set", "-o", "plan.toml"]).expect_exit(1);
    made.expect_stderr(&bad);
    made.expect_stdout(&["wrote plan.toml"]);
    let seen = scenario.run(&["inspect", "set", "--json"]).expect_exit(1);
    seen.expect_equal(seen.json()["unreadable"].as_array().map(Vec::len), Some(bad.len()), "bad files");
    std::fs::create_dir(scenario.path().join("bad")).expect("the folder is created");
    std::fs::write(scenario.path().join("bad/entry_0.pt"), "no capture").expect("written");
    scenario.run(&["init", "bad", "-o", "other.toml"]).expect_exit(2).expect_stderr(&["can be read"]);
}

#[test]
fn unpack_continues_after_a_damaged_entry() {
    let scenario = Scenario::create();
    let store = pack(&scenario, &data("captures/torch_matmul"), "store");
    let file_count = tree(&data("captures/torch_matmul")).len();
    std::fs::write(store.join("entries/entry_000001.pt"), "damaged").expect("written");
    let unpacked = scenario.run(&["captures", "unpack", "store", "out", "--json"]).expect_exit(1);
    unpacked.expect_stderr(&["not unpacked: entry_000001.pt: "]);
    unpacked.expect_equal(&unpacked.json()["written"], &(file_count - 1).into(), "files written");
    unpacked.expect_equal(tree(&scenario.path().join("out")).len(), file_count - 1, "files");
}

/// Nothing is written through a link, even if there is one at the path of a file or folder that `unpack` writes.
#[test]
fn unpack_follows_no_link() {
    let scenario = Scenario::create();
    let set = scenario.copy_captures(&data("captures/torch_matmul"), "set/op");
    pack(&scenario, set.parent().expect("a folder"), "store");
    std::fs::create_dir_all(scenario.path().join("out/op")).expect("the folder is created");
    let victim = scenario.write("victim", "mine");
    symlink(&victim, scenario.path().join("out/op/entry_000000.pt.part")).expect("a link");
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(0);
    assert_eq!(std::fs::read(&victim).expect("the file exists"), b"mine");
    std::fs::create_dir_all(scenario.path().join("away")).expect("the folder is created");
    std::fs::create_dir_all(scenario.path().join("linked")).expect("the folder is created");
    symlink(scenario.path().join("away"), scenario.path().join("linked/op")).expect("a link");
    scenario
        .run(&["captures", "unpack", "store", "linked"])
        .expect_exit(2)
        .expect_stderr(&["is a symbolic link"]);
    assert!(tree(&scenario.path().join("away")).is_empty());
}

/// Commands that read a store do not block on a FIFO and do not follow a link.
#[test]
fn fifos_and_links_in_a_store_are_refused() {
    let scenario = Scenario::create();
    let store = pack(&scenario, &data("captures/torch_matmul"), "store");
    let entry = store.join("entries/entry_000000.pt");
    let manifest = scenario.path().join("manifest");
    std::fs::rename(&entry, &manifest).expect("moved");
    symlink(&manifest, &entry).expect("a link");
    let entry_text = entry.to_str().expect("UTF-8");
    scenario
        .run(&["inspect", entry_text])
        .expect_exit(1)
        .expect_stderr(&["is a link, which a store must not contain"]);
    scenario.run(&["captures", "check", "store"]).expect_exit(1).expect_stdout(&["entry_000000.pt: "]);
    std::fs::remove_file(&entry).expect("removed");
    fifo(&entry);
    scenario
        .run(&["captures", "unpack", "store", "out"])
        .expect_exit(1)
        .expect_stderr(&["not a regular file"]);
    for file in ["captures.json", "captures.blake3"] {
        let path = store.join(file);
        let contents = std::fs::read(&path).expect("the file exists");
        std::fs::remove_file(&path).expect("removed");
        fifo(&path);
        let refused = scenario.run(&["captures", "unpack", "store", "out"]);
        refused.expect(matches!(refused.code, Some(1 | 2)), "it is refused");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, contents).expect("written");
    }
    std::fs::create_dir_all(scenario.path().join("begun/partial")).expect("the folder is created");
    std::fs::create_dir_all(scenario.path().join("begun/entries")).expect("the folder is created");
    fifo(&scenario.path().join("begun/partial/journal"));
    let set = data("captures/torch_matmul");
    let refused = scenario.run(&["captures", "pack", set.to_str().expect("UTF-8"), "begun"]).expect_exit(3);
    refused.expect_stderr(&["not a regular file"]);
}

/// A file name has at most 255 bytes. This name is so long that `unpack` cannot name its unfinished file by adding to
/// it.
#[test]
fn unpack_restores_a_file_with_the_longest_name() {
    let scenario = Scenario::create();
    let set = scenario.copy_captures(&data("captures/torch_matmul"), "set");
    let name = format!("{}.pt", "n".repeat(252));
    std::fs::rename(set.join("entry_000000.pt"), set.join(&name)).expect("renamed");
    pack(&scenario, &set, "store");
    scenario.run(&["captures", "unpack", "store", "out"]).expect_exit(0);
    assert_eq!(tree(&scenario.path().join("out")), tree(&set));
}
