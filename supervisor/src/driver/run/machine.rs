//! Holds what a run uses of its machine: worker processes, samples of memory, control groups, protections and the card.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::causes::{chain, is_shortage};
use opt_shared::ids::WorkerId;
use opt_shared::message::{GroupLimits, Protection, Role};
use opt_shared::protection::CGROUP_LEAF;
use opt_shared::units::Bytes;
use opt_shared::wait::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::device::RunDevice;
use super::history::History;
use super::kept_descriptors::KeptDescriptors;
use super::leaves::Leaves;
use super::protections;
use super::room::RoomWatch;
use super::sample::{MemoryFiles, Sampler};
use crate::core::event::{Moment, Process, Sample};
use crate::driver::RunError;
use crate::memory::disturbance::Disturbance;
use crate::memory::host::Host;
use crate::memory::pressure::PressureTrigger;
use crate::memory::procfs;
use crate::pool::{Pool, SpawnError, Unwatched, halt_descendants};
use crate::record::{HostRecord, TimingConditions};

pub(crate) struct Machine {
    pub(crate) pool: Pool,
    /// The leaves are declared after the pool, so that they are dropped after the last worker has ended.
    pub(crate) leaves: Leaves,
    pub(crate) sampler: Sampler,
    pub(crate) history: History,
    /// The run's card. `None` if the run uses none.
    pub(crate) device: Option<RunDevice>,
    /// The watch on the room for files and processes. `None` if its thread could not be started.
    pub(crate) room: Option<RoomWatch>,
    /// Linux's signal that memory is short. `None` if the trigger could not be armed, or no longer works.
    pressure: Option<PressureTrigger>,
    protections: Vec<Protection>,
    host: Host,
    /// The disturbance of the machine at the start of the run.
    disturbance: Disturbance,
    /// The highest ceiling that the machine allows.
    pub(crate) whole: Bytes,
    /// The time at which each worker was started.
    started: BTreeMap<WorkerId, Instant>,
    kept_descriptors: KeptDescriptors,
}

/// A runner that its worker has announced.
pub(crate) struct Announced {
    pub(crate) worker: WorkerId,
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) limit: Bytes,
    pub(crate) files: MemoryFiles,
    pub(crate) group_limits: GroupLimits,
}

