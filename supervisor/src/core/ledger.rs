//! Keeps the memory ledger, which charges workers for their leases and decides whether another lease fits.
//!
//! A worker's charge is the larger of two amounts: the memory that its lease reserves, and the memory that the worker
//! and its runners owed when they were last measured. The charge ends when the worker and its runners have ended and
//! the device has returned their memory.
//!
//! Whenever a lease is granted, the sum of all charges and the new lease is at most the ceiling, and the machine's
//! available memory does not fall below the floor. If host and device share one memory, the amounts on both together
//! must not exceed the smaller of the two ceilings.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;

/// An amount of memory on the host and one on the device.
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

    /// Saturates at zero, as `Bytes` does.
    fn sub(self, other: Self) -> Self {
        Self { host: self.host - other.host, device: self.device - other.device }
    }
}

impl std::iter::Sum for Demand {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| sum + one)
    }
}

/// The limits on what the whole process tree may owe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    pub host: Bytes,
    pub device: Bytes,
    pub unified: bool,
}

/// The kind of memory that a ceiling limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CeilingScope {
    Host,
    Device,
    /// The sum of host and device, which share one memory.
    Unified,
}

impl CeilingScope {
    /// Returns the part of a demand that the ceiling limits.
    pub fn part_of(self, demand: Demand) -> Bytes {
        match self {
            Self::Host => demand.host,
            Self::Device => demand.device,
            Self::Unified => demand.sum(),
        }
    }

    /// Returns the key of the ceiling in a plan, for messages.
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

    fn sums(self, demand: Demand) -> impl Iterator<Item = (CeilingScope, Bytes, Bytes)> {
        let sums = if self.unified {
            // Without a device there is no device ceiling.
            let unified_ceiling =
                if self.device == Bytes::ZERO { self.host } else { self.host.min(self.device) };
            [Some((CeilingScope::Unified, demand.sum(), unified_ceiling)), None]
        } else {
            [
                Some((CeilingScope::Host, demand.host, self.host)),
                Some((CeilingScope::Device, demand.device, self.device)),
            ]
        };
        sums.into_iter().flatten()
    }

    /// Returns the first ceiling that a demand exceeds, as its scope, the demanded amount in this scope, and the
    /// ceiling.
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

    /// Returns the host memory that is reserved but not owed yet. If host and device share one memory, the device
    /// memory is included.
    fn outstanding(self, unified: bool) -> Bytes {
        let missing = self.reserved - self.measured;
        if unified { missing.sum() } else { missing.host }
    }
}

/// The limits that decide whether a lease can ever fit. They do not depend on what else is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    ceilings: Ceilings,
    supervisor: Bytes,
}

#[derive(Clone, Debug)]
pub struct Ledger {
    ceilings: Ceilings,
    floor: Bytes,
    /// The minimum charge for the supervisor.
    min_supervisor: Bytes,
    /// The memory that the supervisor owed when it was last measured.
    supervisor: Bytes,
    accounts: BTreeMap<WorkerId, Account>,
    /// The machine's `MemAvailable` in the last sample. `None` if it could not be read.
    available: Option<Bytes>,
    /// The free memory of the device. `None` if the device shares the host's memory, or was not queried.
    device_free: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The charges and the new lease together would exceed a ceiling.
    Ceiling { scope: CeilingScope, charged: Bytes, wanted: Bytes, ceiling: Bytes },
    /// The machine's available memory would fall below the floor.
    Floor { available: Bytes, wanted: Bytes, floor: Bytes },
    /// The device does not have enough free memory, because other processes hold it.
    DeviceInUse { free: Bytes, wanted: Bytes },
}

impl Refusal {
    pub fn numbers(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Ceiling { scope: _, charged, wanted, ceiling } => vec![
                ("charged_bytes", charged.get()),
                ("wanted_bytes", wanted.get()),
                ("ceiling_bytes", ceiling.get()),
            ],
            Self::Floor { available, wanted, floor } => vec![
                ("available_bytes", available.get()),
                ("wanted_bytes", wanted.get()),
                ("floor_bytes", floor.get()),
            ],
            Self::DeviceInUse { free, wanted } => {
                vec![("device_free_bytes", free.get()), ("wanted_bytes", wanted.get())]
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ceiling { scope, charged, wanted, ceiling } => {
                write!(
                    f,
                    "{charged} are charged, {wanted} more are needed, and the ceiling is {ceiling} ({})",
                    scope.key()
                )
            }
            Self::Floor { available, wanted, floor } => {
                write!(
                    f,
                    "{available} are available, {wanted} are needed, and the floor is {floor} ([memory] host_floor)"
                )
            }
            Self::DeviceInUse { free, wanted } => {
                write!(f, "{free} are free on the device, and {wanted} are needed")
            }
        }
    }
}

impl Ledger {
    pub fn new(ceilings: Ceilings, floor: Bytes, min_supervisor: Bytes) -> Self {
        Self {
            ceilings,
            floor,
            min_supervisor,
            supervisor: Bytes::ZERO,
            accounts: BTreeMap::new(),
            available: None,
            device_free: None,
        }
    }

    pub fn ceilings(&self) -> Ceilings {
        self.ceilings
    }

    /// Sets the ceiling on host memory. Existing charges stay, even if they exceed it.
    pub fn set_host_ceiling(&mut self, ceiling: Bytes) {
        self.ceilings.host = ceiling;
    }

