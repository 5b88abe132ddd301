//! Writes the run's database in a separate thread, so that the main loop never waits for a disk or a lock.
//!
//! Rows are written in the order in which they were submitted, and the thread acknowledges each one. If an action must
//! wait until a row is on disk, the acknowledgement returns this action as a [`FollowUp`]. If a write fails for a
//! reason that may pass, such as a locked database or a full disk, it is retried until it succeeds or the writer is
//! closed. The core decides how long a run may stall.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use opt_shared::causes::chain;
use opt_shared::ids::{CandidateId, WorkerId};
use rustix::event::{EventfdFlags, eventfd};

use crate::control::{Reply, Token};
use crate::driver::answer::questions::{Found, Question};
use crate::record::CandidateRecord;
use crate::store::{Store, StoreError};

/// How long SQLite waits for another process before it reports that the database is locked.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// The pause between two attempts to write a row.
const PAUSE: Duration = Duration::from_millis(50);
/// The timeout for writing the last rows at the end.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of sample blocks that may be waiting. Samples keep arriving while the database stalls, so surplus
/// blocks are dropped. No other row is ever dropped.
const MAX_SAMPLES: usize = 8;
/// From this number of waiting rows on, requests that need the database are refused. The rows of running attempts are
/// bounded too, because no lease is granted once a row has waited too long.
const MAX_WAITING: usize = 2048;

/// A read or a write of the database. If it fails for a reason that may pass, it is called again.
type Operation = Box<dyn FnMut(&mut Store) -> Result<FollowUp, StoreError> + Send>;

/// The action that is carried out when a row is on disk.
pub(crate) enum FollowUp {
    Nothing,
    KillWorker(WorkerId),
    KillRunner(WorkerId, u32),
    /// Samples were stored. The next ones should have this step width, in milliseconds.
    Widen(u64),
    /// A candidate has ended. Its record is included if it has to be passed to a waiting client or to the
    /// `each_candidate` callback.
    Ended(CandidateId, Option<Box<CandidateRecord>>),
    Reply(Token, Reply),
    Answer(Token, Question, Found),
    WriteSummary,
}

/// The main loop's handle to the thread: the channels to it, and the rows that it has not acknowledged.
pub(crate) struct Writer {
    /// The channel for operations. `None` when no more are accepted.
    operations: Option<Sender<Operation>>,
    written: Receiver<Result<FollowUp, StoreError>>,
    /// A descriptor that is readable when rows have been acknowledged.
    wake: Arc<OwnedFd>,
    /// The times at which the waiting rows were submitted, the oldest first.
    waiting: VecDeque<Instant>,
    samples_waiting: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The reason why the current row was not written.
    last_error: Mutex<Option<String>>,
    /// Whether the thread stops retrying, because the run ends.
    gives_up: AtomicBool,
}

