//! Reads the record of a run with many cycles, and finds out which workers owed memory at the same time and how long
//! each switch from verifying to profiling took.

use std::collections::BTreeMap;
use std::path::Path;

use opt_shared::formula::IDLE_WORKER;
use opt_supervisor::record::UtcTime;
use opt_supervisor::record::timeline::{Block, Track};
use opt_supervisor::store::Store;
use serde_json::Value;

use crate::summary::list;

/// The tolerance for the start and the end of a phase, in milliseconds. These times are read when the phase is written
/// to the record, so a sample that is this close to one of them counts as taken during the phase.
const MARGIN: u64 = 25;
/// The maximum number of violations to list.
const MAX_REPORTED: usize = 10;

#[derive(Debug, Default)]
pub struct Evidence {
    /// The number of moments at which a recorded amount of memory changed.
    pub moments: usize,
    /// The number of moments at which a worker of the role had a runner, or owed more than the ledger charges for an
    /// idle worker. The key is the role.
    pub at_work: BTreeMap<String, usize>,
    /// The largest number of bytes that a worker of the role owed while it had no phase and no runner. The key is the
    /// role.
    pub idle: BTreeMap<String, u64>,
    /// The number of moments at which workers of both roles were at work. It must be 0, because the roles take turns.
    pub both_at_work: usize,
    /// The first of the moments in `both_at_work`, each with the bytes that the busy workers of each role owed.
    pub violations: Vec<String>,
    /// The times from the end of a job's last verification to the lease of its first profile, in microseconds.
    pub switches: Vec<u64>,
    /// The times from a worker's start until it was ready, in milliseconds, by role.
    pub ready_ms: BTreeMap<String, Vec<f64>>,
    /// The times at which each job's last profile ended, in milliseconds since 1970.
    pub cycles_ended: Vec<u64>,
    pub candidates_passed: usize,
    /// The milliseconds that one step of the record covers if samples were thinned out; otherwise 1.
    pub width: u64,
}

struct Worker {
    role: String,
    phases: Vec<(u64, u64)>,
    own: u64,
    runners: BTreeMap<u32, u64>,
}

/// A time in milliseconds since 1970, a process, and the bytes that the process owes from then on. `None` means that
/// the process has ended.
type Change = (u64, Track, Option<u64>);

/// Reads the evidence of a run that has ended. `summary` is the content of its `summary.json`.
pub fn read(run: &Path, summary: &Value) -> Result<Evidence, String> {
    let mut evidence = Evidence::default();
    let mut workers = workers(summary, &mut evidence)?;
    phases(summary, &mut workers, &mut evidence)?;
    let statuses = list(&summary["jobs"]).iter().flat_map(|job| list(&job["candidates"]));
    evidence.candidates_passed = statuses.filter(|it| it["status"] == "PASSED").count();
    let changes = changes(run, &mut evidence.width)?;
    for moment in changes.chunk_by(|one, next| one.0 == next.0) {
        apply(moment, &mut workers);
        record_idle_memory(moment[0].0, &workers, &mut evidence);
        record_workers_at_work(moment[0].0, &workers, &mut evidence);
    }
    Ok(evidence)
}

