//! Opens the entries of a task in order, and decides which of them share a runner and which are opened ahead of their
//! turn.
//!
//! In a verification, while the candidate is called with one group, a thread opens the entries of the next one, so that
//! disk and candidate work at the same time. Another thread releases the cache guards of the previous group's files.
//! For a large job, this drops the pages that the group left in the page cache.
//!
//! Two kinds of groups are opened only in their turn: those whose first entry has materialised values, and those that
//! share a file with the current group (as all entries of a store do), because that file is watched for pages that the
//! current group adds. In a profile, every group is opened in its turn.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use opt_shared::arguments::Signature;
use opt_shared::causes::is_shortage;
use opt_shared::formula::runner_groups;
use opt_shared::message::EntryRef;
use opt_shared::outcome::ReadReport;
use opt_shared::settings::InputMemory;

use super::copied::{CopiedInputs, Uncopied};
use super::placed::{Learned, Placed};
use super::read_ahead::{Expected, ReadAhead, Turn, Whole};
use crate::link::Link;
use crate::page_cache::EntryGuards;
use crate::recorded::{Recorded, RecordedError};
use crate::session::{Group, Groups, SessionError, Sharing, Wanted};

/// The descriptors that are reserved for an entry: for its own file and its tensors' files in a store, each once for
/// reading and once for watching. A group and its two neighbours may be open at the same time.
const DESCRIPTORS_PER_ENTRY: u64 = 32;

fn within_descriptors(groups: Vec<Range<usize>>, open_files: u64) -> Vec<Range<usize>> {
    let max_entries = usize::try_from(open_files / DESCRIPTORS_PER_ENTRY).unwrap_or(usize::MAX).max(1);
    let cut = |group: Range<usize>| {
        let end = group.end;
        group.step_by(max_entries).map(move |at| at..end.min(at.saturating_add(max_entries)))
    };
    groups.into_iter().flat_map(cut).collect()
}

fn open_files() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// In a verification, the next group is opened while the candidate is called with the current one.
pub(super) struct HostGroups<'b> {
    link: &'b Link,
    candidate: String,
    entries: Arc<[EntryRef]>,
    signature: Arc<Signature>,
    drop_cache: bool,
    /// The ranges of entries that may share a runner.
    ranges: Vec<Range<usize>>,
    /// The first entry that has not been returned yet.
    at: usize,
    /// Copies of the inputs, if candidates are timed with copied inputs (`InputMemory::Copied`).
    copied: Option<CopiedInputs>,
    /// True if candidates are called while inputs are read. The page cache is then watched.
    watched: bool,
    ahead: Option<JoinHandle<Option<Opened>>>,
    /// The guards of the captures of the current group.
    reading: Option<EntryGuards>,
    /// The guards of the previous group, whose runner is dead. In a verification, they are released while the candidate
    /// is called with the current group.
    previous: Option<EntryGuards>,
    /// The thread that releases the guards of an earlier group.
    releasing: Option<JoinHandle<ReadReport>>,
    /// Those inputs of the last entry that were read in full.
    whole: Whole,
    reads: ReadReport,
}

/// A group whose inputs are located. In a verification, reading ahead of the candidate has begun.
struct Opened {
    range: Range<usize>,
    placed: Result<Vec<Placed>, (usize, RecordedError)>,
    /// The guards, created before anything was read.
    guards: EntryGuards,
    /// The signal that the disk has nothing left to read for these entries.
    turn: Option<Turn>,
}

#[derive(Clone)]
struct Opener {
    entries: Arc<[EntryRef]>,
    signature: Arc<Signature>,
    drop_cache: bool,
    watched: bool,
}

struct OpenEntry {
    placed: Placed,
    ahead: Option<ReadAhead>,
}

impl Opener {
    /// Opens as many entries from the start of the range as can share a runner.
    ///
    /// An entry whose reads must be watched gets its own runner: the pages that enter the cache show what the candidate
    /// touches, and the previous entry predicts which inputs it will read in full. In a verification, an entry that
    /// cannot be opened gets its own group too. In a profile, it makes its group fail, and no entry of that group is
    /// called.
    fn open(&self, range: Range<usize>, expected: Expected) -> Opened {
        let first = &self.entries[range.start];
        let mut guards = EntryGuards::watch(std::slice::from_ref(first), self.drop_cache);
        let opened = match self.open_entry(first, &mut guards) {
            Ok(opened) => opened,
            Err(error) => {
                let range = range.start..range.start + 1;
                return Opened { range, placed: Err((0, error)), guards, turn: None };
            }
        };
        self.open_others(range, opened, guards, expected)
    }

