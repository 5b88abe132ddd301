//! A ledger that records every allocation and release of a device's memory in order, with its kind, its size and the
//! total after it.
//!
//! All allocations go through `Accounted`. The number of lines is limited. When the ledger is full, further lines are
//! not kept, but the total and the peak stay correct.

use opt_shared::units::Bytes;

use super::device::{Buffer, Device, DeviceError};

/// The maximum number of lines to keep. It is several times the number that a load of a hundred thousand tensors
/// writes.
pub const MAX_LINES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A storage that calls read as an input.
    Weight,
    /// Data passed from one step to the next.
    Activation,
    Output,
    Workspace,
    /// Host memory for copies: the slots of a ring.
    Staging,
    /// Host memory in which a source keeps a storage's bytes until they are uploaded.
    Source,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Weight, Self::Activation, Self::Output, Self::Workspace, Self::Staging, Self::Source];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Activation => "activation",
            Self::Output => "output",
            Self::Workspace => "workspace",
            Self::Staging => "staging",
            Self::Source => "source",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Allocated,
    Released,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub kind: Kind,
    pub change: Change,
    pub bytes: Bytes,
    /// The total of all kinds after this line.
    pub sum: Bytes,
}

/// The allocations and releases of a device, with their total, its peak, and the total of each kind.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    lines: Vec<Line>,
    beyond: u64,
    sum: Bytes,
    peak: Bytes,
    by_kind: [Bytes; Kind::ALL.len()],
}

impl Ledger {
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Returns the number of lines that were not kept because the ledger was full.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    pub fn sum(&self) -> Bytes {
        self.sum
    }

    pub fn peak(&self) -> Bytes {
        self.peak
    }

    pub fn held(&self, kind: Kind) -> Bytes {
        self.by_kind[kind as usize]
    }

    pub fn add(&mut self, kind: Kind, bytes: Bytes) {
        self.by_kind[kind as usize] += bytes;
        self.sum += bytes;
        self.peak = self.peak.max(self.sum);
        self.note(kind, Change::Allocated, bytes);
    }

    pub fn subtract(&mut self, kind: Kind, bytes: Bytes) {
        self.by_kind[kind as usize] = self.by_kind[kind as usize] - bytes;
        self.sum = self.sum - bytes;
        self.note(kind, Change::Released, bytes);
    }

    fn note(&mut self, kind: Kind, change: Change, bytes: Bytes) {
        if self.lines.len() < MAX_LINES {
            self.lines.push(Line { kind, change, bytes, sum: self.sum });
        } else {
            self.beyond += 1;
        }
    }
}

/// A device whose allocations and releases are recorded in a ledger. Copies go straight to the device.
pub struct Accounted<D: Device> {
    device: D,
    ledger: Ledger,
}

impl<D: Device> Accounted<D> {
    pub fn new(device: D) -> Self {
        Self { device, ledger: Ledger::default() }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub fn into_ledger(self) -> Ledger {
        self.ledger
    }

    /// Returns the device, for copies and queries. Allocate and release only through this type's own methods, because
    /// only these write to the ledger.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    pub fn allocate(&mut self, kind: Kind, bytes: Bytes) -> Result<Buffer, DeviceError> {
        let buffer = self.device.allocate(bytes)?;
        self.ledger.add(kind, buffer.placed());
        Ok(buffer)
    }

    pub fn release(&mut self, kind: Kind, buffer: Buffer) -> Result<(), DeviceError> {
        let placed = buffer.placed();
        self.device.release(buffer)?;
        self.ledger.subtract(kind, placed);
        Ok(())
    }

    pub fn slot(&mut self, bytes: Bytes) -> Result<D::Slot, DeviceError> {
        let slot = self.device.slot(bytes)?;
        self.ledger.add(Kind::Staging, bytes);
        Ok(slot)
    }

    pub fn drop_slot(&mut self, slot: D::Slot) {
        let bytes = Bytes::from(slot.as_ref().len());
        self.device.drop_slot(slot);
        self.ledger.subtract(Kind::Staging, bytes);
    }

    pub fn add_source(&mut self, bytes: Bytes) {
        self.ledger.add(Kind::Source, bytes);
    }

    pub fn remove_source(&mut self, bytes: Bytes) {
        self.ledger.subtract(Kind::Source, bytes);
    }
}
