//! Tests how the main loop carries out the core's actions: if an action raises an event, the event is handled after the
//! other actions of the same decision.

use std::collections::BTreeSet;
use std::fs;

use opt_shared::device::Device;
use opt_shared::ids::{CandidateId, LeaseId, UnitId, WorkerId};
use opt_shared::message::Role;
use opt_shared::outcome::{Report, Status};
use opt_shared::units::Bytes;

use super::agenda::Agenda;
use super::attempts::RunningAttempt;
use super::decisions::Decisions;
use super::leaves::Leaves;
use super::machine::Machine;
use super::replay::Replaying;
use super::supply::{Subject, Units};
use super::watchdog::Watchdog;
use super::{Attempts, Run};
use crate::core::event::{Action, AttemptEnd, Event, Order, PolicyRow, Stage};
use crate::core::{Ceilings, Core};
use crate::driver::answer::endpoints::Endpoints;
use crate::driver::answer::forecast::Forecast;
use crate::driver::answer::submissions::Submissions;
use crate::driver::folder::RunFolder;
use crate::driver::folder::records::RunRecords;
use crate::driver::folder::register::register;
use crate::driver::folder::resume::Earlier;
use crate::driver::survey::facts::JobFacts;
use crate::driver::survey::spec;
use crate::memory::host::Host;
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::progress::Progress;
use crate::record::UtcTime;
use crate::signal::Signals;
use crate::store::{AttemptKey, AttemptRow, RunRow, Store};

const PLAN: &str = "[[job]]\ncaptures = \"captures\"\nbaseline = \"kernels/naive.c\"\n\
                    candidates = [\"kernels/*.c\"]\n";
const WHOLE: Bytes = Bytes::gib(16);

/// Runs a test on a run with two candidates, on a machine that cannot start workers.
fn with_a_run(test: impl FnOnce(&mut Run<'_>)) {
    let base = tempfile::tempdir().expect("a folder");
    for (folder, file) in [("captures", "entry_000000.pt"), ("kernels", "naive.c"), ("kernels", "fast.c")] {
        let folder = base.path().join(folder);
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(file), "").expect("written");
    }
    let plan = Plan::parse(PLAN, &base.path().join("plan.toml"), &[]).expect("a plan");
    let facts = [JobFacts::default()];
    let folder = RunFolder::create(base.path(), "demo", None).expect("a run's folder");
    let mut store = Store::create(folder.path()).expect("a database");
    let row = RunRow {
        name: "demo".to_owned(),
        started: UtcTime::now(),
        version: "0".to_owned(),
        device: "cpu".to_owned(),
    };
    store.run_started(&row).expect("written");
    let candidate_facts =
        register(&mut store, &plan, &facts, &[true, true], Earlier::None, &folder.artifacts())
            .expect("registered");
    let ceilings = Ceilings { host: WHOLE, device: Bytes::ZERO, unified: false };
    let spec = spec::spec(&plan, &facts, ceilings, Bytes::ZERO);
    let nowhere = base.path().join("no such folder");
    let pool = Pool::new(Device::Cpu, nowhere, |_| Vec::new()).expect("a pool");
    let mut run = Run {
        decisions: Decisions::new(Core::new(spec, WorkerId(1), LeaseId(1))),
        agenda: Agenda {
            plan,
            facts: &facts,
            without_baseline: BTreeSet::new(),
            libraries: crate::driver::candidate_facts::Libraries::default(),
            candidate_facts,
            replays: Replaying::new(&[], Vec::new()),
            units: Units::default(),
            folder: &folder,
            cores: 1,
            card: None,
            cache_budget: WHOLE,
            seed: 1,
            min_speedup: None,
        },
        attempts: Attempts::default(),
        machine: Machine::new(pool, Leaves::none(), Vec::new(), Host::detect(), WHOLE, WHOLE),
        records: RunRecords::open(store, &folder).expect("records"),
        endpoints: Endpoints {
            control: None,
            awaited: Vec::new(),
            metrics: Metrics::default(),
            responder: None,
            progress: Progress::new(false),
            forecast: Forecast::default(),
            each_candidate: None,
            submissions: Submissions::new(folder.path()),
        },
        watchdog: Watchdog::start(),
        stalled: false,
        signals: &Signals::block().expect("signals"),
        before_each_sample: || {},
    };
    test(&mut run);
}

