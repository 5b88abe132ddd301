//! One input that is watched while a candidate runs.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use opt_shared::outcome::ReadReport;
use opt_shared::units::Bytes;

use super::cache_view::CacheView;
use super::named_rows;
use super::policy::{ReadaheadPolicy, Tripwire};
use super::touches::Touches;
use crate::recorded::request_ahead;

/// If touches are observed, ranges of at least this many bytes are read with `pread`. All others are requested with a
/// hint.
const MIN_LONG_READ: u64 = 4 << 20;
/// The number of windows that are checked for changes with one request.
const GROUP: usize = 64;

/// The whole pages of an input.
pub(super) struct View {
    /// The file offset of the first page.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// The size of a page, in bytes.
    pub(super) page: u64,
    pub(super) cache: CacheView,
}

/// One large input that is not wholly in the cache.
pub(super) struct Input {
    /// The index among the entry's inputs.
    pub(super) index: usize,
    pub(super) file: Arc<File>,
    /// The file offset of its first whole page.
    pub(super) offset: u64,
    page: u64,
    cache: CacheView,
    pub(super) policy: ReadaheadPolicy,
    /// Ranges still to be read, in order.
    pub(super) due: VecDeque<Range<u64>>,
    /// A separate open file description for which Linux may read ahead. The runner's is marked for random reads.
    in_order: Option<File>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckResult {
    Unchanged,
    Touched,
    Read,
}

impl Input {
    /// Examines the whole pages of an input. Returns `None` if all of them are in the cache.
    pub(super) fn examine(index: usize, file: &Arc<File>, view: View) -> Option<Self> {
        let View { offset, bytes, page, cache } = view;
        if bytes / page <= cache.resident(0..bytes / page) {
            return None;
        }
        let policy = ReadaheadPolicy::new(bytes / page, page, |pages| cache.resident(pages));
        let file = Arc::clone(file);
        Some(Self { index, file, offset, page, cache, policy, due: VecDeque::new(), in_order: None })
    }

    /// Reads these bytes of the file, unless they exceed the limits. Call this before the candidate runs.
    pub(super) fn read_now(&mut self, bytes: impl Iterator<Item = Range<u64>>) {
        let Self { file, page, cache, policy, .. } = self;
        if named_rows::read(file, bytes, policy.pages() * *page, *page) {
            policy.expect_resident(|pages| cache.resident(pages));
        }
    }

    /// Checks what has been touched since the last check, and reads what is due. `at` is the input's index among those
    /// that are watched.
    pub(super) fn check(&mut self, at: usize, touches: Option<&Touches>) -> CheckResult {
        let mut read = false;
        let before = self.policy.touched();
        let due = self.follow(at, touches);
        read |= self.read(due);
        for window in self.changed() {
            let due = self.seen(window, at, touches);
            read |= self.read(due);
        }
        match (read, before < self.policy.touched()) {
            (true, _) => CheckResult::Read,
            (false, true) => CheckResult::Touched,
            (false, false) => CheckResult::Unchanged,
        }
    }

    fn follow(&mut self, at: usize, touches: Option<&Touches>) -> Vec<Range<u64>> {
        let Self { policy, cache, .. } = self;
        policy.follow(|Tripwire { page, left_out }| {
            (left_out && cache.resident(page..page + 1) != 0)
                || touches.is_some_and(|touches| touches.touched(at, page..page + 1) != 0)
        })
    }

    fn seen(&mut self, window: usize, at: usize, touches: Option<&Touches>) -> Vec<Range<u64>> {
        let pages = self.policy.pages_of(window..window + 1);
        let touched = match touches {
            Some(touches) => Some(touches.touched(at, pages.clone())),
            // If touches will be observed but cannot be yet, none are counted, because a new page in the cache does not
            // prove a touch.
            None => self.policy.may_overshoot().then_some(0),
        };
        self.policy.seen(window, self.cache.resident(pages), touched)
    }

    pub(super) fn count(&mut self, at: usize, touches: Option<&Touches>) {
        let _ = self.follow(at, touches);
        for window in self.changed() {
            let _ = self.seen(window, at, touches);
        }
    }

    /// Returns the windows that this thread has not read, in all groups that have changed.
    fn changed(&self) -> Vec<usize> {
        let windows = self.policy.windows();
        let groups = (0..windows).step_by(GROUP).map(|first| first..windows.min(first + GROUP));
        groups
            .filter(|group| {
                !group.clone().all(|window| self.policy.was_read(window))
                    && self.cache.resident(self.policy.pages_of(group.clone()))
                        != self.policy.known(group.clone())
            })
            .flatten()
            .filter(|window| !self.policy.was_read(*window))
            .collect()
    }

    /// Requests these pages, or queues them for `read_some`. Returns false if there are none.
    pub(super) fn read(&mut self, due: Vec<Range<u64>>) -> bool {
        let any = !due.is_empty();
        for pages in due {
            let bytes = self.offset + pages.start * self.page..self.offset + pages.end * self.page;
            if MIN_LONG_READ <= bytes.end - bytes.start && self.policy.may_overshoot() {
                self.due.push_back(bytes);
            } else {
                request_ahead(&self.file, bytes);
            }
        }
        any
    }

    /// Returns true if more is due. Sequential reads are faster than requests for pages, because Linux then reads large
    /// pieces. It also keeps them in large pages, which are cheaper to map and to drop.
    pub(super) fn read_some(&mut self, scratch: &mut [u8]) -> bool {
        let Some(bytes) = self.due.front_mut() else { return false };
        if self.in_order.is_none() {
            self.in_order = own_file(&self.file);
        }
        let length =
            usize::try_from(bytes.end - bytes.start).map_or(scratch.len(), |left| left.min(scratch.len()));
        match self.in_order.as_ref().and_then(|file| file.read_at(&mut scratch[..length], bytes.start).ok()) {
            Some(read) if 0 < read => bytes.start += read as u64,
            _ => {
                request_ahead(&self.file, bytes.clone());
                bytes.start = bytes.end;
            }
        }
        if bytes.is_empty() {
            self.due.pop_front();
        }
        !self.due.is_empty()
    }
}

fn own_file(file: &File) -> Option<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

pub(super) fn report(inputs: &[Input]) -> ReadReport {
    let mut it = ReadReport::default();
    for Input { policy, page, due, .. } in inputs {
        let bytes = |pages: u64| Bytes::new(pages * page);
        let unread: Bytes = due.iter().map(|bytes| Bytes::new(bytes.end - bytes.start)).sum();
        it.page_by_page += 1;
        it.touched_bytes += bytes(policy.touched());
        it.ahead_bytes += bytes(policy.ahead()) - unread;
        if let Some(after) = policy.turned_after() {
            it.turned += 1;
            it.turned_after_bytes += bytes(after);
        }
    }
    it
}
