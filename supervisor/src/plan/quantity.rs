//! Parses and prints the amounts of a plan: shares (`"60%"`), amounts that are a size or a share, `max(a, b)`, and
//! durations.
//!
//! Every value that a plan can express is printed in such a way that it reads back unchanged. Plain sizes are parsed by
//! [`Bytes`], and the schema decides which key takes which kind of amount.

use std::time::Duration;

use opt_shared::units::Bytes;

/// The longest duration that a plan can give. A longer one is probably a typing error, and could overflow deadlines.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// A size, or a share of the memory of the host or of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A fraction: 0.75 for `"75%"`.
    Share(f64),
    Size(Bytes),
}

impl Amount {
    /// Returns the amount in bytes for a memory of `whole` bytes.
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            Self::Share(share) => whole.fraction(share),
            Self::Size(size) => size,
        }
    }

    /// Parses an amount that is written as in plans.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.ends_with('%') {
            return parse_share(text).map(Self::Share);
        }
        text.parse().ok().map(Self::Size)
    }

    pub(super) fn print(self) -> String {
        match self {
            Self::Share(share) => print_share(share),
            Self::Size(size) => print_size(size),
        }
    }
}

/// The amount of memory to keep free. It is a single amount, or the larger of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Floor {
    Amount(Amount),
    Larger(Amount, Amount),
}

impl Floor {
    pub fn of(self, whole: Bytes) -> Bytes {
        match self {
            Self::Amount(amount) => amount.of(whole),
            Self::Larger(first, second) => first.of(whole).max(second.of(whole)),
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let Some(inner) = text.strip_prefix("max(").and_then(|rest| rest.strip_suffix(')')) else {
            return Amount::parse(text).map(Self::Amount);
        };
        let (first, second) = inner.split_once(',')?;
        Some(Self::Larger(Amount::parse(first)?, Amount::parse(second)?))
    }

    pub(super) fn print(self) -> String {
        match self {
            Self::Amount(amount) => amount.print(),
            Self::Larger(first, second) => format!("max({}, {})", first.print(), second.print()),
        }
    }
}

/// Parses a share: `"60%"` becomes 0.6. The range is 0% to 100%, both included.
pub(super) fn parse_share(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix('%')?.trim();
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let percent: f64 = number.parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
}

/// Returns the shortest percentage that reads back as exactly this share.
pub(super) fn print_share(share: f64) -> String {
    // `share * 100.0` may differ from the original percentage in the last bit. In that case, the nearest number above
    // or below it is right.
    const MAX_DIGITS: usize = 20;
    let scaled = share * 100.0;
    for digits in 0..=MAX_DIGITS {
        for near in [scaled, scaled.next_down(), scaled.next_up()] {
            let text = format!("{near:.digits$}%");
            if parse_share(&text) == Some(share) {
                return text;
            }
        }
    }
    format!("{scaled}%")
}

/// Prints a size in the largest binary unit that expresses it exactly.
pub(super) fn print_size(size: Bytes) -> String {
    let bytes = size.get();
    if bytes == 0 {
        return "0".to_owned();
    }
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Parses a duration such as `"10ms"`, `"60s"` or `"1h30m"`. It consists of whole numbers with units, from large to
/// small, and each unit occurs at most once.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut milliseconds: u64 = 0;
    let mut next_unit = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let index = DURATION_UNITS.iter().position(|(name, _)| *name == unit)?;
        if index < next_unit {
            return None;
        }
        next_unit = index + 1;
        let part = number.parse::<u64>().ok()?.checked_mul(DURATION_UNITS[index].1)?;
        milliseconds = milliseconds.checked_add(part)?;
        rest = tail;
    }
    let duration = Duration::from_millis(milliseconds);
    (duration <= MAX_DURATION).then_some(duration)
}

/// Prints a duration. If it is a whole number of milliseconds, which is the smallest unit in a plan, it reads back as
/// the same duration.
pub(super) fn print_duration(duration: Duration) -> String {
    let mut milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (unit, size) in DURATION_UNITS {
        if milliseconds >= size {
            text.push_str(&format!("{}{unit}", milliseconds / size));
            milliseconds %= size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parse_duration_accepts_units_from_large_to_small() {
        for (text, milliseconds) in [
            ("10ms", 10),
            ("60s", 60_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "-1s",
            "30m1h",
            "1s1s",
            "1d",
            "1 s",
            "99999999999h",
            "9000h",
            "1h30",
            "½s",
            "1é",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_and_floors_are_parsed_and_resolved() {
        let gib = |n| Amount::Size(Bytes::gib(n));
        assert_eq!(Amount::parse("75%"), Some(Amount::Share(0.75)));
        assert_eq!(Amount::parse("2GiB"), Some(gib(2)));
        assert_eq!(Floor::parse("max(1GiB, 5%)"), Some(Floor::Larger(gib(1), Amount::Share(0.05))));
        assert_eq!(Floor::parse("5%"), Some(Floor::Amount(Amount::Share(0.05))));
        assert_eq!(Floor::Larger(gib(1), Amount::Share(0.05)).of(Bytes::gib(10)), Bytes::gib(1));
        assert_eq!(Floor::Larger(gib(1), Amount::Share(0.5)).of(Bytes::gib(10)), Bytes::gib(5));
        for text in
            ["", "%", "-5%", "101%", "1e1%", "max(1GiB)", "max(1GiB, 5%", "min(1GiB, 5%)", "max(,)", "nan%"]
        {
            assert_eq!(Floor::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_amounts_read_back_as_the_same_value(ms in 0..=31_622_400_000_u64, bytes: u64, hundredths in 0_u32..=1_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&print_duration(duration)), Some(duration));
            prop_assert_eq!(print_size(Bytes::new(bytes)).parse(), Ok(Bytes::new(bytes)));
            let share = f64::from(hundredths) / 10_000.0 / 100.0;
            let written = format!("{}%", f64::from(hundredths) / 10_000.0);
            prop_assert_eq!(parse_share(&written), Some(share));
            prop_assert_eq!(print_share(share), written);
        }

        #[test]
        fn parsers_do_not_panic(text in ".{0,20}") {
            let _ = (parse_duration(&text), Floor::parse(&text), parse_share(&text));
        }
    }
}
