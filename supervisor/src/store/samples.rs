//! Stores memory samples in the database as blocks, which are thinned out evenly when there are too many.
//!
//! A run may take a day, and its samples may take some tens of MiB. When the blocks exceed the budget, the width of a
//! step is doubled. After that, each write joins a few old, neighbouring blocks into blocks whose steps have the new
//! width. A joined step keeps the worst values of the steps that it replaces.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::block::{decode, encode};
use super::load::{infallible, role, time, word};
use super::{Store, StoreError};
use crate::record::Stage;
use crate::record::timeline::{Assembly, Block, Mark, MarkKind, PhaseSpan, Timeline, milliseconds};

pub use super::block::MAX_POINTS;

/// The total size of all blocks above which they are thinned out.
const BUDGET: Bytes = Bytes::mib(24);
/// The largest number of joins after each write. The joins usually remove more blocks than the write has added, so
/// thinning keeps up.
const JOINED_AT_ONCE: usize = 4;
/// The widest step, one hour in milliseconds. Blocks with such steps are not thinned out further.
const WIDEST: u64 = 3_600_000;
/// The maximum number of phases and of marks in a timeline. A drawing cannot show more.
const MAX_PHASES: i64 = 100_000;
const MAX_MARKS: i64 = 10_000;

const LOAD: &str = "load the samples";

impl Store {
    /// Writes one block, which contains a few seconds of samples. Returns the step width for the next block, in
    /// milliseconds.
    pub fn samples(&mut self, block: &Block) -> Result<u64, StoreError> {
        self.samples_within(block, BUDGET)
    }

    pub(super) fn samples_within(&mut self, block: &Block, budget: Bytes) -> Result<u64, StoreError> {
        const OPERATION: &str = "keep samples";
        let path = self.path.clone();
        let joined = self.ordered(OPERATION, |transaction| {
            if block.span().is_some() {
                insert(transaction, block)?;
            }
            thin_out(transaction, budget)
        })?;
        joined.map_err(|what| StoreError::Corrupt { path, operation: OPERATION, what })
    }

    /// Returns the step width for the next block of a resumed run, in milliseconds.
    pub fn samples_width(&self) -> Result<u64, StoreError> {
        self.connection
            .query_row("SELECT coalesce(max(width), 1) FROM sample", [], |row| row.get::<_, i64>(0))
            .map(|width| u64::try_from(width).unwrap_or(1).max(1))
            .map_err(|source| self.failed(source))
    }

    /// Returns the run's memory over time, reduced to about `steps` steps. It is empty if the run kept no samples.
    pub fn timeline(&self, steps: usize) -> Result<Timeline, StoreError> {
        let span: Option<(i64, i64)> = self
            .connection
            .query_row("SELECT min(started), max(ended) FROM sample HAVING count(*) > 0", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .map_err(|source| self.failed(source))?;
        let Some((from, to)) = span else { return Ok(Timeline::default()) };
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        let mut assembly = Assembly::new(self.roles()?, number(from), number(to), steps);
        self.each_block(|block| assembly.take(block))?;
        let totals = self.memory_totals()?;
        Ok(Timeline {
            ceiling: totals.host_ceiling_bytes,
            predicted: totals.predicted_peak_owed_bytes,
            phases: self.phase_spans()?,
            marks: self.marks()?,
            ..assembly.finish()
        })
    }

    /// Calls `take` with every block, in the order in which the blocks were written. A timeline adds processes up, but
    /// a block contains the samples of each process.
    pub fn each_block(&self, mut take: impl FnMut(&Block)) -> Result<(), StoreError> {
        let mut damage = None;
        let read = self.each(
            "SELECT key, data FROM sample ORDER BY key",
            [],
            |row| {
                let key: i64 = row.get(0)?;
                Ok((key, decode(row.get_ref(1)?.as_blob()?)))
            },
            |(key, block)| match block {
                Ok(block) => {
                    take(&block);
                    Ok(())
                }
                Err(error) => {
                    damage = Some(format!("block {key} of the samples: {error}"));
                    Err(())
                }
            },
        )?;
        match (read, damage) {
            (Err(()), Some(what)) => {
                Err(StoreError::Corrupt { path: self.path.clone(), operation: LOAD, what })
            }
            _ => Ok(()),
        }
    }

    fn roles(&self) -> Result<BTreeMap<WorkerId, opt_shared::message::Role>, StoreError> {
        let mut roles = BTreeMap::new();
        infallible(self.each(
            "SELECT id, role FROM worker",
            [],
            |row| Ok((WorkerId(row.get(0)?), word(row, 1, role)?)),
            |(worker, role)| {
                roles.insert(worker, role);
                Ok(())
            },
        )?);
        Ok(roles)
    }

    fn phase_spans(&self) -> Result<Vec<PhaseSpan>, StoreError> {
        let mut phases = Vec::new();
        infallible(self.each(
            "SELECT phase.worker, phase.stage, job.name, candidate.name, phase.started, phase.ended,
                 0 AS part, phase.key AS key
             FROM phase JOIN candidate ON candidate.key = phase.candidate JOIN job ON job.key = candidate.job
             WHERE phase.ended IS NOT NULL
             UNION ALL
             SELECT it.worker, 'replay', replay.name, NULL, it.started, it.ended, 1, it.key
             FROM replay_phase AS it JOIN replay ON replay.key = it.replay WHERE it.ended IS NOT NULL
             ORDER BY part, key LIMIT ?1",
            [MAX_PHASES],
            |row| {
                Ok(PhaseSpan {
                    worker: WorkerId(row.get(0)?),
                    stage: word(row, 1, Stage::from_name)?,
                    job: row.get(2)?,
                    candidate: row.get(3)?,
                    started: milliseconds(word(row, 4, time)?),
                    ended: milliseconds(word(row, 5, time)?),
                })
            },
            |phase| {
                phases.push(phase);
                Ok(())
            },
        )?);
        Ok(phases)
    }

    /// Returns kills and recycles, by time. A kill is a policy row that names the worker. A recycle is a field in the
    /// row of the worker that was replaced.
    fn marks(&self) -> Result<Vec<Mark>, StoreError> {
        let mut marks = Vec::new();
        let kind = |word: &str| match word {
            "kill_worker" => Some(MarkKind::KilledWorker),
            "kill_runner" => Some(MarkKind::KilledRunner),
            "recycled" => Some(MarkKind::Recycled),
            _ => None,
        };
        infallible(self.each(
            "SELECT t, worker, decision, reason FROM policy
                 WHERE worker IS NOT NULL AND decision IN ('kill_worker', 'kill_runner')
             UNION ALL SELECT ended, id, 'recycled', recycled_because FROM worker
                 WHERE recycled_because IS NOT NULL AND ended IS NOT NULL
             ORDER BY 1 LIMIT ?1",
            [MAX_MARKS],
            |row| {
                Ok(Mark {
                    at: milliseconds(word(row, 0, time)?),
                    worker: WorkerId(row.get(1)?),
                    kind: word(row, 2, kind)?,
                    reason: row.get(3)?,
                })
            },
            |mark| {
                marks.push(mark);
                Ok(())
            },
        )?);
        Ok(marks)
    }
}

/// Converts a number to a signed integer, as SQLite requires. No time or width comes near the limit.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn insert(transaction: &Transaction<'_>, block: &Block) -> rusqlite::Result<()> {
    let Some((started, ended)) = block.span() else { return Ok(()) };
    let data = encode(block);
    transaction
        .prepare_cached(
            "INSERT INTO sample (started, ended, width, bytes, data) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            signed(started),
            signed(ended),
            signed(block.width),
            signed(data.len() as u64),
            data
        ])?;
    Ok(())
}

