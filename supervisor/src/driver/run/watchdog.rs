//! Watches the main loop from a separate thread. If the loop hangs, the watchdog reports in which part it hangs, and
//! stops notifying the service manager until the loop continues.
//!
//! Each time the loop enters a part, it records this with two atomic operations.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::turn::TurnClock;
use crate::core::event::Action;
use crate::notify;

/// If the loop stays in a part this long, it counts as hanging, unless the part is the wait for events.
const HANG_THRESHOLD: Duration = Duration::from_secs(2);
/// The threshold for the part that writes the last summary. A summary of ten thousand candidates takes seconds, and a
/// plan may have ten times as many.
const SUMMARY_THRESHOLD: Duration = Duration::from_secs(60);
/// The time between two checks. It is shorter if the service manager must be notified more often.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The stack size of the thread, in bytes.
const STACK: usize = 128 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    Waiting,
    HandlingMessages,
    ContinuingAfterRows,
    Deciding,
    StartingAWorker,
    StartingAnAttempt,
    EnclosingARunner,
    EndingAProcess,
    QueueingRows,
    Serving,
    Sampling,
    Ending,
    WritingTheLastSummary,
}

impl Part {
    const ALL: [Self; 13] = [
        Self::Waiting,
        Self::HandlingMessages,
        Self::ContinuingAfterRows,
        Self::Deciding,
        Self::StartingAWorker,
        Self::StartingAnAttempt,
        Self::EnclosingARunner,
        Self::EndingAProcess,
        Self::QueueingRows,
        Self::Serving,
        Self::Sampling,
        Self::Ending,
        Self::WritingTheLastSummary,
    ];

    pub(super) fn of(action: &Action) -> Self {
        match action {
            Action::StartWorker { .. } => Self::StartingAWorker,
            Action::Start { .. } | Action::Wanted { .. } => Self::StartingAnAttempt,
            Action::AllowRunner { .. } => Self::EnclosingARunner,
            Action::Shutdown { .. }
            | Action::KillWorker { .. }
            | Action::KillRunner { .. }
            | Action::MayReap { .. } => Self::EndingAProcess,
            Action::AttemptEnded { .. }
            | Action::UnitDone { .. }
            | Action::BaselineLost { .. }
            | Action::JobDone { .. }
            | Action::WorkerEnded { .. }
            | Action::Policy(_)
            | Action::PhaseEnded(_)
            | Action::Answered(_)
            | Action::Replied(_)
            | Action::Stop { .. } => Self::QueueingRows,
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Waiting => "waiting for something to happen",
            Self::HandlingMessages => "handling messages of workers",
            Self::ContinuingAfterRows => "continuing after rows were written",
            Self::Deciding => "deciding",
            Self::StartingAWorker => "starting a worker",
            Self::StartingAnAttempt => "starting an attempt",
            Self::EnclosingARunner => "letting a runner begin",
            Self::EndingAProcess => "ending a process",
            Self::QueueingRows => "queueing rows",
            Self::Serving => "answering on the control socket",
            Self::Sampling => "sampling the memory of processes",
            Self::Ending => "ending the run",
            Self::WritingTheLastSummary => "writing the last summary",
        }
    }
}

/// The main loop's handle to the watchdog.
pub(crate) struct Watchdog {
    state: Arc<LoopState>,
    /// The time at which the loop entered the current part.
    entered: Instant,
    /// The longest hang that has not been recorded yet.
    longest: Option<Hang>,
    turns: TurnClock,
}

/// A hang that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hang {
    /// The part of the loop, as a phrase that follows "while".
    pub(crate) part: &'static str,
    pub(crate) took: Duration,
}

/// The state that the loop and the watchdog's thread share.
struct LoopState {
    part: AtomicU8,
    /// The number of parts that the loop has entered.
    steps: AtomicU64,
    /// Whether the thread has reported that the loop hangs.
    hangs: AtomicBool,
}

impl Watchdog {
    /// Starts the watchdog's thread. If the thread cannot be started, the loop is not watched. Call this on the loop's
    /// thread.
    pub(crate) fn start() -> Self {
        let state = Arc::new(LoopState {
            part: AtomicU8::new(0),
            steps: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
        });
        let watched = Arc::downgrade(&state);
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).stack_size(STACK);
        if let Err(error) = thread.spawn(move || watch(&watched, threshold_of)) {
            tracing::warn!(
                "hangs of the main loop are not reported, because its watchdog could not be started: {error}"
            );
        }
        Self { state, entered: Instant::now(), longest: None, turns: TurnClock::of_this_thread() }
    }

    /// Records that the loop enters a part.
    pub(crate) fn enter(&mut self, part: Part) {
        let before = self.state.part.swap(part as u8, Ordering::Relaxed);
        self.state.steps.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let took = now.duration_since(std::mem::replace(&mut self.entered, now));
        if threshold_of(before) <= took
            && before != Part::Waiting as u8
            && self.longest.is_none_or(|it| it.took < took)
        {
            self.longest = Some(Hang { part: text_of(before), took });
        }
        if before != Part::Waiting as u8 {
            self.turns.part_ended(text_of(before), took);
        }
        match (before == Part::Waiting as u8, part == Part::Waiting) {
            (true, false) => self.turns.begin(),
            (false, true) => self.turns.end(),
            _ => {}
        }
    }

    /// Logs how long the longest iteration of the loop took, and which part of it took longest.
    pub(crate) fn log_longest_turn(&self) {
        let (part, took) = self.turns.longest_part();
        tracing::info!(
            "the longest turn of the main loop took {:?}, {took:?} of it while {part}",
            self.turns.longest()
        );
    }

    /// Returns the longest time that the loop has taken between two waits.
    pub(crate) fn longest_turn(&self) -> Duration {
        self.turns.longest()
    }

    /// Returns the longest hang that has ended since the last call.
    pub(crate) fn take_hang(&mut self) -> Option<Hang> {
        self.longest.take()
    }
}

