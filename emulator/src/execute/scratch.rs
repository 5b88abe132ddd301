//! Implements shared and local memory: the bytes of one block or one warp, and a record of which of them have been
//! written.

use super::Stop;
use super::offsets::{Offsets, Run};
use crate::fault::{Access, AccessKind, FaultKind, Memory};

/// Whether an element of memory has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Written,
    Unwritten,
    /// A pending copy will write the element.
    Pending,
}

/// The values of a byte in `Scratch::written`, other than 0.
const WRITTEN: u8 = 1;
const PENDING: u8 = 2;

impl State {
    /// Derives the state of an element from the states of its bytes. The element is pending if any of its bytes is.
    /// Otherwise, it is treated as written if any of its bytes was written.
    #[inline(always)]
    fn of(bytes: u64) -> Self {
        if bytes & (u64::MAX / 255 * u64::from(PENDING)) != 0 {
            Self::Pending
        } else if bytes != 0 {
            Self::Written
        } else {
            Self::Unwritten
        }
    }

    /// Whether a read is allowed. `checks` says whether bytes that were never written are refused.
    #[inline(always)]
    pub fn allows_read(self, checks: bool) -> bool {
        self == Self::Written || self == Self::Unwritten && !checks
    }

    /// Fails with a fault if a read is not allowed.
    pub fn check(
        self,
        checks: bool,
        memory: Memory,
        address: u64,
        bytes: u64,
        lane: usize,
    ) -> Result<(), Stop> {
        if self.allows_read(checks) {
            return Ok(());
        }
        let access = Access { kind: AccessKind::Read, memory, address, bytes, nearest: None };
        Err(self.stop(access, lane))
    }

    pub fn stop(self, access: Access, lane: usize) -> Stop {
        let is_pending = self == Self::Pending;
        Stop::new(
            if is_pending { FaultKind::Pending(access) } else { FaultKind::Uninitialised(access) },
            lane,
        )
    }
}

#[derive(Debug, Default)]
pub struct Scratch {
    bytes: Vec<u8>,
    /// The state of every byte: `WRITTEN`, `PENDING`, or 0 if it was never written.
    written: Vec<u8>,
}