    /// Opens a group before its turn. Returns `None` if its first entry must be opened in its turn, or if opening that
    /// entry fails. The error is then reported in its turn.
    fn open_ahead(&self, range: Range<usize>, expected: Expected) -> Option<Opened> {
        let first = &self.entries[range.start];
        let guards = EntryGuards::watch(std::slice::from_ref(first), self.drop_cache);
        let recorded = Recorded::open(first, &self.signature).ok().filter(Recorded::is_in_place)?;
        let opened = self.examine(Placed::in_files(recorded).ok()?, &guards);
        Some(self.open_others(range, opened, guards, expected))
    }

    fn open_others(
        &self,
        range: Range<usize>,
        first: OpenEntry,
        mut guards: EntryGuards,
        expected: Expected,
    ) -> Opened {
        let mut all = vec![first];
        // Entries that are timed together are not watched, so they stay together.
        for at in range.start + 1..range.end {
            if all.last().is_some_and(OpenEntry::is_watched) {
                break;
            }
            let entry = &self.entries[at];
            guards.add(entry);
            match self.open_entry(entry, &mut guards) {
                Ok(opened) if !opened.is_watched() => all.push(opened),
                Err(error) if !self.watched => {
                    return Opened {
                        range: range.clone(),
                        placed: Err((at - range.start, error)),
                        guards,
                        turn: None,
                    };
                }
                Ok(_) | Err(_) => {
                    guards.forget_newest();
                    break;
                }
            }
        }
        let range = range.start..range.start + all.len();
        let (mut expected, mut turn) = (Some(expected), None);
        let placed = all.into_iter().map(|OpenEntry { mut placed, ahead }| {
            if let Some(ahead) = ahead {
                placed.page_by_page = ahead.page_by_page();
                let mut watch = ahead.start_expecting(expected.take().unwrap_or_default());
                turn = watch.take_turn().or(turn.take());
                placed.set_watch(watch);
            }
            placed
        });
        let placed = Ok(placed.collect());
        Opened { range, placed, guards, turn }
    }

    fn open_entry(&self, entry: &EntryRef, guards: &mut EntryGuards) -> Result<OpenEntry, RecordedError> {
        let recorded = Recorded::open(entry, &self.signature)?;
        guards.watch_data_of(&recorded);
        Ok(self.examine(Placed::in_files(recorded)?, guards))
    }

    fn examine(&self, placed: Placed, guards: &EntryGuards) -> OpenEntry {
        let ahead = self.watched.then(|| ReadAhead::of(&placed, |file| guards.found_cached(file)));
        OpenEntry { placed, ahead }
    }
}

impl OpenEntry {
    fn is_watched(&self) -> bool {
        self.ahead.as_ref().is_some_and(ReadAhead::page_by_page)
    }
}

impl<'b> HostGroups<'b> {
    pub(super) fn new(link: &'b Link, wanted: &Wanted<'b>) -> Result<Self, SessionError> {
        let candidate = wanted.callee.candidate.clone();
        let (ranges, inputs) = match wanted.sharing {
            Sharing::UpTo { cap } => {
                let groups = runner_groups(wanted.entries.iter().map(|entry| &entry.numbers), cap);
                (within_descriptors(groups, open_files()), InputMemory::Mapped)
            }
            Sharing::Batches { batches, inputs } => (batches.to_vec(), inputs),
        };
        let copied = match inputs {
            InputMemory::Mapped => None,
            InputMemory::Copied => {
                let made = CopiedInputs::create(ranges.iter().map(|range| &wanted.entries[range.clone()]));
                Some(made.map_err(|error| SessionError::Inputs {
                    candidate: candidate.clone(),
                    source: error.into(),
                })?)
            }
        };
        let mut groups = Self {
            link,
            candidate,
            entries: wanted.entries.into(),
            signature: Arc::new(wanted.callee.signature.clone()),
            drop_cache: wanted.drop_cache,
            ranges,
            at: 0,
            copied,
            watched: matches!(wanted.sharing, Sharing::UpTo { .. }),
            ahead: None,
            reading: None,
            previous: None,
            releasing: None,
            whole: Whole::default(),
            reads: ReadReport::default(),
        };
        if let Some(first) = groups.next_range().filter(|_| groups.watched) {
            // This group's turn has come, so there is no second attempt, and an error is kept.
            groups.open_on_thread(|opener| Some(opener.open(first, Expected::default())));
        }
        Ok(groups)
    }

    /// Returns the rest of the range that contains the next entry.
    fn next_range(&self) -> Option<Range<usize>> {
        let range = self.ranges.iter().find(|range| self.at < range.end)?;
        Some(range.start.max(self.at)..range.end)
    }

    fn opener(&self) -> Opener {
        Opener {
            entries: Arc::clone(&self.entries),
            signature: Arc::clone(&self.signature),
            drop_cache: self.drop_cache,
            watched: self.watched,
        }
    }

    /// Opens a group on a thread. If no thread can be started, the group is opened in its turn.
    fn open_on_thread(&mut self, open: impl FnOnce(Opener) -> Option<Opened> + Send + 'static) {
        let opener = self.opener();
        let thread = std::thread::Builder::new().name("opener".to_owned());
        self.ahead = thread.spawn(move || open(opener)).ok();
    }

