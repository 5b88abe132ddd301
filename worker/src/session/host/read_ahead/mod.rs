//! Reads mapped inputs ahead of a candidate in verification. A kernel with sparse accesses should read little more than
//! it touches, and one with dense accesses should not wait for single pages.
//!
//! If a file is not in the cache, every fault reads a whole read-ahead window, so a kernel that looks up a few rows
//! would read far more than these rows. Therefore the runner maps inputs without read-ahead (`MADV_RANDOM`). Meanwhile,
//! a thread of the worker watches which pages enter the cache.

mod cache_view;
mod input;
mod named_rows;
mod policy;
mod touches;

use std::convert::Infallible;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use opt_shared::outcome::ReadReport;
use rustix::fs::{Advice, fadvise};

use self::cache_view::{CacheQuery, CacheView};
use self::input::{CheckResult, Input, View, report};
use self::named_rows::Names;
use self::policy::LONG_STEPS_AHEAD;
use self::touches::{Mapped, Touches, TouchesUnknown};
use super::placed::Placed;
use crate::recorded::request_ahead;
use crate::runner::frame::InputRange;

/// Inputs of fewer bytes are not watched. They are requested whole when the watch of the larger ones starts, because
/// watching them would cost more than reading them.
const WHOLE_BELOW: u64 = 1 << 20;
/// The size of one read, in bytes.
const SCRATCH: usize = 1 << 20;
/// The pause between checks while pages are touched or read, and the longest pause otherwise.
const BUSY_PAUSE: Duration = Duration::from_micros(500);
const IDLE_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause while a stream waits for the candidate. (`policy` explains streams.)
const STREAM_PAUSE: Duration = Duration::from_millis(4);
/// The largest number of attempts to find the inputs in the runner's mappings.
const MAX_TRIES: u32 = 200;
/// A check that leads to no read is followed by a pause of at least this many times its own duration, up to the longest
/// pause.
const CHECKING_PART: u32 = 8;

/// The inputs of one entry, examined before its runner maps them.
pub struct ReadAhead {
    /// Large inputs that are not wholly in the cache.
    inputs: Vec<Input>,
    small_inputs: Vec<(Arc<File>, Range<u64>)>,
    /// The number of large inputs for which Linux does not report which pages are in the cache.
    unseen: u32,
}

/// The inputs of an entry that were read as a whole, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Whole(Vec<usize>);

impl ReadAhead {
    /// Covers one range of a file. Only measurements use this.
    pub fn over_file(file: &Arc<File>, bytes: Range<u64>) -> Self {
        let range = InputRange {
            source: 0,
            file_offset: bytes.start,
            bytes: bytes.end.saturating_sub(bytes.start),
            address_phase: 0,
        };
        Self::over(std::iter::once((0, file, &range)), &[CacheQuery::CacheStat, CacheQuery::MinCore])
    }

    /// Examines the inputs of an entry, except those in files that are known to be wholly cached. If there are large
    /// inputs to watch, turns Linux's read-ahead off for their files, and reads the rows that the call seems to look up.
    pub(crate) fn of(placed: &Placed, is_cached: impl Fn(&File) -> bool) -> Self {
        let file = |range: &InputRange| placed.file(range.source).filter(|file| !is_cached(file));
        let ranges =
            placed.inputs().iter().enumerate().filter_map(|(at, range)| Some((at, file(range)?, range)));
        let mut it = Self::over(ranges, &[CacheQuery::CacheStat, CacheQuery::MinCore]);
        it.read_exactly();
        it.read_named_rows(placed);
        it
    }

