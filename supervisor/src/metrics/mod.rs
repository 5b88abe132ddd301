//! Keeps the metrics of a run, and writes them for monitoring systems in the OpenMetrics text format.
//! `docs/reference/control.md` lists all metrics.
//!
//! Counters start at zero when the process starts. Gauges show the current state. `http` serves the page.

pub mod http;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use opt_shared::units::Bytes;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

type Labels = Vec<(&'static str, &'static str)>;
type Counts = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge>;
type Ratios = Family<Labels, Gauge<f64, AtomicU64>>;
type Seconds = Family<Labels, Counter<f64, AtomicU64>>;

/// The counters and gauges of a run.
pub struct Metrics {
    registry: Registry,
    workers: Gauges,
    leases: Gauges,
    owed: Gauge,
    charged: Gauge,
    ceiling: Gauge,
    reclaimable: Gauge,
    available: Gauge,
    peak: Gauges,
    device: Gauges,
    device_peak: Gauges,
    device_ceiling: Gauges,
    device_utilisation: Ratios,
    granted: Counts,
    attempts: Counts,
    candidates: Counts,
    recycles: Counts,
    worker_ends: Counts,
    phases: Seconds,
}

/// The values of all gauges, sampled for one scrape.
#[derive(Clone, Debug, Default)]
pub struct GaugeValues {
    /// The role and state of each worker.
    pub workers: Vec<(&'static str, &'static str)>,
    /// The stage of each current lease.
    pub leases: Vec<&'static str>,
    pub owed: Bytes,
    pub charged: Bytes,
    pub ceiling: Bytes,
    pub reclaimable: Bytes,
    pub available: Bytes,
    /// The device memory that the run's processes hold. `None` if there is no device, or if it has not been sampled
    /// yet.
    pub device: Option<Bytes>,
    /// The highest value of `device` in any sample so far.
    pub device_peak: Option<Bytes>,
    pub device_ceiling: Option<Bytes>,
    /// How busy the device is with this and other programs, in per cent. `None` if NVML does not report it.
    pub device_utilisation: Option<u32>,
    /// The highest value of `owed` in any sample so far.
    pub peak: Option<Bytes>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut it = Self {
            registry: Registry::with_prefix("opt_supervisor"),
            workers: Family::default(),
            leases: Family::default(),
            owed: Gauge::default(),
            charged: Gauge::default(),
            ceiling: Gauge::default(),
            reclaimable: Gauge::default(),
            available: Gauge::default(),
            peak: Family::default(),
            device: Family::default(),
            device_peak: Family::default(),
            device_ceiling: Family::default(),
            device_utilisation: Family::default(),
            granted: Family::default(),
            attempts: Family::default(),
            candidates: Family::default(),
            recycles: Family::default(),
            worker_ends: Family::default(),
            phases: Family::default(),
        };
        let registry = &mut it.registry;
        registry.register("workers", "Live workers", it.workers.clone());
        registry.register("leases", "Leases held now", it.leases.clone());
        let mut bytes = |name, help, gauge: &Gauge| {
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        };
        bytes("owed", "Memory that the process tree occupies until a process frees it or ends", &it.owed);
        bytes(
            "charged",
            "Memory counted against the ceiling: all leases, and what processes owe beyond them",
            &it.charged,
        );
        bytes("host_ceiling", "The limit on charged memory", &it.ceiling);
        bytes("reclaimable", "Clean file pages of the process tree", &it.reclaimable);
        bytes("available", "Available memory of the machine", &it.available);
        for (name, help, gauges) in [
            ("owed_peak", "The high-water mark of owed memory", &it.peak),
            ("device_owed", "Device memory that the process tree occupies", &it.device),
            ("device_owed_peak", "The high-water mark of occupied device memory", &it.device_peak),
            ("device_ceiling", "The limit on device memory", &it.device_ceiling),
        ] {
            registry.register_with_unit(name, help, Unit::Bytes, gauges.clone());
        }
        let (name, help) = ("device_utilisation", "The share of time in which the device is busy");
        registry.register_with_unit(name, help, Unit::Ratios, it.device_utilisation.clone());
        registry.register("leases_granted", "Granted leases", it.granted.clone());
        registry.register("attempts", "Attempts that have ended", it.attempts.clone());
        registry.register("candidates", "Candidates that have ended", it.candidates.clone());
        registry.register("recycles", "Healthy workers that were replaced", it.recycles.clone());
        registry.register("worker_ends", "Workers that have ended", it.worker_ends.clone());
        registry.register_with_unit(
            "phase",
            "Time that the attempts of a stage took, counted when they end",
            Unit::Seconds,
            it.phases.clone(),
        );
        it
    }
}

