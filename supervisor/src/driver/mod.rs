//! The edge and the loop of a run: sources become events, the core answers with actions, hands carry them out.
//!
//! Owns the order of things and every meeting of two rooms: plan, pool, memory, store and report do not know one
//! another. Decides nothing that the core could decide.

pub mod answer;
mod error;
pub mod folder;
pub mod known;
pub mod run;
pub mod survey;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::{FromWorker, Rung};
use opt_shared::rung::CGROUP_LEAF;
use opt_shared::units::Bytes;
use opt_shared::wait::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use self::answer::forecast::Forecast;
use self::answer::{notifications, requests, submissions};
pub use self::error::RunError;
use self::folder::evidence::{self, Evidence};
use self::folder::{RunFolder, resume};
use self::known::Known;
use self::run::actions::RunningAttempt;
use self::run::history::History;
use self::run::leaves::Leaves;
use self::run::protections;
use self::run::replay::Replaying;
use self::run::sample::{MemoryFiles, Sampler};
use self::survey::facts::JobFacts;
use self::survey::limits::{limits_of, whole_memory};
use self::survey::replay_facts::{self, ReplayFacts};
use self::survey::{read_facts, seed, spec};
use crate::control::{Server, Token};
use crate::core::Core;
use crate::core::event::{Answer, Control, Event, Moment, Process, Stage, StopReason};
use crate::exit::Exit;
use crate::memory::host::Host;
use crate::memory::pressure::PressureTrigger;
use crate::metrics::Metrics;
use crate::metrics::http::Responder;
use crate::plan::Plan;
use crate::pool::{Happening, Pool, Unwatched};
use crate::progress::Progress;
use crate::record::{HostRecord, UtcTime};
use crate::signal::Signals;
use crate::store::{RunRow, Store};

/// Of the ceiling: the captures of a job that fit into this stay in the page cache for the next candidate.
const CACHE_SHARE: f64 = 0.25;

/// What `run` was asked for.
pub struct RunOptions {
    pub plan: Plan,
    pub dir: Option<PathBuf>,
    pub resume: bool,
    pub only: Vec<String>,
    pub min_speedup: Option<f64>,
    /// Progress bars on standard error.
    pub progress: bool,
    /// When all work is done, more is waited for.
    pub keep_open: bool,
    /// Is given each candidate's record as it ends.
    pub each_candidate: Option<fn(&serde_json::Value)>,
    /// Where metrics are served.
    pub metrics: Option<std::net::SocketAddr>,
    /// Called whenever memory has been looked at, so a few times in a second.
    pub each_look: fn(),
}

/// A run that has come to its end.
pub struct Ended {
    pub exit: Exit,
    pub folder: PathBuf,
}