    /// `ranges` has inputs with their indices among the entry's inputs.
    fn over<'a>(
        ranges: impl Iterator<Item = (usize, &'a Arc<File>, &'a InputRange)>,
        queries: &[CacheQuery],
    ) -> Self {
        let page = rustix::param::page_size() as u64;
        let mut it = Self { inputs: Vec::new(), small_inputs: Vec::new(), unseen: 0 };
        for (index, file, range) in ranges {
            let end = range.file_offset + range.bytes;
            if range.bytes < WHOLE_BELOW {
                it.small_inputs.push((Arc::clone(file), range.file_offset..end));
                continue;
            }
            let offset = range.file_offset.next_multiple_of(page);
            let bytes = (end - end % page).saturating_sub(offset);
            let Some(cache) = queries.iter().find_map(|query| CacheView::of(file, offset, bytes, *query))
            else {
                it.unseen += 1;
                continue;
            };
            it.inputs.extend(Input::examine(index, file, View { offset, bytes, page, cache }));
        }
        it
    }

    /// Reads the rows of the large inputs that integer inputs seem to name.
    fn read_named_rows(&mut self, placed: &Placed) {
        if !self.page_by_page() {
            return;
        }
        let names = Names::of(placed.as_ref());
        for input in &mut self.inputs {
            input.read_now(names.bytes_in(placed, input.index));
        }
    }

    /// Returns true if a large input is not wholly in the cache, and Linux reports the cached pages of all large
    /// inputs.
    pub fn page_by_page(&self) -> bool {
        !self.inputs.is_empty() && self.unseen == 0
    }

    /// If the inputs are read page by page, turns Linux's read-ahead off for their files, as the runner does for its
    /// mappings. With read-ahead, a read of a small record would continue into the table that follows it.
    pub fn read_exactly(&self) {
        if self.page_by_page() {
            let small = self.small_inputs.iter().map(|(file, _)| file);
            for file in self.inputs.iter().map(|input| &input.file).chain(small) {
                let _ = fadvise(&**file, 0, None, Advice::Random);
            }
        }
    }

    /// Starts the watch. Inputs that the previous entry read as a whole are expected to be read whole again. Their
    /// beginning is read before the candidate touches it, once the disk has finished with the previous entry.
    pub(crate) fn start_expecting(self, expected: Expected) -> Watch {
        if !self.page_by_page() {
            let report = ReadReport { left_to_kernel: self.unseen, ..ReadReport::default() };
            return Watch { seen: Seen { report, whole: Whole::default() }, thread: None, turn: None };
        }
        for (file, range) in &self.small_inputs {
            request_ahead(file, range.start..range.end);
        }
        let (tell, commands) = channel();
        let (done, turn) = channel();
        let watcher = Watcher {
            inputs: self.inputs,
            expected: Some(expected),
            done: Some(done),
            runner: None,
            touches: None,
            tries: 0,
        };
        let started =
            std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || watcher.run(&commands));
        // Without the thread, the candidate reads page by page, which is slower but correct.
        let thread = started.ok().map(|thread| (thread, tell));
        Watch { seen: Seen::default(), thread, turn: Some(Turn(turn)) }
    }

    /// Starts the watch, which runs until it is stopped.
    pub fn start(self) -> Watch {
        self.start_expecting(Expected::default())
    }
}

#[derive(Default)]
pub(crate) struct Expected {
    pub(crate) whole: Whole,
    pub(crate) turn: Option<Turn>,
}

/// Signals that the disk has nothing left to read for an entry.
pub(crate) struct Turn(Receiver<Infallible>);

impl Turn {
    fn has_come(&self) -> bool {
        self.0.try_recv() == Err(TryRecvError::Disconnected)
    }
}

enum Command {
    /// The process that maps the inputs or will map them, by its pid.
    Runner(u32),
    Stop,
}

#[derive(Default)]
struct Seen {
    report: ReadReport,
    whole: Whole,
}

/// The watch of an entry's inputs, which ends when this is dropped. If its thread could not be started, nothing is
/// watched.
pub struct Watch {
    seen: Seen,
    thread: Option<(JoinHandle<Seen>, Sender<Command>)>,
    turn: Option<Turn>,
}

impl Watch {
    /// Names the process that maps the inputs. Until its touches can be observed, new pages in the cache count as
    /// touches.
    pub fn set_runner(&self, pid: u32) {
        if let Some((_, tell)) = &self.thread {
            let _ = tell.send(Command::Runner(pid));
        }
    }

    /// Returns the signal for the entry that comes next.
    pub(crate) fn take_turn(&mut self) -> Option<Turn> {
        self.turn.take()
    }

    /// Stops reading ahead, and returns the report.
    pub fn stop(mut self) -> ReadReport {
        self.end();
        self.seen.report
    }

    /// Like `stop`; also returns which inputs were read as a whole.
    pub(crate) fn stop_and_learn(mut self) -> (ReadReport, Whole) {
        self.end();
        let Seen { report, whole } = std::mem::take(&mut self.seen);
        (report, whole)
    }

