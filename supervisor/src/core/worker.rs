//! Keeps the core's view of a worker: its state, its lease and its runners.
//!
//! ```text
//!              WorkerReady            Start                    Finished
//!   Starting ─────────────▶ Idle ───────────────▶ Leased ───────────────▶ Idle
//!      │                     │ Shutdown              │ Finished, after KillWorker
//!      │                     ▼                       │
//!      │                  Draining                   │
//!      │ WorkerNotReady      │ KillWorker            ▼
//!      └─────────────────────┴────────────────▶ Terminating ── WorkerGone ──▶ (gone: removed)
//! ```
//! A worker that is killed during a lease keeps the lease until it has finished or is gone. `WorkerGone` means that the
//! pidfd fired and the process was reaped. This event may come in any state, and it removes the worker.
//! `WorkerNotReady` also removes the worker if it could not be started. If runners outlive their worker, they remain as
//! its `Orphans`, which are charged until `OrphansEnded` reports that the last of them has ended.

use std::collections::{BTreeMap, BTreeSet};

use opt_shared::ids::LeaseId;
use opt_shared::message::{KillReason, Role};
use opt_shared::units::Bytes;

use super::DEATH_TIMEOUT;
use super::event::{Moment, Order};
use super::recycle::{RecycleReason, Usage};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Starting {
        deadline: Moment,
    },
    Idle,
    Leased(Lease),
    /// The worker was told to exit.
    Draining {
        deadline: Moment,
    },
    /// The worker was killed, and its pidfd has not fired yet.
    Terminating,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) order: Order,
    pub(crate) attempt: u32,
    pub(crate) started: Moment,
    pub(crate) deadline: Moment,
    /// The index of the way in which the step is run (`Step::ways`).
    pub(crate) way: usize,
    pub(crate) predicted: Bytes,
    pub(crate) reserved: Bytes,
    pub(crate) device: Bytes,
    pub(crate) peak_owed: Bytes,
    pub(crate) peak_reclaimable: Bytes,
    pub(crate) peak_device: Option<Bytes>,
    /// The memory that the worker and its runners held on the device when one of them was ended for exceeding `device`.
    pub(crate) over_device: Option<Bytes>,
    /// Why a runner was ended, if memory was the reason. This decides whether and how the attempt is repeated.
    pub(crate) short_of_memory: Option<KillReason>,
    /// Which other parts of the run were active during a timed attempt.
    pub(crate) breaches: BTreeSet<&'static str>,
}

/// A living runner or compiler that a worker has reported.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runner {
    pub(crate) limit: Bytes,
    /// The total size of the memory files that the runner maps.
    pub(crate) shared: Bytes,
    pub(crate) owed: Bytes,
    pub(crate) peak_owed: Bytes,
    pub(crate) device: Bytes,
    pub(crate) killed: Option<KillReason>,
}

/// The living runners that a dead worker left behind.
#[derive(Clone, Debug)]
pub(crate) struct Orphans {
    pub(crate) role: Role,
    pub(crate) runners: BTreeMap<u32, Runner>,
    pub(crate) since: Moment,
    pub(crate) drain_order: Option<DrainOrder>,
    /// Whether the policy log already says that they are still alive.
    pub(crate) overdue: bool,
}

/// A living worker and its runners.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) role: Role,
    pub(crate) state: State,
    pub(crate) born: Moment,
    pub(crate) leases: u32,
    pub(crate) owed: Bytes,
    /// The memory that the worker's zygote owes. It does not count as growth, because the zygote stays between leases.
    pub(crate) zygote: Bytes,
    pub(crate) owed_when_ready: Option<Bytes>,
    pub(crate) peak_owed: Bytes,
    /// The memory that the worker holds on the device, without its runners.
    pub(crate) device: Bytes,
    /// Whether the worker has had a lease on the device, or a sample has shown it there.
    pub(crate) on_device: bool,
    pub(crate) peak_device: Option<Bytes>,
    /// The captured bytes that the worker has verified.
    pub(crate) validated: Bytes,
    pub(crate) runners: BTreeMap<u32, Runner>,
    pub(crate) drain_order: Option<DrainOrder>,
    pub(crate) killed: Option<KillReason>,
    /// The time at which the signal was sent.
    pub(crate) killed_at: Option<Moment>,
    /// Whether the policy log already says that it is still alive after being killed.
    pub(crate) overdue: bool,
    pub(crate) was_ready: bool,
    /// Whether the worker has been sampled since it became idle. If so, `owed` is the memory that it kept after its
    /// last lease.
    pub(crate) seen_idle: bool,
    /// Whether the worker was started before it was needed.
    pub(crate) spare: bool,
}

/// The order that a worker should end. An idle worker exits by itself. A worker that a user replaces at once is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainOrder {
    pub(crate) at: Moment,
    /// The reason for replacing the worker. `None` if the run is ending.
    pub(crate) reason: Option<RecycleReason>,
    /// The memory that the whole run owed when the order was given.
    pub(crate) owed: Bytes,
}

impl Runner {
    /// Returns the memory that the runner owes, including the memory files that it maps.
    pub(crate) fn total_owed(&self) -> Bytes {
        self.owed + self.shared
    }
}

pub(crate) fn owed_by(runners: &BTreeMap<u32, Runner>) -> Bytes {
    runners.values().map(Runner::total_owed).sum()
}

impl Worker {
    pub(crate) fn new(role: Role, born: Moment, deadline: Moment) -> Self {
        Self {
            role,
            state: State::Starting { deadline },
            born,
            leases: 0,
            owed: Bytes::ZERO,
            zygote: Bytes::ZERO,
            owed_when_ready: None,
            peak_owed: Bytes::ZERO,
            device: Bytes::ZERO,
            on_device: false,
            peak_device: None,
            validated: Bytes::ZERO,
            runners: BTreeMap::new(),
            drain_order: None,
            killed: None,
            killed_at: None,
            overdue: false,
            was_ready: false,
            seen_idle: false,
            spare: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Returns the time at which the worker's current state times out.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match &self.state {
            State::Starting { deadline } | State::Draining { deadline } => Some(*deadline),
            State::Leased(lease) => Some(lease.deadline),
            State::Idle | State::Terminating => None,
        }
    }

    /// Returns the time at which a killed worker must be dead.
    pub(crate) fn dead_by(&self) -> Option<Moment> {
        self.killed_at.map(|at| at + DEATH_TIMEOUT)
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    pub(crate) fn lease_mut(&mut self) -> Option<&mut Lease> {
        match &mut self.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    pub(crate) fn tree_owed(&self) -> Bytes {
        self.owed + self.zygote + owed_by(&self.runners)
    }

    /// Returns whether the worker is alive and has not been told to end.
    pub(crate) fn stays(&self) -> bool {
        matches!(self.state, State::Starting { .. } | State::Idle | State::Leased(_)) && self.killed.is_none()
    }

    pub(crate) fn is_spare(&self) -> bool {
        self.spare && self.leases == 0
    }

    pub(crate) fn usage(&self, now: Moment) -> Usage {
        Usage {
            age: now.saturating_sub(self.born),
            leases: self.leases,
            owed_when_ready: self.owed_when_ready.unwrap_or(self.owed),
            owed: self.owed,
        }
    }
}
