//! The order of a load: a buffer is allocated right before its own upload, its source is let go of right after, and
//! what calls write to comes after the last upload is over.
//!
//! Storages have keys. One that several tensors lie in is uploaded once and released with the last of them; one that
//! nobody uses is never touched. The peak is `opt_shared::placement`'s, to the byte. An error leaves the residency in
//! pieces: it is to be dropped, and its device with it.

use std::collections::BTreeMap;
use std::io;

use opt_shared::placement::upload_order;
use opt_shared::units::Bytes;

use super::device::{Buffer, Device, DeviceError, Event};
use super::ledger::{Accounted, Kind, Ledger};
use super::staging::{PlaceError, Ring, Source};

/// Where a storage's bytes can be had, without touching them.
pub trait Origin {
    fn bytes(&self) -> Bytes;

    /// Host memory that its source takes from its opening until it is dropped.
    fn held(&self) -> Bytes {
        Bytes::ZERO
    }

    /// For messages.
    fn describe(&self) -> String;

    fn open(&self) -> io::Result<Box<dyn Source + '_>>;
}

/// When memory is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Lazy,
    /// Everything at once, a buffer for each tensor and each storage that nobody uses, sources until the end. The negative control of
    /// tests and benchmarks.
    Eager,
}

/// What is to be there at the end.
pub struct Load<'a, K> {
    pub storages: &'a [(K, &'a dyn Origin)],
    /// Of each tensor, the storage that it lies in, by its place in `storages`.
    pub tensors: &'a [usize],
    /// Allocated when all tensors are there.
    pub after: &'a [(Kind, Bytes)],
    /// Uses that end with this load: what it uses, too, stays.
    pub instead_of: &'a [K],
    pub order: Order,
}

struct Resident {
    buffer: Buffer,
    /// What an eager load has beside it.
    doubles: Vec<Buffer>,
    users: usize,
}

/// A device, what lies on it, and the ledger of both.
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

    /// Where a storage lies.
    pub fn buffer(&self, key: &K) -> Option<&Buffer> {
        self.resident.get(key).map(|it| &it.buffer)
    }

    /// Returns what was allocated after the tensors, in order.
    pub fn load(&mut self, load: &Load<'_, K>) -> Result<Vec<Buffer>, PlaceError> {
        let mut uses = vec![0_usize; load.storages.len()];
        for &storage in load.tensors {
            *uses
                .get_mut(storage)
                .ok_or(PlaceError::NoStorage { storage, storages: load.storages.len() })? += 1;
        }
        // First what stays, so that the end of its former uses does not end it.
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
        match load.order {
            Order::Lazy => self.load_lazily(load, &uses, &missing),
            Order::Eager => self.load_eagerly(load, &uses, &missing),
        }
    }

    fn load_lazily(
        &mut self,
        load: &Load<'_, K>,
        uses: &[usize],
        missing: &[usize],
    ) -> Result<Vec<Buffer>, PlaceError> {
        let used: Vec<usize> = missing.iter().copied().filter(|&index| 0 < uses[index]).collect();
        let sizes = used.iter().map(|&index| load.storages[index].1.bytes());
        self.ring.prepare(&mut self.on, sizes)?;
        let mut last = None;
        for place in upload_order(used.iter().map(|&index| load.storages[index].1.held())) {
            let index = used[place];
            let (key, origin) = &load.storages[index];
            if let Some(named_before) = self.resident.get_mut(key) {
                named_before.users += uses[index];
                continue;
            }
            let buffer = self.on.allocate(Kind::Weight, origin.bytes())?;
            self.on.take_source(origin.held());
            let mut source = open(*origin)?;
            last = self.ring.upload(&mut self.on, &mut *source, &buffer)?.or(last);
            drop(source);
            self.on.give_source(origin.held());
            let resident = Resident { buffer, doubles: Vec::new(), users: uses[index] };
            self.resident.insert(key.clone(), resident);
        }
        self.finish(last)?;
        self.allocate_all(load.after)
    }

    fn load_eagerly(
        &mut self,
        load: &Load<'_, K>,
        uses: &[usize],
        missing: &[usize],
    ) -> Result<Vec<Buffer>, PlaceError> {
        let after = self.allocate_all(load.after)?;
        let mut sources = Vec::new();
        let mut placed = Vec::new();
        for &index in missing {
            let (_, origin) = load.storages[index];
            for _ in 0..uses[index].max(1) {
                self.on.take_source(origin.held());
                sources.push(open(origin)?);
                placed.push((index, self.on.allocate(Kind::Weight, origin.bytes())?));
            }
        }
        self.ring.prepare(&mut self.on, placed.iter().map(|(_, buffer)| buffer.bytes()))?;
        let mut last = None;
        for (source, (_, buffer)) in sources.iter_mut().zip(&placed) {
            last = self.ring.upload(&mut self.on, &mut **source, buffer)?.or(last);
        }
        self.finish(last)?;
        drop(sources);
        for (index, buffer) in placed {
            let (key, origin) = &load.storages[index];
            self.on.give_source(origin.held());
            match self.resident.get_mut(key) {
                Some(resident) => resident.doubles.push(buffer),
                None => {
                    let resident = Resident { buffer, doubles: Vec::new(), users: uses[index] };
                    self.resident.insert(key.clone(), resident);
                }
            }
        }
        Ok(after)
    }

    fn finish(&mut self, last: Option<Event>) -> Result<(), DeviceError> {
        last.map_or(Ok(()), |last| self.on.device().wait(last))
    }

    fn allocate_all(&mut self, wanted: &[(Kind, Bytes)]) -> Result<Vec<Buffer>, PlaceError> {
        wanted.iter().map(|&(kind, bytes)| Ok(self.on.allocate(kind, bytes)?)).collect()
    }

    /// One tensor in this storage is not used any more; the last one takes it along.
    pub fn end_use(&mut self, key: &K) -> Result<(), DeviceError> {
        let Some(resident) = self.resident.get_mut(key) else { return Ok(()) };
        resident.users = resident.users.saturating_sub(1);
        if 0 < resident.users {
            return Ok(());
        }
        let Some(Resident { buffer, doubles, .. }) = self.resident.remove(key) else { return Ok(()) };
        std::iter::once(buffer).chain(doubles).try_for_each(|buffer| self.on.release(Kind::Weight, buffer))
    }

    /// Of what a load returned.
    pub fn release(&mut self, kind: Kind, buffer: Buffer) -> Result<(), DeviceError> {
        self.on.release(kind, buffer)
    }

    /// Gives back all that is resident, and the slots. Returns the ledger, whose sum is what others still hold.
    pub fn dissolve(mut self) -> Result<Ledger, PlaceError> {
        for resident in std::mem::take(&mut self.resident).into_values() {
            self.on.release(Kind::Weight, resident.buffer)?;
            for buffer in resident.doubles {
                self.on.release(Kind::Weight, buffer)?;
            }
        }
        self.ring.dissolve(&mut self.on)?;
        Ok(self.on.into_ledger())
    }
}

fn open(origin: &dyn Origin) -> Result<Box<dyn Source + '_>, PlaceError> {
    origin.open().map_err(|source| PlaceError::Open { source_name: origin.describe(), source })
}