    /// Starts to open the next group, while the candidate is called with this one.
    fn open_next(&mut self, opened: &mut Opened) {
        let Some(next) = self.next_range().filter(|_| self.watched) else { return };
        let Ok(placed) = &opened.placed else { return };
        // All entries of a store share files. If the next entry were opened now, pages that the current one adds would
        // look as if they had been in the cache before.
        let packed = placed.iter().any(|entry| entry.as_ref().capture.is_packed());
        let same_file = self.entries[next.clone()].iter().any(|entry| opened.guards.watches(&entry.path));
        if packed || same_file {
            return;
        }
        let expected = Expected { whole: self.whole.clone(), turn: opened.turn.take() };
        self.open_on_thread(|opener| opener.open_ahead(next, expected));
    }

    fn release_in_the_background(&mut self) {
        self.await_release();
        let Some(guards) = self.previous.take() else { return };
        let thread = std::thread::Builder::new().name("release".to_owned());
        // If no thread can be started, the guards are dropped here. They then drop the pages, but report nothing.
        self.releasing = thread.spawn(move || guards.release()).ok();
    }

    fn release(&mut self) {
        if let Some(guards) = self.previous.take() {
            self.reads.absorb(&guards.release());
        }
    }

    fn await_release(&mut self) {
        if let Some(released) = self.releasing.take().and_then(|thread| thread.join().ok()) {
            self.reads.absorb(&released);
        }
    }

    fn copy(
        &mut self,
        placed: &mut [Placed],
    ) -> Result<Option<(usize, crate::session::InputFault)>, SessionError> {
        let Some(copied) = &mut self.copied else { return Ok(None) };
        match copied.load(self.link, placed) {
            Ok(()) => Ok(None),
            Err(Uncopied { entry: Some(at), error }) if !is_shortage(&error) => Ok(Some((at, error.into()))),
            Err(Uncopied { error, .. }) => {
                Err(SessionError::Inputs { candidate: self.candidate.clone(), source: error.into() })
            }
        }
    }
}

impl Groups<Placed> for HostGroups<'_> {
    fn next(&mut self) -> Result<Option<Group<Placed>>, SessionError> {
        let Some(range) = self.next_range() else { return Ok(None) };
        // A thread that panicked has opened nothing.
        let ahead = self.ahead.take().and_then(|thread| thread.join().ok().flatten());
        let mut opened = match ahead {
            Some(opened) => opened,
            None => {
                let expected = Expected { whole: self.whole.clone(), turn: None };
                self.opener().open(range, expected)
            }
        };
        self.at = opened.range.end;
        self.release_in_the_background();
        self.open_next(&mut opened);
        let Opened { range, placed, guards, .. } = opened;
        self.reading = Some(guards);
        let placed = match placed {
            Ok(mut placed) => match self.copy(&mut placed)? {
                None => Ok(placed),
                Some(fault) => Err(fault),
            },
            Err((at, error)) => Err((at, error.into())),
        };
        Ok(Some(Group { range, placed }))
    }

    fn give_back(&mut self, placed: Vec<Placed>) {
        let mut whole = Whole::default();
        for entry in placed {
            let Learned { reads, whole: seen } = entry.learned();
            self.reads.absorb(&reads);
            whole = seen;
        }
        self.whole = whole;
        self.previous = self.reading.take();
        // No thread of this process may work while candidates are timed.
        if !self.watched {
            self.release();
        }
    }

    fn finish(mut self: Box<Self>) -> ReadReport {
        self.await_release();
        // The disk may still be reading for a group that was opened ahead.
        if let Some(Opened { placed, guards, .. }) = self.ahead.take().and_then(|it| it.join().ok().flatten())
        {
            drop(placed);
            self.reads.absorb(&guards.release());
        }
        self.release();
        self.previous = self.reading.take();
        self.release();
        self.reads
    }
}

impl Drop for HostGroups<'_> {
    /// Waits for the threads: none may outlive its lease, even after an error.
    fn drop(&mut self) {
        self.await_release();
        drop(self.ahead.take().map(JoinHandle::join));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_split_at_the_open_file_limit() {
        let groups = || vec![0..5, 5..6, 6..70];
        assert_eq!(within_descriptors(groups(), u64::MAX), groups());
        assert_eq!(within_descriptors(groups(), 64 * 32), groups());
        assert_eq!(within_descriptors(groups(), 1024), [0..5, 5..6, 6..38, 38..70]);
        assert_eq!(within_descriptors(vec![0..5, 5..6], 64), [0..2, 2..4, 4..5, 5..6]);
        assert_eq!(within_descriptors(vec![0..2, 2..3], 20), [0..1, 1..2, 2..3]);
    }
}
