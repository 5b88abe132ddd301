//! Tests the guarantees of the store with real databases in temporary folders.

mod fixtures;
mod samples;

use std::path::Path;

use opt_shared::ids::{CandidateId, JobId, LeaseId, WorkerId};
use opt_shared::message::Role;
use opt_shared::outcome::{Blame, Body, Status};
use opt_shared::units::Bytes;
use serde_json::json;

use super::*;
use crate::record::{JobStatus, MemoryTotals, Numbers, Ranking, RunStatus, Stage};
use fixtures::{
    at, attempt, build_report, candidate, end, job, record_start, run_attempt, started_store,
    store_with_events,
};

#[test]
fn written_rows_are_loaded_unchanged() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = store_with_events(folder.path());
    let job_end = JobEnd {
        status: JobStatus::NonePassed,
        detail: Some("none".to_owned()),
        winner: None,
        winner_confirmed: true,
        ranking: Some(Ranking::Unsettled),
        unsettled_because: Some("noise".to_owned()),
    };
    store.job_status(JobId(0), &job_end).expect("job end");
    store.run_finished(RunStatus::Finished, 1, at(9)).expect("finish");
    drop(store);

    let run = Store::read(folder.path()).expect("opens").load().expect("loads");
    assert_eq!((run.run.status, run.run.exit_code), (RunStatus::Finished, Some(1)));
    assert_eq!((run.run.started, run.run.finished), (at(0), Some(at(9))));
    assert_eq!(run.host.protections[0].detail, "ABI 7");
    assert_eq!(run.jobs[0].status, JobStatus::NonePassed);
    assert_eq!(run.jobs[0].captures.bytes, Some(Bytes::gib(51)));
    assert_eq!(run.jobs[0].captures.unique_bytes, None);

    let [naive, fast] = run.jobs[0].candidates.as_slice() else { panic!("two candidates") };
    assert_eq!(naive.rank, Some(1));
    let profile = naive.profile.as_ref().expect("timed");
    assert_eq!(profile.times.total_time_ms, Some(7.0));
    assert_eq!(profile.breaches, ["a build ran"]);
    assert_eq!(profile.entries[0].times.p95, 1.3);
    assert_eq!(naive.speedup.expect("paired").ci_high, f64::INFINITY);

    assert_eq!(fast.status, Some(Status::IncorrectNumerical));
    assert_eq!(fast.artifact_digest.as_deref(), Some("abc"));
    assert_eq!(fast.source.digest.as_deref(), Some("50a"));
    assert_eq!(fast.signal.as_deref(), Some("SIGSEGV"));
    assert_eq!(fast.verify.as_ref().expect("verified").max_absolute_error, f64::INFINITY);
    assert!(fast.failures[0].mismatch.as_ref().expect("mismatch").absolute_error.is_nan());
    assert_eq!(fast.resources.runner_peak_owed_bytes, Some(Bytes::mib(12)));
    assert_eq!(fast.resources.predicted_bytes, Some(Bytes::mib(40)));
    let attempts: Vec<_> = fast.attempts.iter().map(|one| (one.stage, one.number, one.status)).collect();
    assert_eq!(
        attempts,
        [
            (Stage::Build, 1, Some(Status::Passed)),
            (Stage::Verify, 1, Some(Status::InfraError)),
            (Stage::Verify, 2, Some(Status::IncorrectNumerical)),
        ]
    );
    assert_eq!(run.workers[0].end_class.as_deref(), Some("recycled"));
    assert_eq!(run.memory.totals.peak_owed_bytes, Some(Bytes::mib(50)));
    assert_eq!(run.memory.phases[0].candidate.as_deref(), Some("fast.c"));
    assert_eq!(run.memory.phases[0].peak_reclaimable_bytes, Some(Bytes::mib(7)));
    assert_eq!(run.memory.phases[0].swap_delta_bytes, Some(-4096));
    assert_eq!(run.memory.phases[0].switch_us, Some(2350));
    assert_eq!(run.policy[0].decision, "kill_runner");
    assert_eq!(run.policy[0].numbers["limit_bytes"], json!(256 << 20));
    assert_eq!(run.policy[1].numbers["ratio"], json!(0.5));
}

#[test]
fn streamed_document_equals_the_loaded_one() {
    let folder = tempfile::tempdir().expect("folder");
    let store = store_with_events(folder.path());
    let streamed = serde_json::to_string_pretty(&store.document().expect("snapshot")).expect("writes");
    let loaded = serde_json::to_string_pretty(&store.load().expect("loads")).expect("writes");
    assert_eq!(streamed, loaded);
}

