//! Records which pages of captures are in the page cache before a lease reads them. For a large job, also drops the
//! pages that the lease has added to the cache.
//!
//! Owns the guards of one entry, or of several entries that are opened together. There is one guard for each file, even
//! if several entries are in this file. The supervisor decides whether a job is so large that pages are dropped, and
//! `opt_shared::cache` decides which pages a guard drops.

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
    /// The guards, by the device and inode of the file that each one watches.
    guards: BTreeMap<(u64, u64), CacheGuard>,
    /// True if guards drop the pages that were added to the cache.
    drop: bool,
    /// The files whose guards were created by the last call of `add` or after it; before the first call, all files.
    newest: Vec<(u64, u64)>,
}

impl EntryGuards {
    /// Creates the guards of these entries. Call this before any of their files is read.
    pub(crate) fn watch(entries: &[EntryRef], drop: bool) -> Self {
        let mut guards = Self { guards: BTreeMap::new(), drop, newest: Vec::new() };
        // An entry that cannot be opened is reported when it is read.
        let files = entries.iter().filter_map(|entry| File::open(&entry.path).ok());
        files.for_each(|file| guards.guard(Arc::new(file)));
        guards
    }

    /// Watches the data files of an entry in a capture store, if their pages are to be dropped. Call this before any of
    /// these files is read.
    pub(crate) fn watch_data_of(&mut self, recorded: &Recorded) {
        if recorded.capture.is_packed() && self.drop {
            let files = recorded.capture.data_files().unwrap_or_default();
            files.into_iter().for_each(|file| self.guard(file));
        }
    }

    /// Adds a guard. If the file is already watched, the first observation is kept, because the file may have been read
    /// since.
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

    /// Returns true if this file is watched, and was wholly cached when its guard was created.
    pub(crate) fn found_cached(&self, file: &File) -> bool {
        let guard = file.metadata().ok().and_then(|file| self.guards.get(&(file.dev(), file.ino())));
        guard.is_some_and(CacheGuard::found_cached)
    }

    /// Watches the file of one more entry. Call this before any part of the file is read.
    pub(crate) fn add(&mut self, entry: &EntryRef) {
        self.newest.clear();
        if let Ok(file) = File::open(&entry.path) {
            self.guard(Arc::new(file));
        }
    }

    /// Ends the guards of the entry that was added last. This is for an entry that is not called together with the
    /// others.
    pub(crate) fn forget_newest(&mut self) {
        let forgotten = self.newest.drain(..).filter_map(|name| self.guards.remove(&name)).collect();
        CacheGuard::release_all(forgotten);
    }

    /// Ends all guards. Call this when no process maps the files any more, because mapped pages stay in the cache.
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
    fn file_of_several_entries_is_watched_once() {
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
        assert!(guards.watches(&folder.path().join("entry_000001.pt")), "another name of the same file");
        assert!(!guards.watches(folder.path()));
        // A file that was just written is in the cache, and must be counted only once. Linux before 6.5 does not report
        // cached pages.
        if let Some(before) = guards.release().cached_before_bytes {
            assert!(before <= Bytes::from(bytes), "{before}");
        }
    }
}
