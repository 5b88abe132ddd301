//! Translates a worker's reports into a candidate's record. Other modules decide its status, blame, rank and speed-up.

use opt_shared::outcome::{Body, Built, EntryProfile, Head, Profiled, Report, Status, Verified};
use opt_shared::units::Bytes;

use super::{
    BuildRecord, CandidateRecord, CandidateTimes, EntryTimingRecord, JobRecord, ProfileRecord,
    ResourcesRecord, SourceRecord, Stage, VerifyRecord,
};

/// The maximum number of failing entries to record for a candidate.
const MAX_FAILURES: usize = 3;

impl CandidateRecord {
    /// Creates a record that contains only the name and the source.
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
            tier: None,
            build: None,
            signal: None,
            exit_code: None,
            stderr_tail: None,
            stdout_tail: None,
            output_truncated: false,
            failures: Vec::new(),
            verify: None,
            profile: None,
            not_timed_because: None,
            speedup: None,
            resources: ResourcesRecord::default(),
            attempts: Vec::new(),
        }
    }

    /// Adds the report of a stage. The report replaces an earlier one of the same stage. Screen, profile and
    /// confirmation count as one stage here, so they replace each other. The evidence of a failure (signal, failing
    /// entries) comes from the last verification or profile that did not pass, except profiles in which the baseline
    /// failed. Reports must be added in the order of the stages.
    pub fn absorb(&mut self, stage: Stage, Report { head, body }: Report) {
        match body {
            Body::Build(built) => self.absorb_build(head, built),
            Body::Verify(verified) => self.absorb_verify(head, verified),
            Body::Profile(profiled) => self.absorb_profile(stage, head, profiled),
            // A replay belongs to no candidate.
            Body::Replay(_) => {}
        }
    }

    fn absorb_build(&mut self, head: Head, built: Built) {
        self.artifact_digest = built.artifact.map(|artifact| artifact.digest);
        if !built.source_digest.is_empty() {
            self.source.digest = Some(built.source_digest);
        }
        self.build = Some(BuildRecord {
            compiler: built.compiler,
            flags: built.command,
            log_head: built.log_head,
            ms: head.ms,
            peak_owed_bytes: head.peak_owed,
        });
    }

    fn absorb_verify(&mut self, head: Head, verified: Verified) {
        self.verify = Some(VerifyRecord {
            entries_run: verified.entries_run,
            entries_passed: verified.entries_passed,
            entries_unsupported: verified.entries_unsupported,
            max_absolute_error: verified.max_absolute_error,
            max_relative_error: verified.max_relative_error,
            worst: verified.worst,
            validated_bytes: verified.bytes_validated,
            ms: head.ms,
            reads: verified.reads,
            output: verified.output,
            start_ms: verified.start_ms,
            device: verified.device,
            emulated_kernels: verified.emulated_kernels,
        });
        self.absorb_runner_peak(head.peak_owed);
        self.absorb_evidence(head);
    }

    fn absorb_profile(&mut self, stage: Stage, head: Head, profiled: Profiled) {
        self.profile = Some(ProfileRecord {
            stage: Some(stage),
            times: CandidateTimes::default(),
            breaches: profiled.breaches,
            cpus: profiled.cpus,
            ms: head.ms,
            reads: profiled.reads,
            entries: profiled.entries.into_iter().map(EntryTimingRecord::from).collect(),
        });
        self.absorb_runner_peak(head.peak_owed);
        // If the baseline failed in a paired profile, this is not evidence against the candidate.
        if !profiled.baseline_failed {
            self.absorb_evidence(head);
        }
    }

    fn absorb_evidence(&mut self, head: Head) {
        let Head { status, end, mut failures, output_truncated, .. } = head;
        self.output_truncated |= output_truncated || end.as_ref().is_some_and(|end| end.output_truncated);
        if status == Status::Passed {
            return;
        }
        failures.truncate(MAX_FAILURES);
        self.failures = failures;
        let end = end.unwrap_or_default();
        self.signal = end.signal;
        self.exit_code = end.exit_code;
        let unless_empty = |text: String| (!text.is_empty()).then_some(text);
        self.stderr_tail = unless_empty(end.stderr_tail);
        self.stdout_tail = unless_empty(end.stdout_tail);
    }

    fn absorb_runner_peak(&mut self, peak: Option<Bytes>) {
        self.resources.runner_peak_owed_bytes = self.resources.runner_peak_owed_bytes.max(peak);
    }
}

impl<Candidates> JobRecord<Candidates> {
    /// Returns this job with another list of candidates.
    pub fn with_candidates<To>(self, candidates: To) -> JobRecord<To> {
        let Self {
            name,
            status,
            detail,
            captures,
            baseline,
            winner,
            winner_confirmed,
            ranking,
            unsettled_because,
            signature_digest,
            candidates: _,
        } = self;
        JobRecord {
            name,
            status,
            detail,
            captures,
            baseline,
            winner,
            winner_confirmed,
            ranking,
            unsettled_because,
            signature_digest,
            candidates,
        }
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
            priority: entry.priority,
            footprint_bytes: entry.footprint,
            bytes_per_second: entry.bytes_per_second,
            speedup: entry.speedup,
            baseline: entry.baseline_times,
            calls_per_block: entry.calls_per_block,
            discarded_blocks: entry.discarded_blocks,
            slots_checked: entry.slots_checked,
            plan_ms: entry.plan_ms,
            handoff_us: entry.handoff_us,
            runners: entry.runners,
            wait_share: entry.wait_share,
            deciles: entry.deciles,
            baseline_deciles: entry.baseline_deciles,
            varied: entry.varied,
            unvaried_because: entry.unvaried_because,
            device: entry.device,
        }
    }
}
