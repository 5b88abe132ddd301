//! Who may owe how much: leases, charges, and whether another one fits.
//!
//! A worker is charged the larger of what its lease reserves and what is measured of it and its runners, until its
//! memory has been seen to be back. Invariant at every grant: the sum of all charges and the new lease is at most the
//! ceiling, and the machine keeps its floor. Where host and device share one memory, one sum of both is kept under
//! the smaller of the two ceilings; else each side has its own.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;

/// Bytes on the host and on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    pub host: Bytes,
    pub device: Bytes,
}

impl Demand {
    pub const fn host(host: Bytes) -> Self {
        Self { host, device: Bytes::ZERO }
    }

    fn max(self, other: Self) -> Self {
        Self { host: self.host.max(other.host), device: self.device.max(other.device) }
    }

    pub fn sum(self) -> Bytes {
        self.host + self.device
    }
}

impl std::ops::Add for Demand {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { host: self.host + other.host, device: self.device + other.device }
    }
}

impl std::ops::Sub for Demand {
    type Output = Self;

    /// Never below nothing, as `Bytes` does.
    fn sub(self, other: Self) -> Self {
        Self { host: self.host - other.host, device: self.device - other.device }
    }
}

impl std::iter::Sum for Demand {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| sum + one)
    }
}

/// What the whole tree may owe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    pub host: Bytes,
    pub device: Bytes,
    /// Host and device are one memory.
    pub unified: bool,
}

/// Which sum a ceiling is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CeilingScope {
    Host,
    Device,
    /// One sum of both.
    Unified,
}

impl CeilingScope {
    /// The plan's key for it.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Host => "[memory] host_ceiling",
            Self::Device => "[memory] device_ceiling",
            Self::Unified => "[memory] host_ceiling or device_ceiling: host and device share one memory",
        }
    }
}

impl Ceilings {
    pub fn host(host: Bytes) -> Self {
        Self { host, device: Bytes::ZERO, unified: false }
    }

    /// The sums that are kept: what each is now, and what it may be.
    fn sums(self, demand: Demand) -> impl Iterator<Item = (CeilingScope, Bytes, Bytes)> {
        let sums = if self.unified {
            // A unified machine without a device in use has no ceiling for one.
            let least = if self.device == Bytes::ZERO { self.host } else { self.host.min(self.device) };
            [Some((CeilingScope::Unified, demand.sum(), least)), None]
        } else {
            [
                Some((CeilingScope::Host, demand.host, self.host)),
                Some((CeilingScope::Device, demand.device, self.device)),
            ]
        };
        sums.into_iter().flatten()
    }

    /// The first sum that is over its ceiling.
    pub fn over(self, demand: Demand) -> Option<(CeilingScope, Bytes, Bytes)> {
        self.sums(demand).find(|&(_, sum, ceiling)| ceiling < sum)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    reserved: Demand,
    measured: Demand,
}

impl Account {
    fn charge(self) -> Demand {
        self.reserved.max(self.measured)
    }

    /// Reserved and not yet taken from the machine.
    fn outstanding(self, unified: bool) -> Bytes {
        let missing = self.reserved - self.measured;
        if unified { missing.sum() } else { missing.host }
    }
}

#[derive(Clone, Debug)]
pub struct Ledger {
    ceilings: Ceilings,
    floor: Bytes,
    /// What the supervisor is charged at least.
    least_supervisor: Bytes,
    supervisor: Bytes,
    accounts: BTreeMap<WorkerId, Account>,
    /// MemAvailable as last seen.
    available: Option<Bytes>,
}

/// Why a lease was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The charges and the lease are over a ceiling.
    Ceiling { side: CeilingScope, charged: Bytes, wanted: Bytes, ceiling: Bytes },
    /// The machine would fall below its floor.
    Floor { available: Bytes, wanted: Bytes, floor: Bytes },
}