fn decisions_of(run: &mut Run<'_>) -> Vec<String> {
    let latest = run.records.writer.ask(|store| store.latest_decisions(100));
    latest.into_iter().map(|row| row.decision).collect()
}

fn noted(decision: &'static str) -> Action {
    Action::Policy(PolicyRow { decision, reason: String::new(), numbers: Vec::new() })
}

#[test]
fn event_raised_by_an_action_is_handled_after_the_others() {
    with_a_run(|run| {
        run.decisions.raise(Event::Tick);
        let wanted = run.decisions.next().expect("no law is broken").expect("actions");
        run.carry_out_all(wanted).expect("the plan offers its candidates");
        let mut actions = run.decisions.next().expect("no law is broken").expect("actions");
        let started = |action: &Action| {
            matches!(action, Action::StartWorker { worker: WorkerId(1), role: Role::Verifier })
        };
        assert!(actions.iter().any(started), "{actions:?}");
        actions.push(noted("beside_it"));
        run.carry_out_all(actions).expect("carried out");
        assert_eq!(decisions_of(run), ["beside_it"], "the failed start is still queued");
        assert!(run.attempts.running.is_empty());

        run.feed(Event::Tick).expect("fed");
        assert_eq!(decisions_of(run), ["beside_it", "worker_not_ready"]);
    });
}

/// Returns the action for a verification attempt that ended with this status.
fn verified(run: &mut Run<'_>, candidate: CandidateId, lease: LeaseId, status: Status) -> Action {
    let key = AttemptKey { candidate, stage: Stage::Verify, number: 1 };
    let row = AttemptRow { key, worker: None, lease: None, predicted: None, started: UtcTime::now() };
    run.records.writer.write(move |store| store.attempt_started(&row));
    run.attempts.running.insert(lease, RunningAttempt::new(1));
    let report = Report::failed(Stage::Verify, status, "what was seen");
    Action::AttemptEnded {
        lease,
        order: Order { unit: unit_of(run, candidate), stage: Stage::Verify, beside: None },
        attempt: 1,
        ended: AttemptEnd::Accepted(Box::new(report)),
    }
}

fn done(run: &Run<'_>, candidate: CandidateId, status: Status) -> Action {
    let unit = unit_of(run, candidate);
    Action::UnitDone { unit, status, blame: status.blame(), detail: "why".to_owned() }
}

fn unit_of(run: &Run<'_>, candidate: CandidateId) -> UnitId {
    run.agenda.units.of_candidate(candidate).expect("it was offered")
}

fn end_of(run: &mut Run<'_>, candidate: CandidateId) -> (Option<Stage>, String) {
    let record = run.records.writer.ask(move |store| store.record_of(candidate)).expect("a candidate");
    (record.failed_stage, record.feedback.expect("feedback"))
}

#[test]
fn feedback_belongs_to_the_attempt_that_ended_the_candidate() {
    let (naive, fast) = (CandidateId(0), CandidateId(1));
    with_a_run(|run| {
        for candidate in [naive, fast] {
            run.agenda.units.assign_number(Subject::Candidate(candidate));
        }
        let ended = verified(run, naive, LeaseId(1), Status::Crashed);
        let end = done(run, naive, Status::Crashed);
        run.carry_out_all(vec![ended, end]).expect("carried out");
        let (stage, feedback) = end_of(run, naive);
        assert_eq!(stage, Some(Stage::Verify));
        assert!(feedback.starts_with("CRASHED in verify: what was seen"), "{feedback}");

        let ended = verified(run, fast, LeaseId(2), Status::Passed);
        run.carry_out_all(vec![ended]).expect("carried out");
        let end = done(run, fast, Status::Skipped);
        run.carry_out_all(vec![end]).expect("carried out");
        let (stage, feedback) = end_of(run, fast);
        assert_eq!(stage, None, "it was cancelled after it had been verified");
        assert!(!feedback.contains("what was seen"), "{feedback}");
    });
}
