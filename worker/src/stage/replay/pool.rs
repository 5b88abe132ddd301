//! Loads tensors into the pool of a replay and evicts them, as the plan says. This happens in a separate thread, which
//! owns the device and also works while calls run.
//!
//! This file decides the order of the copies and counts them. A slot contains poison from its allocation until its
//! bytes have arrived. The digest of every loaded tensor is compared with the recorded one. A `ConstantReader` provides
//! the bytes.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use opt_shared::formula::{REPLAY_SLOTS, STAGING_SLOT};
use opt_shared::placement::whole_grains;
use opt_shared::replay::{Constant, Digest};
use opt_shared::units::Bytes;

use super::planner::{Move, MovePlan};
use crate::residency::device::{Buffer, Device, DeviceError, Event};
use crate::residency::ledger::{Accounted, Kind};
use crate::residency::staging::{Ring, Source, StagingError};
use crate::session::PoolSlot;

/// The byte that fills a slot until its contents have arrived. It is NaN in every float type of at least 16 bits, -1 in
/// every signed integer type, and not a valid bool. A kernel that reads a slot too early is therefore likely to compute
/// a wrong result.
pub const POISON: u8 = 0xff;

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("placing a tensor in the pool")]
    Place(#[from] StagingError),
    #[error("moving a tensor into the pool or out of it")]
    Device(#[from] DeviceError),
    #[error("finding the bytes of {name}")]
    Find {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the bytes of {name} differ from the recorded ones (was the capture changed?)")]
    Changed { name: String },
    #[error(
        "a tensor that the pool should move is not in the recording, or not where the planned moves left it"
    )]
    Plan,
    #[error("the pool's thread ended too early")]
    Ended,
}

/// Opens the bytes of a constant. Each load opens them again, so that no descriptor stays open between loads.
pub trait ConstantReader: Send {
    fn open(&mut self, constant: u32) -> std::io::Result<Box<dyn Source + '_>>;
}

/// A loaded slot of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadySlot {
    pub constant: u32,
    /// The position of the slot: an offset in the arena or, on a device, an address.
    pub address: u64,
    /// The offset of the constant's first byte in the slot.
    pub phase: u8,
    /// The size of the slot.
    pub bytes: Bytes,
    /// The size of the constant.
    pub length: Bytes,
    /// The digest of the constant's bytes, as recorded.
    pub digest: Digest,
}

impl ReadySlot {
    pub(super) fn slot(&self) -> PoolSlot {
        let Self { constant, address, phase, bytes, length, digest } = *self;
        PoolSlot { constant, address, phase, bytes, length, digest }
    }
}

/// The slots of a step's constants, sent when all of them are in the pool, or the error that prevented this.
pub type Ready = Result<Vec<ReadySlot>, PoolError>;

/// Counts what the pool has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub bytes: Bytes,
    pub loads: u64,
    pub evictions: u64,
    /// The peak use of the pool, as counted by the device.
    pub peak: Bytes,
    /// The peak use as counted by the ledger, which includes staging buffers.
    pub ledger_peak: Bytes,
    /// The time during which bytes were moved.
    pub busy: Duration,
}

pub struct Pool<'a, D: Device, S: ConstantReader> {
    on: Accounted<D>,
    ring: Ring<D>,
    reader: S,
    constants: &'a [Constant],
    plan: &'a MovePlan,
    sets: &'a [Vec<u32>],
    placed: HashMap<u32, Buffer>,
    /// The buffers of evicted constants that are not released yet, because releasing them could wait for the running
    /// kernel.
    retired: Vec<Buffer>,
    /// The size of each allocation, by its address. It is kept because a buffer that was reused for a smaller constant
    /// can take a larger one again.
    allocations: HashMap<u64, Bytes>,
    moved: Moved,
}

impl<'a, D: Device, S: ConstantReader> Pool<'a, D, S> {
    pub fn new(
        device: D,
        reader: S,
        constants: &'a [Constant],
        plan: &'a MovePlan,
        sets: &'a [Vec<u32>],
    ) -> Self {
        Self {
            on: Accounted::new(device),
            ring: Ring::new(REPLAY_SLOTS, STAGING_SLOT),
            reader,
            constants,
            plan,
            sets,
            placed: HashMap::new(),
            retired: Vec::new(),
            allocations: HashMap::new(),
            moved: Moved::default(),
        }
    }

