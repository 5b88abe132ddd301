//! One worker, as the core sees it.
//!
//! ```text
//!              WorkerReady            Start                    Finished
//!   Starting ─────────────▶ Idle ───────────────▶ Leased ───────────────▶ Idle
//!      │                     │ Shutdown              │ KillWorker
//!      │ WorkerNotReady      ▼                       ▼
//!      └──────────────▶ Draining ─────────────▶ Terminating
//!                            └───────── WorkerGone ──┴──────▶ (gone: removed)
//! ```
//! `WorkerGone` is the driver's word that the pidfd fired and the process is reaped; it may come in any state.
//! Nothing else removes a worker. Where runners outlive it, it leaves a `Returning` behind, which is charged until
//! `Returned` says that the last of them is gone.

use std::collections::BTreeMap;

use opt_shared::ids::LeaseId;
use opt_shared::message::{KillReason, Role};
use opt_shared::units::Bytes;

use super::RETURN_TIMEOUT;
use super::event::{Moment, Order};
use super::recycle::{RecycleReason, Wear};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    Starting {
        deadline: Moment,
    },
    Idle,
    Leased(Lease),
    /// It was told to end.
    Draining {
        deadline: Moment,
    },
    /// Killed; the pidfd has yet to fire.
    Terminating,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) id: LeaseId,
    pub(crate) order: Order,
    pub(crate) attempt: u32,
    pub(crate) started: Moment,
    pub(crate) deadline: Moment,
    /// Which of the ways to do it.
    pub(crate) way: usize,
    pub(crate) predicted: Bytes,
    pub(crate) reserved: Bytes,
    pub(crate) peak_owed: Bytes,
    pub(crate) peak_reclaimable: Bytes,
    /// Why a runner of it was ended, where that was for memory: it decides how the attempt is done again.
    pub(crate) short_of_memory: Option<KillReason>,
}

/// A runner that was reported and is not yet reaped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Runner {
    pub(crate) limit: Bytes,
    pub(crate) shared: Bytes,
    pub(crate) owed: Bytes,
    pub(crate) peak_owed: Bytes,
    pub(crate) killed: Option<KillReason>,
}

/// A worker that is dead while runners of it are not: what they owe is still charged.
#[derive(Clone, Debug)]
pub(crate) struct Returning {
    pub(crate) role: Role,
    pub(crate) runners: BTreeMap<u32, Runner>,
    pub(crate) since: Moment,
    pub(crate) drain_order: Option<DrainOrder>,
    /// It was said that its memory takes too long to come back.
    pub(crate) overdue: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) role: Role,
    pub(crate) state: State,
    pub(crate) born: Moment,
    pub(crate) leases: u32,
    pub(crate) owed: Bytes,
    pub(crate) owed_when_ready: Option<Bytes>,
    pub(crate) peak_owed: Bytes,
    pub(crate) validated: Bytes,
    pub(crate) runners: BTreeMap<u32, Runner>,
    pub(crate) drain_order: Option<DrainOrder>,
    /// We ordered its end, for this.
    pub(crate) killed: Option<KillReason>,
    /// When the signal was sent.
    pub(crate) killed_at: Option<Moment>,
    /// It was said that it does not die.
    pub(crate) overdue: bool,
    /// It was ready once.
    pub(crate) was_ready: bool,
    /// A sample has come since it became idle: `owed` is what its last lease left.
    pub(crate) seen_idle: bool,
    /// Started before it was needed.
    pub(crate) spare: bool,
}

/// The order to drain: to end by itself, between two leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainOrder {
    pub(crate) at: Moment,
    /// None where the run has no more work for it.
    pub(crate) reason: Option<RecycleReason>,
    /// What the whole tree owed then, by measurement.
    pub(crate) owed: Bytes,
}

impl Runner {
    /// With the files in memory that it maps.
    pub(crate) fn all(&self) -> Bytes {
        self.owed + self.shared
    }
}

pub(crate) fn owed_by(runners: &BTreeMap<u32, Runner>) -> Bytes {
    runners.values().map(Runner::all).sum()
}

impl Worker {
    pub(crate) fn new(role: Role, born: Moment, deadline: Moment) -> Self {
        Self {
            role,
            state: State::Starting { deadline },
            born,
            leases: 0,
            owed: Bytes::ZERO,
            owed_when_ready: None,
            peak_owed: Bytes::ZERO,
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

    /// The deadline for its next state.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match &self.state {
            State::Starting { deadline } | State::Draining { deadline } => Some(*deadline),
            State::Leased(lease) => Some(lease.deadline),
            State::Idle | State::Terminating => None,
        }
    }

    /// A killed one: by when it has to be gone.
    pub(crate) fn dead_by(&self) -> Option<Moment> {
        self.killed_at.map(|at| at + RETURN_TIMEOUT)
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// Owed by the worker and its runners: what the ledger measures.
    pub(crate) fn tree_owed(&self) -> Bytes {
        self.owed + owed_by(&self.runners)
    }

    /// It lives, and nobody has told it to end.
    pub(crate) fn stays(&self) -> bool {
        matches!(self.state, State::Starting { .. } | State::Idle | State::Leased(_)) && self.killed.is_none()
    }

    /// Started before it was needed, and has never had a lease.
    pub(crate) fn is_spare(&self) -> bool {
        self.spare && self.leases == 0
    }

    pub(crate) fn wear(&self, now: Moment) -> Wear {
        Wear {
            age: now.saturating_sub(self.born),
            leases: self.leases,
            owed_when_ready: self.owed_when_ready.unwrap_or(self.owed),
            owed: self.owed,
            validated: self.validated,
        }
    }
}
