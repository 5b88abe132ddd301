//! Converts a plan's memory limits to bytes on this machine.

use std::path::Path;

use opt_shared::units::Bytes;

use crate::core::Ceilings;
use crate::memory::device::DeviceTotals;
use crate::plan::{Plan, Unified};

/// The known facts about a card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The total and used memory. `None` if NVML does not report them, which means that host and device share one
    /// memory.
    pub totals: Option<DeviceTotals>,
    /// Whether the driver says that the card shares its memory with the CPU.
    pub is_integrated: bool,
}

impl DeviceMemory {
    /// Returns whether host and card share one memory. If NVML reports no totals, they count as sharing it, even if the
    /// driver says that they do not. Otherwise, the card would have a ceiling that could not be enforced, because
    /// nothing could be measured against it.
    fn is_shared(self) -> bool {
        self.is_integrated || self.totals.is_none()
    }
}

/// The error that the floor leaves no memory for a run.
#[derive(Debug, thiserror::Error)]
#[error(
    "no step could ever start, because memory.host_floor is {floor} and the machine has only {total} (set a smaller floor)"
)]
pub struct FloorTooHigh {
    floor: Bytes,
    total: Bytes,
}

/// Checks that the floor is less than the machine's total memory. `total` is `None` if the machine does not report its
/// memory. In that case no floor is enforced.
pub(crate) fn check_floor(plan: &Plan, total: Option<Bytes>) -> Result<(), FloorTooHigh> {
    let Some(total) = total else { return Ok(()) };
    let floor = plan.memory.host_floor.of(total);
    if floor < total { Ok(()) } else { Err(FloorTooHigh { floor, total }) }
}

/// Returns the ceilings for the process tree of a run without a card, and the floor. The floor is the memory that must
/// stay available on the machine.
pub fn limits(plan: &Plan) -> (Ceilings, Bytes) {
    limits_of(plan, usable_and_total(), None)
}

/// Computes the ceilings and the floor. `device` is `None` if the run uses no card. It is also `None` for an emulated
/// device, because the memory of that device is the host's.
pub(crate) fn limits_of(
    plan: &Plan,
    (usable, total): (Bytes, Bytes),
    device: Option<DeviceMemory>,
) -> (Ceilings, Bytes) {
    // A card without a total shares the host's memory.
    let device_memory = device.map(|device| device.totals.map_or(total, |totals| totals.total));
    let unified = match plan.memory.unified {
        Unified::Yes => true,
        Unified::No => false,
        Unified::Auto => device.is_some_and(DeviceMemory::is_shared),
    };
    let ceilings = Ceilings {
        host: plan.memory.host_ceiling.of(usable),
        device: device_memory.map_or(Bytes::ZERO, |bytes| plan.memory.device_ceiling.of(bytes)),
        unified,
    };
    (ceilings, plan.memory.host_floor.of(total))
}

/// Returns the memory that this process may use, and the total memory of the machine.
pub(crate) fn usable_and_total() -> (Bytes, Bytes) {
    usable_and_total_of(memory_of_machine())
}

/// Returns the machine's total memory. `None` if the machine does not report it.
pub(crate) fn memory_of_machine() -> Option<Bytes> {
    let machine = crate::memory::machine::MachineSampler::open(Path::new("/proc"))
        .and_then(|mut machine| machine.sample())
        .ok()?;
    Some(machine.total)
}

/// Returns the same as `usable_and_total`. `machine` is the machine's total memory, which the caller has read, or
/// `None` if the machine does not report it.
pub(crate) fn usable_and_total_of(machine: Option<Bytes>) -> (Bytes, Bytes) {
    let group = crate::memory::cgroup::memory_limit(Path::new("/")).ok().flatten();
    // If the machine does not report its memory, 1 GiB is assumed.
    let total = machine.unwrap_or(Bytes::gib(1));
    (group.map_or(total, |group| group.limit.min(total)), total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Amount, Floor};

    const GIB: u64 = 1 << 30;

    fn plan(unified: &str) -> Plan {
        let base = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(base.path().join("captures")).expect("made");
        for file in ["captures/entry_000000.pt", "a.c"] {
            std::fs::write(base.path().join(file), "").expect("written");
        }
        let text = format!(
            "[memory]\nhost_ceiling = \"50%\"\ndevice_ceiling = \"90%\"\nunified = \"{unified}\"\n\
             [[job]]\ncaptures = \"captures\"\ncandidates = [\"a.c\"]\n"
        );
        Plan::parse(&text, &base.path().join("plan.toml"), &[]).expect("a plan")
    }

    #[test]
    fn floor_of_the_whole_machine_is_an_error() {
        let mut plan = plan("auto");
        for (floor, fits) in [(7, true), (8, false), (1000, false)] {
            plan.memory.host_floor = Floor::Amount(Amount::Size(Bytes::gib(floor)));
            assert_eq!(check_floor(&plan, Some(Bytes::gib(8))).is_ok(), fits, "{floor} GiB of 8");
        }
        assert!(check_floor(&plan, None).is_ok(), "the machine does not report its memory");
    }

    /// Returns the ceilings for a card. `device` is the card's total in GiB, and whether the card is integrated.
    fn ceilings(unified: &str, device: Option<(Option<u64>, bool)>) -> (u64, bool) {
        let totals = |gib| DeviceTotals { total: Bytes::gib(gib), used: Bytes::ZERO };
        let device =
            device.map(|(total, is_integrated)| DeviceMemory { totals: total.map(totals), is_integrated });
        let machine_memory = (Bytes::gib(100), Bytes::gib(100));
        let (ceilings, _) = limits_of(&plan(unified), machine_memory, device);
        assert_eq!(ceilings.host, Bytes::gib(50));
        (ceilings.device.get(), ceilings.unified)
    }

    #[test]
    fn device_ceiling_is_a_percentage_of_the_cards_or_the_hosts_memory() {
        assert_eq!(ceilings("auto", None), (0, false), "a run without a card");
        assert_eq!(ceilings("auto", Some((Some(80), false))), (72 * GIB, false));
        assert_eq!(ceilings("auto", Some((Some(80), true))), (72 * GIB, true));
        assert_eq!(
            ceilings("auto", Some((Some(100), false))),
            (90 * GIB, false),
            "equal sizes do not mean shared memory"
        );
        assert_eq!(ceilings("auto", Some((None, false))), (90 * GIB, true), "NVML reports no total");
        assert_eq!(ceilings("no", Some((None, true))), (90 * GIB, false));
        assert_eq!(ceilings("yes", Some((Some(80), false))), (72 * GIB, true));
    }
}
