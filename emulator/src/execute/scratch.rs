//! Shared and local memory: the bytes of one block, and a record of the bytes that were written.

use super::Stop;
use crate::fault::{Access, AccessKind, FaultKind, Memory};

/// Whether an element was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Written,
    Unwritten,
    /// A pending copy will write it.
    Pending,
}

const WRITTEN: u8 = 1;
const PENDING: u8 = 2;

impl State {
    /// The state of an element, from the states of its bytes.
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

    /// The fault of a read that is not allowed.
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
    /// For every byte: `WRITTEN`, `PENDING`, or 0.
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

    /// Marks all bytes as never written.
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

    /// Like `load`, but returns `None` if the element is misaligned or not inside.
    #[inline(always)]
    pub fn get(&self, at: u64, bytes: u32) -> Option<(u64, State)> {
        let inside = at < self.len() && u64::from(bytes) <= self.len() - at && at & u64::from(bytes - 1) == 0;
        inside.then(|| self.load(at, bytes))
    }

    /// Reads 32 consecutive words. Returns false if one of them is outside or must not be read.
    pub fn load_row(&self, at: u64, row: &mut [u32; 32], checks: bool) -> bool {
        if self.len() < at {
            return false;
        }
        let from = at as usize;
        let (Some(bytes), Some(written)) =
            (self.bytes.get(from..from + 128), self.written.get(from..from + 128))
        else {
            return false;
        };
        let states = written.as_chunks::<4>().0.iter();
        let all = states
            .fold(true, |all, four| all & State::of(u32::from_le_bytes(*four).into()).allows_read(checks));
        if !at.is_multiple_of(4) || !all {
            return false;
        }
        for (slot, four) in row.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *slot = u32::from_le_bytes(*four);
        }
        true
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

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}