/// Joins a few neighbouring blocks whose steps are narrower than the current width. If there are no such blocks and the
/// budget is exceeded, doubles the width. Returns the width. The inner error says which block is damaged.
fn thin_out(transaction: &Transaction<'_>, budget: Bytes) -> rusqlite::Result<Result<u64, String>> {
    let (bytes, widest): (i64, i64) = transaction
        .prepare_cached("SELECT coalesce(sum(bytes), 0), coalesce(max(width), 1) FROM sample")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut width = u64::try_from(widest).unwrap_or(1).clamp(1, WIDEST);
    for _ in 0..JOINED_AT_ONCE {
        let mut finer = finer_pair(transaction, width)?;
        if finer.is_none() && budget.get() < u64::try_from(bytes).unwrap_or(0) && width < WIDEST {
            width *= 2;
            finer = finer_pair(transaction, width)?;
        }
        let Some((one, other)) = finer else { break };
        if let Err(what) = join(transaction, one, other, width)? {
            return Ok(Err(what));
        }
    }
    Ok(Ok(width))
}

/// Returns the keys of the oldest block with steps narrower than `width`, and of the next such block.
fn finer_pair(transaction: &Transaction<'_>, width: u64) -> rusqlite::Result<Option<(i64, Option<i64>)>> {
    transaction
        .prepare_cached(
            "SELECT key, (SELECT min(next.key) FROM sample AS next WHERE next.key > sample.key AND next.width < ?1)
             FROM sample WHERE width < ?1 ORDER BY key LIMIT 1",
        )?
        .query_row([signed(width)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

fn join(
    transaction: &Transaction<'_>,
    key: i64,
    next: Option<i64>,
    width: u64,
) -> rusqlite::Result<Result<(), String>> {
    let read = |key: i64| -> rusqlite::Result<Result<Block, String>> {
        transaction.prepare_cached("SELECT data FROM sample WHERE key = ?1")?.query_row([key], |row| {
            Ok(decode(row.get_ref(0)?.as_blob()?)
                .map_err(|error| format!("block {key} of the samples: {error}")))
        })
    };
    let one = match read(key)? {
        Ok(block) => block,
        Err(what) => return Ok(Err(what)),
    };
    let other = match next.map(read).transpose()?.transpose() {
        Ok(block) => block.unwrap_or_default(),
        Err(what) => return Ok(Err(what)),
    };
    let widened = one.clone().joined(Block::default(), width);
    let both = one.joined(other, width);
    // If both blocks together have too many points, they are not joined, and only the width of the first one changes.
    let (whole, taken) = if both.points() <= MAX_POINTS { (both, next) } else { (widened, None) };
    if let Some((started, ended)) = whole.span() {
        let data = encode(&whole);
        transaction
            .prepare_cached(
                "UPDATE sample SET started = ?2, ended = ?3, width = ?4, bytes = ?5, data = ?6 WHERE key = ?1",
            )?
            .execute(params![key, signed(started), signed(ended), signed(width), signed(data.len() as u64), data])?;
    }
    if let Some(taken) = taken {
        transaction.prepare_cached("DELETE FROM sample WHERE key = ?1")?.execute([taken])?;
    }
    Ok(Ok(()))
}