impl Refusal {
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Ceiling { side: _, charged, wanted, ceiling } => vec![
                ("charged_bytes", charged.get()),
                ("wanted_bytes", wanted.get()),
                ("ceiling_bytes", ceiling.get()),
            ],
            Self::Floor { available, wanted, floor } => vec![
                ("available_bytes", available.get()),
                ("wanted_bytes", wanted.get()),
                ("floor_bytes", floor.get()),
            ],
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ceiling { side, charged, wanted, ceiling } => {
                write!(f, "{charged} are charged, {wanted} wanted, the ceiling is {ceiling} ({})", side.key())
            }
            Self::Floor { available, wanted, floor } => {
                write!(
                    f,
                    "{available} are available, {wanted} wanted, the floor is {floor} ([memory] host_floor)"
                )
            }
        }
    }
}

impl Ledger {
    pub fn new(ceilings: Ceilings, floor: Bytes, least_supervisor: Bytes) -> Self {
        Self {
            ceilings,
            floor,
            least_supervisor,
            supervisor: Bytes::ZERO,
            accounts: BTreeMap::new(),
            available: None,
        }
    }

    pub fn ceilings(&self) -> Ceilings {
        self.ceilings
    }

    /// For every grant from now on; what is charged already stays charged.
    pub fn set_host_ceiling(&mut self, ceiling: Bytes) {
        self.ceilings.host = ceiling;
    }

    /// The supervisor has one more line to keep.
    pub fn raise_supervisor(&mut self, by: Bytes) {
        self.least_supervisor += by;
    }

    pub fn floor(&self) -> Bytes {
        self.floor
    }

    /// What is reserved for the supervisor.
    pub fn reserved_for_supervisor(&self) -> Bytes {
        self.least_supervisor
    }

    /// The supervisor is charged like everybody: what is reserved for it, or what it owes.
    fn of_supervisor(&self) -> Demand {
        Demand::host(self.supervisor.max(self.least_supervisor))
    }

    pub fn charged(&self) -> Demand {
        self.of_supervisor() + self.accounts.values().map(|account| account.charge()).sum()
    }

    pub fn open(&mut self, worker: WorkerId, idle: Bytes) {
        let account = Account { reserved: Demand::host(idle), measured: Demand::default() };
        self.accounts.insert(worker, account);
    }

    /// Its memory is back.
    pub fn close(&mut self, worker: WorkerId) {
        self.accounts.remove(&worker);
    }