impl Writer {
    pub(crate) fn open(store: Store) -> Result<Self, StoreError> {
        let path = store.path().to_owned();
        let fail = |source: std::io::Error| StoreError::Io {
            path: path.clone(),
            operation: "start the thread that writes the run database",
            source,
        };
        store.wait_for_others(LOCK_TIMEOUT)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|errno| fail(errno.into()))?);
        let (operations, to_do) = unbounded();
        let (done, written) = unbounded();
        let shared = Arc::new(Shared::default());
        let (thread_shared, thread_wake) = (Arc::clone(&shared), Arc::clone(&wake));
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write(store, &to_do, &done, &thread_shared, &thread_wake))
            .map_err(fail)?;
        Ok(Self {
            operations: Some(operations),
            written,
            wake,
            waiting: VecDeque::new(),
            samples_waiting: 0,
            shared,
        })
    }

    /// Submits a row that needs no follow-up.
    pub(crate) fn write(
        &mut self,
        mut row: impl FnMut(&mut Store) -> Result<(), StoreError> + Send + 'static,
    ) {
        self.write_then(move |store| row(store).map(|()| FollowUp::Nothing));
    }

    /// Submits an operation. When the operation is done, `acknowledged` returns its follow-up.
    pub(crate) fn write_then(
        &mut self,
        operation: impl FnMut(&mut Store) -> Result<FollowUp, StoreError> + Send + 'static,
    ) {
        // If the thread has ended, `acknowledged` returns its error.
        if self.operations.as_ref().is_some_and(|operations| operations.send(Box::new(operation)).is_ok()) {
            self.waiting.push_back(Instant::now());
        }
    }

    /// Submits a block of samples. Returns false if the block was dropped because too many are waiting.
    pub(crate) fn write_samples(
        &mut self,
        mut samples: impl FnMut(&mut Store) -> Result<u64, StoreError> + Send + 'static,
    ) -> bool {
        let fits = self.samples_waiting < MAX_SAMPLES;
        if fits {
            self.samples_waiting += 1;
            self.write_then(move |store| samples(store).map(FollowUp::Widen));
        }
        fits
    }

    /// Returns the follow-ups of rows that were acknowledged since the last call, or the error that ended the thread.
    pub(crate) fn acknowledged(&mut self) -> Result<Vec<FollowUp>, StoreError> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        let mut all = Vec::new();
        for written in self.written.try_iter() {
            let then = written?;
            self.waiting.pop_front();
            self.samples_waiting -= usize::from(matches!(then, FollowUp::Widen(_)));
            if !matches!(then, FollowUp::Nothing) {
                all.push(then);
            }
        }
        Ok(all)
    }

    /// Returns how long the oldest row has waited, or `None` if no row is waiting.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        self.waiting.front().map(Instant::elapsed)
    }

    /// Returns why the oldest row is waiting.
    pub(crate) fn last_error(&self) -> String {
        let last_error = self.shared.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        last_error.clone().unwrap_or_else(|| "the disk has not answered yet".to_owned())
    }

    /// Returns whether so many rows are waiting that requests must be refused.
    pub(crate) fn is_full(&self) -> bool {
        MAX_WAITING <= self.waiting.len()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Queries the database and waits for the answer.
    #[cfg(test)]
    pub(crate) fn ask<T: Send + 'static>(
        &mut self,
        question: impl Fn(&mut Store) -> Result<T, StoreError> + Send + 'static,
    ) -> T {
        let (give, take) = unbounded();
        self.write(move |store| question(store).map(|answer| drop(give.send(answer))));
        take.recv().expect("an answer")
    }
}

impl Drop for Writer {
    /// Completes the waiting writes in order. It gives up after `CLOSING_TIMEOUT`, or at the first write that fails,
    /// for example because the database is locked or the disk is full.
    fn drop(&mut self) {
        self.shared.gives_up.store(true, Ordering::Relaxed);
        self.operations = None;
        // The thread first closes the database, which checkpoints its log, and then disconnects the channel.
        let deadline = Instant::now() + CLOSING_TIMEOUT;
        while !matches!(self.written.recv_deadline(deadline), Err(RecvTimeoutError::Disconnected))
            && Instant::now() < deadline
        {}
    }
}