    /// Loads the constants of every step in order. For each step, reports when its constants are ready, prefetches
    /// constants of later steps, and waits until the step is over before changing the step's slots. Returns after the
    /// last step, at the first error, or when the receiver of the reports no longer exists.
    pub fn serve(mut self, done_steps: &Receiver<()>, ready: &Sender<Ready>) -> Moved {
        if let Err(error) = self.prepare() {
            let _ = ready.send(Err(error.into()));
            return self.close();
        }
        let mut postponed: &[Move] = &[];
        for (number, moves) in self.plan.steps.iter().enumerate() {
            if 0 < number && done_steps.recv().is_err() {
                break;
            }
            let message = self
                .carry_out(postponed)
                .and_then(|()| self.carry_out(&moves.before))
                .and_then(|()| self.ready_slots(number));
            let failed = message.is_err();
            if ready.send(message).is_err() || failed {
                break;
            }
            match self.carry_out_beside_a_kernel(&moves.during) {
                Ok(rest) => postponed = rest,
                Err(error) => {
                    // The next step cannot start, so this error is sent in place of its slots.
                    let _ = done_steps.recv();
                    let _ = ready.send(Err(error));
                    break;
                }
            }
        }
        // The last step may still be using its slots.
        while done_steps.recv().is_ok() {}
        self.close()
    }

    /// Releases the pool, and returns the counts of what was moved.
    fn close(mut self) -> Moved {
        // The queue must finish before the buffers and the device are released.
        let Self { on, ring, placed, retired, moved, .. } = &mut self;
        let ring = std::mem::replace(ring, Ring::new(1, Bytes::new(1)));
        let _ = ring.dissolve(on);
        for buffer in placed.drain().map(|(_, buffer)| buffer).chain(retired.drain(..)) {
            let _ = on.release(Kind::Weight, buffer);
        }
        moved.peak = on.device().marks().placed_peak;
        moved.ledger_peak = on.ledger().peak();
        *moved
    }

    /// Allocates the staging buffers for all copies. This happens before any kernel runs.
    fn prepare(&mut self) -> Result<(), DeviceError> {
        self.on.device().enter_thread()?;
        let largest = self
            .constants
            .iter()
            .map(|constant| constant.bytes + Bytes::new(u64::from(constant.phase)))
            .max();
        self.ring.prepare(&mut self.on, largest.into_iter())
    }

    /// Executes moves while no kernel runs, and returns when all their copies are complete.
    fn carry_out(&mut self, moves: &[Move]) -> Result<(), PoolError> {
        let started = Instant::now();
        for buffer in std::mem::take(&mut self.retired) {
            self.release(buffer)?;
        }
        let mut last = None;
        for one in moves {
            match *one {
                Move::Load(constant) => {
                    let buffer = self.allocate(self.bytes_with_phase(constant)?)?;
                    last = self.load(constant, buffer)?.or(last);
                }
                Move::Evict(constant) => {
                    let buffer = self.evict(constant)?;
                    self.release(buffer)?;
                }
            }
        }
        self.finish(started, !moves.is_empty(), last)
    }