    /// Raises the supervisor's minimum charge, because the supervisor has more records to keep.
    pub fn raise_supervisor(&mut self, by: Bytes) {
        self.min_supervisor += by;
    }

    pub fn floor(&self) -> Bytes {
        self.floor
    }

    pub fn reserved_for_supervisor(&self) -> Bytes {
        self.min_supervisor
    }

    /// Returns the supervisor's charge, which is the larger of what is reserved for it and what it owes, as for a
    /// worker.
    fn supervisor_charge(&self) -> Demand {
        Demand::host(self.supervisor.max(self.min_supervisor))
    }

    pub fn charged(&self) -> Demand {
        self.supervisor_charge() + self.accounts.values().map(|account| account.charge()).sum()
    }

    /// Begins a worker's charge. `idle` is the amount that an idle worker may owe.
    pub fn open(&mut self, worker: WorkerId, idle: Bytes) {
        let account = Account { reserved: Demand::host(idle), measured: Demand::default() };
        self.accounts.insert(worker, account);
    }

    /// Ends a worker's charge. Call it only when the worker's memory is free.
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

    pub fn measure_device(&mut self, free: Option<Bytes>) {
        self.device_free = free;
    }

    /// Returns the memory that the supervisor and all workers owe according to the last measurements, regardless of
    /// reservations.
    pub fn owed(&self) -> Demand {
        Demand::host(self.supervisor) + self.accounts.values().map(|account| account.measured).sum()
    }

    pub fn measured(&self, worker: WorkerId) -> Demand {
        self.accounts.get(&worker).map_or(Demand::default(), |account| account.measured)
    }

    /// Returns how far a worker's measured memory exceeds its reservation.
    pub fn excess(&self, worker: WorkerId) -> Demand {
        self.accounts.get(&worker).map_or(Demand::default(), |account| account.measured - account.reserved)
    }

    /// Returns a worker's charge, which is the amount that its end would free.
    pub fn charge(&self, worker: WorkerId) -> Demand {
        self.accounts.get(&worker).map_or(Demand::default(), |account| account.charge())
    }

    /// Checks whether a worker may reserve `wanted` in place of its current reservation. For a worker that does not
    /// exist yet, pass `None`.
    pub fn admits(&self, worker: Option<WorkerId>, wanted: Demand) -> Result<(), Refusal> {
        let account = worker.and_then(|worker| self.accounts.get(&worker)).copied().unwrap_or_default();
        let others = self.charged() - account.charge();
        let charge = wanted.max(account.measured);
        if let Some((scope, sum, ceiling)) = self.ceilings.over(others + charge) {
            let (charged, wanted) = (scope.part_of(others), scope.part_of(charge));
            debug_assert_eq!(sum, charged + wanted);
            return Err(Refusal::Ceiling { scope, charged, wanted, ceiling });
        }
        if let Some(available) = self.available {
            // The memory that this worker owes now is not part of `available`. Memory that other workers have reserved
            // but do not use yet is part of `available`, and must be kept for them.
            let unified = self.ceilings.unified;
            let promised: Bytes = self
                .accounts
                .iter()
                .filter(|&(&other, _)| Some(other) != worker)
                .map(|(_, account)| account.outstanding(unified))
                .sum();
            let needed =
                Account { reserved: wanted, measured: account.measured }.outstanding(unified) + promised;
            if available < self.floor + needed {
                return Err(Refusal::Floor { available, wanted: needed, floor: self.floor });
            }
        }
        if let Some(free) = self.device_free.filter(|_| wanted.device != Bytes::ZERO) {
            let others = self.accounts.iter().filter(|&(&other, _)| Some(other) != worker);
            let promised: Bytes =
                others.map(|(_, account)| (account.reserved - account.measured).device).sum();
            let needed = (wanted - account.measured).device + promised;
            if free < needed {
                return Err(Refusal::DeviceInUse { free, wanted: needed });
            }
        }
        Ok(())
    }

    /// If `admits` allows it, reserves `wanted` for a worker in place of its current reservation.
    pub fn grant(&mut self, worker: WorkerId, wanted: Demand) -> Result<(), Refusal> {
        self.admits(Some(worker), wanted)?;
        self.accounts.entry(worker).or_default().reserved = wanted;
        Ok(())
    }

    /// Lowers a worker's reservation to `idle`, the amount that an idle worker may owe.
    pub fn release(&mut self, worker: WorkerId, idle: Bytes) {
        if let Some(account) = self.accounts.get_mut(&worker) {
            account.reserved = Demand::host(idle);
        }
    }

    /// Returns the ceiling that a lease would exceed even if only the lease and the supervisor were charged, as its
    /// scope, the sum of the two charges, and the ceiling. `None` if the lease can fit.
    pub fn never_fits(&self, wanted: Demand) -> Option<(CeilingScope, Bytes, Bytes)> {
        // Use only the supervisor's reservation here, because the supervisor may owe less later.
        self.ceilings.over(Demand::host(self.min_supervisor) + wanted)
    }

    pub fn limits(&self) -> Limits {
        Limits { ceilings: self.ceilings, supervisor: self.min_supervisor }
    }

    pub fn has_account(&self, worker: WorkerId) -> bool {
        self.accounts.contains_key(&worker)
    }

    pub fn account_count(&self) -> usize {
        self.accounts.len()
    }
}

#[cfg(test)]
mod tests;
