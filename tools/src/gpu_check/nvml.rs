//! Tests NVML's figures for processes: whether it lists this process, what a query costs, and how outdated the answer
//! is.
//!
//! The supervisor's own code makes the calls.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use opt_supervisor::memory::device::{Nvml, Reading};
use opt_worker::trial::TrialDevice;

use crate::Arguments;
use crate::cuda::Device;
use crate::row::{Row, mib};

const QUERIES: usize = 200;
/// The size in bytes of an allocation. The check measures how long it takes until NVML's figures include it.
const HELD: u64 = 512 << 20;
const TIMEOUT: Duration = Duration::from_secs(4);
/// The time limit in a dry run. It is short, because the figures of the scripted twin of NVML never change.
const TIMEOUT_OF_TWIN: Duration = Duration::from_millis(50);

/// NVML's view of the device on which this process computes.
pub(crate) struct Watched {
    nvml: Nvml,
    index: u32,
}

impl Watched {
    pub(crate) fn open(device: &TrialDevice) -> Result<Self> {
        let uuid = device.uuid().context("a device without a UUID")?;
        let nvml = Nvml::open()?;
        let index = nvml.device_with_uuid(&uuid)?.index;
        Ok(Self { nvml, index })
    }

    pub(crate) fn read(&self) -> Result<Reading> {
        Ok(self.nvml.read(self.index)?)
    }

    /// Returns the memory of this process in bytes, if NVML lists this process and reports the figure.
    pub(crate) fn own(&self) -> Result<Option<u64>> {
        let own = std::process::id();
        let reading = self.read()?;
        let found = reading.processes.iter().find(|process| process.pid == own);
        Ok(found.and_then(|process| process.bytes).map(opt_shared::units::Bytes::get))
    }
}

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let trial = TrialDevice::card(arguments.device).map_err(anyhow::Error::msg)?;
    let open = Device::open(arguments)?;
    let watched = Watched::open(&trial)?;
    let mut times: Vec<Duration> = Vec::with_capacity(QUERIES);
    for _ in 0..QUERIES {
        let started = Instant::now();
        watched.read()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let shown = |at: usize| format!("{:.0} µs", times[at].as_secs_f64() * 1e6);
    let cost = Row::measured(
        "NVML: cost of one sample of the card",
        shown(QUERIES / 2),
        format!("median of {QUERIES}; worst {}", shown(QUERIES - 1)),
    );
    let Some(used) = watched.own()? else {
        let known = watched.read()?.processes.len();
        let figures = format!("{known} processes listed; NVML knows pids of the host, not of a container");
        return Ok(vec![cost, Row::measured("NVML: memory of this process", "not shown", figures)]);
    };
    let own = Row::measured("NVML: memory of this process", mib(used), "with a context and nothing else");
    let timeout = if arguments.dry_run { TIMEOUT_OF_TWIN } else { TIMEOUT };
    let wait = |wanted: &dyn Fn(u64) -> bool| -> Result<Option<Duration>> {
        let started = Instant::now();
        while started.elapsed() < timeout {
            if watched.own()?.is_some_and(wanted) {
                return Ok(Some(started.elapsed()));
            }
        }
        Ok(None)
    };
    let memory = open.allocate(HELD)?;
    let risen = wait(&|now| used + HELD / 2 <= now)?;
    open.release(memory)?;
    let fallen = wait(&|now| now < used + HELD / 2)?;
    let shown = |time: Option<Duration>| match time {
        Some(time) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        None => format!("not within {timeout:?}"),
    };
    let stale = Row::measured(
        "NVML: how late it shows an allocation",
        shown(risen),
        format!("{}; its release: {}", mib(HELD), shown(fallen)),
    );
    Ok(vec![cost, own, stale])
}