impl Machine {
    /// Returns a machine whose card and room are not watched yet. `protections` are the results of the canaries.
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
            leaves: leaves.in_background(),
            sampler: Sampler::new(ceiling),
            history: History::new(),
            device: None,
            room: None,
            pressure: PressureTrigger::arm(Path::new("/proc")).ok(),
            protections,
            host,
            disturbance: Disturbance::read(Path::new("/")),
            whole,
            started: BTreeMap::new(),
            kept_descriptors: KeptDescriptors::default(),
        }
    }

    pub(crate) fn with_device(self, device: Option<RunDevice>) -> Self {
        Self { device, ..self }
    }

    /// Starts to watch the room for files on the disk of the run's folder, and the room for processes.
    pub(crate) fn watching_room(self, folder: &Path) -> Self {
        let room = RoomWatch::start(folder.to_owned());
        if let Err(error) = &room {
            tracing::warn!("the free disk space and process ids are not watched: {error}");
        }
        Self { room: room.ok(), ..self }
    }

    /// Waits until one of `others` is readable, something happens to a worker, a runner or the card, Linux reports
    /// memory pressure (processes are waiting for memory), or the timeout has passed. Returns true if Linux has
    /// reported memory pressure.
    pub(crate) fn wait<'o>(
        &mut self,
        others: impl Iterator<Item = PollFd<'o>>,
        timeout: Duration,
    ) -> Result<bool, RunError> {
        let mut polled = vec![PollFd::from_borrowed_fd(self.pool.wake_descriptor(), PollFlags::IN)];
        // With `extend`, these descriptors would need the same lifetime as the following ones.
        for other in others {
            polled.push(other);
        }
        if let Some(device) = &self.device {
            polled.push(PollFd::from_borrowed_fd(device.descriptor(), PollFlags::IN));
        }
        if let Some(moved) = self.leaves.descriptor() {
            polled.push(PollFd::from_borrowed_fd(moved, PollFlags::IN));
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
        let events = self.pressure.as_ref().and_then(|_| polled.last()).map(PollFd::revents);
        drop(polled);
        if events.is_some_and(|events| events.contains(PollFlags::ERR)) {
            self.pressure = None;
        }
        Ok(events.is_some_and(|events| events.contains(PollFlags::PRI)))
    }

    pub(crate) fn sample(&mut self, now: Moment) -> Sample {
        // A worker stops and wakes its runner for each call. It may therefore have woken a runner that was halted in
        // order to be killed.
        self.pool.halt_again();
        self.kept_descriptors.refill();
        let sample = self.sampler.sample();
        self.history.add(now, self.sampler.latest.owed, self.sampler.latest.reclaimable);
        sample
    }

    /// Stops a runner, or a compiler with everything that it started, until the reason for its kill is recorded.
    pub(crate) fn halt_runner(&mut self, worker: WorkerId, pid: u32) {
        self.leaves.freeze(worker, pid);
        self.pool.halt_runner(worker, pid);
        halt_descendants(pid, || self.sampler.descendants_of(Process::Runner(worker, pid)));
    }

    /// Starts a worker. The pool returns the later events of this worker.
    pub(crate) fn start_worker(&mut self, worker: WorkerId, role: Role) -> Result<u32, SpawnError> {
        self.started.insert(worker, Instant::now());
        self.pool.start(worker, role)
    }

    /// Returns the time since the worker was started, in milliseconds.
    pub(crate) fn ready_after(&self, worker: WorkerId) -> f64 {
        self.started.get(&worker).map_or(0.0, |at| at.elapsed().as_secs_f64() * 1e3)
    }

    pub(crate) fn worker_ended(&mut self, worker: WorkerId) {
        self.started.remove(&worker);
    }

    /// Watches a runner. If this fails, the runner must not begin, because its limit could not be enforced.
    pub(crate) fn watch_runner(&mut self, runner: Announced) -> Result<(), Unwatched> {
        let Announced { worker, pid, start_time, limit, files, group_limits } = runner;
        let mut watch = || {
            self.pool.watch_runner(worker, pid, start_time)?;
            let process = Process::Runner(worker, pid);
            self.sampler.watch(process, pid, Some(limit), files, group_limits.tree).map_err(|error| {
                if is_shortage(&error) {
                    Unwatched::Short(chain(&error))
                } else {
                    Unwatched::Failed(chain(&error))
                }
            })
        };
        if let Err(Unwatched::Short(why)) = watch() {
            tracing::debug!(%worker, pid, "descriptors that were kept for this are used to watch a runner: {why}");
            self.kept_descriptors.release();
            watch()?;
        }
        self.leaves.announce((worker, pid), start_time, limit, group_limits);
        Ok(())
    }

    /// Watches a worker's zygote, whose memory is charged to the worker. It is not an error if the zygote has already
    /// ended.
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

    /// Removes from all lists the runners of a worker that has reaped them without reporting each one.
    pub(crate) fn forget_runners(&mut self, worker: WorkerId) {
        self.pool.forget_runners(worker);
        self.sampler.forget_runners(worker);
        self.leaves.forget_worker(worker);
    }

    /// Removes a dead worker from all lists. If it `left_runners` that are still alive, these are sampled until the
    /// pool reports that they have ended.
    pub(crate) fn forget_dead_worker(&mut self, worker: WorkerId, left_runners: bool) {
        if let Some(device) = &self.device {
            device.sample_now();
        }
        self.sampler.forget(Process::Worker(worker));
        self.sampler.forget(Process::Zygote(worker));
        self.leaves.forget_worker(worker);
        if !left_runners {
            self.sampler.forget_runners(worker);
        }
    }

    /// Compares a runner's report of its protections with the results of the canaries, and warns of lost protections.
    pub(crate) fn confirm_protections(&mut self, reported: Vec<Protection>) {
        let gone = protections::confirm(&mut self.protections, reported);
        self.warn_of_missing(Some(&gone));
    }

    /// Gives up control groups for the rest of the run, and records that the protection is lost.
    pub(crate) fn give_up_leaves(&mut self, why: String) {
        protections::mark_lost(&mut self.protections, CGROUP_LEAF, &why);
        self.leaves.give_up(why);
        self.warn_of_missing(Some(&[CGROUP_LEAF.to_owned()]));
    }

    /// Warns of protections that this machine cannot enforce on candidates. If `only` is given, other protections are
    /// not mentioned.
    pub(crate) fn warn_of_missing(&self, only: Option<&[String]>) {
        let is_selected = |it: &&Protection| only.is_none_or(|names| names.contains(&it.name));
        for missing in self.protections.iter().filter(|it| !it.present).filter(is_selected) {
            let needed = opt_shared::protection::known(&missing.name).is_none_or(|kind| kind.needed);
            let risk =
                if needed { ", so the machine is not safe for candidates that you do not trust" } else { "" };
            tracing::warn!(
                "the protection `{}` is not enforced on this machine ({}){risk}",
                missing.name,
                missing.detail
            );
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
        let (before, now) = (&self.disturbance, Disturbance::read(Path::new("/")));
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
