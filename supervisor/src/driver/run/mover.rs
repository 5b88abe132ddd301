//! A thread that creates and removes the leaves of runners, and moves runners into them.
//!
//! Linux delays a move until no process of the machine is being started or ended, which can take tens of
//! milliseconds. The main loop must not wait that long.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use rustix::event::{EventfdFlags, eventfd};

use crate::cgroup::{Leaf, LeafLimits, Subtree};

/// How long the end of a run waits for the thread. The thread needs at most a few seconds to remove groups, unless a
/// system call hangs.
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// The stack size of the thread, in bytes.
const STACK: usize = 256 * 1024;

/// A runner, as its worker and its pid.
pub(super) type RunnerKey = (WorkerId, u32);

/// The result of an order to move a runner.
pub(super) struct Moved {
    pub(super) runner: RunnerKey,
    /// The runner's leaf; `None` if the runner had ended. The error says why it could not be moved.
    pub(super) leaf: Result<Option<Leaf>, String>,
}

enum Order {
    Move(RunnerKey, LeafLimits),
    GiveBack(Leaf),
}

/// The loop's side of the thread. Dropping it waits until the thread has removed all groups, but not longer than
/// `END_TIMEOUT`.
pub(super) struct Mover {
    /// `None` once the thread has been told to end.
    orders: Option<Sender<Order>>,
    moved: Receiver<Moved>,
    /// Becomes readable when a move is done.
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    folder: PathBuf,
}

impl Mover {
    /// Starts the thread, which takes over the subtree.
    pub(super) fn start(mut subtree: Subtree) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let folder = subtree.folder().to_owned();
        let (orders, received) = channel();
        let (done, moved) = channel();
        let to_wake = Arc::clone(&wake);
        let thread = std::thread::Builder::new().name("leaves".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || {
            while let Ok(order) = received.recv() {
                match order {
                    Order::GiveBack(leaf) => subtree.give_back(leaf),
                    Order::Move(runner, limits) => {
                        let leaf = move_into_leaf(&mut subtree, runner, limits);
                        // The loop has ended if nobody receives this.
                        let _ = done.send(Moved { runner, leaf });
                        let _ = rustix::io::write(&to_wake, &1_u64.to_ne_bytes());
                    }
                }
            }
            drop(subtree);
            // This comes last, because the loop takes the closed channel as the end of the thread.
            drop(done);
        })?;
        Ok(Self { orders: Some(orders), moved, wake, thread: Some(thread), folder })
    }

    /// Orders the thread to move a runner into a new leaf. Returns false if the thread has ended.
    pub(super) fn move_runner(&self, runner: RunnerKey, limits: LeafLimits) -> bool {
        self.order(Order::Move(runner, limits))
    }

    /// Orders the thread to kill what is left in a leaf, and to remove the leaf.
    pub(super) fn give_back(&self, leaf: Leaf) {
        self.order(Order::GiveBack(leaf));
    }

    fn order(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }

    pub(super) fn moved(&self) -> Vec<Moved> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.moved.try_iter().collect()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.orders = None;
        let deadline = Instant::now() + END_TIMEOUT;
        // Runners that are still being moved are dead by now.
        while self.moved.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        match self.thread.take() {
            Some(thread) if Instant::now() < deadline => drop(thread.join()),
            // The process ends soon, and the thread with it. The next run removes what is left.
            _ => {
                tracing::warn!("the control groups below {} were not removed in time", self.folder.display())
            }
        }
    }
}

fn move_into_leaf(
    subtree: &mut Subtree,
    (worker, pid): RunnerKey,
    limits: LeafLimits,
) -> Result<Option<Leaf>, String> {
    let leaf = subtree.leaf(&format!("{worker}-{pid}"), limits).map_err(|error| chain(&error))?;
    match leaf.enter(pid) {
        Ok(()) => Ok(Some(leaf)),
        Err(error) => {
            subtree.put_aside(leaf);
            // A runner that is already dead needs no leaf.
            if error.is_of_a_dead_process() { Ok(None) } else { Err(chain(&error)) }
        }
    }
}
