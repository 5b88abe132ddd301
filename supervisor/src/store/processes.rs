//! Writes rows about processes and memory: workers, kills, decisions and phases.

use std::time::Duration;

use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::message::KillReason;
use opt_shared::units::Bytes;
use rusqlite::params;
use serde_json::Value;

use super::bound::{MAX_DETAIL, clip};
use super::write::{bytes, clip_option};
use super::{PhaseRow, ProcessKind, Store, StoreError, WorkerEnd, WorkerRow};
use crate::record::{Numbers, UtcTime};

/// The names of the decisions that are written before a process is killed.
const KILL_WORKER: &str = "kill_worker";
const KILL_RUNNER: &str = "kill_runner";

impl Store {
    pub fn worker_started(&mut self, worker: &WorkerRow) -> Result<(), StoreError> {
        self.ordered("record the start of a worker", |transaction| {
            transaction.execute(
                "INSERT INTO worker (id, role, pid, started) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (id) DO NOTHING",
                params![worker.id.0, worker.role.name(), worker.pid, worker.started.to_string()],
            )
        })?;
        Ok(())
    }

    pub fn worker_ready(&mut self, worker: WorkerId, ready_ms: f64) -> Result<(), StoreError> {
        const OPERATION: &str = "record that a worker is ready";
        let changed = self.ordered(OPERATION, |transaction| {
            transaction.execute("UPDATE worker SET ready_ms = ?2 WHERE id = ?1", params![worker.0, ready_ms])
        })?;
        self.expect_one(changed, OPERATION, || worker.to_string())
    }

    pub fn worker_ended(&mut self, worker: WorkerId, end: &WorkerEnd) -> Result<(), StoreError> {
        const OPERATION: &str = "record the end of a worker";
        let changed = self.ordered(OPERATION, |transaction| {
            transaction.execute(
                "UPDATE worker SET ended = ?2, end_class = ?3, recycled_because = ?4, leases = ?5, peak_owed = ?6,
                     peak_device = ?7
                 WHERE id = ?1",
                params![
                    worker.0,
                    end.ended.to_string(),
                    clip(&end.class, MAX_DETAIL),
                    clip_option(end.recycled_because.as_deref(), MAX_DETAIL),
                    end.leases,
                    end.peak_owed.map(bytes),
                    end.peak_device.map(bytes)
                ],
            )
        })?;
        self.expect_one(changed, OPERATION, || worker.to_string())
    }

    /// Records the reason for a kill. The row is on disk when this returns. The signal must not be sent before that.
    pub fn kill_intended(
        &mut self,
        t: UtcTime,
        process: ProcessKind,
        worker: WorkerId,
        lease: Option<LeaseId>,
        reason: KillReason,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "record the reason for a kill";
        let (word, mut numbers) = kill_reason(reason);
        numbers.insert("worker".to_owned(), worker.0.into());
        if let Some(lease) = lease {
            numbers.insert("lease".to_owned(), lease.0.into());
        }
        let numbers = self.numbers(&numbers, OPERATION)?;
        let decision = match process {
            ProcessKind::Worker => KILL_WORKER,
            ProcessKind::Runner => KILL_RUNNER,
        };
        self.synced(OPERATION, |transaction| {
            transaction.execute(
                "INSERT INTO policy (t, decision, reason, numbers, worker, lease)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![t.to_string(), decision, word, numbers, worker.0, lease.map(|lease| lease.0)],
            )
        })?;
        Ok(())
    }

