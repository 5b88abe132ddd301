//! Performs a run, from the plan to the exit code: the survey, the run itself, answers to users, and the folder with
//! the results.
//!
//! This module connects the plan, the pool, memory, the store and reports, none of which depends on the others. The
//! core decides what the run does next.

pub mod answer;
mod background;
pub mod candidate_facts;
mod error;
pub mod folder;
pub mod run;
pub mod survey;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::answer::endpoints::Endpoints;
use self::answer::forecast::Forecast;
use self::answer::requests;
use self::answer::submissions::Submissions;
pub use self::error::RunError;
use self::folder::records::RunRecords;
use self::folder::resume::Earlier;
use self::folder::{FolderError, RunFolder, Whereabouts, evidence, register, resume};
use self::run::agenda::Agenda;
use self::run::decisions::Decisions;
use self::run::device::FoundDevice;
use self::run::leaves::Leaves;
use self::run::machine::Machine;
use self::run::protections;
use self::run::replay::Replaying;
use self::run::room;
use self::run::supply::Units;
use self::run::watchdog::{Part, Watchdog};
use self::run::{Attempts, Run};
use self::survey::limits::{check_floor, limits_of, memory_of_machine, usable_and_total_of};
use self::survey::{
    compilers, devices, launches, own_limits, priority, read_facts, replay_facts, same_class, seed, spec,
};
use crate::core::Core;
use crate::core::event::{Control, Event};
use crate::exit::Exit;
use crate::memory::host::Host;
use crate::metrics::Metrics;
use crate::metrics::http::Responder;
use crate::plan::Plan;
use crate::pool::Pool;
use crate::progress::Progress;
use crate::record::UtcTime;
use crate::signal::Signals;
use crate::store::{RunRow, Store, StoreError};

/// The share of the ceiling that a job's captures may take in the page cache. If they fit, they stay in the cache for
/// the next candidate.
const CACHE_SHARE: f64 = 0.25;

/// A callback that gets each candidate's record when the candidate ends. It must not block.
pub type EachCandidate = Box<dyn Fn(&serde_json::Value)>;

/// The options of `run`.
pub struct RunOptions {
    pub plan: Plan,
    pub dir: Option<PathBuf>,
    pub resume: bool,
    pub only: Vec<String>,
    pub min_speedup: Option<f64>,
    /// Whether to show progress bars on standard error.
    pub progress: bool,
    /// Whether to wait for more candidates when all work is done.
    pub keep_open: bool,
    pub each_candidate: Option<EachCandidate>,
    /// The address at which metrics are served.
    pub metrics: Option<std::net::SocketAddr>,
    /// Called before each sample of memory.
    pub before_each_sample: fn(),
}

/// The result of a run that has ended.
pub struct Ended {
    pub exit: Exit,
    pub folder: PathBuf,
}

