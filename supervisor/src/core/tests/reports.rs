//! What workers report, in short. The simulated machine in `tools/src/simulate` says the same: it includes this file.

use opt_shared::message::Report;
use opt_shared::outcome::{
    Artifact, BuildReport, EntryFailure, ProfileReport, ReplayReport, ReplayResult, RunnerEnd, Status,
    VerifyReport,
};
use opt_shared::units::Bytes;

use super::Stage;

pub(super) fn report(stage: Stage, status: Status) -> Report {
    match stage {
        Stage::Build => build(status),
        Stage::Verify => Report::Verify(verify(status)),
        Stage::Profile => Report::Profile(profile(status)),
        Stage::Replay => Report::Replay(replay(status)),
    }
}

pub(super) fn build(status: Status) -> Report {
    Report::Build(BuildReport {
        status,
        detail: status.name().to_owned(),
        artifact: (status == Status::Passed)
            .then(|| Artifact { digest: "d".to_owned(), path: std::path::PathBuf::from("d.so") }),
        compiler: None,
        command: Vec::new(),
        log_head: String::new(),
        source_digest: String::new(),
        ms: 1.0,
        peak_owed: None,
    })
}

pub(super) fn verify(status: Status) -> VerifyReport {
    let detail = status.name().to_owned();
    VerifyReport {
        entries_run: 2,
        entries_passed: 1,
        bytes_validated: Bytes::mib(100),
        ms: 1.0,
        ..VerifyReport::of_nothing(status, detail)
    }
}

pub(super) fn profile(status: Status) -> ProfileReport {
    ProfileReport {
        status,
        detail: status.name().to_owned(),
        entries: Vec::new(),
        failures: Vec::new(),
        end: None,
        baseline_failed: false,
        ms: 1.0,
        runner_peak_owed: Bytes::ZERO,
        output_truncated: false,
        cpus: Vec::new(),
        reads: opt_shared::outcome::ReadReport::default(),
    }
}

/// A SIGKILL by nobody knows whom, at this entry.
pub(super) fn killed_at(stage: Stage, entry: &str, unknown_sender: bool) -> Report {
    let failures = vec![EntryFailure {
        entry: entry.to_owned(),
        status: Status::InfraError,
        detail: "killed in a call by an unknown sender".to_owned(),
        args: Vec::new(),
        mismatch: None,
    }];
    let end = Some(RunnerEnd { unknown_sender, ..RunnerEnd::default() });
    match stage {
        Stage::Build => build(Status::InfraError),
        Stage::Verify => Report::Verify(VerifyReport { failures, end, ..verify(Status::InfraError) }),
        Stage::Profile => Report::Profile(ProfileReport { failures, end, ..profile(Status::InfraError) }),
        Stage::Replay => Report::Replay(ReplayReport { failures, end, ..replay(Status::InfraError) }),
    }
}

/// One without a step: what a report says is the core's affair, what a replay measures is not.
pub(super) fn replay(status: Status) -> ReplayReport {
    let nothing = ReplayResult {
        budget_bytes: Bytes::ZERO,
        floor_bytes: Bytes::ZERO,
        all_resident_bytes: Bytes::ZERO,
        pinned_bytes: Bytes::ZERO,
        peak_pool_bytes: Bytes::ZERO,
        bytes_moved: Bytes::ZERO,
        unique_bytes: Bytes::ZERO,
        constants: 0,
        uses: 0,
        hits: 0,
        misses: 0,
        evictions: 0,
        total_ms: 1.0,
        stall_ms: 0.0,
        compute_ms: 1.0,
        copy_ms: 0.0,
        recording_digest: String::new(),
        outputs_digest: String::new(),
        steps: Vec::new(),
        step_count: 0,
    };
    ReplayReport {
        status,
        detail: status.name().to_owned(),
        failures: Vec::new(),
        end: None,
        result: (status == Status::Passed).then(|| Box::new(nothing)),
        ms: 1.0,
        runner_peak_owed: Bytes::ZERO,
        output_truncated: false,
    }
}