/// A killed process runs no destructors. The test therefore copies the files while the connection is open, and opens
/// the copy.
#[test]
fn killed_process_loses_nothing_that_was_acknowledged() {
    for journal in [Journal::WriteAhead, Journal::Delete] {
        let folder = tempfile::tempdir().expect("folder");
        let mut store = Store::create_with(folder.path(), journal, None).expect("creates");
        record_start(&mut store);
        run_attempt(&mut store, attempt(1, Stage::Build, 1), Status::Passed, Some(build_report()));
        store
            .attempt_started(&AttemptRow {
                key: attempt(1, Stage::Verify, 1),
                worker: None,
                lease: Some(LeaseId(11)),
                predicted: None,
                started: at(2),
            })
            .expect("starts");
        store
            .worker_started(&WorkerRow { id: WorkerId(6), role: Role::Profiler, pid: 1, started: at(0) })
            .expect("worker");
        // The kill comes in the middle of a transaction.
        store.connection.execute_batch("BEGIN IMMEDIATE; DELETE FROM attempt;").expect("half a write");
        let copy = tempfile::tempdir().expect("folder");
        for file in std::fs::read_dir(folder.path()).expect("lists") {
            let file = file.expect("file");
            std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("copies");
        }

        let mut again = Store::open(copy.path()).expect("opens");
        record_start(&mut again);
        assert_eq!(
            again.counters().expect("counts"),
            Counters { worker: WorkerId(7), lease: LeaseId(12) },
            "{journal:?}"
        );
        let abandoned = again.close_abandoned(at(3)).expect("closes");
        assert_eq!(abandoned, Abandoned { attempts: 1, workers: 1, phases: 0 }, "{journal:?}");
        let attempts = again.stored_attempts(CandidateId(1)).expect("attempts");
        assert_eq!(attempts[0].report, Some(build_report()));
        assert_eq!((attempts[1].status, attempts[1].blame), (Some(Status::InfraError), Some(Blame::Host)));
    }
}

/// The environment variable that names the folder to which the child process writes until it is killed.
const WRITER_FOLDER: &str = "OPT_STORE_TEST_FOLDER";

/// Runs as the child process of the next test, and writes until it is killed. Without the variable, this test does
/// nothing.
#[test]
fn writer_that_is_killed() {
    let Some(folder) = std::env::var_os(WRITER_FOLDER) else { return };
    let mut store = started_store(Path::new(&folder));
    for number in 1.. {
        run_attempt(&mut store, attempt(1, Stage::Build, number), Status::Passed, Some(build_report()));
        println!("acknowledged {number}");
    }
}

#[test]
fn killed_writer_loses_no_acknowledged_row() {
    use std::io::BufRead as _;

    /// The number of acknowledged rows after which the child is killed. It goes on writing, so that the kill can
    /// interrupt a write.
    const ROWS: usize = 40;
    let folder = tempfile::tempdir().expect("folder");
    let mut child = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "store::tests::writer_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(WRITER_FOLDER, folder.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
    let acknowledged = lines.by_ref().map_while(Result::ok).filter(|line| line.contains("acknowledged"));
    assert_eq!(acknowledged.take(ROWS).count(), ROWS);
    child.kill().expect("kills");
    child.wait().expect("reaps");
    let later = lines.map_while(Result::ok).filter(|line| line.contains("acknowledged")).count();

    let mut store = Store::open(folder.path()).expect("opens");
    record_start(&mut store);
    let attempts = store.stored_attempts(CandidateId(1)).expect("attempts");
    let finished = attempts.iter().filter(|attempt| attempt.report == Some(build_report())).count();
    assert!(finished >= ROWS + later, "{finished} of {}", ROWS + later);
    assert!(attempts.len() <= finished + 1);
}

#[test]
fn resumed_run_may_repeat_its_start_and_an_ended_attempt() {
    let folder = tempfile::tempdir().expect("folder");
    drop(store_with_events(folder.path()));
    // The documents are compared as texts, because a NaN is not equal to itself.
    let document =
        |store: &Store| serde_json::to_string_pretty(&store.document().expect("snapshot")).expect("writes");
    let before = document(&Store::read(folder.path()).expect("opens"));

    let mut store = Store::open(folder.path()).expect("opens");
    record_start(&mut store);
    let key = attempt(1, Stage::Build, 1);
    store
        .attempt_started(&AttemptRow { key, worker: None, lease: None, predicted: None, started: at(100) })
        .expect("again");
    store.attempt_finished(key, &end(Status::CompileError, None)).expect("again");
    assert_eq!(document(&store), before);
}

