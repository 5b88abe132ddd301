//! Reads and writes the rows about replays: their plan, their attempts and their ends. The result of a replay counts
//! only if the replay PASSED.

use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::outcome::{Blame, EntryFailure, ReplayResult, Status};
use opt_shared::units::Bytes;
use rusqlite::{OptionalExtension as _, params};

use super::bound::{MAX_DETAIL, MAX_NAME, clip};
use super::load::{blame, bytes, infallible, json_option, time, word_option};
use super::write::{bytes as stored, clip_option};
use super::{ReplayPhaseRow, Store, StoreError};
use crate::record::{ReplayRecord, UtcTime};

/// A replay, as the plan describes it.
#[derive(Clone, Debug)]
pub struct ReplayRow {
    pub place: u32,
    pub name: String,
    pub budget: Bytes,
    pub floor: Option<Bytes>,
    pub all_resident: Option<Bytes>,
}

/// The start of an attempt.
#[derive(Clone, Debug)]
pub struct ReplayStart {
    pub name: String,
    pub started: UtcTime,
    pub worker: WorkerId,
    pub lease: LeaseId,
    pub attempts: u32,
    pub predicted: Bytes,
}

/// The end of an attempt.
#[derive(Clone, Debug)]
pub struct ReplayEnd {
    pub name: String,
    pub status: Status,
    pub blame: Option<Blame>,
    pub detail: Option<String>,
    pub ended: UtcTime,
    pub ms: Option<f64>,
    pub peak_owed: Option<Bytes>,
    /// A text that identifies the inputs from which the result was computed. `None` if there is no result.
    pub inputs: Option<String>,
    pub result: Option<ReplayResult>,
    pub failure: Option<EntryFailure>,
}

impl Store {
    /// Records a replay. If it is already recorded, its budget and its end are kept.
    pub fn replay(&mut self, replay: &ReplayRow) -> Result<(), StoreError> {
        self.ordered("record a replay", |transaction| {
            transaction.execute(
                "INSERT INTO replay (place, name, budget, floor, all_resident) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (name) DO UPDATE SET place = excluded.place, floor = excluded.floor,
                     all_resident = excluded.all_resident",
                params![
                    replay.place,
                    clip(&replay.name, MAX_NAME),
                    stored(replay.budget),
                    replay.floor.map(stored),
                    replay.all_resident.map(stored)
                ],
            )
        })?;
        Ok(())
    }

    /// Records the start of an attempt, and discards an earlier result.
    pub fn replay_started(&mut self, start: &ReplayStart) -> Result<(), StoreError> {
        const OPERATION: &str = "record the start of a replay";
        let changed = self.ordered(OPERATION, |transaction| {
            transaction.execute(
                "UPDATE replay SET started = ?2, worker = ?3, lease = ?4, attempts = ?5, predicted = ?6, status = NULL,
                     blame = NULL, detail = NULL, ended = NULL, ms = NULL, peak_owed = NULL, inputs = NULL,
                     result = NULL, failure = NULL WHERE name = ?1",
                params![
                    clip(&start.name, MAX_NAME),
                    start.started.to_string(),
                    start.worker.0,
                    start.lease.0,
                    start.attempts,
                    stored(start.predicted)
                ],
            )
        })?;
        self.expect_one(changed, OPERATION, || start.name.clone())
    }

    pub fn replay_finished(&mut self, end: &ReplayEnd) -> Result<(), StoreError> {
        const OPERATION: &str = "record the end of a replay";
        let result = end.result.as_ref().map(|result| self.json(result, OPERATION)).transpose()?;
        let failure = end.failure.as_ref().map(|failure| self.json(failure, OPERATION)).transpose()?;
        let changed = self.synced(OPERATION, |transaction| {
            transaction.execute(
                "UPDATE replay SET status = ?2, blame = ?3, detail = ?4, ended = ?5, ms = ?6, peak_owed = ?7,
                     inputs = ?8, result = ?9, failure = ?10 WHERE name = ?1",
                params![
                    clip(&end.name, MAX_NAME),
                    end.status.name(),
                    end.blame.map(Blame::name),
                    clip_option(end.detail.as_deref(), MAX_DETAIL),
                    end.ended.to_string(),
                    end.ms,
                    end.peak_owed.map(stored),
                    end.inputs,
                    result,
                    failure
                ],
            )
        })?;
        self.expect_one(changed, OPERATION, || end.name.clone())
    }

    pub fn replay_phase(&mut self, phase: &ReplayPhaseRow) -> Result<(), StoreError> {
        const OPERATION: &str = "record a phase of a replay";
        let changed = self.ordered(OPERATION, |transaction| {
            transaction.execute(
                "INSERT INTO replay_phase (replay, worker, predicted, peak_owed, peak_reclaimable, swap_delta,
                     switch_us, started, ended, predicted_device, peak_device)
                 SELECT key, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 FROM replay WHERE name = ?1",
                params![
                    clip(&phase.name, MAX_NAME),
                    phase.worker.0,
                    stored(phase.predicted),
                    stored(phase.peak_owed),
                    stored(phase.peak_reclaimable),
                    phase.swap_delta,
                    phase.switch_us.and_then(|it| i64::try_from(it).ok()),
                    phase.started.to_string(),
                    phase.ended.to_string(),
                    phase.device.predicted.map(stored),
                    phase.device.peak.map(stored)
                ],
            )
        })?;
        self.expect_one(changed, OPERATION, || phase.name.clone())
    }

    /// Returns the result of a replay that passed, and the text that identifies the inputs of this result.
    pub fn stored_replay(&self, name: &str) -> Result<Option<(String, ReplayResult)>, StoreError> {
        self.connection
            .query_row(
                "SELECT inputs, result FROM replay WHERE name = ?1 AND status = ?2",
                params![name, Status::Passed.name()],
                |row| Ok((row.get::<_, Option<String>>(0)?, json_option(row, 1)?)),
            )
            .optional()
            .map(|found| found.and_then(|(inputs, result)| Some((inputs?, result?))))
            .map_err(|source| self.failed(source))
    }

    /// Returns all replays in the order of the plan, which has at most 16.
    pub(super) fn replays(&self) -> Result<Vec<ReplayRecord>, StoreError> {
        let mut replays = Vec::new();
        infallible(self.each(
            "SELECT name, status, blame, detail, budget, floor, all_resident, started, ended, worker, attempts, predicted,
                 peak_owed, ms, result, failure FROM replay ORDER BY place, key",
            [],
            |row| {
                Ok(ReplayRecord {
                    name: row.get(0)?,
                    status: word_option(row, 1, Status::from_name)?,
                    blame: word_option(row, 2, blame)?,
                    detail: row.get(3)?,
                    budget_bytes: bytes(row, 4)?,
                    floor_bytes: bytes(row, 5)?,
                    all_resident_bytes: bytes(row, 6)?,
                    started: word_option(row, 7, time)?,
                    ended: word_option(row, 8, time)?,
                    worker: row.get::<_, Option<u32>>(9)?.map(WorkerId),
                    attempts: row.get(10)?,
                    predicted_bytes: bytes(row, 11)?,
                    peak_owed_bytes: bytes(row, 12)?,
                    ms: row.get(13)?,
                    result: json_option(row, 14)?,
                    failure: json_option(row, 15)?,
                })
            },
            |replay| {
                replays.push(replay);
                Ok(())
            },
        )?);
        Ok(replays)
    }
}