fn workers(summary: &Value, evidence: &mut Evidence) -> Result<BTreeMap<u32, Worker>, String> {
    let mut workers = BTreeMap::new();
    for it in list(&summary["workers"]) {
        let (Some(id), Some(role)) = (number(&it["id"]), it["role"].as_str()) else {
            return Err(format!("a worker without id or role: {it}"));
        };
        let role = role.to_owned();
        evidence.ready_ms.entry(role.clone()).or_default().extend(it["ready_ms"].as_f64());
        workers.insert(id, Worker { role, phases: Vec::new(), own: 0, runners: BTreeMap::new() });
    }
    Ok(workers)
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

fn phases(
    summary: &Value,
    workers: &mut BTreeMap<u32, Worker>,
    evidence: &mut Evidence,
) -> Result<(), String> {
    let mut ended: Vec<(&str, u64)> = Vec::new();
    for phase in list(&summary["memory"]["phases"]) {
        let time = |field: &str| {
            let text = phase[field].as_str().ok_or_else(|| format!("a phase without {field}: {phase}"))?;
            let time: UtcTime = text.parse().map_err(|error| format!("{error}"))?;
            u64::try_from(time.as_millisecond()).map_err(|error| format!("{text}: {error}"))
        };
        let (from, to) = (time("started")?, time("ended")?);
        let worker = number(&phase["worker"]).and_then(|id| workers.get_mut(&id));
        worker.ok_or_else(|| format!("a phase without a worker: {phase}"))?.phases.push((from, to));
        if phase["stage"] != "profile" {
            continue;
        }
        let job = phase["job"].as_str().unwrap_or_default();
        match ended.last_mut() {
            Some((same, end)) if *same == job => *end = to,
            _ => {
                ended.push((job, to));
                let switch = phase["switch_us"].as_u64();
                evidence.switches.push(switch.ok_or_else(|| format!("{phase} has no switch_us"))?);
            }
        }
    }
    evidence.cycles_ended = ended.into_iter().map(|(_, end)| end).collect();
    Ok(())
}

/// Returns all changes in order of time. The changes of a process come before its end.
fn changes(run: &Path, width: &mut u64) -> Result<Vec<Change>, String> {
    let store = Store::read(run).map_err(|error| error.to_string())?;
    let mut changes: Vec<Change> = Vec::new();
    let mut alive: Vec<Track> = Vec::new();
    store
        .each_block(|block: &Block| {
            *width = block.width.max(*width);
            let Some((start, end)) = block.span() else { return };
            let gone = alive.iter().filter(|track| !block.series.contains_key(track));
            changes.extend(gone.map(|&track| (start, track, None)));
            alive.clear();
            for (&track, series) in &block.series {
                changes.extend(series.points.iter().map(|it| (it.at, track, Some(it.first.get()))));
                if series.last < end {
                    changes.push((series.last + 1, track, None));
                } else {
                    alive.push(track);
                }
            }
        })
        .map_err(|error| error.to_string())?;
    changes.sort_by_key(|&(at, ..)| at);
    Ok(changes)
}

fn apply(changes: &[Change], workers: &mut BTreeMap<u32, Worker>) {
    for &(_, track, owed) in changes {
        match track {
            Track::Worker { worker, .. } => {
                if let Some(worker) = workers.get_mut(&worker.0) {
                    worker.own = owed.unwrap_or(0);
                }
            }
            Track::Runner { worker, pid } => {
                let Some(worker) = workers.get_mut(&worker.0) else { continue };
                match owed {
                    Some(owed) => worker.runners.insert(pid, owed),
                    None => worker.runners.remove(&pid),
                };
            }
            Track::Tree | Track::Machine | Track::Supervisor => {}
        }
    }
}

impl Worker {
    fn owed(&self) -> u64 {
        self.own + self.runners.values().sum::<u64>()
    }
}

fn record_idle_memory(at: u64, workers: &BTreeMap<u32, Worker>, evidence: &mut Evidence) {
    for worker in workers.values().filter(|it| 0 < it.own && it.runners.is_empty()) {
        let near = |&(from, to): &(u64, u64)| from <= at + MARGIN && at <= to + MARGIN;
        if !worker.phases.iter().any(near) {
            let max = evidence.idle.entry(worker.role.clone()).or_default();
            *max = worker.own.max(*max);
        }
    }
}

fn record_workers_at_work(at: u64, workers: &BTreeMap<u32, Worker>, evidence: &mut Evidence) {
    evidence.moments += 1;
    let mut at_work: BTreeMap<&str, u64> = BTreeMap::new();
    for worker in workers.values() {
        if !worker.runners.is_empty() || IDLE_WORKER.get() < worker.own {
            *at_work.entry(worker.role.as_str()).or_default() += worker.owed();
        }
    }
    for role in at_work.keys() {
        *evidence.at_work.entry((*role).to_owned()).or_default() += 1;
    }
    if 1 < at_work.len() {
        evidence.both_at_work += 1;
        if evidence.violations.len() < MAX_REPORTED {
            evidence.violations.push(format!("{at}: {at_work:?}"));
        }
    }
}
