//! Loads storages onto a device one by one: each buffer is allocated right before its upload, its source is dropped
//! right after the upload, and outputs are allocated after the last upload.
//!
//! A storage that several tensors share is uploaded once, and released when its last use ends. A storage without
//! tensors is never touched. The peak of a first load is exactly what `opt_shared::placement` predicts. After an error,
//! the residency and its device must be dropped.

use std::collections::BTreeMap;
use std::io;

use opt_shared::placement::upload_order;
use opt_shared::units::Bytes;

use super::device::{Buffer, Device, DeviceError, Event};
use super::ledger::{Accounted, Kind, Ledger};
use super::staging::{Ring, Source, StagingError};

/// A storage that is not open yet. It is described without touching its bytes, and `open` opens them for reading.
pub trait Origin {
    fn bytes(&self) -> Bytes;

    /// The size of the host memory that an open source uses until it is dropped.
    fn held(&self) -> Bytes {
        Bytes::ZERO
    }

    fn describe(&self) -> String;

    fn open(&self) -> io::Result<Box<dyn Source + '_>>;
}

/// The storages and buffers that must be resident at the end of a load.
pub struct Load<'a, K> {
    pub storages: &'a [(K, &'a dyn Origin)],
    /// For each tensor, the index of its storage in `storages`.
    pub tensors: &'a [usize],
    /// Buffers to allocate after all tensors are resident.
    pub after: &'a [(Kind, Bytes)],
    /// The earlier uses that this load ends. Each occurrence of a key ends one use of that storage. A storage that the
    /// load itself uses stays resident.
    pub instead_of: &'a [K],
}

/// A storage that is on the device, with the number of its uses that have not ended.
struct Resident {
    buffer: Buffer,
    users: usize,
}

/// A device with the storages that are resident on it, each identified by a key.
pub struct Residency<D: Device, K> {
    on: Accounted<D>,
    ring: Ring<D>,
    resident: BTreeMap<K, Resident>,
}

impl<D: Device, K: Ord + Clone> Residency<D, K> {
    pub fn new(device: D, slots: u64, slot: Bytes) -> Self {
        Self { on: Accounted::new(device), ring: Ring::new(slots, slot), resident: BTreeMap::new() }
    }

    pub fn ledger(&self) -> &Ledger {
        self.on.ledger()
    }

    pub fn device(&mut self) -> &mut D {
        self.on.device()
    }

    pub fn buffer(&self, key: &K) -> Option<&Buffer> {
        self.resident.get(key).map(|it| &it.buffer)
    }

    /// Makes the storages of the tensors resident, and then allocates the buffers of `after`. Returns these buffers in
    /// order.
    pub fn load(&mut self, load: &Load<'_, K>) -> Result<Vec<Buffer>, StagingError> {
        let mut uses = vec![0_usize; load.storages.len()];
        for &storage in load.tensors {
            *uses
                .get_mut(storage)
                .ok_or(StagingError::NoStorage { storage, storages: load.storages.len() })? += 1;
        }
        // New uses are counted first, so that ending the old ones does not release a storage that is still needed.
        let mut missing = Vec::new();
        for (index, (key, _)) in load.storages.iter().enumerate() {
            match self.resident.get_mut(key) {
                Some(resident) => resident.users += uses[index],
                None => missing.push(index),
            }
        }
        for key in load.instead_of {
            self.end_use(key)?;
        }
        let used: Vec<usize> = missing.into_iter().filter(|&index| 0 < uses[index]).collect();
        let sizes = used.iter().map(|&index| load.storages[index].1.bytes());
        self.ring.prepare(&mut self.on, sizes)?;
        let mut last = None;
        for position in upload_order(used.iter().map(|&index| load.storages[index].1.held())) {
            let index = used[position];
            let (key, origin) = &load.storages[index];
            // The same key may occur twice in `storages`.
            if let Some(resident) = self.resident.get_mut(key) {
                resident.users += uses[index];
                continue;
            }
            let buffer = self.on.allocate(Kind::Weight, origin.bytes())?;
            self.on.add_source(origin.held());
            let mut source = open(*origin)?;
            last = self.ring.upload(&mut self.on, &mut *source, &buffer)?.or(last);
            drop(source);
            self.on.remove_source(origin.held());
            self.resident.insert(key.clone(), Resident { buffer, users: uses[index] });
        }
        self.finish(last)?;
        self.allocate_all(load.after)
    }

    fn finish(&mut self, last: Option<Event>) -> Result<(), DeviceError> {
        last.map_or(Ok(()), |last| self.on.device().wait(last))
    }

    fn allocate_all(&mut self, wanted: &[(Kind, Bytes)]) -> Result<Vec<Buffer>, StagingError> {
        wanted.iter().map(|&(kind, bytes)| Ok(self.on.allocate(kind, bytes)?)).collect()
    }

    /// Ends the use of a storage by one tensor. The end of the last use releases the storage.
    pub fn end_use(&mut self, key: &K) -> Result<(), DeviceError> {
        let Some(resident) = self.resident.get_mut(key) else { return Ok(()) };
        resident.users = resident.users.saturating_sub(1);
        if 0 < resident.users {
            return Ok(());
        }
        let Some(Resident { buffer, .. }) = self.resident.remove(key) else { return Ok(()) };
        self.on.release(Kind::Weight, buffer)
    }

    pub fn release(&mut self, kind: Kind, buffer: Buffer) -> Result<(), DeviceError> {
        self.on.release(kind, buffer)
    }

    /// Releases all resident storages and the slots. Returns the ledger, whose total is the memory that the caller has
    /// not released.
    pub fn dissolve(mut self) -> Result<Ledger, StagingError> {
        for resident in std::mem::take(&mut self.resident).into_values() {
            self.on.release(Kind::Weight, resident.buffer)?;
        }
        self.ring.dissolve(&mut self.on)?;
        Ok(self.on.into_ledger())
    }
}

fn open(origin: &dyn Origin) -> Result<Box<dyn Source + '_>, StagingError> {
    origin.open().map_err(|source| StagingError::Open { source_name: origin.describe(), source })
}
