//! The simulated device: the memory that live workers have allocated on it, the memory that dead workers have not freed
//! yet, and the memory of other processes. This file also checks the laws of leases on the device.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::{UnitId, WorkerId};
use opt_shared::units::Bytes;

use opt_supervisor::core::Demand;
use opt_supervisor::core::event::{DeviceSample, Event, Moment, Order, Process};
use opt_supervisor::core::spec::{RunSpec, Step};

use super::laws::WorkerState;
use super::tape::Tape;

/// The largest growth of unattributed memory that the core attributes to the driver. A larger growth counts as memory
/// of ended workers.
const KEPT: Bytes = Bytes::mib(64);
/// An amount of memory that exceeds every ceiling of a simulated device.
const TOO_MUCH: Bytes = Bytes::mib(1200);

/// The state of the simulated device.
#[derive(Debug)]
pub(crate) struct Card {
    /// The ceiling of the device. It is zero if there is no device.
    ceiling: Bytes,
    /// Whether the core has had a sample of the device.
    is_watched: bool,
    lost: bool,
    /// The memory that ended workers have not freed yet. Each item says whether NVML lists the memory, and when it is
    /// freed.
    kept: BTreeMap<WorkerId, Kept>,
    /// The memory of ended workers that the core must still charge, because no sample has shown yet that it is free.
    pub(crate) left: BTreeMap<WorkerId, Bytes>,
    /// The units that were started. Each has a flag that is true if it uses more memory than it reserves.
    greedy: BTreeMap<UnitId, bool>,
    /// The time of the next regular sample of the device. Events can cause further samples in between.
    next_sample: Moment,
    /// The unattributed memory in the last sample at which no worker was on the device and no memory of ended workers
    /// was charged.
    foreign: Option<Bytes>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    bytes: Bytes,
    listed: bool,
    until: Option<Moment>,
}

impl Card {
    pub(crate) fn of(spec: &RunSpec) -> Self {
        Self {
            ceiling: spec.ceilings.device,
            is_watched: false,
            lost: false,
            kept: BTreeMap::new(),
            left: BTreeMap::new(),
            greedy: BTreeMap::new(),
            next_sample: Moment::ZERO,
            foreign: None,
        }
    }

    pub(crate) fn exists(&self) -> bool {
        self.ceiling != Bytes::ZERO
    }

    /// Returns the memory that a step reserves on the device. It is the same for each of the step's ways.
    pub(crate) fn reserved(order: Order, step: &Step) -> Bytes {
        step.ways(order.beside.is_some()).iter().map(|way| way.device).max().unwrap_or_default()
    }

    /// Returns the memory that is charged because ended workers have not freed it yet.
    pub(crate) fn charged(&self) -> Demand {
        Demand { host: Bytes::ZERO, device: self.left.values().copied().sum() }
    }

    pub(crate) fn may_start(&self) -> Result<(), String> {
        if self.lost {
            return Err("the device is lost".to_owned());
        }
        match self.left.keys().next() {
            Some(worker) => Err(format!("{worker} has not given back what it held on the device")),
            None => Ok(()),
        }
    }

    /// Records the end of a worker. The tape decides whether the worker's memory is freed at once, later or never.
    pub(crate) fn gone(&mut self, now: Moment, worker: WorkerId, it: &WorkerState, tape: &mut Tape) {
        if !it.on_device || !self.is_watched || self.lost {
            return;
        }
        self.left.insert(worker, it.device);
        let lasts = tape.pick(&[0, 0, 1, 10, 100, u64::MAX]);
        let listed = tape.pick(&[true, false]);
        if lasts != 0 {
            let until = now.checked_add(Duration::from_secs(lasts));
            let bytes = it.device.max(KEPT + Bytes::mib(1));
            self.kept.insert(worker, Kept { bytes, listed, until });
        }
    }

    /// Records the start of a lease on the device. In rare cases, the unit uses more memory than it reserves.
    pub(crate) fn started(&mut self, unit: UnitId, tape: &mut Tape) {
        self.greedy.entry(unit).or_insert_with(|| tape.seldom());
    }

