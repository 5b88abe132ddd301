//! Provides the record of a small run for tests, with a value in nearly every field.

use opt_shared::capture::DType;
use opt_shared::device::DeviceKind;
use opt_shared::ids::WorkerId;
use opt_shared::message::{Protection, Role};
use opt_shared::outcome::{
    Blame, CacheStateReached, EntryFailure, Estimate, Mismatch, Pattern, ReplayStep, Status, TimeSummary,
    ToleranceUsed, WorstError,
};
use opt_shared::units::Bytes;
use serde_json::json;

use super::*;

fn at(second: i64) -> UtcTime {
    UtcTime::from_millisecond(1_777_636_800_000 + second * 1000).expect("in range")
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

const TIMES: TimeSummary = TimeSummary {
    median_time_ms: 1.25,
    mean_time_ms: 1.3,
    std_time_ms: 0.1,
    min_time_ms: 1.2,
    max_time_ms: 2.0,
    p5: 1.21,
    p95: 1.6,
    ci_low: 1.24,
    ci_high: 1.26,
    samples: 40,
};

fn source(name: &str) -> SourceRecord {
    SourceRecord { path: Some(format!("kernels/{name}")), other_paths: vec![], digest: text("50a") }
}

fn attempt(stage: Stage, status: Status) -> AttemptRecord {
    AttemptRecord {
        stage,
        number: 1,
        worker: Some(WorkerId(1)),
        status: Some(status),
        started: at(1),
        ms: Some(12.5),
    }
}

fn passed(name: &str, rank: u32, speedup: Option<Estimate>, total_ms: f64) -> CandidateRecord {
    CandidateRecord {
        status: Some(Status::Passed),
        rank: Some(rank),
        artifact_digest: text("abc"),
        build: Some(BuildRecord {
            compiler: text("cc 13"),
            flags: vec!["cc".to_owned(), "-O3".to_owned()],
            log_head: String::new(),
            ms: 80.0,
            peak_owed_bytes: Some(Bytes::mib(90)),
        }),
        verify: Some(VerifyRecord {
            entries_run: 20,
            entries_passed: 20,
            entries_unsupported: 0,
            max_absolute_error: 1e-7,
            max_relative_error: f64::INFINITY,
            worst: Some(WorstError {
                entry: "entry_000001".to_owned(),
                output: "output".to_owned(),
                relative_l2: 1e-8,
            }),
            validated_bytes: Bytes::gib(51),
            ms: 9000.0,
            reads: opt_shared::outcome::ReadReport::default(),
            output: opt_shared::outcome::OutputForm::Returned,
            start_ms: 17.5,
            device: vec![opt_shared::outcome::DevicePoint {
                point: opt_shared::outcome::MemoryPoint::Called,
                placed_bytes: Bytes::mib(6),
                used_bytes: Bytes::mib(606),
                resident_bytes: Bytes::mib(40),
            }],
            emulated_kernels: vec![opt_shared::outcome::EmulatedKernel {
                symbol: "softmax".to_owned(),
                launches: 20,
                warp_instructions: 123_456,
                divergent_branches: 40,
                global: opt_shared::outcome::Traffic {
                    accesses: 640,
                    parts: 20_480,
                    fewest_parts: 2560,
                    worst: Some("PTX line 31, softmax.cu:7".to_owned()),
                    worst_launch: None,
                },
                ..opt_shared::outcome::EmulatedKernel::default()
            }],
        }),
        profile: Some(ProfileRecord {
            stage: Some(Stage::Confirm),
            times: CandidateTimes {
                total_time_ms: Some(total_ms),
                median_time_ms: Some(1.25),
                mean_time_ms: Some(1.3),
                std_time_ms: Some(0.1),
                min_time_ms: Some(1.2),
                max_time_ms: Some(2.0),
                p5: Some(1.21),
                p95: Some(1.6),
                ci_low: Some(1.24),
                ci_high: Some(1.26),
                samples: Some(40),
                noise: Some(0.008),
                converged: Some(true),
                cache_state: Some(CacheStateReached::Warm),
                footprint_bytes: Some(Bytes::mib(9)),
                bytes_per_second: Some(7.5e9),
                varied_entries: Some(1),
                unvaried_entries: Some(0),
                runners: Some(3),
                wait_share: Some(0.004),
            },
            breaches: vec![],
            cpus: vec![1],
            reads: opt_shared::outcome::ReadReport::default(),
            ms: 700.0,
            entries: vec![EntryTimingRecord {
                entry: "entry_000000".to_owned(),
                weight: 20,
                times: TIMES,
                noise: 0.008,
                converged: true,
                cache_state: CacheStateReached::Warm,
                priority: Priority::None,
                footprint_bytes: Bytes::mib(9),
                bytes_per_second: 7.5e9,
                speedup,
                baseline: Some(TIMES),
                calls_per_block: 2,
                discarded_blocks: 1,
                slots_checked: 80,
                plan_ms: Some(0.25),
                handoff_us: 1.5,
                runners: 3,
                wait_share: Some(0.004),
                deciles: (1..=11).map(f64::from).collect(),
                baseline_deciles: (2..=12).map(f64::from).collect(),
                varied: vec!["input".to_owned()],
                unvaried_because: None,
                device: None,
            }],
        }),
        speedup,
        resources: ResourcesRecord {
            runner_peak_owed_bytes: Some(Bytes::mib(31)),
            predicted_bytes: Some(Bytes::mib(40)),
        },
        attempts: vec![
            attempt(Stage::Build, Status::Passed),
            attempt(Stage::Verify, Status::Passed),
            attempt(Stage::Profile, Status::Passed),
        ],
        ..CandidateRecord::new(name.to_owned(), source(name))
    }
}

fn failed(name: &str) -> CandidateRecord {
    CandidateRecord {
        status: Some(Status::IncorrectNumerical),
        blame: Some(Blame::Candidate),
        detail: text("entry_000003: output differs"),
        failed_stage: Some(Stage::Verify),
        feedback: text(
            "INCORRECT_NUMERICAL in verify: entry_000003: output differs\nRows before 1 are right\u{1b}[31m.\n",
        ),
        signal: text("SIGSEGV"),
        exit_code: Some(3),
        stderr_tail: text("oh no"),
        stdout_tail: text("tile 3"),
        failures: vec![EntryFailure {
            entry: "entry_000003".to_owned(),
            status: Status::IncorrectNumerical,
            detail: "output differs".to_owned(),
            args: vec!["input: int64[8]".to_owned()],
            mismatch: Some(Mismatch {
                output: "output".to_owned(),
                dtype: DType::Float32,
                shape: vec![2, 4],
                index: vec![1, 0],
                expected: "1".to_owned(),
                actual: "2".to_owned(),
                absolute_error: 1.0,
                relative_error: 1.0,
                relative_l2: 0.5,
                elements: 8,
                failed: 4,
                actual_nan: 0,
                actual_inf: 0,
                expected_nan: 0,
                expected_inf: 0,
                expected_range: Some(["0".to_owned(), "1".to_owned()]),
                actual_range: Some(["0".to_owned(), "2".to_owned()]),
                bad_indices: vec![vec![1, 0]],
                pattern: Pattern::FromRow { row: 1 },
                tolerance: ToleranceUsed { rtol: 1e-4, atol: 1e-5, rel_l2: 1e-4 },
            }),
        }],
        resources: ResourcesRecord {
            runner_peak_owed_bytes: Some(Bytes::mib(12)),
            predicted_bytes: Some(Bytes::mib(40)),
        },
        attempts: vec![
            attempt(Stage::Build, Status::Passed),
            attempt(Stage::Verify, Status::IncorrectNumerical),
        ],
        ..CandidateRecord::new(name.to_owned(), source(name))
    }
}

/// Returns the record of a finished run, which has a job (a baseline, a winner and a failed candidate) and a replay.
pub(crate) fn sample() -> RunRecord {
    let twice = Estimate { value: 2.31, ci_low: 2.25, ci_high: 2.38 };
    let once = Estimate { value: 1.0, ci_low: 0.99, ci_high: 1.01 };
    let phase = PhaseRecord {
        stage: Stage::Verify,
        job: "embedding".to_owned(),
        candidate: Some("fast.c".to_owned()),
        worker: WorkerId(1),
        predicted_bytes: Some(Bytes::mib(40)),
        peak_owed_bytes: Some(Bytes::mib(31)),
        peak_reclaimable_bytes: Some(Bytes::gib(4)),
        device_predicted_bytes: Some(Bytes::mib(400)),
        device_peak_bytes: Some(Bytes::mib(350)),
        swap_delta_bytes: Some(0),
        switch_us: Some(2350),
        started: at(1),
        ended: Some(at(10)),
    };
    RunRecord {
        schema: SCHEMA,
        run: RunInfo {
            name: "demo".to_owned(),
            status: RunStatus::Finished,
            started: at(0),
            finished: Some(at(75)),
            version: "0.1.0".to_owned(),
            device: "cpu".to_owned(),
            device_kind: DeviceKind::Cpu,
            exit_code: Some(0),
            without_verdict: 0,
            command: text("opt-supervisor run demo.toml"),
        },
        host: HostRecord {
            cpu: text("a cpu"),
            cores: Some(2),
            ram_bytes: Some(Bytes::gib(128)),
            kernel: text("Linux 6.12"),
            protections: vec![Protection {
                name: "landlock".to_owned(),
                present: true,
                detail: "ABI 7".to_owned(),
            }],
            timing: Some(TimingConditions {
                governors: vec!["performance".to_owned()],
                smt: Some(true),
                load_before: Some(0.25),
                load_after: Some(1.5),
                steal_share: Some(0.001),
                throttled: Some(0),
            }),
        },
        jobs: vec![JobRecord {
            name: "embedding".to_owned(),
            status: JobStatus::Passed,
            detail: None,
            captures: CapturesRecord {
                entries: Some(20),
                bytes: Some(Bytes::gib(51)),
                unique_bytes: Some(Bytes::gib(5)),
                digest: text("c0ffee"),
                form: Some(CapturesForm::Store),
            },
            baseline: text("naive.c"),
            winner: text("fast.c"),
            winner_confirmed: true,
            ranking: Some(Ranking::Settled),
            unsettled_because: None,
            signature_digest: text("5160"),
            candidates: vec![
                failed("bad.c"),
                passed("naive.c", 2, Some(once), 25.0),
                passed("fast.c", 1, Some(twice), 10.8),
            ],
        }],
        workers: vec![WorkerRecord {
            id: WorkerId(1),
            role: Role::Verifier,
            pid: 4242,
            started: at(0),
            ready_ms: Some(1.5),
            ended: Some(at(74)),
            end_class: text("recycled"),
            recycled_because: text("large_job"),
            leases: 2,
            peak_owed_bytes: Some(Bytes::mib(50)),
            device_peak_bytes: Some(Bytes::mib(350)),
        }],
        memory: MemoryRecord {
            totals: MemoryTotals {
                host_ceiling_bytes: Some(Bytes::gib(96)),
                predicted_peak_owed_bytes: Some(Bytes::mib(120)),
                peak_owed_bytes: Some(Bytes::mib(111)),
                peak_reclaimable_bytes: Some(Bytes::gib(4)),
                min_available_bytes: Some(Bytes::gib(110)),
                swap_peak_bytes: Some(Bytes::ZERO),
                machine_swapped_in_bytes: Some(Bytes::ZERO),
                machine_swapped_out_bytes: Some(Bytes::mib(3)),
                device_ceiling_bytes: Some(Bytes::gib(7)),
                device_peak_bytes: Some(Bytes::mib(350)),
                sampling: Some(Sampling {
                    worst_fill_bytes_per_second: Bytes::gib(4),
                    worst_delay_us: 900,
                    overshoot_bound_bytes: Bytes::mib(12),
                    worst_turn_us: Some(1500),
                }),
            },
            phases: vec![phase],
        },
        replays: vec![replay()],
        policy: vec![PolicyRecord {
            t: at(11),
            decision: "recycle".to_owned(),
            reason: "large_job".to_owned(),
            numbers: json!({ "validated_bytes": 54_760_833_024_u64 }).as_object().expect("object").clone(),
        }],
    }
}

fn replay() -> ReplayRecord {
    ReplayRecord {
        name: "model".to_owned(),
        status: Some(Status::Passed),
        blame: None,
        detail: text("as recorded"),
        budget_bytes: Some(Bytes::mib(512)),
        floor_bytes: Some(Bytes::mib(300)),
        all_resident_bytes: Some(Bytes::gib(5)),
        started: Some(at(20)),
        ended: Some(at(40)),
        worker: Some(WorkerId(3)),
        attempts: 1,
        predicted_bytes: Some(Bytes::mib(800)),
        peak_owed_bytes: Some(Bytes::mib(600)),
        ms: Some(20_000.0),
        result: Some(ReplayResult {
            budget_bytes: Bytes::mib(512),
            floor_bytes: Bytes::mib(300),
            all_resident_bytes: Bytes::gib(5),
            pinned_bytes: Bytes::mib(4),
            peak_pool_bytes: Bytes::mib(510),
            bytes_moved: Bytes::gib(9),
            unique_bytes: Bytes::gib(5),
            constants: 120,
            uses: 700,
            hits: 600,
            misses: 100,
            evictions: 90,
            total_ms: 18_000.0,
            stall_ms: 900.0,
            compute_ms: 17_100.0,
            copy_ms: 12_000.0,
            recording_digest: "ab".repeat(32),
            outputs_digest: "cd".repeat(32),
            steps: vec![ReplayStep {
                job: "embedding".to_owned(),
                entry: "entry_000000".to_owned(),
                candidate: "fast.c".to_owned(),
                ms: 20.0,
                stall_ms: 12.0,
                call_ms: 15.0,
            }],
            step_count: 1,
        }),
        failure: None,
    }
}