/// Runs a plan. Call from the main thread, with signals blocked: workers die with the thread that starts them.
/// `opened` is told the run's folder as soon as it is ours.
pub fn run(options: RunOptions, signals: &Signals, opened: &dyn Fn(&Path)) -> Result<Ended, RunError> {
    let mut plan = options.plan;
    let mut selected = spec::selected(&plan, &options.only)?;
    let resolved = crate::plan::resolved_toml(&plan);
    let facts = read_facts(&plan)?;
    let replay_facts = replay_facts::read_replays(&plan, &facts)?;
    let dir = options.dir.as_deref();
    let folder = if options.resume {
        RunFolder::resume(&plan.base_dir, &plan.run.name, dir)?
    } else {
        RunFolder::create(&plan.base_dir, &plan.run.name, dir)?
    };
    opened(folder.path());
    let mut store =
        if options.resume { Store::resume(folder.path())? } else { Store::create(folder.path())? };
    for note in store.notes() {
        tracing::warn!("{note}");
    }
    if options.resume
        && let Some(before) = store.stored_plan()?
    {
        let keys = crate::plan::changed_keys(&before, &resolved);
        if !keys.is_empty() {
            return Err(RunError::PlanChanged { keys: keys.join(", ") });
        }
    }
    crate::report::summary::clear_leftover(folder.path())?;
    if options.resume && submissions::restore(&mut plan, folder.path()) {
        selected = spec::selected(&plan, &options.only)?;
    }
    store.run_started(&RunRow {
        name: plan.run.name.clone(),
        started: UtcTime::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: "cpu".to_owned(),
    })?;
    store.plan(&resolved)?;
    store.command(&evidence::command_line())?;
    let known = resume::register(&mut store, &plan, &facts, &selected, options.resume)?;
    let whole = whole_memory();
    let (ceilings, floor) = limits_of(&plan, whole);
    let host = Host::detect();
    let cores = host.cores.unwrap_or(1);
    let counters = store.counters()?;
    let spec = spec::spec(&plan, &facts, &known, ceilings, floor, cores);
    let children = |pid| crate::memory::tree::children(Path::new("/proc"), pid).unwrap_or_default();
    let pool = Pool::new(folder.worker_logs(), children)?;
    let mut leaves = Leaves::open(&Leaves::key(folder.path()));
    let rungs = protections::climb(pool.executable(), &mut leaves);
    let mut run = Run {
        plan,
        min_speedup: options.min_speedup,
        each_candidate: options.each_candidate,
        each_look: options.each_look,
        control: requests::open(&folder, options.keep_open)?,
        awaited: Vec::new(),
        metrics: Metrics::default(),
        scraped: options.metrics.map(Responder::bind).transpose()?,
        cores,
        whole: whole.0,
        facts: &facts,
        replaying: Replaying::new(replay_facts.len()),
        replay_facts: &replay_facts,
        folder: &folder,
        signals,
        core: Core::new(spec, counters.worker, counters.lease),
        pool,
        leaves,
        sampler: Sampler::new(ceilings.host),
        pressure: PressureTrigger::arm(Path::new("/proc")).ok(),
        evidence: Evidence::new(store.samples_width()?),
        history: History::new(),
        forecast: Forecast::default(),
        store,
        known,
        cache_budget: ceilings.host.fraction(CACHE_SHARE),
        seed: seed::draw(),
        started: Instant::now(),
        attempts: BTreeMap::new(),
        last_report: None,
        progress: Progress::new(options.progress),
        rungs,
        host,
        worker_started: BTreeMap::new(),
        summary_due: None,
        stop: None,
        answered: None,
    };
    run.record_host()?;
    run.register_replays()?;
    run.say_what_is_missing(None);
    if let Some(row) = seed::policy_row(&run.plan, run.seed) {
        run.policy(&row)?;
    }
    if options.keep_open {
        run.feed(Event::Control(Control::StayOpen))?;
    }
    run.announce();
    let mut stop = run.go()?;
    if stop == StopReason::Finished
        && let Some(after) = run.replay_all()?
    {
        stop = after;
    }
    crate::notify::stopping();
    let exit = run.finish(&stop)?;
    run.close_control(exit);
    let path = folder.path().to_owned();
    drop(run);
    folder.tidy();
    Ok(Ended { exit, folder: path })
}

struct Run<'a> {
    plan: Plan,
    min_speedup: Option<f64>,
    each_candidate: Option<fn(&serde_json::Value)>,
    each_look: fn(),
    control: Option<Server>,
    /// Who waits for the end of which candidate.
    awaited: Vec<(Token, CandidateId)>,
    metrics: Metrics,
    scraped: Option<Responder>,
    cores: u32,
    /// What a ceiling may be at most.
    whole: Bytes,
    facts: &'a [JobFacts],
    replay_facts: &'a [ReplayFacts],
    replaying: Replaying,
    folder: &'a RunFolder,
    signals: &'a Signals,
    core: Core,
    pool: Pool,
    /// Given back after the last worker is gone: fields are dropped in their order.
    leaves: Leaves,
    sampler: Sampler,
    /// None where the kernel has none to arm.
    pressure: Option<PressureTrigger>,
    evidence: Evidence,
    history: History,
    forecast: Forecast,
    store: Store,
    known: Vec<Known>,
    cache_budget: Bytes,
    seed: u64,
    started: Instant,
    attempts: BTreeMap<LeaseId, RunningAttempt>,
    /// Of the attempt that ended last: what a candidate's feedback is made from.
    last_report: Option<(CandidateId, Stage, opt_shared::message::Report)>,
    progress: Progress,
    rungs: Vec<Rung>,
    host: Host,
    worker_started: BTreeMap<WorkerId, Instant>,
    summary_due: Option<Instant>,
    stop: Option<StopReason>,
    /// Of the core to the request in hand.
    answered: Option<Answer>,
}

