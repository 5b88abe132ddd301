//! The processes of a run and the machine that they share: who lives, what is seen of memory, what holds candidates in.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use opt_shared::message::{Pack, Protection, Role};
use opt_shared::protection::CGROUP_LEAF;
use opt_shared::units::Bytes;
use opt_shared::wait::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::device::RunDevice;
use super::history::History;
use super::leaves::Leaves;
use super::protections;
use super::sample::{MemoryFiles, Sampler};
use crate::core::event::{Moment, Process, Sample};
use crate::driver::RunError;
use crate::memory::disturbance::Disturbance;
use crate::memory::host::Host;
use crate::memory::pressure::PressureTrigger;
use crate::memory::procfs;
use crate::pool::{Pool, SpawnError, Unwatched};
use crate::record::{HostRecord, TimingConditions};

pub(crate) struct Machine {
    pub(crate) pool: Pool,
    /// Given back after the last worker is gone: fields are dropped in their order.
    pub(crate) leaves: Leaves,
    pub(crate) sampler: Sampler,
    pub(crate) history: History,
    /// None where the run uses no card.
    pub(crate) device: Option<RunDevice>,
    /// None where the kernel has none to arm.
    pressure: Option<PressureTrigger>,
    protections: Vec<Protection>,
    host: Host,
    /// When the run began.
    disturbance: Disturbance,
    /// What a ceiling may be at most.
    pub(crate) whole: Bytes,
    /// When each worker was started.
    started: BTreeMap<WorkerId, Instant>,
}

/// A runner as its worker announced it.
pub(crate) struct Announced {
    pub(crate) worker: WorkerId,
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) limit: Bytes,
    pub(crate) files: MemoryFiles,
    pub(crate) pack: Pack,
}

impl Machine {
    /// `protections` are those that were found before anything foreign runs.
    pub(crate) fn new(
        pool: Pool,
        leaves: Leaves,
        protections: Vec<Protection>,
        host: Host,
        ceiling: Bytes,
        whole: Bytes,
    ) -> Self {
        Self {
            pool,
            leaves,
            sampler: Sampler::new(ceiling),
            history: History::new(),
            device: None,
            pressure: PressureTrigger::arm(Path::new("/proc")).ok(),
            protections,
            host,
            disturbance: Disturbance::look(Path::new("/")),
            whole,
            started: BTreeMap::new(),
        }
    }

    pub(crate) fn with_device(self, device: Option<RunDevice>) -> Self {
        Self { device, ..self }
    }