    pub fn measure(&mut self, worker: WorkerId, owed: Demand) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.measured = owed;
        }
    }

    pub fn measure_machine(&mut self, supervisor: Bytes, available: Option<Bytes>) {
        self.supervisor = supervisor;
        self.available = available;
    }

    /// Measured of the whole tree, whatever is reserved.
    pub fn owed(&self) -> Demand {
        Demand::host(self.supervisor) + self.accounts.values().map(|account| account.measured).sum()
    }

    pub fn measured(&self, worker: WorkerId) -> Demand {
        self.accounts.get(&worker).map_or(Demand::default(), |account| account.measured)
    }

    /// How far a worker is above what it has reserved.
    pub fn excess(&self, worker: WorkerId) -> Bytes {
        self.accounts.get(&worker).map_or(Bytes::ZERO, |account| (account.measured - account.reserved).sum())
    }

    /// What a worker would be given back to the ledger by its end.
    pub fn charge(&self, worker: WorkerId) -> Demand {
        self.accounts.get(&worker).map_or(Demand::default(), |account| account.charge())
    }

    /// Whether `wanted` could be granted to a worker, or, to none, to one more than there are.
    pub fn admits(&self, worker: Option<WorkerId>, wanted: Demand) -> Result<(), Refusal> {
        let own = worker.and_then(|worker| self.accounts.get(&worker)).copied().unwrap_or_default();
        let others = self.charged() - own.charge();
        let charge = wanted.max(own.measured);
        if let Some((side, sum, ceiling)) = self.ceilings.over(others + charge) {
            let (charged, wanted) = match side {
                CeilingScope::Host => (others.host, charge.host),
                CeilingScope::Device => (others.device, charge.device),
                CeilingScope::Unified => (others.sum(), charge.sum()),
            };
            debug_assert_eq!(sum, charged + wanted);
            return Err(Refusal::Ceiling { side, charged, wanted, ceiling });
        }
        if let Some(available) = self.available {
            // What a worker already holds is not available any more and need not be again; what others were
            // promised has yet to be taken.
            let unified = self.ceilings.unified;
            let promised: Bytes = self
                .accounts
                .iter()
                .filter(|&(&other, _)| Some(other) != worker)
                .map(|(_, account)| account.outstanding(unified))
                .sum();
            let more = Account { reserved: wanted, measured: own.measured }.outstanding(unified) + promised;
            if available < self.floor + more {
                return Err(Refusal::Floor { available, wanted: more, floor: self.floor });
            }
        }
        Ok(())
    }

    /// Grants `wanted` to a worker whose account is open; what it had reserved before is given up.
    pub fn grant(&mut self, worker: WorkerId, wanted: Demand) -> Result<(), Refusal> {
        self.admits(Some(worker), wanted)?;
        self.accounts.entry(worker).or_default().reserved = wanted;
        Ok(())
    }

    /// The lease is over; the worker goes on with what an idle one may owe.
    pub fn release(&mut self, worker: WorkerId, idle: Bytes) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.reserved = Demand::host(idle);
        }
    }

    /// Why a lease could not be granted even with nobody else charged but the supervisor.
    pub fn never_fits(&self, wanted: Demand) -> Option<(CeilingScope, Bytes, Bytes)> {
        // What it owes at one moment says nothing of ever.
        self.ceilings.over(Demand::host(self.least_supervisor) + wanted)
    }

    pub fn has_account(&self, worker: WorkerId) -> bool {
        self.accounts.contains_key(&worker)
    }

    pub fn accounts(&self) -> usize {
        self.accounts.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ledger(ceilings: Ceilings) -> Ledger {
        Ledger::new(ceilings, Bytes::new(10), Bytes::ZERO)
    }

    #[test]
    fn demands_are_added_and_taken_away_side_by_side() {
        let demand = |host, device| Demand { host: Bytes::new(host), device: Bytes::new(device) };
        assert_eq!(demand(5, 7) + demand(2, 3), demand(7, 10));
        assert_eq!(demand(5, 7) - demand(2, 3), demand(3, 4));
        assert_eq!(demand(5, 7) - demand(6, 3), demand(0, 4), "never below nothing");
        assert_eq!(demand(5, 7).sum(), Bytes::new(12));
    }

    proptest! {
        /// Whatever is granted, measured and released: right after a grant the charges are within the ceilings.
        #[test]
        fn no_grant_breaks_a_ceiling(
            unified in proptest::bool::ANY,
            steps in proptest::collection::vec((0u32..4, 0u64..150, 0u64..40, 0u8..5), 1..80)
        ) {
            let ceilings = Ceilings { host: Bytes::new(200), device: Bytes::new(100), unified };
            let mut ledger = ledger(ceilings);
            for (worker, host, device, kind) in steps {
                let worker = WorkerId(worker);
                let demand = Demand { host: Bytes::new(host), device: Bytes::new(device) };
                match kind {
                    0 => ledger.measure(worker, demand),
                    1 => ledger.close(worker),
                    2 => ledger.release(worker, Bytes::new(1)),
                    3 => ledger.measure_machine(Bytes::new(device), None),
                    _ => {
                        let before = ledger.charged();
                        match ledger.grant(worker, demand) {
                            Ok(()) => prop_assert_eq!(ceilings.over(ledger.charged()), None),
                            Err(Refusal::Ceiling { charged, wanted, ceiling, .. }) => {
                                prop_assert!(ceiling < charged + wanted);
                                prop_assert_eq!(ledger.charged(), before);
                            }
                            Err(Refusal::Floor { .. }) => prop_assert!(false, "nothing was said of the machine"),
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_floor_of_the_machine_is_kept() {
        let mut ledger = Ledger::new(Ceilings::host(Bytes::gib(100)), Bytes::gib(2), Bytes::ZERO);
        ledger.open(WorkerId(1), Bytes::ZERO);
        ledger.measure_machine(Bytes::ZERO, Some(Bytes::gib(5)));
        let wanted = |gib| Demand::host(Bytes::gib(gib));
        assert!(matches!(ledger.grant(WorkerId(1), wanted(4)), Err(Refusal::Floor { .. })));
        assert_eq!(ledger.grant(WorkerId(1), wanted(3)), Ok(()));
        // What one holds is gone from the machine and is not asked for twice; what others were promised is.
        ledger.measure(WorkerId(1), wanted(1));
        ledger.measure_machine(Bytes::ZERO, Some(Bytes::gib(4)));
        assert_eq!(ledger.admits(Some(WorkerId(1)), wanted(3)), Ok(()));
        let refused =
            Refusal::Floor { available: Bytes::gib(4), wanted: Bytes::gib(3), floor: Bytes::gib(2) };
        assert_eq!(ledger.admits(None, wanted(1)), Err(refused));
        assert!(refused.to_string().contains("host_floor"));
    }

    #[test]
    fn one_memory_has_one_sum_under_the_smaller_ceiling() {
        let demand = Demand { host: Bytes::new(60), device: Bytes::new(60) };
        let apart = Ceilings { host: Bytes::new(100), device: Bytes::new(80), unified: false };
        assert_eq!(apart.over(demand), None);
        let one = Ceilings { unified: true, ..apart };
        assert_eq!(one.over(demand), Some((CeilingScope::Unified, Bytes::new(120), Bytes::new(80))));
        assert_eq!(one.over(Demand::host(Bytes::new(80))), None);
        let no_device = Ceilings { device: Bytes::ZERO, ..one };
        assert_eq!(no_device.over(Demand::host(Bytes::new(100))), None);
        let device = Demand { host: Bytes::ZERO, device: Bytes::new(81) };
        assert_eq!(apart.over(device), Some((CeilingScope::Device, Bytes::new(81), Bytes::new(80))));
        let mut ledger = ledger(apart);
        ledger.open(WorkerId(1), Bytes::ZERO);
        let refusal = ledger.grant(WorkerId(1), device).expect_err("over the device's ceiling");
        assert!(refusal.to_string().contains("device_ceiling"), "{refusal}");
        assert_eq!(refusal.numbers()[1], ("wanted_bytes", 81));
    }

    #[test]
    fn the_supervisor_is_charged_what_is_reserved_or_what_it_owes() {
        let mut ledger = Ledger::new(Ceilings::host(Bytes::new(100)), Bytes::ZERO, Bytes::new(20));
        let wanted = |bytes| Demand::host(Bytes::new(bytes));
        assert_eq!(ledger.never_fits(wanted(80)), None);
        assert_eq!(
            ledger.never_fits(wanted(81)),
            Some((CeilingScope::Host, Bytes::new(101), Bytes::new(100)))
        );
        ledger.measure_machine(Bytes::new(30), None);
        assert_eq!(ledger.never_fits(wanted(80)), None, "it may owe less the next time");
        ledger.raise_supervisor(Bytes::new(1));
        assert!(ledger.never_fits(wanted(80)).is_some());
        assert_eq!((ledger.charged(), ledger.owed()), (wanted(30), wanted(30)));
        ledger.open(WorkerId(1), Bytes::new(5));
        ledger.measure(WorkerId(1), wanted(12));
        assert_eq!((ledger.charge(WorkerId(1)), ledger.excess(WorkerId(1))), (wanted(12), Bytes::new(7)));
        assert_eq!(ledger.excess(WorkerId(2)), Bytes::ZERO);
    }
}
