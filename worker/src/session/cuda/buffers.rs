//! What lies beside a buffer: bands that nothing may write to, and what buffers are called when something does.

use opt_shared::units::Bytes;

use super::driver::{Card, Driver, DriverError};

/// On both sides of a buffer, on devices that check no access. A row or a tile too far lands in it.
const BAND: u64 = 4096;
/// What PyTorch's allocator aligns storages to at least; a view keeps its place within it.
const STORAGE_ALIGNMENT: u64 = 256;
/// What bands of inputs hold: no number that a kernel is likely to write.
pub(super) const BAND_BYTE: u8 = 0xb5;
/// An access so far from a buffer is taken for one that was meant for it.
const NEAR: u64 = 64 << 10;
/// Bands are read in pieces of this size.
const PIECE: usize = 4096;

/// How one buffer lies in its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bands {
    /// Before the first byte.
    pub(super) front: u64,
    pub(super) bytes: u64,
    pub(super) back: u64,
}

impl Bands {
    /// For so many bytes that begin at `phase` of their storage.
    pub(super) fn of(card: &Card, bytes: u64, phase: u64) -> Self {
        let band = if card.checks_accesses { 0 } else { BAND };
        Self { front: band + phase % STORAGE_ALIGNMENT, bytes, back: band }
    }

    pub(super) fn allocated(&self) -> Bytes {
        Bytes::new(self.front + self.bytes + self.back)
    }
}

/// A buffer that a kernel is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceBuffer {
    /// As messages call it: the input `weight`.
    pub(super) name: String,
    /// Of its first byte.
    pub(super) address: u64,
    pub(super) bands: Bands,
}

impl DeviceBuffer {
    /// In an allocation that begins at `start`.
    pub(super) fn in_allocation(name: String, start: u64, bands: Bands) -> Self {
        Self { name, address: start + bands.front, bands }
    }

    /// Where its allocation begins, and how long that is.
    pub(super) fn allocation(&self) -> (u64, Bytes) {
        (self.address - self.bands.front, self.bands.allocated())
    }

    fn end(&self) -> u64 {
        self.address + self.bands.bytes
    }

    /// The first byte of its bands that is not `expected`: bytes past its end, before its start if negative. What lies before it
    /// comes first.
    pub(super) fn damage(&self, driver: &mut dyn Driver, expected: u8) -> Result<Option<i64>, DriverError> {
        let Bands { front, back, .. } = self.bands;
        let before = first_unlike(driver, self.address - front, front, expected)?;
        if let Some(at) = before {
            return Ok(Some(signed(at) - signed(front)));
        }
        let behind = first_unlike(driver, self.end(), back, expected)?;
        Ok(behind.map(signed))
    }

    /// How far an address is from it: past its end, before its start if negative, 0 within it.
    fn past(&self, address: u64) -> i64 {
        if address < self.address {
            -signed(self.address - address)
        } else if address < self.end() {
            0
        } else {
            signed(address - self.end()).saturating_add(1)
        }
    }
}

/// Where an access went, in terms of the buffers that the kernel was given: as text, and whether it is near one.
pub(super) fn whereabouts(buffers: &[DeviceBuffer], address: u64) -> (String, bool) {
    let nearest = buffers.iter().min_by_key(|buffer| buffer.past(address).unsigned_abs());
    let Some(buffer) = nearest else { return ("no buffer is near".to_owned(), false) };
    let past = buffer.past(address);
    let distance = past.unsigned_abs();
    let text = match past {
        0 => format!("in {}, at byte {}", buffer.name, address - buffer.address),
        1.. => format!("{} past the end of {}", bytes(distance - 1), buffer.name),
        _ => format!("{} before the start of {}", bytes(distance), buffer.name),
    };
    (text, distance <= NEAR)
}

fn bytes(count: u64) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }
}

fn first_unlike(
    driver: &mut dyn Driver,
    from: u64,
    length: u64,
    expected: u8,
) -> Result<Option<u64>, DriverError> {
    let mut piece = [0; PIECE];
    let mut at = 0;
    while at < length {
        let size = Bytes::new(length - at).to_usize().min(PIECE);
        driver.read(from + at, &mut piece[..size])?;
        if let Some(found) = piece[..size].iter().position(|&byte| byte != expected) {
            return Ok(Some(at + found as u64));
        }
        at += size as u64;
    }
    Ok(None)
}

fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}