    /// Executes moves while a kernel may run, and returns when their copies are complete. If releasing memory could
    /// wait for the kernel, a load reuses the buffer of an evicted constant of the same allocated size. If there is no
    /// such buffer, returns this load and all later moves. They must be executed after the kernel has ended.
    fn carry_out_beside_a_kernel<'m>(&mut self, moves: &'m [Move]) -> Result<&'m [Move], PoolError> {
        if !self.on.device().release_waits_for_kernels() {
            return self.carry_out(moves).map(|()| &[][..]);
        }
        let started = Instant::now();
        let (mut last, mut rest) = (None, moves);
        while let Some((one, behind)) = rest.split_first() {
            match *one {
                Move::Load(constant) => {
                    let bytes = self.bytes_with_phase(constant)?;
                    let Some(buffer) = self.buffer_beside_a_kernel(bytes)? else { break };
                    last = self.load(constant, buffer)?.or(last);
                }
                Move::Evict(constant) => {
                    let buffer = self.evict(constant)?;
                    self.retired.push(buffer);
                }
            }
            rest = behind;
        }
        self.finish(started, rest.len() < moves.len(), last)?;
        Ok(rest)
    }

    /// Returns a buffer of this size without releasing any memory, or `None` if this is impossible.
    fn buffer_beside_a_kernel(&mut self, bytes: Bytes) -> Result<Option<Buffer>, PoolError> {
        if self.retired.is_empty() {
            return Ok(Some(self.allocate(bytes)?));
        }
        let grain = self.on.device().grain();
        let allocations = &self.allocations;
        // An allocation is counted in whole grains (the device's allocation units), but only the requested bytes can be
        // used.
        let fits = |buffer: &Buffer| {
            buffer.placed() == whole_grains(bytes, grain)
                && allocations.get(&buffer.address()).is_some_and(|&allocated| bytes <= allocated)
        };
        let Some(at) = self.retired.iter().position(fits) else { return Ok(None) };
        Ok(Some(self.retired.swap_remove(at).with_bytes(bytes)))
    }

    fn allocate(&mut self, bytes: Bytes) -> Result<Buffer, DeviceError> {
        let buffer = self.on.allocate(Kind::Weight, bytes)?;
        self.allocations.insert(buffer.address(), bytes);
        Ok(buffer)
    }

    fn release(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.allocations.remove(&buffer.address());
        self.on.release(Kind::Weight, buffer)
    }

    fn evict(&mut self, constant: u32) -> Result<Buffer, PoolError> {
        self.moved.evictions += 1;
        self.placed.remove(&constant).ok_or(PoolError::Plan)
    }

    /// Waits for the last copy. If anything was moved, adds the time since `started` to the time spent moving.
    fn finish(&mut self, started: Instant, moved: bool, last: Option<Event>) -> Result<(), PoolError> {
        if let Some(last) = last {
            self.on.device().wait(last)?;
        }
        if moved {
            self.moved.busy += started.elapsed();
        }
        Ok(())
    }

    fn bytes_with_phase(&self, number: u32) -> Result<Bytes, PoolError> {
        let constant = self.constants.get(number as usize).ok_or(PoolError::Plan)?;
        Ok(constant.bytes + Bytes::new(u64::from(constant.phase)))
    }

    /// Queues the upload of a constant into `buffer`, which has the right size, and checks the constant's digest.
    fn load(&mut self, number: u32, buffer: Buffer) -> Result<Option<Event>, PoolError> {
        let constant = self.constants.get(number as usize).ok_or(PoolError::Plan)?;
        self.on.device().fill(&buffer, POISON)?;
        let source = self
            .reader
            .open(number)
            .map_err(|source| PoolError::Find { name: format!("constant {number}"), source })?;
        let mut source = Hashed { source, phase: usize::from(constant.phase), hasher: blake3::Hasher::new() };
        let event = self.ring.upload(&mut self.on, &mut source, &buffer)?;
        let found = Digest(*source.hasher.finalize().as_bytes());
        if found != constant.digest {
            return Err(PoolError::Changed { name: source.describe() });
        }
        self.placed.insert(number, buffer);
        self.moved.bytes += constant.bytes;
        self.moved.loads += 1;
        Ok(event)
    }

    fn ready_slots(&self, step: usize) -> Result<Vec<ReadySlot>, PoolError> {
        let set = self.sets.get(step).ok_or(PoolError::Plan)?;
        set.iter()
            .map(|&constant| {
                let buffer = self.placed.get(&constant).ok_or(PoolError::Plan)?;
                let known = self.constants.get(constant as usize).ok_or(PoolError::Plan)?;
                Ok(ReadySlot {
                    constant,
                    address: buffer.address(),
                    phase: known.phase,
                    bytes: buffer.placed(),
                    length: known.bytes,
                    digest: known.digest,
                })
            })
            .collect()
    }
}

/// Reads the contents of a slot: poison up to the constant's first byte, then the constant's bytes, whose digest is
/// computed as they are read in order.
struct Hashed<'s> {
    source: Box<dyn Source + 's>,
    phase: usize,
    hasher: blake3::Hasher,
}

impl Source for Hashed<'_> {
    fn bytes(&self) -> Bytes {
        self.source.bytes() + Bytes::from(self.phase)
    }

    fn describe(&self) -> String {
        self.source.describe()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> std::io::Result<()> {
        let lead = self.phase.saturating_sub(at.to_usize()).min(into.len());
        into[..lead].fill(POISON);
        let into = &mut into[lead..];
        let from = (at + Bytes::from(lead)) - Bytes::from(self.phase);
        self.source.read_at(from, into)?;
        self.hasher.update(into);
        Ok(())
    }
}
