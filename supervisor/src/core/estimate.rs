//! Raises the reservations of later leases if attempts owed more memory than predicted.
//!
//! Reservations are never lowered, because the next candidate may owe more than the last one.

use std::collections::BTreeMap;

use opt_shared::ids::JobId;
use opt_shared::units::Bytes;

use super::event::Stage;
use super::ledger::Demand;
use super::spec::StageSpec;

/// The margin that is added to the highest measurement, in per cent, because the next candidate may owe more.
const MARGIN_PERCENT: u64 = 10;

/// The highest peak that exceeded its reservation, for each stage of a job. The margin is included.
#[derive(Clone, Debug, Default)]
pub(crate) struct Estimates(BTreeMap<(JobId, Stage), Bytes>);

impl Estimates {
    /// Records the peak of an attempt. Returns true if this peak makes later leases of the job and stage reserve more.
    pub(crate) fn observe(&mut self, job: JobId, stage: Stage, reserved: Bytes, peak: Bytes) -> bool {
        if peak <= reserved {
            return false;
        }
        let raised = peak + Bytes::new(peak.get() / 100).saturating_mul(MARGIN_PERCENT);
        let estimate = self.0.entry((job, stage)).or_default();
        let is_raised = *estimate < raised;
        *estimate = raised.max(*estimate);
        is_raised
    }

    /// Returns the memory that a lease reserves. On the host, this is the larger of the step's predicted demand and the
    /// highest peak that exceeded a reservation, with its margin.
    pub(crate) fn reserve(&self, job: JobId, stage: Stage, spec: &StageSpec, idle_worker: Bytes) -> Demand {
        let learned = self.0.get(&(job, stage)).copied().unwrap_or_default();
        let demand = spec.demand(idle_worker);
        Demand { host: demand.host.max(learned), ..demand }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn measurements_raise_reservations_and_never_lower_them() {
        let mut estimates = Estimates::default();
        let spec = StageSpec {
            predicted: Bytes::mib(1),
            reserved: Bytes::mib(96),
            device: Bytes::mib(3),
            device_cap: Bytes::ZERO,
            deadline: Duration::ZERO,
            batch: None,
        };
        let reserve =
            |estimates: &Estimates, job, stage| estimates.reserve(JobId(job), stage, &spec, Bytes::mib(4));
        let plain = Demand { host: Bytes::mib(100), device: Bytes::mib(3) };
        assert!(!estimates.observe(JobId(0), Stage::Verify, Bytes::mib(100), Bytes::mib(100)));
        assert_eq!(reserve(&estimates, 0, Stage::Verify), plain);
        assert!(estimates.observe(JobId(0), Stage::Verify, Bytes::mib(100), Bytes::mib(200)));
        let raised = Demand { host: Bytes::mib(220), ..plain };
        assert_eq!(reserve(&estimates, 0, Stage::Verify), raised);
        assert!(!estimates.observe(JobId(0), Stage::Verify, Bytes::mib(100), Bytes::mib(150)), "lower");
        assert!(
            !estimates.observe(JobId(0), Stage::Verify, Bytes::mib(100), Bytes::mib(200)),
            "the same again"
        );
        assert_eq!(reserve(&estimates, 0, Stage::Verify), raised);
        assert_eq!(reserve(&estimates, 0, Stage::Profile), plain, "each stage by itself");
        assert_eq!(reserve(&estimates, 1, Stage::Verify), plain, "each job by itself");
    }
}