impl Metrics {
    pub fn granted(&self, stage: &'static str) {
        self.granted.get_or_create(&vec![("stage", stage)]).inc();
    }

    pub fn attempt_ended(&self, stage: &'static str, status: &'static str, took: Duration) {
        self.attempts.get_or_create(&vec![("stage", stage), ("status", status)]).inc();
        self.phases.get_or_create(&vec![("stage", stage)]).inc_by(took.as_secs_f64());
    }

    pub fn candidate_ended(&self, status: &'static str) {
        self.candidates.get_or_create(&vec![("status", status)]).inc();
    }

    pub fn worker_ended(&self, class: &'static str, recycled: Option<&'static str>) {
        self.worker_ends.get_or_create(&vec![("class", class)]).inc();
        if let Some(reason) = recycled {
            self.recycles.get_or_create(&vec![("reason", reason)]).inc();
        }
    }

    /// Returns the text of the whole page.
    pub fn page(&self, gauges: &GaugeValues) -> Result<String, fmt::Error> {
        // These gauges are counted anew for each page. Clearing them also removes labels that no longer occur.
        self.workers.clear();
        self.leases.clear();
        for &(role, state) in &gauges.workers {
            self.workers.get_or_create(&vec![("role", role), ("state", state)]).inc();
        }
        for &stage in &gauges.leases {
            self.leases.get_or_create(&vec![("stage", stage)]).inc();
        }
        for (gauge, bytes) in [
            (&self.owed, gauges.owed),
            (&self.charged, gauges.charged),
            (&self.ceiling, gauges.ceiling),
            (&self.reclaimable, gauges.reclaimable),
            (&self.available, gauges.available),
        ] {
            gauge.set(i64::try_from(bytes.get()).unwrap_or(i64::MAX));
        }
        self.device_utilisation.clear();
        if let Some(percent) = gauges.device_utilisation {
            self.device_utilisation.get_or_create(&Labels::new()).set(f64::from(percent) / 100.0);
        }
        for (gauges, bytes) in [
            (&self.peak, gauges.peak),
            (&self.device, gauges.device),
            (&self.device_peak, gauges.device_peak),
            (&self.device_ceiling, gauges.device_ceiling),
        ] {
            gauges.clear();
            if let Some(bytes) = bytes {
                gauges.get_or_create(&Labels::new()).set(i64::try_from(bytes.get()).unwrap_or(i64::MAX));
            }
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_counters_and_gauges_and_an_end_mark() {
        let metrics = Metrics::default();
        metrics.granted("build");
        metrics.attempt_ended("build", "PASSED", Duration::from_millis(1500));
        metrics.attempt_ended("build", "PASSED", Duration::from_millis(500));
        metrics.candidate_ended("CRASHED");
        metrics.worker_ended("ended", Some("before_profile"));
        metrics.worker_ended("killed", None);
        let gauges = GaugeValues {
            workers: vec![("verifier", "idle"), ("verifier", "idle")],
            ceiling: Bytes::gib(2),
            device: Some(Bytes::gib(1)),
            device_peak: Some(Bytes::gib(3)),
            device_utilisation: Some(45),
            peak: Some(Bytes::gib(2)),
            ..GaugeValues::default()
        };
        let page = metrics.page(&gauges).expect("a page");
        for line in [
            "opt_supervisor_attempts_total{stage=\"build\",status=\"PASSED\"} 2",
            "opt_supervisor_phase_seconds_total{stage=\"build\"} 2.0",
            "opt_supervisor_workers{role=\"verifier\",state=\"idle\"} 2",
            "opt_supervisor_worker_ends_total{class=\"killed\"} 1",
            "opt_supervisor_recycles_total{reason=\"before_profile\"} 1",
            "opt_supervisor_host_ceiling_bytes 2147483648",
            "opt_supervisor_owed_peak_bytes{} 2147483648",
            "opt_supervisor_device_owed_bytes{} 1073741824",
            "opt_supervisor_device_owed_peak_bytes{} 3221225472",
            "opt_supervisor_device_utilisation_ratios{} 0.45",
            "# UNIT opt_supervisor_owed_bytes bytes",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
        let later = metrics.page(&GaugeValues::default()).expect("a page");
        assert!(!later.contains("state=\"idle\""), "{later}");
        for name in ["owed_peak_bytes{}", "device_owed_bytes{}", "device_utilisation_ratios{}"] {
            assert!(!later.contains(name), "an unknown value is left out: {later}");
        }
    }
}
