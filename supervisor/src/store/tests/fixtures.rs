//! Builds rows and reports for the store's tests.

use std::path::Path;

use opt_shared::capture::DType;
use opt_shared::ids::{CandidateId, JobId, LeaseId, WorkerId};
use opt_shared::language::Tier;
use opt_shared::message::{KillReason, Protection, Role};
use opt_shared::outcome::{
    Artifact, Blame, Body, Built, CacheStateReached, EntryFailure, EntryProfile, Estimate, Head, Mismatch,
    Pattern, Profiled, Report, RunnerEnd, Status, TimeSummary, ToleranceUsed, Verified,
};
use opt_shared::settings::Priority;
use opt_shared::units::Bytes;
use serde_json::json;

use super::super::*;
use crate::record::{
    CandidateTimes, CapturesForm, CapturesRecord, HostRecord, MemoryTotals, Numbers, SourceRecord, Stage,
    UtcTime,
};

pub(super) fn at(second: i64) -> UtcTime {
    UtcTime::from_millisecond(1_777_636_800_000 + second * 1000).expect("in range")
}

pub(super) fn attempt(candidate: u32, stage: Stage, number: u32) -> AttemptKey {
    AttemptKey { candidate: CandidateId(candidate), stage, number }
}

pub(super) fn job(id: u32, name: &str) -> JobRow {
    JobRow {
        id: JobId(id),
        name: name.to_owned(),
        captures: CapturesRecord {
            entries: Some(20),
            bytes: Some(Bytes::gib(51)),
            unique_bytes: None,
            digest: Some("c0ffee".to_owned()),
            form: Some(CapturesForm::Store),
        },
        baseline: Some("naive.c".to_owned()),
        signature_digest: Some("5160".to_owned()),
    }
}

pub(super) fn candidate(id: u32, job: u32, name: &str) -> CandidateRow {
    CandidateRow {
        id: CandidateId(id),
        job: JobId(job),
        name: name.to_owned(),
        source: SourceRecord { path: Some(format!("kernels/{name}")), other_paths: vec![], digest: None },
        tier: Tier::A,
        not_timed_because: None,
    }
}

pub(super) fn started_store(folder: &Path) -> Store {
    let mut store = Store::create(folder).expect("creates");
    record_start(&mut store);
    store
}

pub(super) fn record_start(store: &mut Store) {
    store
        .run_started(&RunRow {
            name: "demo".to_owned(),
            started: at(0),
            version: "0.1.0".to_owned(),
            device: "cpu".to_owned(),
        })
        .expect("starts");
    store.job(&job(0, "embedding")).expect("job");
    store.candidate(&candidate(0, 0, "naive.c")).expect("candidate");
    store.candidate(&candidate(1, 0, "fast.c")).expect("candidate");
}

pub(super) fn build_report() -> Report {
    let built = Built {
        artifact: Some(Artifact {
            digest: "abc".to_owned(),
            path: "/run/artifacts/abc.so".into(),
            bytes: Bytes::kib(16),
        }),
        compiler: Some("cc 13".to_owned()),
        command: vec!["cc".to_owned(), "-O3".to_owned()],
        log_head: "warning: unused".to_owned(),
        source_digest: "50a".to_owned(),
        unexplained: None,
    };
    Report::new(Head { ms: 120.5, ..Head::passed() }, Body::Build(built))
}

pub(super) fn verify_report() -> Report {
    let head = Head {
        failures: vec![EntryFailure {
            entry: "entry_000003".to_owned(),
            status: Status::IncorrectNumerical,
            detail: "differs".to_owned(),
            args: vec!["input: int64[8]".to_owned()],
            mismatch: Some(Mismatch {
                output: "output".to_owned(),
                dtype: DType::Float32,
                shape: vec![2, 4],
                index: vec![1, 0],
                expected: "1".to_owned(),
                actual: "nan".to_owned(),
                absolute_error: f64::NAN,
                relative_error: f64::NEG_INFINITY,
                relative_l2: 0.5,
                elements: 8,
                failed: 4,
                actual_nan: 4,
                actual_inf: 0,
                expected_nan: 0,
                expected_inf: 0,
                expected_range: Some(["0".to_owned(), "1".to_owned()]),
                actual_range: None,
                bad_indices: vec![vec![1, 0]],
                pattern: Pattern::FromRow { row: 1 },
                tolerance: ToleranceUsed { rtol: 1e-4, atol: 1e-5, rel_l2: 1e-4 },
            }),
        }],
        end: Some(RunnerEnd {
            signal: Some("SIGSEGV".to_owned()),
            exit_code: None,
            stderr_tail: "oh no".to_owned(),
            stdout_tail: "tile 3".to_owned(),
            output_truncated: false,
            unknown_sender: false,
        }),
        ms: 10.0,
        peak_owed: Some(Bytes::mib(12)),
        ..Head::failed(Status::IncorrectNumerical, "entry_000003: output differs")
    };
    let verified = Verified {
        entries_run: 4,
        entries_passed: 3,
        max_absolute_error: f64::INFINITY,
        max_relative_error: f64::NAN,
        bytes_validated: Bytes::mib(3),
        ..Verified::default()
    };
    Report::new(head, Body::Verify(verified))
}

