//! Device buffers between guard bands, and messages that say where an address lies relative to them.

use std::io;

use opt_shared::formula::{DEVICE_ALIGNMENT, DEVICE_BAND};
use opt_shared::units::Bytes;

use super::driver::{Card, Driver, DriverError, SharedDriver};
use crate::judge::BytesSource;

/// The byte that fills the bands of inputs. A kernel is unlikely to write this value.
pub(super) const BAND_BYTE: u8 = 0xb5;
/// The distance from a buffer, in bytes, within which an illegal access to global memory is reported as `OutOfBounds`.
/// Other illegal accesses to global memory are reported as `Crashed`.
const NEAR: u64 = 64 << 10;
/// The size of the pieces in which bands are read.
const PIECE: usize = 4096;

/// The layout of an allocation: a buffer between two bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bands {
    /// The number of bytes before the buffer.
    pub(super) front: u64,
    pub(super) bytes: u64,
    pub(super) back: u64,
}

impl Bands {
    pub(super) fn of(card: &Card, bytes: u64, phase: u64) -> Self {
        let band = if card.checks_accesses { 0 } else { DEVICE_BAND.get() };
        Self { front: band + phase % DEVICE_ALIGNMENT.get(), bytes, back: band }
    }

    pub(super) fn allocated(&self) -> Bytes {
        Bytes::new(self.front + self.bytes + self.back)
    }
}

/// A buffer that is passed to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceBuffer {
    /// The name in messages, such as: the input `weight`.
    pub(super) name: String,
    pub(super) address: u64,
    pub(super) bands: Bands,
}

impl DeviceBuffer {
    pub(super) fn in_allocation(name: String, start: u64, bands: Bands) -> Self {
        Self { name, address: start + bands.front, bands }
    }

    pub(super) fn allocation(&self) -> (u64, Bytes) {
        (self.address - self.bands.front, self.bands.allocated())
    }

    fn end(&self) -> u64 {
        self.address + self.bands.bytes
    }

    /// Looks in the bands for a byte that is not `expected`. Returns its offset from the buffer's end (0 is the first
    /// byte past it) or, if negative, from its start. The band before the buffer is checked first.
    pub(super) fn damage(&self, driver: &mut dyn Driver, expected: u8) -> Result<Option<i64>, DriverError> {
        let Bands { front, back, .. } = self.bands;
        let before = first_unlike(driver, self.address - front, front, expected)?;
        if let Some(at) = before {
            return Ok(Some(signed(at) - signed(front)));
        }
        let behind = first_unlike(driver, self.end(), back, expected)?;
        Ok(behind.map(signed))
    }

    /// Returns 0 for an address in the buffer, 1 for the first byte past its end (unlike `damage`), and a negative
    /// number for an address before its start.
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

/// Describes an address relative to the nearest buffer. The flag is true if that buffer is within `NEAR`.
pub(super) fn describe_address(buffers: &[DeviceBuffer], address: u64) -> (String, bool) {
    let nearest = buffers.iter().min_by_key(|buffer| buffer.past(address).unsigned_abs());
    let Some(buffer) = nearest else { return ("there are no buffers".to_owned(), false) };
    let past = buffer.past(address);
    let distance = past.unsigned_abs();
    let text = match past {
        0 => format!("in {}, at byte {}", buffer.name, address - buffer.address),
        1.. => format!("{} past the end of {}", bytes(distance - 1), buffer.name),
        _ => format!("{} before the start of {}", bytes(distance), buffer.name),
    };
    (text, distance <= NEAR)
}

/// An output as it is read from the device.
pub(super) struct OutputSource<'a> {
    pub(super) driver: &'a SharedDriver,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl BytesSource for OutputSource<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.bytes < offset.saturating_add(buffer.len() as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.driver.lock().read(self.address + offset, buffer).map_err(io::Error::other)
    }
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
