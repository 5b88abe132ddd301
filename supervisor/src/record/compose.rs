//! From what a worker reported to what the document says of a candidate.
//!
//! Owns the translation only. Which status and blame a candidate ends with, its rank and its speed-up are given to
//! the record by those who decide them.

use opt_shared::message::Report;
use opt_shared::outcome::{
    BuildReport, EntryFailure, EntryProfile, ProfileReport, RunnerEnd, Status, VerifyReport,
};
use opt_shared::units::Bytes;

use super::{
    BuildRecord, CandidateRecord, CandidateTimes, EntryTimingRecord, ProfileRecord, ResourcesRecord,
    SourceRecord, VerifyRecord,
};

/// Failing entries shown of one candidate.
const MAX_FAILURES: usize = 3;

impl CandidateRecord {
    /// A candidate of which nothing is known but where it comes from.
    pub fn new(name: String, source: SourceRecord) -> Self {
        Self {
            name,
            status: None,
            blame: None,
            rank: None,
            artifact_digest: None,
            detail: None,
            failed_stage: None,
            feedback: None,
            source,
            build: None,
            signal: None,
            exit_code: None,
            stderr_tail: None,
            output_truncated: false,
            failures: Vec::new(),
            verify: None,
            profile: None,
            speedup: None,
            resources: ResourcesRecord::default(),
            attempts: Vec::new(),
        }
    }

    /// Takes in what a stage reported; a later report of the same stage replaces the earlier one, and evidence of a
    /// failure (signal, failing entries) is that of the last report that has any.
    pub fn absorb(&mut self, report: Report) {
        match report {
            Report::Build(report) => self.absorb_build(report),
            Report::Verify(report) => self.absorb_verify(report),
            Report::Profile(report) => self.absorb_profile(report),
            // No candidate's own.
            Report::Replay(_) => {}
        }
    }

    fn absorb_build(&mut self, report: BuildReport) {
        self.artifact_digest = report.artifact.map(|artifact| artifact.digest);
        if !report.source_digest.is_empty() {
            self.source.digest = Some(report.source_digest);
        }
        self.build = Some(BuildRecord {
            compiler: report.compiler,
            flags: report.command,
            log_head: report.log_head,
            ms: report.ms,
            peak_owed_bytes: report.peak_owed,
        });
    }

    fn absorb_verify(&mut self, report: VerifyReport) {
        self.absorb_evidence(report.status, report.end, report.failures, report.output_truncated);
        self.absorb_runner_peak(report.runner_peak_owed);
        self.verify = Some(VerifyRecord {
            entries_run: report.entries_run,
            entries_passed: report.entries_passed,
            entries_unsupported: report.entries_unsupported,
            max_absolute_error: report.max_absolute_error,
            max_relative_error: report.max_relative_error,
            worst: report.worst,
            validated_bytes: report.bytes_validated,
            ms: report.ms,
            reads: report.reads,
        });
    }

    fn absorb_profile(&mut self, report: ProfileReport) {
        // What the baseline did in a shared profile is no evidence against the candidate.
        if !report.baseline_failed {
            self.absorb_evidence(report.status, report.end, report.failures, report.output_truncated);
        }
        self.absorb_runner_peak(report.runner_peak_owed);
        self.profile = Some(ProfileRecord {
            times: CandidateTimes::default(),
            breaches: Vec::new(),
            cpus: report.cpus,
            ms: report.ms,
            reads: report.reads,
            entries: report.entries.into_iter().map(EntryTimingRecord::from).collect(),
        });
    }

    fn absorb_evidence(
        &mut self,
        status: Status,
        end: Option<RunnerEnd>,
        mut failures: Vec<EntryFailure>,
        truncated: bool,
    ) {
        self.output_truncated |= truncated || end.as_ref().is_some_and(|end| end.output_truncated);
        if status == Status::Passed {
            return;
        }
        failures.truncate(MAX_FAILURES);
        self.failures = failures;
        let end = end.unwrap_or_default();
        self.signal = end.signal;
        self.exit_code = end.exit_code;
        self.stderr_tail = (!end.stderr_tail.is_empty()).then_some(end.stderr_tail);
    }

    /// Zero is what a worker says that has measured nothing: a process that ran owed something.
    fn absorb_runner_peak(&mut self, peak: Bytes) {
        let peak = (peak != Bytes::ZERO).then_some(peak);
        self.resources.runner_peak_owed_bytes = self.resources.runner_peak_owed_bytes.max(peak);
    }
}

impl From<EntryProfile> for EntryTimingRecord {
    fn from(entry: EntryProfile) -> Self {
        Self {
            entry: entry.entry,
            weight: entry.weight,
            times: entry.times,
            noise: entry.noise,
            converged: entry.converged,
            cache_state: entry.cache_state,
            footprint_bytes: entry.footprint,
            bytes_per_second: entry.bytes_per_second,
            speedup: entry.speedup,
            baseline: entry.baseline_times,
            calls_per_block: entry.calls_per_block,
            discarded_blocks: entry.discarded_blocks,
            slots_checked: entry.slots_checked,
            plan_ms: entry.plan_ms,
            handoff_us: entry.handoff_us,
        }
    }
}
