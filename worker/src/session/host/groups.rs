//! The entries of a task, opened in order: which of them share a runner, and what is opened ahead of its turn.
//!
//! While a group is called, a thread opens the entries of the next one, so that neither the disk nor the candidate waits
//! for the other; another drops what the group before left in the page cache. What must not be there twice is left for
//! the group's own turn: values that are written out cost memory, and files that entries of a store share are watched
//! for what the current group brings in.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use opt_shared::arguments::Signature;
use opt_shared::causes::is_want_of_means;
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
use crate::session::{Group, Groups, Lifetime, SessionError, Wanted};

pub(super) struct HostGroups<'b> {
    link: &'b Link,
    candidate: String,
    entries: Arc<[EntryRef]>,
    signature: Arc<Signature>,
    drop_cache: bool,
    /// Which entries share a runner.
    ranges: Vec<Range<usize>>,
    /// The first entry that was not given out.
    at: usize,
    /// For inputs that are timed from memory.
    copied: Option<CopiedInputs>,
    /// Whether candidates are called while inputs are read: then reading is watched.
    watched: bool,
    ahead: Option<JoinHandle<Option<Opened>>>,
    /// What the group in hand reads of its captures.
    reading: Option<EntryGuards>,
    /// Of the group before: its runner is dead, and what it brought in goes while the next one is called.
    over: Option<EntryGuards>,
    releasing: Option<JoinHandle<ReadReport>>,
    whole: Whole,
    reads: ReadReport,
}

/// Entries that are open: metadata read, inputs found and looked at, reading ahead of the candidate begun.
struct Opened {
    range: Range<usize>,
    placed: Result<Vec<Placed>, (usize, RecordedError)>,
    /// Watched since before anything of them was read.
    guards: EntryGuards,
    /// Comes when the disk has nothing left to do for them.
    turn: Option<Turn>,
}

/// What opening needs to know.
#[derive(Clone)]
struct Opener {
    entries: Arc<[EntryRef]>,
    signature: Arc<Signature>,
    drop_cache: bool,
    watched: bool,
}

impl Opener {
    fn open(&self, range: Range<usize>, expected: Expected) -> Opened {
        let entries = &self.entries[range.clone()];
        let mut guards = EntryGuards::watch(entries, self.drop_cache);
        let placed = entries.iter().enumerate().map(|(at, entry)| {
            let recorded = Recorded::open(entry, &self.signature).map_err(|error| (at, error))?;
            guards.watch_data_of(&recorded);
            Placed::in_files(recorded).map_err(|error| (at, error))
        });
        let placed = placed.collect();
        self.opened(range, placed, guards, expected)
    }

    /// None if they have to be opened in their turn: then whatever is wrong with them is found as well.
    fn open_ahead(&self, range: Range<usize>, expected: Expected) -> Option<Opened> {
        let entries = &self.entries[range.clone()];
        let guards = EntryGuards::watch(entries, self.drop_cache);
        let mut placed = Vec::with_capacity(entries.len());
        for entry in entries {
            let recorded = Recorded::open(entry, &self.signature).ok().filter(Recorded::is_in_place)?;
            placed.push(Placed::in_files(recorded).ok()?);
        }
        Some(self.opened(range, Ok(placed), guards, expected))
    }

    /// Begins to read ahead of the candidate. Of several entries that were to share a runner only the first is kept if one
    /// of them has to be watched while it is read: what a candidate touches is told by what came into the cache, and
    /// which inputs it reads as a whole by the entry before.
    fn opened(
        &self,
        mut range: Range<usize>,
        mut placed: Result<Vec<Placed>, (usize, RecordedError)>,
        guards: EntryGuards,
        expected: Expected,
    ) -> Opened {
        let mut turn = None;
        if let Ok(placed) = &mut placed
            && self.watched
        {
            let mut ahead: Vec<ReadAhead> = placed.iter().map(ReadAhead::of).collect();
            if ahead.iter().any(ReadAhead::page_by_page) {
                placed.truncate(1);
                ahead.truncate(1);
                range.end = range.start + placed.len();
            }
            let mut expected = Some(expected);
            for (entry, ahead) in placed.iter_mut().zip(ahead) {
                ahead.read_exactly();
                entry.page_by_page = ahead.page_by_page();
                let mut watch = ahead.start_expecting(expected.take().unwrap_or_default());
                turn = watch.take_turn().or(turn);
                entry.watched_by(watch);
            }
        }
        // Whatever is wrong with one entry is not the others' affair.
        if let Err((at, _)) = &mut placed
            && 1 < range.len()
        {
            range = range.start..range.start + (*at).max(1);
            return match *at {
                0 => Opened { range, placed, guards, turn },
                _ => self.open(range, Expected::default()),
            };
        }
        Opened { range, placed, guards, turn }
    }
}

