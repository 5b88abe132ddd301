//! Provides short reports of workers, for tests of the core and for the simulated machine.

use opt_shared::outcome::{
    Artifact, Body, Built, CacheStateReached, EntryFailure, EntryProfile, Estimate, Head, ReplayResult,
    Replayed, Report, RunnerEnd, Status, TimeSummary, Verified,
};
use opt_shared::settings::Priority;
use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

/// Returns a report with this status. If the status is PASSED, the report has the artifact or the result that its stage
/// requires.
pub fn report(stage: Stage, status: Status) -> Report {
    let passed = status == Status::Passed;
    let body = match stage {
        Stage::Build => Body::Build(Built {
            artifact: passed.then(|| Artifact {
                digest: "d".to_owned(),
                path: std::path::PathBuf::from("d.so"),
                bytes: Bytes::kib(16),
            }),
            ..Built::default()
        }),
        Stage::Verify => verified(1),
        Stage::Screen | Stage::Profile | Stage::Confirm => Body::of_nothing(stage),
        Stage::Replay => Body::Replay(Replayed { result: passed.then(|| Box::new(replayed())) }),
    };
    Report::new(Head { ms: 1.0, ..Head::failed(status, status.name()) }, body)
}

/// Returns a report of a timed step that passed. For each entry, `speedups` contains the speed-up and the half-width of
/// its interval relative to the speed-up.
pub fn timed(stage: Stage, speedups: &[(f64, f64)]) -> Report {
    let mut report = report(stage, Status::Passed);
    let entry = |(number, &(value, half)): (usize, &(f64, f64))| EntryProfile {
        entry: format!("entry_{number:06}"),
        weight: 1,
        times: TimeSummary {
            median_time_ms: 1.0 / value,
            mean_time_ms: 1.0,
            std_time_ms: 0.0,
            min_time_ms: 1.0,
            max_time_ms: 1.0,
            p5: 1.0,
            p95: 1.0,
            ci_low: 1.0,
            ci_high: 1.0,
            samples: 1,
        },
        baseline_times: None,
        speedup: Some(Estimate { value, ci_low: value * (1.0 - half), ci_high: value * (1.0 + half) }),
        noise: half,
        converged: true,
        cache_state: CacheStateReached::Warm,
        priority: Priority::None,
        footprint: Bytes::ZERO,
        bytes_per_second: 0.0,
        calls_per_block: 1,
        discarded_blocks: 0,
        slots_checked: 1,
        plan_ms: None,
        handoff_us: 1.0,
        runners: 3,
        wait_share: None,
        deciles: Vec::new(),
        baseline_deciles: Vec::new(),
        varied: Vec::new(),
        unvaried_because: None,
        narrowed: false,
        device: None,
    };
    if let Body::Profile(profiled) = &mut report.body {
        profiled.entries = speedups.iter().enumerate().map(entry).collect();
    }
    report
}

/// Returns the body of a verification of two entries, of which this many passed.
pub fn verified(entries_passed: u32) -> Body {
    Body::Verify(Verified {
        entries_run: 2,
        entries_passed,
        bytes_validated: Bytes::mib(100),
        ..Verified::default()
    })
}

/// Turns the report of a profile into that of a profile that ended because the baseline failed.
pub fn of_the_baseline(mut report: Report) -> Report {
    if let Body::Profile(profiled) = &mut report.body {
        profiled.baseline_failed = true;
    }
    report
}

/// Returns a report of an attempt whose runner was killed at this entry.
pub fn killed_at(stage: Stage, entry: &str, unknown_sender: bool) -> Report {
    let mut report = report(stage, Status::InfraError);
    report.head.failures.push(EntryFailure {
        entry: entry.to_owned(),
        status: Status::InfraError,
        detail: "killed in a call by an unknown sender".to_owned(),
        args: Vec::new(),
        mismatch: None,
    });
    report.head.end = Some(RunnerEnd { unknown_sender, ..RunnerEnd::default() });
    report
}

/// Returns a replay result without steps, which is enough because the core checks only that a result exists.
fn replayed() -> ReplayResult {
    ReplayResult {
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
    }
}