    fn end(&mut self) {
        if let Some((thread, tell)) = self.thread.take() {
            let _ = tell.send(Command::Stop);
            self.seen = thread.join().unwrap_or_default();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

struct Watcher {
    inputs: Vec<Input>,
    /// The inputs that are expected to be read whole; `None` once their turn has come.
    expected: Option<Expected>,
    /// The signal for the next entry, dropped when nothing is left to read.
    done: Option<Sender<Infallible>>,
    runner: Option<u32>,
    touches: Option<Touches>,
    /// Failed attempts to find the inputs in the runner's mappings.
    tries: u32,
}

impl Watcher {
    fn run(mut self, commands: &Receiver<Command>) -> Seen {
        let mut pause = BUSY_PAUSE;
        let mut scratch = Vec::new();
        loop {
            match commands.recv_timeout(pause) {
                Ok(Command::Runner(pid)) => self.runner = Some(pid),
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let start = Instant::now();
            self.begin_expected();
            self.find_touches();
            let touches = self.touches.as_ref();
            let results: Vec<CheckResult> =
                self.inputs.iter_mut().enumerate().map(|(at, input)| input.check(at, touches)).collect();
            // While a stream advances, the disk waits for this thread, so pauses are short. Otherwise, checks must take
            // little CPU time.
            pause = if results.contains(&CheckResult::Read) {
                BUSY_PAUSE
            } else {
                let quiet = if results.contains(&CheckResult::Touched) { BUSY_PAUSE } else { pause * 2 };
                let streams = self.inputs.iter().any(|input| input.policy.has_streams());
                let max = if streams || self.expected.is_some() { STREAM_PAUSE } else { IDLE_PAUSE };
                quiet.max(start.elapsed() * CHECKING_PART).min(max)
            };
            if self.read_some(&mut scratch) {
                pause = Duration::ZERO;
            } else if self.inputs.iter().all(|input| input.policy.is_read()) {
                self.done = None;
            }
        }
        // Pages that entered the cache after the last check count too, but nothing more is read.
        let touches = self.touches.as_ref();
        self.inputs.iter_mut().for_each(|input| input.policy.end());
        self.inputs.iter_mut().enumerate().for_each(|(at, input)| input.count(at, touches));
        let whole = self.inputs.iter().filter(|input| input.policy.was_used_whole());
        let whole = Whole(whole.map(|input| input.index).collect());
        Seen { report: report(&self.inputs), whole }
    }

    /// Returns true if more is due. Pieces are small, so that the thread soon notices when it is stopped.
    fn read_some(&mut self, scratch: &mut Vec<u8>) -> bool {
        let mut more = false;
        for input in self.inputs.iter_mut().filter(|input| !input.due.is_empty()) {
            scratch.resize(SCRATCH, 0);
            more |= input.read_some(scratch);
        }
        more
    }

    fn begin_expected(&mut self) {
        let may_begin = |expected: &mut Expected| expected.turn.as_ref().is_none_or(Turn::has_come);
        let Some(Expected { whole, .. }) = self.expected.take_if(may_begin) else { return };
        // All inputs together may be `LONG_STEPS_AHEAD` steps ahead of the candidate, so each gets a share of these.
        let mut expected: Vec<&mut Input> =
            self.inputs.iter_mut().filter(|input| whole.0.contains(&input.index)).collect();
        let each = LONG_STEPS_AHEAD.checked_div(expected.len()).unwrap_or(0).max(1);
        for input in expected.iter_mut().take(LONG_STEPS_AHEAD) {
            let due = input.policy.expect_all(each);
            input.read(due);
        }
    }

    /// Tries to observe the runner's touches. Does nothing until there is a stream, because candidates with sparse
    /// accesses need not be watched this closely.
    fn find_touches(&mut self) {
        let Some(runner) = self.runner.filter(|_| self.touches.is_none() && self.tries < MAX_TRIES) else {
            return;
        };
        if !self.inputs.iter().any(|input| input.policy.has_streams()) {
            return;
        }
        self.tries += 1;
        let mapped: Vec<Mapped<'_>> =
            self.inputs.iter().map(|input| Mapped { file: &input.file, offset: input.offset }).collect();
        match Touches::of(runner, &mapped) {
            Ok(touches) => {
                self.touches = Some(touches);
                self.inputs.iter_mut().for_each(|input| input.policy.observe_touches());
            }
            Err(TouchesUnknown::NotYet) if self.tries < MAX_TRIES => {}
            Err(_) => {
                (self.runner, self.expected) = (None, None);
                self.inputs.iter_mut().for_each(|input| input.policy.stop_observing_touches());
            }
        }
    }
}

#[cfg(test)]
mod tests;
