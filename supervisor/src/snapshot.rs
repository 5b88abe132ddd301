//! Compares texts and screens with reviewed copies in files, for tests. If a text has changed, the test fails and
//! writes the new text beside the copy.

use std::path::Path;

/// Compares each text with `FOLDER/NAME.txt`. If a text differs, it is written to `NAME.txt.new`, and if the new text
/// is right, it should be moved over the old file.
pub(crate) fn assert_snapshot(folder: &Path, texts: &[(&str, String)]) {
    let mut wrong = String::new();
    for (name, seen) in texts {
        let snapshot = folder.join(format!("{name}.txt"));
        if std::fs::read_to_string(&snapshot).unwrap_or_default() != *seen {
            let new = snapshot.with_extension("txt.new");
            std::fs::write(&new, seen).expect("written");
            wrong.push_str(&format!("{} replaces {name}.txt if it is right:\n{seen}\n", new.display()));
        }
    }
    assert!(wrong.is_empty(), "texts have changed\n{wrong}");
}

/// Returns the folder of the snapshots of messages, with one file for each kind of message.
pub(crate) fn messages_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/messages")
}