pub(super) fn profile_report() -> Report {
    let times = TimeSummary {
        median_time_ms: 1.0,
        mean_time_ms: 1.1,
        std_time_ms: 0.1,
        min_time_ms: 0.9,
        max_time_ms: 1.4,
        p5: 0.95,
        p95: 1.3,
        ci_low: 0.99,
        ci_high: 1.01,
        samples: 20,
    };
    let profiled = Profiled {
        breaches: vec!["a build ran".to_owned()],
        entries: vec![EntryProfile {
            entry: "entry_000000".to_owned(),
            weight: 7,
            times,
            baseline_times: Some(times),
            speedup: Some(Estimate { value: 1.0, ci_low: 0.99, ci_high: 1.01 }),
            noise: 0.01,
            converged: true,
            cache_state: CacheStateReached::Warm,
            priority: Priority::None,
            footprint: Bytes::mib(9),
            bytes_per_second: 9e9,
            calls_per_block: 3,
            discarded_blocks: 0,
            slots_checked: 40,
            plan_ms: None,
            handoff_us: 1.5,
            runners: 3,
            wait_share: None,
            deciles: (1..=11).map(f64::from).collect(),
            baseline_deciles: (2..=12).map(f64::from).collect(),
            varied: Vec::new(),
            unvaried_because: Some("`x`: it is sorted".to_owned()),
            narrowed: false,
            device: None,
        }],
        cpus: vec![1],
        ..Profiled::default()
    };
    let head = Head { ms: 500.0, peak_owed: Some(Bytes::mib(30)), ..Head::passed() };
    Report::new(head, Body::Profile(profiled))
}

pub(super) fn end(status: Status, report: Option<Report>) -> AttemptEnd {
    AttemptEnd { status, blame: status.blame(), detail: None, ms: Some(12.5), report }
}

pub(super) fn run_attempt(store: &mut Store, key: AttemptKey, status: Status, report: Option<Report>) {
    store
        .attempt_started(&AttemptRow {
            key,
            worker: Some(WorkerId(3)),
            lease: Some(LeaseId(5)),
            predicted: Some(Bytes::mib(40)),
            started: at(1),
        })
        .expect("starts");
    store.attempt_finished(key, &end(status, report)).expect("ends");
}

pub(super) fn store_with_events(folder: &Path) -> Store {
    let mut store = started_store(folder);
    store.plan("[run]\nname = \"demo\"\n").expect("plan");
    store
        .host(&HostRecord {
            cpu: Some("a cpu".to_owned()),
            cores: Some(2),
            ram_bytes: Some(Bytes::gib(8)),
            kernel: None,
            protections: vec![Protection {
                name: "landlock".to_owned(),
                present: true,
                detail: "ABI 7".to_owned(),
            }],
            timing: None,
        })
        .expect("host");
    store
        .worker_started(&WorkerRow { id: WorkerId(3), role: Role::Verifier, pid: 77, started: at(0) })
        .expect("worker");
    store.worker_ready(WorkerId(3), 1.5).expect("ready");
    run_attempt(&mut store, attempt(1, Stage::Build, 1), Status::Passed, Some(build_report()));
    run_attempt(&mut store, attempt(1, Stage::Verify, 1), Status::InfraError, None);
    run_attempt(&mut store, attempt(1, Stage::Verify, 2), Status::IncorrectNumerical, Some(verify_report()));
    run_attempt(&mut store, attempt(0, Stage::Profile, 1), Status::Passed, Some(profile_report()));
    store
        .phase(&PhaseRow {
            candidate: CandidateId(1),
            stage: Stage::Verify,
            worker: WorkerId(3),
            predicted: Some(Bytes::mib(40)),
            peak_owed: Some(Bytes::mib(31)),
            peak_reclaimable: Some(Bytes::mib(7)),
            device: DevicePhase { predicted: Some(Bytes::mib(400)), peak: Some(Bytes::mib(350)) },
            swap_delta: Some(-4096),
            switch_us: Some(2350),
            started: at(1),
            ended: Some(at(2)),
        })
        .expect("phase");
    store
        .kill_intended(
            at(2),
            ProcessKind::Runner,
            WorkerId(3),
            Some(LeaseId(9)),
            KillReason::RunnerMemory { owed: Bytes::mib(300), limit: Bytes::mib(256) },
        )
        .expect("kill");
    let numbers: Numbers = json!({ "owed_bytes": 5, "ratio": 0.5 }).as_object().expect("object").clone();
    store.policy(at(3), "recycle", "large job", &numbers).expect("policy");
    store
        .worker_ended(
            WorkerId(3),
            &WorkerEnd {
                ended: at(4),
                class: "recycled".to_owned(),
                recycled_because: Some("large job".to_owned()),
                leases: 4,
                peak_owed: Some(Bytes::mib(50)),
                peak_device: Some(Bytes::mib(350)),
            },
        )
        .expect("ended");
    let finished = CandidateEnd {
        status: Status::IncorrectNumerical,
        blame: Some(Blame::Candidate),
        failed_stage: Some(Stage::Verify),
        detail: Some("differs".to_owned()),
        feedback: Some("look at row 1".to_owned()),
    };
    store.candidate_finished(CandidateId(1), &finished).expect("finished");
    let score = ScoreRow {
        rank: Some(1),
        speedup: Some(Estimate { value: 1.0, ci_low: 0.99, ci_high: f64::INFINITY }),
        times: CandidateTimes { total_time_ms: Some(7.0), ..CandidateTimes::default() },
    };
    store.scores(&[(CandidateId(0), score)]).expect("scores");
    store
        .memory(MemoryTotals { peak_owed_bytes: Some(Bytes::mib(50)), ..MemoryTotals::default() })
        .expect("memory");
    store
}
