//! Watches the memory of a run's card, and converts readings of NVML to events for the core.
//!
//! This file maps pids to processes of this run. It keeps the pids of dead processes until NVML no longer lists them.
//! The emulated device uses host memory, so it is not watched.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;

use super::Run;
use super::device_lock::{DeviceLock, LockError};
use crate::core::device::DeviceState;
use crate::core::event::{DeviceSample, Event, Process};
use crate::driver::RunError;
use crate::driver::survey::devices::Card;
use crate::driver::survey::limits::DeviceMemory;
use crate::memory::device::attribution::{Attribution, OwnProcess, attribute, pids};
use crate::memory::device::watch::{BUSY, DeviceWatch, IDLE};
use crate::memory::device::{DeviceError, DeviceIdentity, DeviceTotals, Nvml, Reading};
use crate::signal::Signals;

/// A run's card that was found in NVML, but is not locked or watched yet.
pub(crate) struct FoundDevice {
    nvml: Nvml,
    pub(crate) identity: DeviceIdentity,
    pub(crate) memory: DeviceMemory,
}

/// A card that is locked and watched.
pub(crate) struct RunDevice {
    watch: DeviceWatch,
    /// The run's living processes by pid. Each is listed with the pids that it has in this namespace and in those
    /// within it.
    alive: BTreeMap<u32, OwnProcess<Process>>,
    /// The pids of the run's dead processes that NVML still lists.
    dead: BTreeMap<u32, WorkerId>,
    /// Whether a failed reading has been reported. A successful reading resets it.
    failure_reported: bool,
    pub(crate) latest: LatestReading,
    _lock: DeviceLock,
}

/// The figures of the last reading, for status and metrics. Each is `None` before the first reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatestReading {
    /// The memory that processes of this run hold.
    pub(crate) ours: Option<Bytes>,
    pub(crate) others: Option<Bytes>,
    pub(crate) unattributed: Option<Bytes>,
    pub(crate) totals: Option<DeviceTotals>,
    pub(crate) utilisation: Option<u32>,
    /// The highest memory that processes of this run have held together in any sample so far.
    pub(crate) peak: Option<Bytes>,
}

impl FoundDevice {
    /// Finds a card in NVML by its UUID. Fails if NVML does not list the card, because the ceiling on its memory could
    /// then not be enforced.
    pub(crate) fn find(card: &Card) -> Result<Self, DeviceError> {
        let nvml = Nvml::open()?;
        let identity = nvml.device_with_uuid(&card.uuid)?;
        let totals = nvml.read(identity.index)?.totals;
        Ok(Self { nvml, identity, memory: DeviceMemory { totals, is_integrated: card.is_integrated } })
    }

    /// Waits until no other run is using the card, and then watches it. `folder` is this run's folder.
    pub(crate) fn take(self, folder: &Path, signals: &Signals) -> Result<RunDevice, DeviceFailure> {
        let lock = DeviceLock::take(&self.identity, folder, signals)?;
        self.watch(lock).map_err(DeviceFailure::Thread)
    }

