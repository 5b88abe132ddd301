//! An entry that is open: its metadata read, its inputs found and looked at, reading ahead of the candidate begun.
//!
//! The next entry is opened by a thread while the current one is called, so that neither the disk nor the candidate
//! waits for the other. What must not be there twice is left for the entry's own turn: values that are written out
//! cost memory, and files that entries of a store have in common are watched for what the current one brings in.

use opt_shared::message::{EntryRef, VerifyTask};

use crate::executor::prepare::{PrepareError, Prepared};
use crate::executor::read_ahead::{Expected, ReadAhead, Watch};
use crate::executor::residue::Residue;

pub(super) struct Opened {
    pub(super) name: String,
    pub(super) ready: Result<Ready, PrepareError>,
    /// Watched since before anything of it was read.
    pub(super) residue: Residue,
}

pub(super) struct Ready {
    pub(super) prepared: Prepared,
    pub(super) watch: Watch,
    /// How the runner is to map its inputs.
    pub(super) page_by_page: bool,
}

impl Opened {
    pub(super) fn open(task: &VerifyTask, entry: &EntryRef, expected: Expected) -> Self {
        let mut residue = Residue::watch(std::slice::from_ref(entry), task.drop_cache);
        let ready = Prepared::open(entry, &task.callee.signature).map(|prepared| {
            residue.watch_data_of(&prepared);
            Ready::of(prepared, expected)
        });
        Self { name: entry.name.clone(), ready, residue }
    }

    /// Whether another entry can be opened while this one is called: one of the same file would take what this one brings
    /// into the cache for what was there, and all entries of a store have files in common.
    pub(super) fn may_be_beside(&self, other: &EntryRef) -> bool {
        let packed = self.ready.as_ref().is_ok_and(|ready| ready.prepared.capture.is_packed());
        !packed && !self.residue.watches(&other.path)
    }

    /// None if it has to be opened in its turn: then whatever is wrong with it is found as well.
    pub(super) fn ahead(task: &VerifyTask, entry: &EntryRef, expected: Expected) -> Option<Self> {
        let residue = Residue::watch(std::slice::from_ref(entry), task.drop_cache);
        let prepared = Prepared::open_in_place(entry, &task.callee.signature).ok().flatten()?;
        Some(Self { name: entry.name.clone(), ready: Ok(Ready::of(prepared, expected)), residue })
    }
}

impl Ready {
    fn of(prepared: Prepared, expected: Expected) -> Self {
        let read_ahead = ReadAhead::of(&prepared);
        read_ahead.read_exactly();
        let page_by_page = read_ahead.page_by_page();
        Self { watch: read_ahead.start_expecting(expected), page_by_page, prepared }
    }
}