    /// Until one of `others` is readable, a process ends or says something, or the time is over. True if the kernel says
    /// that processes wait for memory.
    pub(crate) fn wait<'o>(
        &mut self,
        others: impl Iterator<Item = PollFd<'o>>,
        timeout: Duration,
    ) -> Result<bool, RunError> {
        let mut polled = vec![PollFd::from_borrowed_fd(self.pool.wake_descriptor(), PollFlags::IN)];
        // One by one: theirs may live longer than our own.
        for other in others {
            polled.push(other);
        }
        if let Some(device) = &self.device {
            polled.push(PollFd::from_borrowed_fd(device.descriptor(), PollFlags::IN));
        }
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

    /// A look at the tree.
    pub(crate) fn look(&mut self, now: Moment) -> Sample {
        // A worker that stops and wakes its runner could have woken one that is to die.
        self.pool.halt_the_doomed();
        let sample = self.sampler.sample();
        self.history.add(now, self.sampler.look.owed, self.sampler.look.reclaimable);
        sample
    }

    /// What becomes of it is told in events; nothing, where it could not be started.
    pub(crate) fn start_worker(&mut self, worker: WorkerId, role: Role) -> Result<u32, SpawnError> {
        self.started.insert(worker, Instant::now());
        self.pool.start(worker, role)
    }

    /// From its start until now, in milliseconds.
    pub(crate) fn ready_after(&self, worker: WorkerId) -> f64 {
        self.started.get(&worker).map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3)
    }

    pub(crate) fn worker_ended(&mut self, worker: WorkerId) {
        self.started.remove(&worker);
    }

    /// A candidate that nobody watches has no limit: only one that is may be let loose.
    pub(crate) fn watch_runner(&mut self, runner: Announced) -> Result<(), Unwatched> {
        let Announced { worker, pid, start_time, limit, files, pack } = runner;
        self.pool.watch_runner(worker, pid, start_time)?;
        self.sampler
            .watch(Process::Runner(worker, pid), pid, Some(limit), files, pack.tree)
            .map_err(|error| Unwatched::Failed(chain(&error)))?;
        self.leaves.announce(worker, pid, limit, pack);
        Ok(())
    }

    /// It is watched like its worker, for as long as it lives; one that has gone already needs no watching.
    pub(crate) fn watch_zygote(&mut self, worker: WorkerId, pid: u32, start_time: u64) {
        let zygote = Process::Zygote(worker);
        self.sampler.forget(zygote);
        if let Err(error) = self.sampler.watch(zygote, pid, None, MemoryFiles::default(), false) {
            tracing::debug!(%worker, pid, "a zygote could not be watched: {}", chain(&error));
        }
        let started = procfs::start_time(Path::new("/proc"), pid).ok().flatten();
        if started != Some(start_time) {
            self.sampler.forget(zygote);
        }
    }

    /// Forgets the runners of a worker that has reaped them without a report on each.
    pub(crate) fn forget_runners(&mut self, worker: WorkerId) {
        self.pool.forget_runners(worker);
        self.sampler.forget_runners(worker);
        self.leaves.forget_worker(worker);
    }

    pub(crate) fn forget_dead_worker(&mut self, worker: WorkerId, left_runners: bool) {
        if let Some(device) = &self.device {
            device.look_now();
        }
        self.sampler.forget(Process::Worker(worker));
        self.sampler.forget(Process::Zygote(worker));
        self.leaves.forget_worker(worker);
        if !left_runners {
            self.sampler.forget_runners(worker);
        }
    }

    /// What a runner says that it could do to itself, held against what the canaries found; what has gone is reported.
    pub(crate) fn confirm_protections(&mut self, reported: Vec<Protection>) {
        let gone = protections::confirm(&mut self.protections, reported);
        self.say_what_is_missing(Some(&gone));
    }

    /// The other protections hold, and the result says so.
    pub(crate) fn lose_the_leaves(&mut self, why: String) {
        protections::lost(&mut self.protections, CGROUP_LEAF, &why);
        self.leaves.give_up(why);
        self.say_what_is_missing(Some(&[CGROUP_LEAF.to_owned()]));
    }

    /// Once, aloud: what this machine cannot enforce on candidates; all of it, or what has gone since.
    pub(crate) fn say_what_is_missing(&self, only: Option<&[String]>) {
        let said = |it: &&Protection| only.is_none_or(|names| names.contains(&it.name));
        for missing in self.protections.iter().filter(|it| !it.present).filter(said) {
            let needed = opt_shared::protection::known(&missing.name).is_none_or(|kind| kind.needed);
            let risk = if needed { "; not safe for candidates that you do not trust" } else { "" };
            tracing::warn!("not enforced on this machine: {} ({}){risk}", missing.name, missing.detail);
        }
    }

    pub(crate) fn record(&self) -> HostRecord {
        HostRecord {
            cpu: self.host.cpu.clone(),
            cores: self.host.cores,
            ram_bytes: self.host.ram,
            kernel: self.host.kernel.clone(),
            protections: self.protections.clone(),
            timing: Some(self.timing_conditions()),
        }
    }

    fn timing_conditions(&self) -> TimingConditions {
        let (before, now) = (&self.disturbance, Disturbance::look(Path::new("/")));
        TimingConditions {
            governors: now.governors.clone(),
            smt: now.smt,
            load_before: before.load,
            load_after: now.load,
            steal_share: now.steal_since(before),
            throttled: now.throttled_since(before),
        }
    }
}