    fn watch(self, lock: DeviceLock) -> std::io::Result<RunDevice> {
        let watch = DeviceWatch::start(self.nvml, self.identity)?;
        Ok(RunDevice {
            watch,
            alive: BTreeMap::new(),
            dead: BTreeMap::new(),
            failure_reported: false,
            latest: LatestReading::default(),
            _lock: lock,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceFailure {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("starting the thread that watches the device")]
    Thread(#[source] std::io::Error),
}

impl RunDevice {
    pub(crate) fn identity(&self) -> &DeviceIdentity {
        self.watch.identity()
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.watch.descriptor()
    }

    /// Requests a reading at once, because a process of this run has ended.
    pub(crate) fn sample_now(&self) {
        self.watch.sample_now();
    }

    /// Returns the latest reading as an event, if there is a new reading. `ours` lists the run's living processes with
    /// their pids.
    fn event(&mut self, ours: impl Iterator<Item = (Process, u32)>) -> Option<Event> {
        match self.watch.take()? {
            Ok(reading) => {
                self.failure_reported = false;
                self.update(ours);
                Some(Event::DeviceSample(self.sample(&reading)))
            }
            Err(error @ DeviceError::Lost { .. }) => Some(Event::DeviceLost { why: chain(&error) }),
            Err(error) => {
                if !std::mem::replace(&mut self.failure_reported, true) {
                    let name = &self.watch.identity().name;
                    tracing::warn!(
                        "the memory of the device {name} cannot be watched now: {}",
                        chain(&error)
                    );
                }
                None
            }
        }
    }

    /// Updates the lists of living and dead processes. `ours` lists the run's living processes.
    fn update(&mut self, ours: impl Iterator<Item = (Process, u32)>) {
        let before = std::mem::take(&mut self.alive);
        for (process, pid) in ours {
            let same_process = before.get(&pid).filter(|it| it.process == process).cloned();
            let pids = || pids(Path::new("/proc"), pid);
            self.alive.insert(pid, same_process.unwrap_or_else(|| OwnProcess { process, pids: pids() }));
            self.dead.remove(&pid);
        }
        for (pid, it) in before {
            if !self.alive.contains_key(&pid) {
                self.dead.insert(pid, it.process.worker());
            }
        }
    }

    fn sample(&mut self, reading: &Reading) -> DeviceSample {
        let mut held_by_dead: BTreeMap<WorkerId, Bytes> = BTreeMap::new();
        let mut rest = reading.clone();
        rest.processes.retain(|listed| {
            let Some(&worker) = self.dead.get(&listed.pid) else { return true };
            *held_by_dead.entry(worker).or_default() += listed.bytes.unwrap_or_default();
            false
        });
        self.dead.retain(|pid, _| reading.processes.iter().any(|listed| listed.pid == *pid));
        let ours: Vec<OwnProcess<Process>> = self.alive.values().cloned().collect();
        let is_here = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
        let found: Attribution<Process> = attribute(&rest, &ours, is_here);
        // If NVML still lists memory for dead processes of this run, this memory is attributed to them.
        let dead_total: Bytes = held_by_dead.values().copied().sum();
        let unattributed = match reading.totals {
            Some(_) => found.unattributed.map(|bytes| bytes - dead_total),
            None => found.unattributed,
        };
        let held = |(process, bytes): &(Process, Option<Bytes>)| (*process, bytes.unwrap_or_default());
        let processes: Vec<(Process, Bytes)> = found.ours.iter().map(held).collect();
        let ours = Some(processes.iter().map(|(_, bytes)| *bytes).sum::<Bytes>() + dead_total);
        self.latest = LatestReading {
            ours,
            peak: self.latest.peak.max(ours),
            others: Some(found.others),
            unattributed,
            totals: reading.totals,
            utilisation: reading.utilisation,
        };
        DeviceSample {
            processes,
            left: held_by_dead.into_iter().collect(),
            others: found.others,
            other_processes: found.other_processes,
            unattributed,
            free: reading.totals.map(|totals| totals.total - totals.used),
            utilisation: reading.utilisation,
        }
    }
}

impl Run<'_> {
    /// Passes a new reading to the core. Readings are more frequent while the device is leased or its memory is being
    /// returned.
    pub(super) fn read_device(&mut self) -> Result<(), RunError> {
        let Some(device) = &mut self.machine.device else { return Ok(()) };
        if let Some(event) = device.event(self.machine.sampler.pids()) {
            let totals = &mut self.machine.sampler.totals;
            totals.device_peak_bytes = totals.device_peak_bytes.max(device.latest.peak);
            totals.device_ceiling_bytes = Some(self.decisions.core.ceilings().device);
            self.feed(event)?;
        }
        let core = &self.decisions.core;
        let is_busy = core.device_is_leased() || core.device_state() == DeviceState::Returning;
        if let Some(device) = &mut self.machine.device {
            device.watch.set_interval(if is_busy { BUSY } else { IDLE });
        }
        Ok(())
    }
}
