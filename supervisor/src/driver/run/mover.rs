//! Creates and removes the leaves of runners, and moves runners into them, in a separate thread.
//!
//! Before such a move, Linux waits for an RCU grace period, so that no process is being started or ended during the
//! move. This can take tens of milliseconds, which is too long for the main loop to wait.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;

use crate::cgroup::{Leaf, LeafLimits, Subtree};
use crate::driver::background::Background;
use crate::memory::procfs;

/// How long the end of a run waits for the thread. The thread needs at most a few seconds to remove groups, unless a
/// system call hangs.
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// A runner, identified by its worker and its pid.
pub(super) type RunnerKey = (WorkerId, u32);

/// The result of an order to move a runner.
pub(super) struct Moved {
    pub(super) runner: RunnerKey,
    /// The runner's leaf, or `None` if the runner had already ended. The error says why the runner could not be moved.
    pub(super) leaf: Result<Option<Leaf>, String>,
}

enum Order {
    MoveAhead(RunnerKey, u64),
    Move(RunnerKey, u64, LeafLimits),
    GiveBack(Leaf),
    GiveBackAhead(WorkerId),
}

/// The main loop's handle to the thread. Dropping it waits until the thread has removed all groups, but not longer than
/// `END_TIMEOUT`.
pub(super) struct Mover {
    thread: Background<Order, Moved>,
    folder: PathBuf,
}

impl Mover {
    /// Starts the thread, which takes over the subtree.
    pub(super) fn start(subtree: Subtree) -> std::io::Result<Self> {
        let folder = subtree.folder().to_owned();
        let mut moves = Moves { subtree, ahead: BTreeMap::new() };
        let thread = Background::start("leaves", move |order| match order {
            Order::MoveAhead(runner, start_time) => {
                moves.move_ahead(runner, start_time);
                None
            }
            Order::Move(runner, start_time, limits) => {
                Some(Moved { runner, leaf: moves.move_into_leaf(runner, start_time, limits) })
            }
            Order::GiveBack(leaf) => {
                moves.subtree.give_back(leaf);
                None
            }
            Order::GiveBackAhead(worker) => {
                moves.give_back_ahead(|(owner, _)| *owner == worker);
                None
            }
        })?;
        Ok(Self { thread, folder })
    }

    /// Orders the thread to move a process into a leaf without limits. If the move fails, `move_runner` tries again.
    pub(super) fn move_ahead(&self, runner: RunnerKey, start_time: u64) {
        self.thread.order(Order::MoveAhead(runner, start_time));
    }

    /// Orders the thread to move a runner into a new leaf, or to set the limits of the leaf into which it was moved
    /// ahead. Returns false if the thread has ended.
    pub(super) fn move_runner(&self, runner: RunnerKey, start_time: u64, limits: LeafLimits) -> bool {
        self.thread.order(Order::Move(runner, start_time, limits))
    }

    /// Orders the thread to remove the leaves of processes that were moved ahead of time but never became runners.
    pub(super) fn give_back_ahead(&self, worker: WorkerId) {
        self.thread.order(Order::GiveBackAhead(worker));
    }

    /// Orders the thread to kill the processes that are left in a leaf, and to remove the leaf.
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
        // Runners that are still being moved are dead by now. If the thread does not end in time, this process soon
        // ends anyway, and the next run removes the groups that are left.
        if !self.thread.end(END_TIMEOUT) {
            tracing::warn!(
                "the control groups below {} were not removed in time (the next run in this group removes them)",
                self.folder.display()
            );
        }
    }
}

/// The state that the thread keeps between orders.
struct Moves {
    subtree: Subtree,
    /// The leaves of processes that were moved ahead of time, with the start times of these processes. The worker may
    /// have ended some of the processes since then.
    ahead: BTreeMap<RunnerKey, (u64, Leaf)>,
}

impl Moves {
    fn move_ahead(&mut self, runner: RunnerKey, start_time: u64) {
        // If a process with this pid was moved ahead before, the worker has ended it by now.
        self.give_back_ahead(|it| *it == runner);
        // With the start time, the name is free even if an earlier leaf for this pid cannot be removed yet.
        let name = format!("{}-{start_time}", name(runner));
        let Ok(leaf) = self.subtree.unlimited_leaf(&name) else { return };
        // The worker may reap the process at any time, and another process may then get its pid. A process that was
        // moved by mistake must not be killed with the leaf.
        let is_there = || procfs::start_time(Path::new("/proc"), runner.1).ok().flatten() == Some(start_time);
        if is_there() && leaf.enter(runner.1).is_ok() && is_there() {
            self.ahead.insert(runner, (start_time, leaf));
        } else {
            self.subtree.put_aside(leaf);
        }
    }

    fn move_into_leaf(
        &mut self,
        runner: RunnerKey,
        start_time: u64,
        limits: LeafLimits,
    ) -> Result<Option<Leaf>, String> {
        match self.ahead.remove(&runner) {
            Some((moved, mut leaf)) if moved == start_time => {
                return match leaf.limit(limits) {
                    Ok(()) => Ok(Some(leaf)),
                    Err(error) => {
                        self.subtree.put_aside(leaf);
                        Err(chain(&error))
                    }
                };
            }
            Some((_, leaf)) => self.subtree.give_back(leaf),
            None => {}
        }
        let leaf = self.subtree.leaf(&name(runner), limits).map_err(|error| chain(&error))?;
        match leaf.enter(runner.1) {
            Ok(()) => Ok(Some(leaf)),
            Err(error) => {
                self.subtree.put_aside(leaf);
                // A runner that is already dead needs no leaf.
                if error.is_of_a_dead_process() { Ok(None) } else { Err(chain(&error)) }
            }
        }
    }

    fn give_back_ahead(&mut self, is_chosen: impl Fn(&RunnerKey) -> bool) {
        for (_, (_, leaf)) in self.ahead.extract_if(.., |runner, _| is_chosen(runner)) {
            self.subtree.give_back(leaf);
        }
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        self.give_back_ahead(|_| true);
    }
}

fn name((worker, pid): RunnerKey) -> String {
    format!("{worker}-{pid}")
}