impl Run<'_> {
    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    fn go(&mut self) -> Result<StopReason, RunError> {
        self.feed(Event::Tick)?;
        loop {
            if let Some(stop) = self.stop.take() {
                return Ok(stop);
            }
            let until_sample = self.sampler.due().saturating_duration_since(Instant::now());
            let until_sample = until_sample.min(self.control_due());
            let timeout = match self.core.next_deadline() {
                Some(deadline) => deadline.saturating_sub(self.now()).min(until_sample),
                None => until_sample,
            };
            if self.wait(timeout)? {
                self.feed(Event::Pressure)?;
            }
            for _ in 0..self.signals.take() {
                self.feed(Event::Interrupt)?;
            }
            for happening in self.pool.happenings() {
                self.happened(happening)?;
            }
            if self.core.next_deadline().is_some_and(|deadline| deadline <= self.now()) {
                self.feed(Event::Tick)?;
            }
            self.serve()?;
            if self.sampler.due() <= Instant::now() {
                self.look_now()?;
            }
        }
    }

    /// True if the kernel says that processes wait for memory.
    fn wait(&mut self, timeout: Duration) -> Result<bool, RunError> {
        let mut polled = vec![
            PollFd::from_borrowed_fd(self.pool.wake_descriptor(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN),
        ];
        polled.extend(self.scraped.iter().flat_map(Responder::descriptors));
        polled.extend(self.control.iter().flat_map(Server::descriptors));
        polled.extend(self.pool.pidfds().map(|pidfd| PollFd::from_borrowed_fd(pidfd, PollFlags::IN)));
        if let Some(trigger) = &self.pressure {
            polled.push(PollFd::new(trigger, PollFlags::PRI));
        }
        match poll(&mut polled, Some(&timespec(timeout))) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(false),
            Err(errno) => return Err(RunError::Poll(errno)),
        }
        let said = self.pressure.as_ref().and_then(|_| polled.last()).map(PollFd::revents);
        drop(polled);
        if said.is_some_and(|said| said.contains(PollFlags::ERR)) {
            self.pressure = None;
        }
        Ok(said.is_some_and(|said| said.contains(PollFlags::PRI)))
    }

    fn feed(&mut self, event: Event) -> Result<(), RunError> {
        let now = self.now();
        let actions = self.core.handle(now, event);
        self.core.check_invariants().map_err(|law| RunError::Law { law })?;
        for action in actions {
            self.carry_out(action)?;
        }
        Ok(())
    }

    fn happened(&mut self, happening: Happening) -> Result<(), RunError> {
        match happening {
            Happening::Ready { worker, pid } => {
                let ready =
                    self.worker_started.get(&worker).map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3);
                self.store.worker_ready(worker, ready)?;
                self.tell(|| notifications::worker_ready(worker, ready));
                if let Err(error) =
                    self.sampler.watch(Process::Worker(worker), pid, None, MemoryFiles::default(), false)
                {
                    let why = format!("it could not be watched: {}", opt_shared::causes::chain(&error));
                    return self.feed(Event::WorkerNotReady { worker, why, alive: true });
                }
                self.feed(Event::WorkerReady { worker })
            }
            Happening::NotReady { worker, why } => {
                self.feed(Event::WorkerNotReady { worker, why, alive: true })
            }
            Happening::Gone { worker, how, left_runners } => {
                if self.core.lease_of(worker).is_some() {
                    self.evidence.phase_ends();
                }
                self.sampler.forget(Process::Worker(worker));
                self.leaves.forget_worker(worker);
                if !left_runners {
                    self.sampler.forget_runners(worker);
                }
                tracing::debug!(%worker, how, left_runners, "worker gone");
                self.look_now()?;
                self.feed(Event::WorkerGone { worker, how, left_runners })
            }
            Happening::Returned { worker } => {
                self.sampler.forget_runners(worker);
                self.look_now()?;
                self.feed(Event::Returned { worker })
            }
            Happening::Said { worker, message } => self.said(worker, message),
        }
    }

    fn said(&mut self, worker: WorkerId, message: FromWorker) -> Result<(), RunError> {
        match message {
            FromWorker::RunnerStarted { lease, pid, start_time, limit, shared, of_worker, pack } => {
                let process = Process::Runner(worker, pid);
                let watched = self.pool.watch_runner(worker, pid, start_time).and_then(|()| {
                    self.sampler
                        .watch(process, pid, Some(limit), MemoryFiles { own: shared, of_worker }, pack.tree)
                        .map_err(|error| Unwatched::Trouble(opt_shared::causes::chain(&error)))
                });
                match watched {
                    Ok(()) => self.leaves.announce(worker, pid, limit, pack),
                    // Its worker tells next.
                    Err(Unwatched::Gone) => {
                        tracing::debug!(%worker, pid, "a runner died before it was watched")
                    }
                    // A candidate that nobody watches has no limit: it is not let loose.
                    Err(Unwatched::Trouble(why)) => {
                        let detail = format!("its runner {pid} could not be watched: {why}");
                        return self.feed(Event::WorkerFault { worker, detail });
                    }
                }
                self.feed(Event::RunnerStarted { worker, lease, pid, limit, shared })
            }
            FromWorker::Holds { bytes } => {
                self.sampler.holds(worker, bytes);
                Ok(())
            }
            FromWorker::KillWanted { pid, reason } => self.feed(Event::KillWanted { worker, pid, reason }),
            FromWorker::RunnerDied { pid } => {
                self.sampler.forget(Process::Runner(worker, pid));
                self.feed(Event::RunnerDied { worker, pid })
            }
            FromWorker::Enforced { rungs } => {
                let gone = protections::confirm(&mut self.rungs, rungs);
                self.say_what_is_missing(Some(&gone));
                self.record_host()
            }
            FromWorker::Progress { lease, done, total, bytes } => {
                if let Some(attempt) = self.attempts.get_mut(&lease) {
                    (attempt.done, attempt.total, attempt.bytes) = (done, total, bytes);
                }
                self.progress.update(lease, done, total, bytes);
                Ok(())
            }
            FromWorker::Finished { lease, report } => {
                self.evidence.phase_ends();
                self.look_now()?;
                // An attempt that failed half-way reaps its runners without a word on each.
                self.pool.forget_runners(worker);
                self.sampler.forget_runners(worker);
                self.leaves.forget_worker(worker);
                self.feed(Event::Finished { worker, lease, report })?;
                // What it kept is known now: the next phase need not wait for the next look.
                self.look_now()
            }
            FromWorker::Fault { lease: _, detail } => {
                tracing::warn!(%worker, "a worker cannot go on: {detail}");
                self.feed(Event::WorkerFault { worker, detail })
            }
        }
    }

    /// A look at the tree. Out of turn it is taken so that what is decided next (to recycle, to grant) and its record
    /// rest on figures of now: nothing is being timed then, an attempt or a worker has just ended.
    fn look_now(&mut self) -> Result<(), RunError> {
        (self.each_look)();
        let sample = self.sampler.sample();
        self.history.add(self.now(), self.sampler.look.owed, self.sampler.look.reclaimable);
        if let Some(block) = self.evidence.add(&self.sampler.look) {
            let width = self.store.samples(&block)?;
            self.evidence.widen(width);
        }
        self.feed(Event::Sample(sample))
    }

    /// Once, aloud: what this machine cannot enforce on candidates; all of it, or what has gone since.
    fn say_what_is_missing(&self, only: Option<&[String]>) {
        let said = |rung: &&Rung| only.is_none_or(|names| names.contains(&rung.name));
        for rung in self.rungs.iter().filter(|rung| !rung.present).filter(said) {
            let needed = opt_shared::rung::known(&rung.name).is_none_or(|kind| kind.needed);
            let risk = if needed { "; not safe for candidates that you do not trust" } else { "" };
            tracing::warn!("not enforced on this machine: {} ({}){risk}", rung.name, rung.detail);
        }
    }

    /// The other rungs hold, and the result says so.
    fn lose_the_leaves(&mut self, why: String) -> Result<(), RunError> {
        protections::lost(&mut self.rungs, CGROUP_LEAF, &why);
        self.leaves.give_up(why);
        self.say_what_is_missing(Some(&[CGROUP_LEAF.to_owned()]));
        self.record_host()
    }

    fn record_host(&mut self) -> Result<(), RunError> {
        self.store.host(&HostRecord {
            cpu: self.host.cpu.clone(),
            cores: self.host.cores,
            ram_bytes: self.host.ram,
            kernel: self.host.kernel.clone(),
            rungs: self.rungs.clone(),
        })?;
        Ok(())
    }
}