    pub fn policy(
        &mut self,
        t: UtcTime,
        decision: &str,
        reason: &str,
        numbers: &Numbers,
    ) -> Result<(), StoreError> {
        const OPERATION: &str = "record a policy decision";
        let numbers = self.numbers(numbers, OPERATION)?;
        self.ordered(OPERATION, |transaction| {
            transaction
                .prepare_cached("INSERT INTO policy (t, decision, reason, numbers) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![
                    t.to_string(),
                    clip(decision, MAX_DETAIL),
                    clip(reason, MAX_DETAIL),
                    numbers
                ])
        })?;
        Ok(())
    }

    /// Records how long one worker works on a stage. Call this at the start of the stage, at its end, or at both.
    pub fn phase(&mut self, phase: &PhaseRow) -> Result<(), StoreError> {
        const OPERATION: &str = "record a phase";
        let candidate = self.candidate_key(phase.candidate, OPERATION)?;
        self.ordered(OPERATION, |transaction| {
            transaction
                .prepare_cached(
                    "INSERT INTO phase (candidate, stage, worker, predicted, peak_owed, started, ended,
                         peak_reclaimable, swap_delta, switch_us, predicted_device, peak_device)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
                     ON CONFLICT (candidate, stage, worker, started) DO UPDATE SET
                         predicted = coalesce(excluded.predicted, predicted),
                         peak_owed = coalesce(excluded.peak_owed, peak_owed),
                         peak_reclaimable = coalesce(excluded.peak_reclaimable, peak_reclaimable),
                         swap_delta = coalesce(excluded.swap_delta, swap_delta),
                         predicted_device = coalesce(excluded.predicted_device, predicted_device),
                         peak_device = coalesce(excluded.peak_device, peak_device),
                         switch_us = coalesce(excluded.switch_us, switch_us),
                         ended = coalesce(excluded.ended, ended)",
                )?
                .execute(params![
                    candidate,
                    phase.stage.name(),
                    phase.worker.0,
                    phase.predicted.map(bytes),
                    phase.peak_owed.map(bytes),
                    phase.started.to_string(),
                    phase.ended.map(|ended| ended.to_string()),
                    phase.peak_reclaimable.map(bytes),
                    phase.swap_delta,
                    phase.switch_us.and_then(|it| i64::try_from(it).ok()),
                    phase.device.predicted.map(bytes),
                    phase.device.peak.map(bytes)
                ])
        })?;
        Ok(())
    }
}

/// Returns the name of a reason and its figures, in the form in which they are stored.
fn kill_reason(reason: KillReason) -> (&'static str, Numbers) {
    let figures = |pairs: &[(&str, Bytes)]| {
        pairs.iter().map(|(name, figure)| ((*name).to_owned(), Value::from(figure.get()))).collect()
    };
    let milliseconds = |limit: Duration| {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Numbers::from_iter([("limit_ms".to_owned(), Value::from(limit))])
    };
    match reason {
        KillReason::RunnerMemory { owed, limit } => {
            ("runner_memory", figures(&[("owed_bytes", owed), ("limit_bytes", limit)]))
        }
        KillReason::GroupMemory { limit } => ("group_memory", figures(&[("limit_bytes", limit)])),
        KillReason::HostFloor { available, floor } => {
            ("host_floor", figures(&[("available_bytes", available), ("floor_bytes", floor)]))
        }
        KillReason::HostCeiling { owed, ceiling } => {
            ("host_ceiling", figures(&[("owed_bytes", owed), ("ceiling_bytes", ceiling)]))
        }
        KillReason::DeviceCeiling { owed, ceiling } => {
            ("device_ceiling", figures(&[("owed_bytes", owed), ("ceiling_bytes", ceiling)]))
        }
        KillReason::DeviceLost => ("device_lost", figures(&[])),
        KillReason::Timeout { limit } => ("timeout", milliseconds(limit)),
        KillReason::WouldNotStop { limit } => ("would_not_stop", milliseconds(limit)),
        KillReason::Deadline => ("deadline", figures(&[])),
        KillReason::Interrupted => ("interrupted", figures(&[])),
        KillReason::Stopped => ("stopped", figures(&[])),
        KillReason::Orphaned => ("orphaned", figures(&[])),
        KillReason::NotReady => ("not_ready", figures(&[])),
        KillReason::WorkerFault => ("worker_fault", figures(&[])),
        KillReason::RunStopped => ("run_stopped", figures(&[])),
        KillReason::Requested => ("requested", figures(&[])),
        KillReason::Cancelled => ("cancelled", figures(&[])),
    }
}
