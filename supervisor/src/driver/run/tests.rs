//! The order of things: what an action raises is decided on after the actions beside it.

use std::fs;

use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use super::agenda::Agenda;
use super::decisions::Decisions;
use super::leaves::Leaves;
use super::machine::Machine;
use super::replay::Replaying;
use super::{Attempts, Run};
use crate::core::event::{Action, Event, PolicyRow};
use crate::core::{Ceilings, Core};
use crate::driver::answer::desk::Desk;
use crate::driver::answer::forecast::Forecast;
use crate::driver::folder::books::Books;
use crate::driver::folder::{RunFolder, resume};
use crate::driver::survey::facts::JobFacts;
use crate::driver::survey::spec;
use crate::memory::host::Host;
use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::progress::Progress;
use crate::signal::Signals;
use crate::store::Store;

const PLAN: &str = "[[job]]\ncaptures = \"captures\"\nbaseline = \"kernels/naive.c\"\n\
                    candidates = [\"kernels/*.c\"]\n";
const WHOLE: Bytes = Bytes::gib(16);

/// A run of two candidates on a machine that can start no worker.
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
    let known = resume::register(&mut store, &plan, &facts, &[true, true], false).expect("registered");
    let ceilings = Ceilings { host: WHOLE, device: Bytes::ZERO, unified: false };
    let spec = spec::spec(&plan, &facts, &known, ceilings, Bytes::ZERO, 1);
    let nowhere = base.path().join("no such folder");
    let pool = Pool::new(nowhere, |_| Vec::new()).expect("a pool");
    let mut run = Run {
        decisions: Decisions::new(Core::new(spec, WorkerId(1), LeaseId(1))),
        agenda: Agenda {
            plan,
            facts: &facts,
            known,
            replays: Replaying::new(&[]),
            folder: &folder,
            cores: 1,
            cache_budget: WHOLE,
            seed: 1,
            min_speedup: None,
        },
        attempts: Attempts::default(),
        machine: Machine::new(pool, Leaves::none(), Vec::new(), Host::detect(), WHOLE, WHOLE),
        books: Books::open(store, &folder).expect("books"),
        desk: Desk {
            control: None,
            awaited: Vec::new(),
            metrics: Metrics::default(),
            responder: None,
            progress: Progress::new(false),
            forecast: Forecast::default(),
            each_candidate: None,
        },
        signals: &Signals::block().expect("signals"),
        each_look: || {},
    };
    test(&mut run);
}

fn decisions_of(run: &Run<'_>) -> Vec<String> {
    let latest = run.books.store.latest_decisions(100).expect("decisions");
    latest.into_iter().map(|row| row.decision).collect()
}

fn noted(decision: &'static str) -> Action {
    Action::Policy(PolicyRow { decision, reason: String::new(), numbers: Vec::new() })
}

#[test]
fn what_an_action_raises_is_handled_after_the_actions_beside_it() {
    with_a_run(|run| {
        run.decisions.raise(Event::Tick);
        let mut actions = run.decisions.next().expect("no law is broken").expect("actions");
        let started = |action: &Action| {
            matches!(action, Action::StartWorker { worker: WorkerId(1), role: Role::Verifier })
        };
        assert!(actions.iter().any(started), "{actions:?}");
        actions.push(noted("beside_it"));
        run.carry_out_all(actions).expect("carried out");
        assert_eq!(decisions_of(run), ["beside_it"], "the start that failed waits");
        assert!(run.attempts.running.is_empty());

        run.feed(Event::Tick).expect("fed");
        assert_eq!(decisions_of(run), ["beside_it", "worker_not_ready"]);
    });
}
