//! Defines `Bytes`, the type for numbers of bytes, and the conversion of numbers to indices.
//!
//! Times are `std::time::Duration`. Only the plan parses times from text.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Converts a count, an offset or an address to an index in this process. A value that is too large does not wrap
/// around to a small index. It becomes the largest index, which allocators and slices refuse.
#[inline]
pub const fn to_index(number: u64) -> usize {
    if number > usize::MAX as u64 {
        return usize::MAX;
    }
    #[expect(clippy::cast_possible_truncation, reason = "larger values have returned above")]
    let index = number as usize;
    index
}

/// A number of bytes. Arithmetic saturates: a sum that overflows becomes the largest number, and a difference is at
/// least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(u64);

impl Bytes {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(u64::MAX);

    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    pub const fn mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    pub const fn gib(gib: u64) -> Self {
        Self(gib.saturating_mul(1 << 30))
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// Converts to a `usize` as [`to_index`] does.
    pub const fn to_usize(self) -> usize {
        to_index(self.0)
    }

    /// Converts to an `f64`, exactly up to 2^53 bytes and rounded above.
    #[expect(clippy::cast_precision_loss, reason = "the doc comment says that it is rounded")]
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// Returns `fraction` of this number, rounded down. `fraction` is clamped to 0..=1.
    pub fn fraction(self, fraction: f64) -> Self {
        let clamped = fraction.clamp(0.0, 1.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the original number, and never negative"
        )]
        Self((self.as_f64() * clamped) as u64)
    }
}

impl From<usize> for Bytes {
    fn from(length: usize) -> Self {
        Self(length as u64)
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(bytes: I) -> Self {
        bytes.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.as_f64() / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a size (write a number and a unit, such as \"512MiB\", \"1.5GiB\" or \"64KiB\", or write \"0\")"
)]
pub struct SizeError {
    pub text: String,
}

impl FromStr for Bytes {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refuse = || SizeError { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale: u64 = match unit.trim() {
            "" if number == "0" => 1,
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return Err(refuse()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Self).ok_or_else(refuse);
        }
        let value: f64 = number.parse().map_err(|_| refuse())?;
        #[expect(clippy::cast_precision_loss, reason = "scales are powers of two or ten below 2^53")]
        let bytes = value * scale as f64;
        if !(0.0..=9e18).contains(&bytes) {
            return Err(refuse());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked in the lines above"
        )]
        Ok(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("0", 0),
            ("17B", 17),
            ("64KiB", 64 << 10),
            ("512 MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("1MB", 1_000_000),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes::new(bytes)), "{text}");
        }
        for text in ["", "5", "MiB", "-1MiB", "1e3MiB", "12 parsecs", "99999999999TiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        assert_eq!(Bytes::new(1023).to_string(), "1023 B");
        assert_eq!(Bytes::mib(64).to_string(), "64.0 MiB");
        assert_eq!(Bytes::new(1536 << 20).to_string(), "1.50 GiB");
    }
}
