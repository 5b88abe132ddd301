//! Decides which pages of an input to read ahead of a candidate, from the pages that it has touched. Reads nothing
//! itself.
//!
//! An input starts without read-ahead: each page that the candidate touches is read alone, and then appears in the
//! cache. Once many pages of a window were touched, the window is read whole. After it, a *stream* continues in steps
//! of doubling length. The first page of each step is its *tripwire*. The stream advances when the candidate reaches a
//! tripwire, and otherwise stops reading, which limits the number of pages that are read in vain. If touches cannot be
//! observed, tripwires are left unread: a tripwire in the cache then shows that the candidate has reached it.

use std::collections::VecDeque;
use std::ops::Range;

use opt_shared::units::to_index;

/// The size of a window, the unit of checks and reads, in bytes.
const WINDOW_BYTES: u64 = 512 << 10;
/// The longest step of a stream, in windows: 8 MiB.
const MAX_STEP: u64 = 16;
/// The maximum number of steps by which a stream may be ahead of the candidate. The first applies while the steps still
/// grow, and the second once they have their full length.
const STEPS_AHEAD: usize = 4;
pub(super) const LONG_STEPS_AHEAD: usize = 8;
/// The limit on reads ahead of the candidate by all streams of one input, in windows: 64 MiB. (A stream that advances
/// gets one step in any case.)
const MAX_AHEAD: u64 = 128;
/// A window is dense if at least this fraction (1/n) of its pages were touched.
const DENSE_PART: u64 = 2;
/// Once this fraction (1/n) of the whole input was touched, reading all of it is assumed to be faster than page by
/// page. From then on, a window is dense if this fraction of its pages was touched.
const USED_PART: u64 = 16;

/// The policy for one input. Pages are counted from the input's first whole page.
#[derive(Debug)]
pub(super) struct ReadaheadPolicy {
    pages: u64,
    window_pages: u64,
    windows: Vec<Window>,
    /// The streams, ordered by their last advance. The most recent one comes last.
    streams: Vec<Stream>,
    /// The number of pages that were touched and were not in the cache before.
    touched: u64,
    /// The number of pages that were read ahead.
    ahead: u64,
    /// The value of `touched` when the policy first reacted to touches, that is, when it read a window whole or a
    /// stream advanced.
    turned_after: Option<u64>,
    touches_are_observed: bool,
    /// Set by `end`: touches are still counted, but nothing more is read.
    ended: bool,
}

/// The state of a window. The integers are numbers of pages.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The pages that were in the cache before the candidate ran.
    before: u32,
    /// The pages that were in the cache at the last check.
    resident: u32,
    touched: u32,
    /// True if the window was read as a whole. Its pages in the cache then do not show what was touched.
    read: bool,
}

/// Reads that continue ahead of the candidate.
#[derive(Debug)]
struct Stream {
    /// The first window that the stream has not read.
    next: u64,
    /// The length of the next step, in windows.
    step: u64,
    /// The steps that the candidate has not reached.
    steps: VecDeque<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    windows: u64,
    tripwire: Tripwire,
}

/// The first page of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tripwire {
    pub(super) page: u64,
    /// True if the page was left unread. It then enters the cache when the candidate touches it.
    pub(super) left_out: bool,
}

impl ReadaheadPolicy {
    /// Creates the policy for an input of `pages` pages. `resident` returns how many of the given pages are in the
    /// cache before the candidate runs.
    pub(super) fn new(pages: u64, page_bytes: u64, mut resident: impl FnMut(Range<u64>) -> u64) -> Self {
        let window_pages = (WINDOW_BYTES / page_bytes).max(2);
        let windows = (0..pages.div_ceil(window_pages))
            .map(|window| {
                let first = window * window_pages;
                let before = count(resident(first..pages.min(first + window_pages)));
                Window { before, resident: before, touched: 0, read: false }
            })
            .collect();
        Self {
            pages,
            window_pages,
            windows,
            streams: Vec::new(),
            touched: 0,
            ahead: 0,
            turned_after: None,
            touches_are_observed: false,
            ended: false,
        }
    }

