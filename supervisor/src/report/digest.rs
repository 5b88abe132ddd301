//! Reduces a run to what fits on a page: a limited number of candidates and failures, and the worst phase of each
//! stage.
//!
//! A digest is filled row by row, so a run with ten thousand candidates is never in memory as a whole. Rows that are
//! left out are counted.

use std::collections::BTreeMap;
use std::convert::Infallible;

use opt_shared::outcome::Status;

use crate::record::timeline::Timeline;
use crate::record::{
    CandidateRecord, HostRecord, JobRecord, MemoryTotals, PhaseRecord, PolicyRecord, ReplayRecord, RunInfo,
    Stage, WorkerRecord,
};

/// The number of rows of each kind that a digest keeps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of candidates of each job that are shown with their times.
    pub shown: usize,
    /// The number of failed candidates of each job that are shown with details.
    pub failed: usize,
    /// The number of timed entries that are shown for each candidate.
    pub entries: usize,
    pub workers: usize,
    pub decisions: usize,
}

/// The longest excerpt of a candidate's or compiler's output on a page, in bytes.
const MAX_EXCERPT: usize = 4 << 10;

#[derive(Debug)]
pub struct JobDigest {
    pub job: JobRecord<()>,
    /// The candidates that are shown: the best ones first, then those without a rank.
    pub shown: Vec<CandidateRecord>,
    pub failed: Vec<CandidateRecord>,
    /// The winner and the baseline, regardless of their ranks.
    pub named: Vec<CandidateRecord>,
    /// The number of candidates with each status.
    pub statuses: BTreeMap<&'static str, usize>,
    /// The number of candidates, including the baseline.
    pub candidates: usize,
    /// The number of candidates other than the baseline.
    pub others: usize,
    /// The number of failed candidates.
    pub failures: usize,
    /// The largest number of timed entries of one candidate that were not kept.
    pub entries_left_out: usize,
}

#[derive(Debug)]
pub struct Digest {
    pub run: RunInfo,
    pub host: HostRecord,
    pub totals: MemoryTotals,
    pub jobs: Vec<JobDigest>,
    pub workers: Vec<WorkerRecord>,
    pub workers_in_all: usize,
    pub policy: Vec<PolicyRecord>,
    /// The number of decisions of each kind. All decisions are counted here, while `policy` contains only the first
    /// ones.
    pub decisions: BTreeMap<String, usize>,
    pub phases: WorstPhases,
    pub timeline: Timeline,
    /// All replays of the run. They need no limit, because a plan has at most 16.
    pub replays: Vec<ReplayRecord>,
    limits: Limits,
}

impl Digest {
    pub fn new(run: RunInfo, host: HostRecord, totals: MemoryTotals, limits: Limits) -> Self {
        Self {
            run,
            host,
            totals,
            jobs: Vec::new(),
            workers: Vec::new(),
            workers_in_all: 0,
            policy: Vec::new(),
            decisions: BTreeMap::new(),
            phases: WorstPhases::default(),
            timeline: Timeline::default(),
            replays: Vec::new(),
            limits,
        }
    }

    /// Starts a job. Candidates that are added later belong to this job.
    pub fn job(&mut self, job: JobRecord<()>) {
        self.jobs.push(JobDigest {
            job,
            shown: Vec::new(),
            failed: Vec::new(),
            named: Vec::new(),
            statuses: BTreeMap::new(),
            candidates: 0,
            others: 0,
            failures: 0,
            entries_left_out: 0,
        });
    }

    /// Adds a candidate. Candidates must come in the order of their ranks.
    pub fn candidate(&mut self, candidate: CandidateRecord) -> Result<(), Infallible> {
        let limits = self.limits;
        if let Some(job) = self.jobs.last_mut() {
            job.take(candidate, limits);
        }
        Ok(())
    }

    pub fn worker(&mut self, worker: WorkerRecord) -> Result<(), Infallible> {
        self.workers_in_all += 1;
        if self.workers.len() < self.limits.workers {
            self.workers.push(worker);
        }
        Ok(())
    }

    pub fn decision(&mut self, row: PolicyRecord) -> Result<(), Infallible> {
        // The texts of decisions are written by the program itself. They are short, and there are few different ones,
        // so they are not cut.
        *self.decisions.entry(row.decision.clone()).or_default() += 1;
        if self.policy.len() < self.limits.decisions {
            self.policy.push(row);
        }
        Ok(())
    }

    pub fn winner_of(&self, job: &str) -> Option<&str> {
        self.jobs.iter().find(|it| it.job.name == job)?.job.winner.as_deref()
    }

    pub fn phase(&mut self, phase: PhaseRecord) -> Result<(), Infallible> {
        self.phases.take(phase);
        Ok(())
    }
}

impl JobDigest {
    fn take(&mut self, mut candidate: CandidateRecord, limits: Limits) {
        self.candidates += 1;
        *self.statuses.entry(candidate.status.map_or("not finished", Status::name)).or_default() += 1;
        let is_baseline = self.job.baseline.as_ref() == Some(&candidate.name);
        self.others += usize::from(!is_baseline);
        if let Some(profile) = &mut candidate.profile {
            let left_out = profile.entries.len().saturating_sub(limits.entries);
            self.entries_left_out = self.entries_left_out.max(left_out);
            profile.entries.truncate(limits.entries);
        }
        for tail in [&mut candidate.stderr_tail, &mut candidate.stdout_tail].into_iter().flatten() {
            if MAX_EXCERPT < tail.len() {
                let start = tail.ceil_char_boundary(tail.len() - MAX_EXCERPT);
                tail.replace_range(..start, "[…] ");
            }
        }
        if let Some(build) = &mut candidate.build
            && MAX_EXCERPT < build.log_head.len()
        {
            build.log_head.truncate(build.log_head.floor_char_boundary(MAX_EXCERPT));
            build.log_head.push_str(" […]");
        }
        if is_baseline || self.job.winner.as_ref() == Some(&candidate.name) {
            self.named.push(candidate.clone());
        }
        // A candidate that was skipped on purpose gets a row but no details.
        let failed = candidate.status.is_some_and(|it| !matches!(it, Status::Passed | Status::Skipped));
        self.failures += usize::from(failed);
        if failed && self.failed.len() < limits.failed {
            self.failed.push(candidate.clone());
        }
        if self.shown.len() < limits.shown {
            self.shown.push(candidate);
        }
    }

