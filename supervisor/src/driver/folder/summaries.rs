//! Writes `summary.json` in a separate thread, because the summary of a large run takes seconds and the main loop must
//! not wait for it.
//!
//! This module also decides how often the summary is written between the ends of jobs. The thread reads the database
//! through a connection of its own.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use opt_shared::causes::chain;

use crate::driver::RunError;
use crate::report::summary::write_summary;
use crate::store::Store;

/// The shortest time between two summaries, except at the ends of jobs and replays.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// After a summary that took a time T to write, the next one waits for at least this many times T, except at the ends
/// of jobs and replays.
const INTERVAL_FACTOR: u32 = 50;

/// The channel that tells the end of the run whether the last summary was written.
type LastWritten = Sender<Result<(), RunError>>;

/// The main loop's handle to the thread.
pub(crate) struct Summaries {
    /// Requests for a summary. While one request is served, one more may wait. A third request would give the same
    /// document as the second.
    wanted: Sender<Option<LastWritten>>,
    state: Arc<State>,
    /// When the last summary was requested.
    asked: Option<Instant>,
    /// Whether the last summary is out of date, and another must follow when it is due.
    is_stale: bool,
}

#[derive(Default)]
struct State {
    is_writing: AtomicBool,
    /// How long it took to write the last summary, in microseconds.
    took_us: AtomicU64,
}

impl Summaries {
    pub(crate) fn open(folder: &Path) -> std::io::Result<Self> {
        let (wanted, requests) = bounded(1);
        let state = Arc::new(State::default());
        let (folder, thread_state) = (folder.to_owned(), Arc::clone(&state));
        std::thread::Builder::new()
            .name("summary".to_owned())
            .spawn(move || serve(&folder, &requests, &thread_state))?;
        Ok(Self { wanted, state, asked: None, is_stale: false })
    }

    /// Returns whether no summary is being written, and enough time has passed for another.
    pub(crate) fn is_due(&self) -> bool {
        let took = Duration::from_micros(self.state.took_us.load(Ordering::Relaxed));
        !self.state.is_writing.load(Ordering::Relaxed)
            && self
                .asked
                .is_none_or(|asked| asked + MIN_INTERVAL.max(took * INTERVAL_FACTOR) <= Instant::now())
    }

    /// Notes that the last summary is out of date, although it is too early for another.
    pub(crate) fn postpone(&mut self) {
        self.is_stale = true;
    }

    /// Returns whether a summary was postponed and is due now.
    pub(crate) fn is_overdue(&self) -> bool {
        self.is_stale && self.is_due()
    }

    /// Requests a summary, and returns at once.
    pub(crate) fn write(&mut self) {
        self.asked = Some(Instant::now());
        self.is_stale = false;
        let _ = self.wanted.try_send(None);
    }

    /// Writes the last summary of a run that has ended, and waits for it.
    pub(crate) fn write_last(&self) -> Result<(), RunError> {
        let (last_written, written) = bounded(1);
        let gone = || RunError::Law { law: "the thread that writes the summary is gone".to_owned() };
        self.wanted.send(Some(last_written)).map_err(|_| gone())?;
        written.recv().map_err(|_| gone())?
    }
}

/// Writes a summary for each request, until the channel is closed.
fn serve(folder: &Path, requests: &Receiver<Option<LastWritten>>, state: &State) {
    while let Ok(last_written) = requests.recv() {
        state.is_writing.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let written = write(folder);
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        state.took_us.store(took, Ordering::Relaxed);
        state.is_writing.store(false, Ordering::Relaxed);
        match (last_written, written) {
            (Some(last_written), written) => drop(last_written.send(written)),
            // Only the last summary must succeed. Any other failure is reported, and the next summary may succeed.
            (None, Err(error)) => tracing::warn!("the summary was not written: {}", chain(&error)),
            (None, Ok(())) => {}
        }
    }
}

fn write(folder: &Path) -> Result<(), RunError> {
    let store = Store::read(folder)?;
    let document = store.document()?;
    Ok(write_summary(folder, &document)?)
}