    /// Returns the time from the current sample to the next regular one, or `None` if that one is already planned.
    pub(crate) fn next_sample(&mut self, now: Moment, every: Duration) -> Option<Duration> {
        (self.next_sample <= now).then(|| {
            self.next_sample = now + every;
            every
        })
    }

    pub(crate) fn lose(&mut self) {
        self.lost = true;
        self.left.clear();
    }

    pub(crate) fn sample<'w>(
        &mut self,
        now: Moment,
        workers: impl Iterator<Item = (&'w WorkerId, &'w WorkerState)>,
        tape: &mut Tape,
    ) -> DeviceSample {
        self.kept.retain(|_, kept| kept.until.is_none_or(|until| now < until));
        let mut sample = DeviceSample { unattributed: Some(Bytes::ZERO), ..DeviceSample::default() };
        for (&worker, it) in workers.filter(|(_, it)| it.on_device && it.ready) {
            let is_greedy = it.lease.is_some_and(|(_, order)| self.greedy.get(&order.unit) == Some(&true));
            let within = tape.mib(400).min(it.device_reserved);
            let held = if is_greedy || tape.byte() % 16 == 15 { TOO_MUCH } else { within };
            // In rare cases, a listed pid cannot be matched to a worker.
            if !tape.seldom() {
                sample.processes.push((Process::Worker(worker), held));
            }
        }
        for (&worker, kept) in &self.kept {
            if kept.listed {
                sample.left.push((worker, kept.bytes));
            } else {
                sample.unattributed = sample.unattributed.map(|sum| sum + kept.bytes);
            }
        }
        sample.unattributed = sample.unattributed.filter(|_| !tape.seldom());
        if tape.seldom() {
            (sample.others, sample.other_processes) = (tape.mib(500), 1);
        }
        sample.free = tape.pick(&[None, None, Some(Bytes::gib(2)), Some(Bytes::mib(150))]);
        sample.utilisation = tape.pick(&[None, Some(0), Some(90)]);
        sample
    }

    /// Records a sample that the core receives, so that the laws can be checked.
    pub(crate) fn seen(&mut self, sample: &DeviceSample, workers: &mut BTreeMap<WorkerId, WorkerState>) {
        if self.lost {
            return;
        }
        self.is_watched = true;
        workers.values_mut().for_each(|it| it.device = Bytes::ZERO);
        for &(process, bytes) in &sample.processes {
            let worker = process.worker();
            if let Some(it) = workers.get_mut(&worker) {
                (it.on_device, it.device) = (true, bytes);
            }
        }
        let is_listed =
            |id: &WorkerId| sample.processes.iter().any(|(process, _)| *process == Process::Worker(*id));
        let all_are_listed = workers.iter().filter(|(_, it)| it.on_device).all(|(id, _)| is_listed(id));
        let unattributed_growth = match (sample.unattributed, self.foreign) {
            (Some(now), Some(before)) if all_are_listed => now - before,
            _ => Bytes::ZERO,
        };
        self.left.retain(|worker, bytes| {
            if let Some((_, listed)) = sample.left.iter().find(|(id, _)| id == worker) {
                *bytes = *listed;
                return true;
            }
            *bytes = (*bytes).min(unattributed_growth);
            KEPT < unattributed_growth
        });
        if self.left.is_empty() && !workers.values().any(|it| it.on_device) {
            self.foreign = sample.unattributed;
        }
    }
}

/// Returns the events with which the device appears and, if it is lost, disappears: its first sample and its loss.
pub(crate) fn events(card: &Card, tape: &mut Tape) -> Vec<(Duration, Event)> {
    if !card.exists() {
        return Vec::new();
    }
    let mut events = vec![(Duration::ZERO, Event::DeviceSample(DeviceSample::default()))];
    if tape.seldom() && tape.pick(&[false, true]) {
        let at = Duration::from_millis(u64::from(tape.byte()) * 40);
        events.push((at, Event::DeviceLost { why: "simulated".to_owned() }));
    }
    events
}
