//! What a lease leaves in the page cache of its captures: looked at before anything is read, dropped after.
//!
//! Owns the guards of one entry, or of the entries that are timed together. Whether a job is large enough to bother is
//! the supervisor's affair; what a guard drops is `opt_shared::cache`'s.

use std::fs::File;
use std::sync::Arc;

use opt_shared::cache::CacheGuard;
use opt_shared::message::EntryRef;
use opt_shared::outcome::ReadReport;

use super::prepare::Prepared;

pub(crate) struct Residue {
    guards: Vec<CacheGuard>,
    /// A large job: what it brings in goes again.
    drop: bool,
}

impl Residue {
    pub(crate) fn watch(entries: &[EntryRef], drop: bool) -> Self {
        // A file that cannot be opened is for whoever reads it to report.
        let files = entries.iter().filter_map(|entry| File::open(&entry.path).ok());
        Self { guards: files.map(|file| CacheGuard::watch(Arc::new(file), drop)).collect(), drop }
    }

    /// An entry of a capture store lies in other files than its own.
    pub(crate) fn watch_data_of(&mut self, prepared: &Prepared) {
        if prepared.capture.is_packed() && self.drop {
            let files = prepared.capture.data_files().unwrap_or_default();
            self.guards.extend(files.into_iter().map(|file| CacheGuard::watch(file, true)));
        }
    }

    /// Once nobody maps the files any more: pages that are mapped stay.
    pub(crate) fn release(self) -> ReadReport {
        let mut reads = ReadReport::default();
        for (before, after) in self.guards.into_iter().filter_map(CacheGuard::release) {
            reads.absorb(&ReadReport {
                cached_before_bytes: Some(before),
                cached_after_bytes: Some(after),
                ..ReadReport::default()
            });
        }
        reads
    }
}