/// Carries out the operations in order, until one fails or the channel is closed.
fn write(
    mut store: Store,
    to_do: &Receiver<Operation>,
    done: &Sender<Result<FollowUp, StoreError>>,
    shared: &Shared,
    wake: &OwnedFd,
) {
    let set_error =
        |last_error| *shared.last_error.lock().unwrap_or_else(PoisonError::into_inner) = last_error;
    while let Ok(mut operation) = to_do.recv() {
        let mut had_failed = false;
        let written = loop {
            match operation(&mut store) {
                Err(error) if error.is_transient() && !shared.gives_up.load(Ordering::Relaxed) => {
                    set_error(Some(chain(&error)));
                    had_failed = true;
                    std::thread::sleep(PAUSE);
                }
                written => break written,
            }
        };
        if had_failed {
            set_error(None);
        }
        let failed = written.is_err();
        let acknowledged_to_loop = done.send(written).is_ok();
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        if failed || !acknowledged_to_loop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::record::{Numbers, UtcTime};

    fn a_writer() -> (tempfile::TempDir, Writer) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::create(folder.path()).expect("a database");
        let writer = Writer::open(store).expect("a writer");
        (folder, writer)
    }

    fn decide(writer: &mut Writer, decision: &'static str) {
        writer.write_then(move |store| {
            store.policy(UtcTime::now(), decision, "", &Numbers::new())?;
            Ok(FollowUp::KillWorker(WorkerId(7)))
        });
    }

    fn acknowledged(writer: &mut Writer) -> Vec<FollowUp> {
        poll(&mut [PollFd::from_borrowed_fd(writer.descriptor(), PollFlags::IN)], None).expect("polled");
        writer.acknowledged().expect("written")
    }

    #[test]
    fn row_is_written_before_it_is_acknowledged() {
        let (folder, mut writer) = a_writer();
        assert!(writer.acknowledged().expect("nothing").is_empty());
        assert_eq!(writer.longest_wait(), None);
        decide(&mut writer, "first");
        assert!(writer.longest_wait().is_some());
        let then = acknowledged(&mut writer);
        assert!(matches!(then[..], [FollowUp::KillWorker(WorkerId(7))]));
        assert_eq!((writer.longest_wait(), writer.waiting()), (None, 0));
        let rows = Store::read(folder.path()).expect("opens").latest_decisions(9).expect("read");
        assert_eq!(rows[0].decision, "first");
    }

    #[test]
    fn write_to_a_locked_database_is_retried() {
        let (folder, mut writer) = a_writer();
        let other = rusqlite::Connection::open(folder.path().join("run.sqlite")).expect("opens");
        other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
        decide(&mut writer, "first");
        decide(&mut writer, "second");
        while !writer.last_error().contains("in use by another process") {
            std::thread::sleep(PAUSE);
        }
        assert!(
            writer.acknowledged().expect("no error").is_empty(),
            "nothing is acknowledged before it is written"
        );
        assert_eq!(writer.waiting(), 2);
        other.execute_batch("COMMIT").expect("free");
        while 0 < writer.waiting() {
            acknowledged(&mut writer);
        }
        let rows = writer.ask(|store| store.latest_decisions(9));
        let decisions: Vec<&str> = rows.iter().map(|row| row.decision.as_str()).collect();
        assert_eq!(decisions, ["first", "second"]);
    }

    #[test]
    fn rows_wait_for_a_disk_that_hangs_and_the_caller_does_not() {
        let (_folder, mut writer) = a_writer();
        let (disk, hangs) = unbounded::<()>();
        writer.write_then(move |_| {
            let _ = hangs.recv();
            Ok(FollowUp::KillWorker(WorkerId(6)))
        });
        decide(&mut writer, "second");
        assert!(writer.acknowledged().expect("no error").is_empty());
        assert_eq!((writer.waiting(), writer.last_error().as_str()), (2, "the disk has not answered yet"));
        let oldest = writer.longest_wait().expect("a row waits");
        // The row's wait becomes longer.
        while writer.longest_wait().expect("a row waits") <= oldest {}
        drop(disk);
        let mut killed = Vec::new();
        while 0 < writer.waiting() {
            killed.extend(acknowledged(&mut writer));
        }
        assert!(
            matches!(killed[..], [FollowUp::KillWorker(WorkerId(6)), FollowUp::KillWorker(WorkerId(7))]),
            "in order"
        );
    }

    #[test]
    fn surplus_samples_are_dropped_and_other_rows_are_not() {
        let (folder, mut writer) = a_writer();
        let other = rusqlite::Connection::open(folder.path().join("run.sqlite")).expect("opens");
        other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
        decide(&mut writer, "first");
        let accepted = (0..20).filter(|_| writer.write_samples(|_| Ok(1))).count();
        assert_eq!(accepted, MAX_SAMPLES);
        decide(&mut writer, "last");
        other.execute_batch("COMMIT").expect("free");
        while 0 < writer.waiting() {
            acknowledged(&mut writer);
        }
        assert!(writer.write_samples(|_| Ok(1)), "there is room again");
        assert_eq!(writer.ask(|store| store.latest_decisions(9)).len(), 2);
    }
}
