//! A thread that creates and removes the leaves of runners, and moves runners into them.
//!
//! Before such a move, Linux waits for an RCU grace period, so that no process is being started or ended. This can take
//! tens of milliseconds. The main loop must not wait that long.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;

use crate::cgroup::{Leaf, LeafLimits, Subtree};
use crate::driver::background::Background;

/// How long the end of a run waits for the thread. The thread needs at most a few seconds to remove groups, unless a
/// system call hangs.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// A runner, as its worker and its pid.
pub(super) type RunnerKey = (WorkerId, u32);

/// The result of an order to move a runner.
pub(super) struct Moved {
    pub(super) runner: RunnerKey,
    /// The runner's leaf, or `None` if the runner had ended. The error says why the runner could not be moved.
    pub(super) leaf: Result<Option<Leaf>, String>,
}

enum Order {
    Move(RunnerKey, LeafLimits),
    GiveBack(Leaf),
}

/// The main loop's handle to the thread. Dropping it waits until the thread has removed all groups, but not longer than
/// `END_TIMEOUT`.
pub(super) struct Mover {
    thread: Background<Order, Moved>,
    folder: PathBuf,
}

impl Mover {
    /// Starts the thread, which takes over the subtree.
    pub(super) fn start(mut subtree: Subtree) -> std::io::Result<Self> {
        let folder = subtree.folder().to_owned();
        let thread = Background::start("leaves", move |order| match order {
            Order::GiveBack(leaf) => {
                subtree.give_back(leaf);
                None
            }
            Order::Move(runner, limits) => {
                Some(Moved { runner, leaf: move_into_leaf(&mut subtree, runner, limits) })
            }
        })?;
        Ok(Self { thread, folder })
    }

    /// Orders the thread to move a runner into a new leaf. Returns false if the thread has ended.
    pub(super) fn move_runner(&self, runner: RunnerKey, limits: LeafLimits) -> bool {
        self.thread.order(Order::Move(runner, limits))
    }

    /// Orders the thread to kill what is left in a leaf, and to remove the leaf.
    pub(super) fn give_back(&self, leaf: Leaf) {
        self.thread.order(Order::GiveBack(leaf));
    }

    pub(super) fn moved(&self) -> Vec<Moved> {
        self.thread.outcomes()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.thread.descriptor()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        // Runners that are still being moved are dead by now. If the thread does not end, the process soon does, and
        // the next run removes what is left.
        if !self.thread.end(END_TIMEOUT) {
            tracing::warn!(
                "the control groups below {} were not removed in time (the next run in this group removes them)",
                self.folder.display()
            );
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