    pub fn named(&self, name: &str) -> Option<&CandidateRecord> {
        self.named.iter().find(|candidate| candidate.name == name)
    }

    pub fn winner(&self) -> Option<&CandidateRecord> {
        self.named(self.job.winner.as_ref()?)
    }
}

/// For every stage of every job, the phase whose memory came closest to its prediction or exceeded it most.
#[derive(Debug, Default)]
pub struct WorstPhases {
    /// The worst phases in the order in which they were first added, each with the number of phases of its job and
    /// stage.
    worst: Vec<(PhaseRecord, usize)>,
}

impl WorstPhases {
    pub fn take(&mut self, phase: PhaseRecord) {
        let excess = |it: &PhaseRecord| {
            let bytes =
                |figure: Option<opt_shared::units::Bytes>| figure.map_or(0, |it| i128::from(it.get()));
            bytes(it.peak_owed_bytes) - bytes(it.predicted_bytes)
        };
        let same = |it: &&mut (PhaseRecord, usize)| it.0.job == phase.job && it.0.stage == phase.stage;
        match self.worst.iter_mut().find(same) {
            Some((worst, count)) => {
                *count += 1;
                if excess(worst) < excess(&phase) {
                    *worst = phase;
                }
            }
            None => self.worst.push((phase, 1)),
        }
    }

    /// The worst phases, each with the number of phases of its job and stage. The stages of a job are adjacent.
    pub fn rows(&self) -> Vec<(&PhaseRecord, usize)> {
        let mut jobs: Vec<&str> = Vec::new();
        for (phase, _) in &self.worst {
            if !jobs.contains(&phase.job.as_str()) {
                jobs.push(&phase.job);
            }
        }
        let mut rows: Vec<_> = self.worst.iter().map(|(phase, count)| (phase, *count)).collect();
        rows.sort_by_key(|(phase, _)| {
            let job = jobs.iter().position(|job| *job == phase.job);
            (job, Stage::ALL.iter().position(|stage| *stage == phase.stage))
        });
        rows
    }
}

#[cfg(test)]
pub(super) mod tests {
    use opt_shared::units::Bytes;

    use super::*;
    use crate::record::RunRecord;

    pub(in crate::report) const LIMITS: Limits =
        Limits { shown: 50, failed: 20, entries: 16, workers: 50, decisions: 50 };

    pub(in crate::report) fn digest_of(run: RunRecord, limits: Limits) -> Digest {
        let mut digest = Digest::new(run.run, run.host, run.memory.totals, limits);
        for mut job in run.jobs {
            let candidates = std::mem::take(&mut job.candidates);
            digest.job(job.with_candidates(()));
            let mut candidates = candidates;
            candidates.sort_by_key(|candidate| candidate.rank.unwrap_or(u32::MAX));
            for candidate in candidates {
                let Ok(()) = digest.candidate(candidate);
            }
        }
        digest.replays = run.replays;
        for worker in run.workers {
            let Ok(()) = digest.worker(worker);
        }
        for phase in run.memory.phases {
            let Ok(()) = digest.phase(phase);
        }
        for row in run.policy {
            let Ok(()) = digest.decision(row);
        }
        digest
    }

    #[test]
    fn digest_counts_all_candidates_and_keeps_few() {
        let mut run = crate::record::sample::sample();
        let job = &mut run.jobs[0];
        let (failed, passed) = (job.candidates[0].clone(), job.candidates[1].clone());
        for number in 0..5_000 {
            job.candidates.push(CandidateRecord { name: format!("bad-{number}"), ..failed.clone() });
            job.candidates.push(CandidateRecord {
                name: format!("good-{number}"),
                rank: Some(number + 3),
                ..passed.clone()
            });
        }
        let digest = digest_of(run, LIMITS);
        let job = &digest.jobs[0];
        assert_eq!((job.candidates, job.others, job.failures), (10_003, 10_002, 5_001));
        assert_eq!((job.shown.len(), job.failed.len()), (50, 20));
        assert_eq!(job.shown[0].name, "fast.c");
        assert_eq!(job.winner().map(|it| it.name.as_str()), Some("fast.c"));
        assert_eq!(job.statuses["PASSED"], 5_002);
    }

    #[test]
    fn worst_phase_comes_closest_to_its_prediction_or_exceeds_it_most() {
        let phase = crate::record::sample::sample().memory.phases.remove(0);
        let mut phases = WorstPhases::default();
        for (candidate, predicted, measured) in [("calm", 100, 50), ("wild", 60, 55), ("idle", 90, 1)] {
            phases.take(PhaseRecord {
                candidate: Some(candidate.to_owned()),
                predicted_bytes: Some(Bytes::mib(predicted)),
                peak_owed_bytes: Some(Bytes::mib(measured)),
                ..phase.clone()
            });
        }
        phases.take(PhaseRecord { stage: Stage::Build, ..phase.clone() });
        let rows = phases.rows();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].0.stage, rows[0].1), (Stage::Build, 1));
        assert_eq!((rows[1].0.candidate.as_deref(), rows[1].1), (Some("wild"), 3));
    }
}
