//! Opens the entries of a task on a device, each as a group of its own. A fault ends the context of all entries in a
//! session, so every entry has a separate session.

use opt_shared::message::EntryRef;
use opt_shared::outcome::ReadReport;

use super::driver::Card;
use super::placed::OnDevice;
use crate::page_cache::EntryGuards;
use crate::recorded::{Recorded, RecordedError};
use crate::session::{Group, Groups, SessionError, Wanted};

pub(super) struct DeviceGroups<'b> {
    wanted: Wanted<'b>,
    card: Card,
    at: usize,
    /// Watches the pages that the current entry adds to the page cache.
    reading: Option<EntryGuards>,
    reads: ReadReport,
}

impl<'b> DeviceGroups<'b> {
    pub(super) fn new(wanted: Wanted<'b>, card: Card) -> Self {
        Self { wanted, card, at: 0, reading: None, reads: ReadReport::default() }
    }

    fn open(&mut self, entry: &EntryRef) -> Result<OnDevice, RecordedError> {
        let guards = EntryGuards::watch(std::slice::from_ref(entry), self.wanted.drop_cache);
        let guards = self.reading.insert(guards);
        let recorded = Recorded::open(entry, &self.wanted.callee.signature)?;
        guards.watch_data_of(&recorded);
        Ok(OnDevice::new(recorded, &self.card))
    }

    fn release(&mut self) {
        if let Some(guards) = self.reading.take() {
            self.reads.absorb(&guards.release());
        }
    }
}

impl Groups<OnDevice> for DeviceGroups<'_> {
    fn next(&mut self) -> Result<Option<Group<OnDevice>>, SessionError> {
        self.release();
        let (at, entries) = (self.at, self.wanted.entries);
        let Some(entry) = entries.get(at) else { return Ok(None) };
        self.at += 1;
        let placed = self.open(entry).map(|placed| vec![placed]).map_err(|error| (0, error.into()));
        Ok(Some(Group { range: at..at + 1, placed }))
    }

    fn give_back(&mut self, placed: Vec<OnDevice>) {
        drop(placed);
        self.release();
    }

    fn finish(mut self: Box<Self>) -> ReadReport {
        self.release();
        self.reads
    }
}