impl<'b> HostGroups<'b> {
    pub(super) fn new(link: &'b Link, wanted: &Wanted<'b>) -> Result<Self, SessionError> {
        let candidate = wanted.callee.candidate.clone();
        let (ranges, inputs) = match wanted.lifetime {
            Lifetime::Entry { cap } => {
                (runner_groups(wanted.entries.iter().map(|entry| &entry.numbers), cap), InputMemory::Mapped)
            }
            Lifetime::Batch { batches, inputs } => (batches.to_vec(), inputs),
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
        Ok(Self {
            link,
            candidate,
            entries: wanted.entries.into(),
            signature: Arc::new(wanted.callee.signature.clone()),
            drop_cache: wanted.drop_cache,
            ranges,
            at: 0,
            copied,
            watched: matches!(wanted.lifetime, Lifetime::Entry { .. }),
            ahead: None,
            reading: None,
            over: None,
            releasing: None,
            whole: Whole::default(),
            reads: ReadReport::default(),
        })
    }

    /// What is left of the range that the next entry is in.
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

    /// Opens the next group while this one is called. A thread that cannot be started: it is opened in its turn.
    fn open_next(&mut self, opened: &mut Opened) {
        let Some(next) = self.next_range().filter(|_| self.watched) else { return };
        let Ok(placed) = &opened.placed else { return };
        // Another entry of the same file would take what this one brings into the cache for what was there, and all
        // entries of a store have files in common.
        let packed = placed.iter().any(|entry| entry.as_ref().capture.is_packed());
        let same_file = self.entries[next.clone()].iter().any(|entry| opened.guards.watches(&entry.path));
        if packed || same_file {
            return;
        }
        let opener = self.opener();
        let expected = Expected { whole: self.whole.clone(), turn: opened.turn.take() };
        let thread = std::thread::Builder::new().name("opener".to_owned());
        self.ahead = thread.spawn(move || opener.open_ahead(next, expected)).ok();
    }

    /// Drops what the group before brought into the page cache.
    fn release_in_the_background(&mut self) {
        self.await_release();
        let Some(guards) = self.over.take() else { return };
        let thread = std::thread::Builder::new().name("release".to_owned());
        // A thread that cannot be started: the page cache stays fuller.
        self.releasing = thread.spawn(move || guards.release()).ok();
    }

    fn await_release(&mut self) {
        if let Some(released) = self.releasing.take().and_then(|thread| thread.join().ok()) {
            self.reads.absorb(&released);
        }
    }

    fn copy(
        &mut self,
        placed: &mut [Placed],
    ) -> Result<Option<(usize, crate::session::PlaceFault)>, SessionError> {
        let Some(copied) = &mut self.copied else { return Ok(None) };
        match copied.load(self.link, placed) {
            Ok(()) => Ok(None),
            Err(Uncopied { entry: Some(at), error }) if !is_want_of_means(&error) => {
                Ok(Some((at, error.into())))
            }
            Err(Uncopied { error, .. }) => {
                Err(SessionError::Inputs { candidate: self.candidate.clone(), source: error.into() })
            }
        }
    }
}

impl Groups<Placed> for HostGroups<'_> {
    fn next(&mut self) -> Result<Option<Group<Placed>>, SessionError> {
        let Some(range) = self.next_range() else { return Ok(None) };
        // One that panicked has opened nothing.
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
        self.over = self.reading.take();
    }

    fn finish(mut self: Box<Self>) -> ReadReport {
        self.await_release();
        // Opened, and not called any more: the disk may still be bringing what was asked for.
        if let Some(Opened { placed, guards, .. }) = self.ahead.take().and_then(|it| it.join().ok().flatten())
        {
            drop(placed);
            self.reads.absorb(&guards.release());
        }
        for guards in self.over.take().into_iter().chain(self.reading.take()) {
            self.reads.absorb(&guards.release());
        }
        self.reads
    }
}