#[test]
fn results_follow_their_names_when_the_plan_shifts() {
    let folder = tempfile::tempdir().expect("folder");
    drop(store_with_events(folder.path()));
    let mut store = Store::open(folder.path()).expect("opens");
    store.job(&job(0, "another")).expect("job");
    store.job(&job(1, "embedding")).expect("job");
    store.candidate(&candidate(0, 0, "fast.c")).expect("candidate");
    store.candidate(&candidate(1, 1, "new.c")).expect("candidate");
    store.candidate(&candidate(2, 1, "naive.c")).expect("candidate");
    store.candidate(&candidate(3, 1, "fast.c")).expect("candidate");

    assert_eq!(store.stored_attempts(CandidateId(0)).expect("attempts"), []);
    assert_eq!(store.stored_attempts(CandidateId(3)).expect("attempts").len(), 3);
    for (job, name, status, artifact) in [
        ("another", "fast.c", None, None),
        ("embedding", "new.c", None, None),
        ("embedding", "naive.c", None, None),
        ("embedding", "fast.c", Some(Status::IncorrectNumerical), Some("abc")),
    ] {
        let stored = store.stored_candidate(job, name).expect("readable").expect("recorded");
        let digest = stored.artifact.map(|artifact| artifact.digest);
        assert_eq!((stored.status, digest.as_deref()), (status, artifact), "{job}/{name}");
    }
    assert_eq!(store.stored_candidate("another", "new.c").expect("readable"), None);
}

/// A supervisor may be killed before it reopens the candidate. The next one must not take the status for that of the
/// new sources.
#[test]
fn candidate_with_other_sources_has_no_status() {
    let folder = tempfile::tempdir().expect("folder");
    drop(store_with_events(folder.path()));
    let mut store = Store::open(folder.path()).expect("opens");
    store.job(&job(0, "embedding")).expect("job");
    let status =
        |store: &Store| store.stored_candidate("embedding", "fast.c").expect("readable").map(|it| it.status);
    let mut row = candidate(0, 0, "fast.c");
    for (digest, expected) in [
        (Some("of these sources".to_owned()), Some(Status::IncorrectNumerical)),
        // The sources cannot be read at the moment.
        (None, Some(Status::IncorrectNumerical)),
        (Some("of other sources".to_owned()), None),
    ] {
        row.source.digest.clone_from(&digest);
        store.candidate(&row).expect("candidate");
        assert_eq!(status(&store), Some(expected), "{digest:?}");
    }
}

#[test]
fn reopened_candidate_keeps_its_attempts_but_not_its_results() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = store_with_events(folder.path());
    store.failed_beside(CandidateId(1)).expect("recorded");
    let stored = store.stored_candidate("embedding", "fast.c").expect("readable").expect("recorded");
    assert!(stored.failed_beside && stored.status.is_some());
    store.candidate_reopened(CandidateId(1), None).expect("reopens");
    let run = store.load().expect("loads");
    let fast = &run.jobs[0].candidates[1];
    assert_eq!((fast.status, &fast.build, &fast.verify, &fast.feedback), (None, &None, &None, &None));
    assert_eq!(fast.attempts.len(), 3);
    let stored = store.stored_candidate("embedding", "fast.c").expect("readable").expect("recorded");
    assert_eq!((stored.artifact, stored.failed_beside), (None, false));
}

#[test]
fn reopened_candidate_keeps_the_build_that_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = store_with_events(folder.path());
    store.candidate_reopened(CandidateId(1), Some(1)).expect("reopens");
    let run = store.load().expect("loads");
    let fast = &run.jobs[0].candidates[1];
    assert_eq!((fast.status, fast.build.is_some(), &fast.verify), (None, true, &None));
    let attempts = store.stored_attempts(CandidateId(1)).expect("lists");
    let kept: Vec<_> = attempts.iter().filter(|it| !it.superseded).map(|it| (it.stage, it.number)).collect();
    assert_eq!(kept, [(Stage::Build, 1)]);
}

#[test]
fn kill_is_found_by_its_worker() {
    let folder = tempfile::tempdir().expect("folder");
    let store = store_with_events(folder.path());
    let of_workers = "SELECT worker, reason FROM policy WHERE worker IS NOT NULL";
    let mut statement = store.connection.prepare(of_workers).expect("a column for the worker");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
    let rows: Vec<(u32, String)> = rows.map(|row| row.expect("a row")).collect();
    assert_eq!(rows, [(3, "runner_memory".to_owned())]);
}

#[test]
fn memory_peaks_only_rise() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = started_store(folder.path());
    let totals = |peak: u64, least: u64| MemoryTotals {
        peak_owed_bytes: Some(Bytes::mib(peak)),
        min_available_bytes: Some(Bytes::mib(least)),
        ..MemoryTotals::default()
    };
    for (peak, least) in [(5, 90), (9, 70), (2, 80)] {
        store.memory(totals(peak, least)).expect("memory");
    }
    assert_eq!(store.memory_totals().expect("totals"), totals(9, 70));
}

