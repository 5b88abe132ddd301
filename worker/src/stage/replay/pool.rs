//! The pool: a thread that owns the device and executes the plan's moves, some of them while calls run.
//!
//! Owns the order of the copy queue and counts its work. A slot contains poison from its allocation until its bytes
//! have arrived. Every load is compared with the catalog's digest. The source provides the bytes.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use opt_shared::formula::{REPLAY_SLOTS, STAGING_SLOT};
use opt_shared::replay::{Constant, Digest};
use opt_shared::units::Bytes;

use super::planner::{Move, MovePlan};
use crate::residency::device::{Buffer, Device, DeviceError, Event};
use crate::residency::ledger::{Accounted, Kind};
use crate::residency::staging::{Ring, Source, StagingError};
use crate::session::PoolSlot;

/// The poison: NaN in every float type of at least 16 bits, -1 in every signed integer type, and not a valid bool, so
/// that a kernel is unlikely to mistake it for a weight.
pub const POISON: u8 = 0xff;

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("placing a tensor in the pool")]
    Place(#[from] StagingError),
    #[error("moving a tensor into the pool or out of it")]
    Device(#[from] DeviceError),
    #[error("finding the bytes of `{name}`")]
    Find {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the bytes of {name} differ from the recorded ones (was the capture changed?)")]
    Changed { name: String },
    #[error("a tensor that the plan moves is not in the catalog, or not where the plan expects it")]
    Plan,
    #[error("the pool has ended")]
    Ended,
}

/// Opens the bytes of a constant, for each load anew, so that no descriptor stays open between loads.
pub trait ConstantReader: Send {
    fn open(&mut self, constant: u32) -> std::io::Result<Box<dyn Source + '_>>;
}

/// A loaded slot of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadySlot {
    pub constant: u32,
    /// Address in the arena.
    pub address: u64,
    pub phase: u8,
    pub bytes: Bytes,
    /// The size of the constant.
    pub length: Bytes,
}

impl ReadySlot {
    pub(super) fn slot(&self) -> PoolSlot {
        let Self { constant, address, phase, bytes, length } = *self;
        PoolSlot { constant, address, phase, bytes, length }
    }
}

/// The slots of a step's constants, once all of them are in the pool, or the error.
pub type Ready = Result<Vec<ReadySlot>, PoolError>;

/// The work of the copy queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub bytes: Bytes,
    pub loads: u64,
    pub evictions: u64,
    /// Peak use as counted by the device.
    pub peak: Bytes,
    /// Peak use as counted by the ledger, including staging.
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
            moved: Moved::default(),
        }
    }

    /// Serves every step in order: reports when its constants are ready, prefetches for later steps, and waits until
    /// the step is over before it changes that step's slots. Ends after the last step, at the first error, or when
    /// nobody receives the reports.
    pub fn serve(mut self, done_steps: &Receiver<()>, ready: &Sender<Ready>) -> Moved {
        if let Err(error) = self.on.device().enter_thread() {
            let _ = ready.send(Err(error.into()));
            return self.close();
        }
        for (number, moves) in self.plan.steps.iter().enumerate() {
            if 0 < number && done_steps.recv().is_err() {
                break;
            }
            let message = self.carry_out(&moves.before).and_then(|()| self.ready_slots(number));
            let failed = message.is_err();
            if ready.send(message).is_err() || failed {
                break;
            }
            if let Err(error) = self.carry_out(&moves.during) {
                // The error is reported in place of the next step, which cannot start.
                let _ = done_steps.recv();
                let _ = ready.send(Err(error));
                break;
            }
        }
        // The last step still uses its slots.
        while done_steps.recv().is_ok() {}
        self.close()
    }

    /// Releases the pool. Returns the work that was done.
    fn close(mut self) -> Moved {
        // The queue must finish before the buffers and the device are released.
        let Self { on, ring, placed, moved, .. } = &mut self;
        let ring = std::mem::replace(ring, Ring::new(1, Bytes::new(1)));
        let _ = ring.dissolve(on);
        for (_, buffer) in placed.drain() {
            let _ = on.release(Kind::Weight, buffer);
        }
        moved.peak = on.device().marks().placed_peak;
        moved.ledger_peak = on.ledger().peak();
        *moved
    }

    /// Executes moves, and returns when all their copies are complete.
    fn carry_out(&mut self, moves: &[Move]) -> Result<(), PoolError> {
        let started = Instant::now();
        let mut last = None;
        for one in moves {
            match one {
                Move::Load(constant) => last = self.load(*constant)?.or(last),
                Move::Evict(constant) => {
                    let buffer = self.placed.remove(constant).ok_or(PoolError::Plan)?;
                    self.on.release(Kind::Weight, buffer)?;
                    self.moved.evictions += 1;
                }
            }
        }
        if let Some(last) = last {
            self.on.device().wait(last)?;
        }
        if !moves.is_empty() {
            self.moved.busy += started.elapsed();
        }
        Ok(())
    }

    /// Queues the upload of a constant, and checks its digest.
    fn load(&mut self, number: u32) -> Result<Option<Event>, PoolError> {
        let constant = self.constants.get(number as usize).ok_or(PoolError::Plan)?;
        let phase = Bytes::new(u64::from(constant.phase));
        let buffer = self.on.allocate(Kind::Weight, phase + constant.bytes)?;
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
                })
            })
            .collect()
    }
}

/// A source of a slot's contents: poison, then the constant's bytes. It digests the bytes in order as they are read.
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