fn text_of(part: u8) -> &'static str {
    Part::ALL.get(usize::from(part)).map_or("", |part| part.text())
}

/// Returns how long a part may take before it counts as a hang.
fn threshold_of(part: u8) -> Duration {
    if part == Part::WritingTheLastSummary as u8 { SUMMARY_THRESHOLD } else { HANG_THRESHOLD }
}

/// Runs until the loop has ended.
fn watch(watched: &Weak<LoopState>, threshold_of: fn(u8) -> Duration) {
    let notify_every = notify::watchdog_every();
    let check_interval = notify_every.map_or(CHECK_INTERVAL, |every| (every / 2).min(CHECK_INTERVAL));
    let mut last = (0, Instant::now());
    let mut notify_at = Instant::now();
    while let Some(state) = watched.upgrade() {
        let (steps, part) = (state.steps.load(Ordering::Relaxed), state.part.load(Ordering::Relaxed));
        if steps != last.0 || part == Part::Waiting as u8 {
            last = (steps, Instant::now());
            if state.hangs.swap(false, Ordering::Relaxed) {
                tracing::warn!("the main loop continues");
            }
        } else if threshold_of(part) <= last.1.elapsed() && !state.hangs.swap(true, Ordering::Relaxed) {
            let seconds = last.1.elapsed().as_secs_f64();
            tracing::warn!("the main loop has hung for {seconds:.1} s: it is {}", text_of(part));
        }
        if let Some(every) = notify_every
            && notify_at <= Instant::now()
            && !state.hangs.load(Ordering::Relaxed)
        {
            notify::alive();
            notify_at = Instant::now() + every / 2;
        }
        drop(state);
        std::thread::sleep(check_interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_distinct_text() {
        for (index, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(part as u8), index);
            assert_eq!(text_of(part as u8), part.text());
        }
        let texts: std::collections::BTreeSet<&str> = Part::ALL.iter().map(|part| part.text()).collect();
        assert_eq!(texts.len(), Part::ALL.len());
    }

    #[test]
    fn thread_notices_a_hang_and_its_end() {
        let state = Arc::new(LoopState {
            part: AtomicU8::new(Part::Waiting as u8),
            steps: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
        });
        let watched = Arc::downgrade(&state);
        let thread = std::thread::spawn(move || watch(&watched, |_| Duration::ZERO));
        let until = |hangs| {
            while state.hangs.load(Ordering::Relaxed) != hangs {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(false);
        state.part.store(Part::StartingAWorker as u8, Ordering::Relaxed);
        until(true);
        state.part.store(Part::Waiting as u8, Ordering::Relaxed);
        until(false);
        drop(state);
        thread.join().expect("the thread ends with the loop");
    }

    #[test]
    fn only_the_last_summary_may_take_longer_than_other_parts() {
        for part in Part::ALL {
            let threshold = threshold_of(part as u8);
            let is_longer = threshold == SUMMARY_THRESHOLD;
            assert_eq!(is_longer, part == Part::WritingTheLastSummary, "{part:?}: {threshold:?}");
        }
    }

    #[test]
    fn long_part_is_a_hang_and_long_wait_is_not() {
        let mut watchdog = Watchdog::start();
        let long_ago = |watchdog: &mut Watchdog| {
            watchdog.entered =
                Instant::now().checked_sub(HANG_THRESHOLD * 2).expect("the clock has run long enough");
        };
        watchdog.enter(Part::Waiting);
        long_ago(&mut watchdog);
        watchdog.enter(Part::Sampling);
        assert_eq!(watchdog.take_hang(), None);
        long_ago(&mut watchdog);
        watchdog.enter(Part::Waiting);
        let hang = watchdog.take_hang().expect("the part took too long");
        assert_eq!(hang.part, Part::Sampling.text());
        assert!(HANG_THRESHOLD <= hang.took);
        assert_eq!(watchdog.take_hang(), None, "reported once");
    }
}