#[test]
fn row_of_an_unrecorded_job_attempt_or_worker_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = Store::create(folder.path()).expect("creates");
    let orphan = store.candidate(&candidate(0, 0, "x")).expect_err("no such job");
    assert!(orphan.to_string().contains("job-0"), "{orphan}");
    record_start(&mut store);
    let key = attempt(1, Stage::Build, 1);
    let error = store.attempt_finished(key, &end(Status::Passed, None)).expect_err("never started");
    assert!(error.to_string().contains("attempt 1 of stage build of candidate-1"), "{error}");
    let error = store.worker_ready(WorkerId(0), 1.0).expect_err("never started");
    assert!(matches!(error, StoreError::Unrecorded { .. }), "{error}");
}

#[test]
fn long_texts_are_cut_and_long_names_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = started_store(folder.path());
    let mut report = build_report();
    if let Body::Build(build) = &mut report.body {
        build.log_head = "é".repeat(1 << 20);
    }
    run_attempt(&mut store, attempt(1, Stage::Build, 1), Status::Passed, Some(report));
    let run = store.load().expect("loads");
    let log = &run.jobs[0].candidates[1].build.as_ref().expect("built").log_head;
    assert!(log.len() <= bound::MAX_LOG && log.ends_with("[…]"), "{}", log.len());

    let error = store.candidate(&candidate(5, 0, &"n".repeat(5000))).expect_err("too long");
    assert!(matches!(error, StoreError::TooLong { length: 5000, .. }), "{error}");

    let many: Numbers = (0..9000).map(|number| (number.to_string(), json!(number))).collect();
    store.policy(at(0), "d", "r", &many).expect("kept");
    let run = store.load().expect("loads");
    assert!(run.policy[0].numbers.contains_key("omitted_bytes"));
}

#[test]
fn unusable_database_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join(FILE_NAME);
    let refusal = || Store::open(folder.path()).expect_err("refuses").to_string();

    assert!(refusal().contains("there is no run database"));
    std::fs::write(&path, b"").expect("writes");
    assert!(refusal().contains("the run was interrupted before it recorded anything"));
    std::fs::write(&path, b"this is not a database, but long enough to be examined").expect("writes");
    assert!(refusal().contains("damaged"), "{}", refusal());

    std::fs::remove_file(&path).expect("removes");
    Connection::open(&path).expect("opens").execute_batch("CREATE TABLE a (b)").expect("makes");
    assert!(refusal().contains("not one of a run"));

    std::fs::remove_file(&path).expect("removes");
    let store = started_store(folder.path());
    let newer = super::schema::VERSION + 1;
    store.connection.pragma_update(None, "user_version", newer).expect("newer");
    drop(store);
    assert!(
        refusal()
            .contains(&format!("schema {newer}, but this program reads schema {}", super::schema::VERSION)),
        "{}",
        refusal()
    );
}

#[test]
fn torn_database_is_refused_as_damaged() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join(FILE_NAME);
    drop(store_with_events(folder.path()));
    let whole = std::fs::read(&path).expect("reads");
    let mut cases = vec![whole[..whole.len() / 2].to_vec(), whole[..4096 + 100].to_vec()];
    let mut scribbled = whole;
    scribbled[4096..8192].fill(0xa5);
    cases.push(scribbled);
    for torn in cases {
        std::fs::write(&path, torn).expect("writes");
        let error = Store::open(folder.path()).expect_err("refuses");
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
        assert!(error.to_string().contains("start a new run"), "{error}");
    }
}

#[test]
fn database_is_never_created_over_another() {
    let folder = tempfile::tempdir().expect("folder");
    drop(started_store(folder.path()));
    assert!(matches!(Store::create(folder.path()), Err(StoreError::Exists { .. })));
    let fresh = tempfile::tempdir().expect("folder");
    std::fs::write(fresh.path().join(FILE_NAME), b"").expect("a kill left it empty");
    drop(started_store(fresh.path()));
}

#[test]
fn reader_sees_a_running_run_and_cannot_write() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = started_store(folder.path());
    let mut reader = Store::read(folder.path()).expect("reads");
    let document = reader.document().expect("snapshot");
    store.policy(at(1), "recycle", "why", &Numbers::new()).expect("writes while the reader is open");
    let snapshot = serde_json::to_value(&document).expect("writes");
    assert_eq!(snapshot["policy"], json!([]), "the snapshot does not change");
    drop(document);
    assert_eq!(reader.load().expect("loads").policy.len(), 1);
    assert!(reader.plan("x").is_err());
}