impl Scratch {
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], written: vec![0; bytes] }
    }

    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Clears all bytes, so that no result depends on an earlier block, and marks them as never written.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
        self.forget();
    }

    /// Marks all bytes as never written, without changing their values.
    pub fn forget(&mut self) {
        self.written.fill(0);
    }

    pub fn forget_range(&mut self, from: u64, bytes: u64) {
        if let Some(range) = self.written.get_mut(from as usize..(from + bytes) as usize) {
            range.fill(0);
        }
    }

    /// Reads an element, which must lie inside this memory, and returns its value and its state.
    #[inline(always)]
    pub fn load(&self, at: u64, bytes: u32) -> (u64, State) {
        let (from, to) = (at as usize, at as usize + bytes as usize);
        match bytes {
            4 => {
                let value = u32::from_le_bytes(array(&self.bytes[from..to]));
                (u64::from(value), State::of(u32::from_le_bytes(array(&self.written[from..to])).into()))
            }
            8 => {
                let value = u64::from_le_bytes(array(&self.bytes[from..to]));
                (value, State::of(u64::from_le_bytes(array(&self.written[from..to]))))
            }
            2 => {
                let value = u16::from_le_bytes(array(&self.bytes[from..to]));
                (u64::from(value), State::of(u16::from_le_bytes(array(&self.written[from..to])).into()))
            }
            _ => (u64::from(self.bytes[from]), State::of(self.written[from].into())),
        }
    }

    /// Whether all lanes may read their elements. All elements must be aligned and inside this memory.
    #[inline(always)]
    pub fn allows_reads(&self, lanes: &Offsets, from: u32, bytes: u32, checks: bool) -> bool {
        let (mut pending, mut unwritten) = (0, 0);
        if bytes == 4 {
            for state in gathered(&self.written, lanes, from) {
                pending |= state & (u32::MAX / 255 * u32::from(PENDING));
                unwritten |= u32::from(state == 0);
            }
        } else {
            for at in lanes.at {
                let (_, state) = self.load(u64::from(at + from), bytes);
                pending |= u32::from(state == State::Pending);
                unwritten |= u32::from(state == State::Unwritten);
            }
        }
        pending == 0 && (unwritten == 0 || !checks)
    }

    /// Reads a word for each lane. All words must be aligned and inside this memory.
    #[inline(always)]
    pub fn load_words(&self, lanes: &Offsets, from: u32) -> [u32; 32] {
        gathered(&self.bytes, lanes, from)
    }

    /// Returns the mask of the lanes whose store would change the value of a word or the record that it has been
    /// written. The mask includes lanes that are not active.
    #[inline(always)]
    pub fn changed_words(&self, lanes: &Offsets, from: u32, row: &[u32; 32]) -> u32 {
        let states = gathered(&self.written, lanes, from);
        let words = gathered(&self.bytes, lanes, from);
        let mut changed = 0;
        for lane in 0..32 {
            let is_written = State::of(states[lane].into()) == State::Written;
            changed |= u32::from(!is_written | (words[lane] != row[lane])) << lane;
        }
        changed
    }

    /// Writes a word for each active lane. All words must be aligned and inside this memory.
    #[inline(always)]
    pub fn store_words(&mut self, lanes: &Offsets, from: u32, row: &[u32; 32], active: u32) {
        let (words, states) = (self.bytes.as_chunks_mut::<4>().0, self.written.as_chunks_mut::<4>().0);
        let groups = lanes.runs.iter().zip(lanes.at.as_chunks::<8>().0).zip(row.as_chunks::<8>().0);
        for (group, ((run, eight), new)) in groups.enumerate() {
            let active = active >> (8 * group) & 0xff;
            let first = word(eight[0] + from);
            if *run == Run::Consecutive && lanes.step == 4 && active == 0xff {
                for (slot, value) in words[first..first + 8].iter_mut().zip(new) {
                    *slot = value.to_le_bytes();
                }
                states[first..first + 8].fill([WRITTEN; 4]);
                continue;
            }
            for (lane, (at, value)) in eight.iter().zip(new).enumerate() {
                if active >> lane & 1 == 1 {
                    words[word(at + from)] = value.to_le_bytes();
                    states[word(at + from)] = [WRITTEN; 4];
                }
            }
        }
    }

    /// Whether a store would change the value of an element or the record that it has been written. The element must be
    /// inside this memory.
    pub fn changes(&self, at: u64, bytes: u32, value: u64) -> bool {
        let (old, state) = self.load(at, bytes);
        state != State::Written || old != value
    }

    /// Marks bytes, which must lie inside this memory, as the target of a pending copy.
    pub fn mark_pending(&mut self, at: u64, bytes: u64) {
        self.written[at as usize..(at + bytes) as usize].fill(PENDING);
    }

    #[inline(always)]
    pub fn store(&mut self, at: u64, bytes: u32, value: u64) {
        let (from, to) = (at as usize, at as usize + bytes as usize);
        match bytes {
            4 => {
                self.bytes[from..to].copy_from_slice(&(value as u32).to_le_bytes());
                self.written[from..to].copy_from_slice(&[WRITTEN; 4]);
            }
            8 => {
                self.bytes[from..to].copy_from_slice(&value.to_le_bytes());
                self.written[from..to].copy_from_slice(&[WRITTEN; 8]);
            }
            2 => {
                self.bytes[from..to].copy_from_slice(&(value as u16).to_le_bytes());
                self.written[from..to].copy_from_slice(&[WRITTEN; 2]);
            }
            _ => {
                self.bytes[from] = value as u8;
                self.written[from] = WRITTEN;
            }
        }
    }
}

/// Returns the word of each lane. All words must be aligned and inside `bytes`.
#[inline(always)]
fn gathered(bytes: &[u8], lanes: &Offsets, from: u32) -> [u32; 32] {
    let words = bytes.as_chunks::<4>().0;
    let mut row = [0; 32];
    let groups = row.as_chunks_mut::<8>().0.iter_mut();
    for ((slots, run), eight) in groups.zip(&lanes.runs).zip(lanes.at.as_chunks::<8>().0) {
        let first = word(eight[0] + from);
        match run {
            Run::Consecutive if lanes.step == 4 => {
                for (slot, four) in slots.iter_mut().zip(&words[first..first + 8]) {
                    *slot = u32::from_le_bytes(*four);
                }
            }
            Run::Same => *slots = [u32::from_le_bytes(words[first]); 8],
            _ => {
                for (slot, at) in slots.iter_mut().zip(eight) {
                    *slot = u32::from_le_bytes(words[word(at + from)]);
                }
            }
        }
    }
    row
}

/// Returns the index of the word at an offset.
#[inline(always)]
fn word(at: u32) -> usize {
    (at / 4) as usize
}

#[inline(always)]
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}