    /// Counts again which pages are in the cache, before the candidate runs. Those that were added since `new` were read
    /// ahead of it.
    pub(super) fn expect_resident(&mut self, mut resident: impl FnMut(Range<u64>) -> u64) {
        for at in 0..self.windows.len() {
            let now = count(resident(self.pages_of(at..at + 1)));
            let window = &mut self.windows[at];
            self.ahead += u64::from(now.saturating_sub(window.before));
            (window.before, window.resident) = (now, now);
        }
    }

    /// Expects that the whole input will be used, and that touches will be observed. Returns the pages to read now.
    pub(super) fn expect_all(&mut self, steps: usize) -> Vec<Range<u64>> {
        self.touches_are_observed = true;
        let mut stream = Stream { next: 0, step: MAX_STEP, steps: VecDeque::new() };
        let due = self.advance(&mut stream, steps);
        self.streams.push(stream);
        due
    }

    /// Records that touches are observed from now on, so tripwires need not be left unread.
    pub(super) const fn observe_touches(&mut self) {
        self.touches_are_observed = true;
    }

    pub(super) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Records that touches are no longer observed. Streams whose tripwires were read could never advance then, so
    /// they are dropped.
    pub(super) fn stop_observing_touches(&mut self) {
        self.touches_are_observed = false;
        self.streams.retain(|stream| stream.steps.iter().all(|step| step.tripwire.left_out));
    }

    pub(super) const fn end(&mut self) {
        self.ended = true;
    }

    /// Returns true if long steps may be read sequentially, although Linux may then read ahead beyond them. This is
    /// allowed if touches are observed, because extra pages in the cache then do not mislead the policy.
    pub(super) const fn may_overshoot(&self) -> bool {
        self.touches_are_observed
    }

    pub(super) fn is_read(&self) -> bool {
        self.windows.iter().all(|window| window.read)
    }

    /// Returns true if the policy has reacted to touches, and at least half of the pages that were not in the cache
    /// before were used.
    pub(super) fn was_used_whole(&self) -> bool {
        let before: u64 = self.windows.iter().map(|window| u64::from(window.before)).sum();
        let waiting: u64 = self.streams.iter().map(Stream::waiting).sum();
        let used = (self.touched + self.ahead).saturating_sub(waiting * self.window_pages);
        self.turned_after.is_some() && self.pages.saturating_sub(before) <= used.saturating_mul(DENSE_PART)
    }

    pub(super) const fn pages(&self) -> u64 {
        self.pages
    }

    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    pub(super) fn pages_of(&self, windows: Range<usize>) -> Range<u64> {
        let end = (windows.end as u64).saturating_mul(self.window_pages);
        windows.start as u64 * self.window_pages..self.pages.min(end)
    }

    pub(super) fn known(&self, windows: Range<usize>) -> u64 {
        self.windows[windows].iter().map(|window| u64::from(window.resident)).sum()
    }

    pub(super) fn was_read(&self, window: usize) -> bool {
        self.windows[window].read
    }

    pub(super) const fn touched(&self) -> u64 {
        self.touched
    }

    pub(super) const fn ahead(&self) -> u64 {
        self.ahead
    }

    pub(super) const fn turned_after(&self) -> Option<u64> {
        self.turned_after
    }

    /// Takes the number of pages of a window that are now in the cache and, if touches are observed, the number that
    /// were touched. Pages in the cache that were not touched are those that Linux read ahead by itself. Returns the
    /// pages to read.
    pub(super) fn seen(&mut self, window: usize, resident: u64, touched: Option<u64>) -> Vec<Range<u64>> {
        let pages = self.pages_of(window..window + 1);
        let length = pages.end - pages.start;
        let share = if self.pages <= self.touched.saturating_mul(USED_PART) { USED_PART } else { DENSE_PART };
        let it = &mut self.windows[window];
        if it.read {
            return Vec::new();
        }
        it.resident = count(resident);
        // A page that has left the cache is not counted in `before` any more, so it counts as touched when it enters
        // the cache again.
        it.before = it.before.min(it.resident);
        let missed = it.resident.saturating_sub(it.before);
        let touched = touched.map_or(missed, |touched| missed.min(count(touched))).max(it.touched);
        self.touched += u64::from(touched - it.touched);
        it.touched = touched;
        if self.ended || u64::from(touched) < length.div_ceil(share) {
            return Vec::new();
        }
        self.turned_after.get_or_insert(self.touched);
        self.mark_read(window as u64..window as u64 + 1);
        let missing = length.saturating_sub(resident);
        self.ahead += missing;
        let mut due = if missing == 0 { Vec::new() } else { vec![pages] };
        let next = window as u64 + 1;
        if self.windows.get(window + 1).is_some_and(|window| !window.read) {
            let mut stream = Stream { next, step: 1, steps: VecDeque::new() };
            due.extend(self.advance(&mut stream, 1));
            self.streams.push(stream);
        }
        due
    }

