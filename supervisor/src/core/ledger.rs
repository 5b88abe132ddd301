//! Who may owe how much: leases, charges, and whether another one fits.
//!
//! A worker is charged the larger of what its lease reserves and what is measured of it and its runners, until its
//! death has been observed. Invariant at every grant: the sum of all charges and the new lease is at most the
//! ceiling, and the machine keeps its floor.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;

/// What the supervisor may owe (DESIGN, law 2): left out of what a lease can ever be granted.
pub const SUPERVISOR: Bytes = Bytes::mib(20);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    reserved: Bytes,
    measured: Bytes,
}

impl Account {
    fn charge(self) -> Bytes {
        self.reserved.max(self.measured)
    }

    /// Reserved and not yet taken from the machine.
    fn outstanding(self) -> Bytes {
        self.reserved - self.measured
    }
}

#[derive(Clone, Debug)]
pub struct Ledger {
    ceiling: Bytes,
    floor: Bytes,
    supervisor: Bytes,
    accounts: BTreeMap<WorkerId, Account>,
    /// MemAvailable as last seen.
    available: Option<Bytes>,
}

/// Why a lease was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The charges and the lease are over the ceiling.
    Ceiling { charged: Bytes, wanted: Bytes, ceiling: Bytes },
    /// The machine would fall below its floor.
    Floor { available: Bytes, wanted: Bytes, floor: Bytes },
}

impl Refusal {
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Ceiling { charged, wanted, ceiling } => vec![
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
            Self::Ceiling { charged, wanted, ceiling } => {
                write!(
                    f,
                    "{charged} are charged, {wanted} wanted, the ceiling is {ceiling} ([memory] host_ceiling)"
                )
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
    pub fn new(ceiling: Bytes, floor: Bytes) -> Self {
        Self { ceiling, floor, supervisor: Bytes::ZERO, accounts: BTreeMap::new(), available: None }
    }

    pub fn ceiling(&self) -> Bytes {
        self.ceiling
    }

    /// For every grant from now on; what is charged already stays charged.
    pub fn set_ceiling(&mut self, ceiling: Bytes) {
        self.ceiling = ceiling;
    }

    pub fn floor(&self) -> Bytes {
        self.floor
    }

    pub fn charged(&self) -> Bytes {
        self.supervisor + self.accounts.values().map(|account| account.charge()).sum()
    }

    pub fn open(&mut self, worker: WorkerId, idle: Bytes) {
        self.accounts.insert(worker, Account { reserved: idle, measured: Bytes::ZERO });
    }

    /// Its death has been observed.
    pub fn close(&mut self, worker: WorkerId) {
        self.accounts.remove(&worker);
    }

    pub fn measure(&mut self, worker: WorkerId, owed: Bytes) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.measured = owed;
        }
    }

    pub fn measure_machine(&mut self, supervisor: Bytes, available: Option<Bytes>) {
        self.supervisor = supervisor;
        self.available = available;
    }

    /// Measured of the whole tree, whatever is reserved.
    pub fn owed(&self) -> Bytes {
        self.supervisor + self.accounts.values().map(|account| account.measured).sum()
    }

    pub fn charge(&self, worker: WorkerId) -> Bytes {
        self.accounts.get(&worker).map_or(Bytes::ZERO, |account| account.charge())
    }

    pub fn measured(&self, worker: WorkerId) -> Bytes {
        self.accounts.get(&worker).map_or(Bytes::ZERO, |account| account.measured)
    }

    /// Grants `wanted` to a worker whose account is open; what it had reserved before is given up.
    pub fn grant(&mut self, worker: WorkerId, wanted: Bytes) -> Result<(), Refusal> {
        let others =
            self.charged() - self.accounts.get(&worker).map_or(Bytes::ZERO, |account| account.charge());
        let measured = self.measured(worker);
        let charge = wanted.max(measured);
        if self.ceiling < others + charge {
            return Err(Refusal::Ceiling { charged: others, wanted: charge, ceiling: self.ceiling });
        }
        if let Some(available) = self.available {
            // What a worker already holds is not available any more and need not be again; what others were
            // promised has yet to be taken.
            let promised: Bytes = self
                .accounts
                .iter()
                .filter(|&(&other, _)| other != worker)
                .map(|(_, account)| account.outstanding())
                .sum();
            let more = (wanted - measured) + promised;
            if available < self.floor + more {
                return Err(Refusal::Floor { available, wanted: more, floor: self.floor });
            }
        }
        self.accounts.entry(worker).or_default().reserved = wanted;
        Ok(())
    }

    /// The lease is over; the worker goes on with what an idle one may owe.
    pub fn release(&mut self, worker: WorkerId, idle: Bytes) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.reserved = idle;
        }
    }

    /// What a ceiling has to be at least, so that a lease can be granted with nobody else charged but the supervisor.
    pub fn least_ceiling(&self, wanted: Bytes) -> Bytes {
        wanted + self.supervisor.max(SUPERVISOR)
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

    proptest! {
        /// Whatever is granted, measured and released: right after a grant the charges are within the ceiling.
        #[test]
        fn no_grant_breaks_the_ceiling(
            steps in proptest::collection::vec((0u32..4, 0u64..150, 0u8..4), 1..80)
        ) {
            let mut ledger = Ledger::new(Bytes::new(200), Bytes::new(10));
            for (worker, bytes, kind) in steps {
                let (worker, bytes) = (WorkerId(worker), Bytes::new(bytes));
                match kind {
                    0 => ledger.measure(worker, bytes),
                    1 => ledger.close(worker),
                    2 => ledger.release(worker, Bytes::new(1)),
                    _ => {
                        let before = ledger.charged();
                        match ledger.grant(worker, bytes) {
                            Ok(()) => prop_assert!(ledger.charged() <= ledger.ceiling()),
                            Err(Refusal::Ceiling { charged, wanted, .. }) => {
                                prop_assert!(ledger.ceiling() < charged + wanted);
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
        let mut ledger = Ledger::new(Bytes::gib(100), Bytes::gib(2));
        ledger.open(WorkerId(1), Bytes::ZERO);
        ledger.measure_machine(Bytes::ZERO, Some(Bytes::gib(5)));
        assert!(matches!(ledger.grant(WorkerId(1), Bytes::gib(4)), Err(Refusal::Floor { .. })));
        assert_eq!(ledger.grant(WorkerId(1), Bytes::gib(3)), Ok(()));
    }
}