/// Runs a plan. Call it with signals blocked, and from the main thread, because workers die with the thread that starts
/// them. `opened` is called with the run's folder as soon as the folder is locked.
pub fn run(options: RunOptions, signals: &Signals, opened: &dyn Fn(&Path)) -> Result<Ended, RunError> {
    let mut plan = options.plan;
    own_limits::raise()?;
    let machine = memory_of_machine();
    check_floor(&plan, machine)?;
    let machine_memory = usable_and_total_of(machine);
    let card =
        devices::card_of(plan.device()).map_err(|why| RunError::NoDevice { device: plan.device(), why })?;
    if let Some(job) = priority::first_refused_job(&plan).map_err(RunError::Capabilities)? {
        return Err(RunError::NoPriority { job: job.to_owned() });
    }
    let mut selected = spec::selected(&plan, &options.only)?;
    compilers::check(&plan, &selected)?;
    let resolved = crate::plan::resolved_toml(&plan);
    let facts = read_facts(&plan)?;
    launches::check_names(&plan, &facts)?;
    let replay_facts = replay_facts::read_replays(&plan, &facts)?;
    let runs = plan.base_dir.join(folder::RUNS);
    let mut candidates = plan.jobs.iter().flat_map(|job| &job.candidates);
    let loads_libraries = candidates.any(|it| it.source.language.kind().artifact.is_machine_code());
    match &options.dir {
        Some(folder) => room::check(folder, None, loads_libraries)?,
        None => room::check(&runs, Some(&plan.run.name), loads_libraries)?,
    }
    let folder = open_folder(&plan, options.dir.as_deref(), options.resume)?;
    opened(folder.path());
    let mut store = open_store(&folder, options.resume)?;
    if options.resume {
        resume::restore_plan(&store, &folder, &mut plan, &resolved)?;
        selected = spec::selected(&plan, &options.only)?;
    }
    record_start(&mut store, &folder, &plan, &resolved)?;
    // The text of a plan with ten thousand candidates takes more than 1 MiB.
    drop(resolved);
    let earlier = if options.resume { Earlier::open(&mut store, &plan, &facts)? } else { Earlier::None };
    let candidate_facts =
        register::register(&mut store, &plan, &facts, &selected, earlier, &folder.artifacts())?;
    let kept_replays = register::register_replays(&mut store, &plan, &replay_facts)?;
    let device = plan.device();
    let found_device = card.as_ref().map(FoundDevice::find).transpose()?;
    let memory = found_device.as_ref().map(|found| found.memory);
    let (ceilings, floor) = limits_of(&plan, machine_memory, memory);
    let taken = found_device.map(|found| found.take(folder.path(), signals)).transpose()?;
    let host = Host::detect();
    let cores = host.cores.unwrap_or(1);
    let counters = store.counters()?;
    let spec = spec::spec(&plan, &facts, ceilings, floor);
    let children = |pid| crate::memory::tree::children(Path::new("/proc"), pid).unwrap_or_default();
    let pool = Pool::new(device, folder.worker_logs(), children)?;
    let mut leaves = Leaves::open(&Leaves::key(folder.path()));
    let found = protections::try_all(pool.executable(), &mut leaves);
    let mut run = Run {
        decisions: Decisions::new(Core::new(spec, counters.worker, counters.lease)),
        agenda: Agenda {
            plan,
            facts: &facts,
            without_baseline: BTreeSet::new(),
            libraries: candidate_facts::Libraries::of(&candidate_facts),
            candidate_facts,
            replays: Replaying::new(&replay_facts, kept_replays),
            units: Units::default(),
            folder: &folder,
            cores,
            card: card.as_ref().map(|card| card.shape),
            cache_budget: ceilings.host.fraction(CACHE_SHARE),
            seed: seed::draw(),
            min_speedup: options.min_speedup,
        },
        attempts: Attempts::default(),
        machine: Machine::new(pool, leaves, found, host, ceilings.host, machine_memory.0)
            .with_device(taken)
            .watching_room(folder.path()),
        records: RunRecords::open(store, &folder)?,
        endpoints: Endpoints {
            control: requests::open(&folder, options.keep_open)?,
            awaited: Vec::new(),
            metrics: Metrics::default(),
            responder: options.metrics.map(Responder::bind).transpose()?,
            progress: Progress::new(options.progress),
            forecast: Forecast::default(),
            each_candidate: options.each_candidate,
            submissions: Submissions::new(folder.path()),
        },
        signals,
        watchdog: Watchdog::start(),
        stalled: false,
        before_each_sample: options.before_each_sample,
    };
    run.write_host();
    run.machine.warn_of_missing(None);
    if options.keep_open {
        run.feed(Event::Control(Control::StayOpen))?;
    }
    run.endpoints.announce(&format!("run {} in {}", run.agenda.plan.run.name, folder.path().display()));
    // If the run is resumed, its database already has these rows.
    if !options.resume {
        for row in same_class::policy_rows(&run.agenda.plan, &facts) {
            run.policy(&row);
        }
    }
    let lost = |error: RunError| {
        let path = folder.path().to_owned();
        match folder.whereabouts() {
            Whereabouts::Unchanged => error,
            Whereabouts::Moved(to) => RunError::FolderMoved { path, to },
            Whereabouts::Removed => RunError::FolderRemoved { path },
        }
    };
    if let Err(error) = crate::memory::code::drop_pages() {
        tracing::debug!("the code that only the start needed stays mapped: {error}");
    }
    let stop = run.go().map_err(lost)?;
    run.watchdog.enter(Part::Ending);
    run.watchdog.log_longest_turn();
    if let Some(row) = seed::policy_row(&run.agenda.plan, run.agenda.seed) {
        run.policy(&row);
    }
    crate::notify::stopping();
    let exit = run.finish(&stop).map_err(lost)?;
    run.close_control(exit);
    let path = folder.path().to_owned();
    drop(run);
    folder.remove_temporary_files();
    Ok(Ended { exit, folder: path })
}

/// Creates and locks the folder of a new run, or locks the folder of the run that is resumed.
fn open_folder(plan: &Plan, dir: Option<&Path>, resume: bool) -> Result<RunFolder, FolderError> {
    let (base, name) = (&plan.base_dir, &plan.run.name);
    if resume { RunFolder::resume(base, name, dir) } else { RunFolder::create(base, name, dir) }
}

fn open_store(folder: &RunFolder, resume: bool) -> Result<Store, StoreError> {
    let store = if resume { Store::resume(folder.path())? } else { Store::create(folder.path())? };
    for note in store.notes() {
        tracing::warn!("{note}");
    }
    Ok(store)
}

/// Records the run before its first unit starts, and removes a summary that an earlier process left half-written.
fn record_start(store: &mut Store, folder: &RunFolder, plan: &Plan, resolved: &str) -> Result<(), RunError> {
    crate::report::summary::clear_leftover(folder.path())?;
    store.run_started(&RunRow {
        name: plan.run.name.clone(),
        started: UtcTime::now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: plan.device().to_string(),
    })?;
    store.plan(resolved)?;
    store.command(&evidence::command_line())?;
    Ok(())
}