    /// Advances the streams whose tripwires the candidate has reached. Returns the pages to read.
    pub(super) fn follow(&mut self, mut is_reached: impl FnMut(Tripwire) -> bool) -> Vec<Range<u64>> {
        let mut due = Vec::new();
        let (mut still, mut moved) = (Vec::new(), Vec::new());
        for mut stream in std::mem::take(&mut self.streams) {
            match stream.steps.iter().rposition(|step| is_reached(step.tripwire)) {
                Some(last) => {
                    let passed = stream.steps.drain(..=last);
                    self.touched += passed.filter(|step| step.tripwire.left_out).count() as u64;
                    self.turned_after.get_or_insert(self.touched);
                    stream.step = (stream.step * 2).min(MAX_STEP);
                    moved.push(stream);
                }
                None if stream.steps.is_empty() => {}
                None => still.push(stream),
            }
        }
        let mut all = still;
        let waiting = all.len();
        all.append(&mut moved);
        // Streams that do not advance make room for those that do.
        let mut forgotten = 0;
        for at in waiting..all.len() {
            let mut stream = std::mem::replace(&mut all[at], Stream::empty());
            let others: u64 = all[forgotten..].iter().map(Stream::waiting).sum();
            let max = if stream.step < MAX_STEP { STEPS_AHEAD } else { LONG_STEPS_AHEAD };
            let wanted = stream.step * max as u64;
            let mut room = MAX_AHEAD.saturating_sub(others);
            while room < wanted && forgotten < waiting {
                room += all[forgotten].waiting();
                forgotten += 1;
            }
            let steps = usize::try_from(room / stream.step).unwrap_or(max).clamp(1, max);
            due.extend(self.advance(&mut stream, steps));
            all[at] = stream;
        }
        all.drain(..forgotten);
        self.streams = all;
        due
    }

    /// Continues the stream until `steps` of its steps are ahead of the candidate, or until it reaches windows that
    /// were read already.
    fn advance(&mut self, stream: &mut Stream, steps: usize) -> Vec<Range<u64>> {
        let mut due = Vec::new();
        while !self.ended && stream.steps.len() < steps {
            let first = stream.next;
            let mut end = first;
            while end < first + stream.step
                && usize::try_from(end)
                    .ok()
                    .and_then(|at| self.windows.get(at))
                    .is_some_and(|window| !window.read)
            {
                end += 1;
            }
            if end == first {
                break;
            }
            let pages = self.pages_of(to_index(first)..to_index(end));
            let tripwire = Tripwire { page: pages.start, left_out: !self.touches_are_observed };
            stream.steps.push_back(Step { windows: end - first, tripwire });
            stream.next = end;
            let known = self.known(to_index(first)..to_index(end));
            let read = pages.start + u64::from(tripwire.left_out)..pages.end;
            self.ahead += (read.end - read.start).saturating_sub(known);
            self.mark_read(first..end);
            if !read.is_empty() {
                due.push(read);
            }
        }
        due
    }

    fn mark_read(&mut self, windows: Range<u64>) {
        for at in windows {
            let pages = self.pages_of(to_index(at)..to_index(at) + 1);
            let window = &mut self.windows[to_index(at)];
            window.read = true;
            window.resident = count(pages.end - pages.start);
        }
    }
}

impl Stream {
    const fn empty() -> Self {
        Self { next: 0, step: 1, steps: VecDeque::new() }
    }

    fn waiting(&self) -> u64 {
        self.steps.iter().map(|step| step.windows).sum()
    }
}

fn count(pages: u64) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
