//! What a lease leaves in the page cache of its captures: looked at before anything is read, dropped after.
//!
//! Owns the guards of one entry, or of the entries that are timed together: one for each file, however many entries lie
//! in it. Whether a job is large enough to bother is the supervisor's affair; what a guard drops is `opt_shared::cache`'s.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use opt_shared::cache::CacheGuard;
use opt_shared::message::EntryRef;
use opt_shared::outcome::ReadReport;

use crate::recorded::Recorded;

pub(crate) struct EntryGuards {
    /// Keyed by device and inode of the file.
    guards: BTreeMap<(u64, u64), CacheGuard>,
    /// A large job: what it brings in goes again.
    drop: bool,
    /// The guards that came with the entry that was added last.
    newest: Vec<(u64, u64)>,
}

impl EntryGuards {
    pub(crate) fn watch(entries: &[EntryRef], drop: bool) -> Self {
        let mut guards = Self { guards: BTreeMap::new(), drop, newest: Vec::new() };
        // A file that cannot be opened is for whoever reads it to report.
        let files = entries.iter().filter_map(|entry| File::open(&entry.path).ok());
        files.for_each(|file| guards.guard(Arc::new(file)));
        guards
    }

    /// An entry of a capture store lies in other files than its own. To be called before anything of them is read.
    pub(crate) fn watch_data_of(&mut self, recorded: &Recorded) {
        if recorded.capture.is_packed() && self.drop {
            let files = recorded.capture.data_files().unwrap_or_default();
            files.into_iter().for_each(|file| self.guard(file));
        }
    }

    /// A file that is watched already may have been read since: what it had in the cache then stays what it had.
    fn guard(&mut self, file: Arc<File>) {
        let Ok(metadata) = file.metadata() else { return };
        let drop = self.drop;
        let name = (metadata.dev(), metadata.ino());
        if let Entry::Vacant(free) = self.guards.entry(name) {
            free.insert(CacheGuard::watch(file, drop));
            self.newest.push(name);
        }
    }

    pub(crate) fn watches(&self, path: &Path) -> bool {
        std::fs::metadata(path).is_ok_and(|file| self.guards.contains_key(&(file.dev(), file.ino())))
    }

    /// Watches one more entry: its own file. To be called before anything of it is read.
    pub(crate) fn add(&mut self, entry: &EntryRef) {
        self.newest.clear();
        if let Ok(file) = File::open(&entry.path) {
            self.guard(Arc::new(file));
        }
    }

    /// The entry that was added last is not called with the others: what it brought in goes, and it is not watched any more.
    pub(crate) fn forget_newest(&mut self) {
        let forgotten = self.newest.drain(..).filter_map(|name| self.guards.remove(&name)).collect();
        CacheGuard::release_all(forgotten);
    }

    /// Once nobody maps the files any more: pages that are mapped stay.
    pub(crate) fn release(self) -> ReadReport {
        let mut reads = ReadReport::default();
        for (before, after) in CacheGuard::release_all(self.guards.into_values().collect()) {
            reads.absorb(&ReadReport {
                cached_before_bytes: Some(before),
                cached_after_bytes: Some(after),
                ..ReadReport::default()
            });
        }
        reads
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use opt_shared::ids::EntryId;
    use opt_shared::numbers::EntryNumbers;
    use opt_shared::units::Bytes;

    use super::*;

    #[test]
    fn a_file_of_several_entries_is_watched_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("entry_000000.pt");
        let bytes = 1 << 20;
        File::create(&path).and_then(|mut file| file.write_all(&vec![7; bytes])).expect("written");
        let entry = |name: &str| EntryRef {
            id: EntryId(0),
            name: name.to_owned(),
            path: folder.path().join(name),
            identity: None,
            weight: 1,
            repeated: Vec::new(),
            numbers: EntryNumbers::default(),
        };
        std::fs::hard_link(&path, folder.path().join("entry_000001.pt")).expect("linked");
        let entries = [entry("entry_000000.pt"), entry("entry_000001.pt"), entry("entry_000000.pt")];
        let mut guards = EntryGuards::watch(&entries, false);
        guards.guard(Arc::new(File::open(&path).expect("open")));
        assert_eq!(guards.guards.len(), 1);
        assert!(guards.watches(&folder.path().join("entry_000001.pt")), "another name of it");
        assert!(!guards.watches(folder.path()));
        // What was just written is in the cache, and counts once. Older kernels tell nothing.
        if let Some(before) = guards.release().cached_before_bytes {
            assert!(before <= Bytes::from(bytes), "{before}");
        }
    }
}
