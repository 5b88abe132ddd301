//! Codecs for the sizes, durations and shares in a plan. They check ranges and word the error messages. The texts
//! themselves are parsed by `quantity` and [`Bytes`].

use std::time::Duration;

use opt_shared::units::Bytes;

use super::codec::{Codec, Number, string};
use super::error::{Findings, Spot};
use super::print;
use super::quantity::{self, Amount, Floor};
use super::table::{TomlValue, describe};

/// A size written as a number of KiB.
pub(super) struct Kibibytes<const MAX: u32>;

impl<const MAX: u32> Codec for Kibibytes<MAX> {
    type Value = Bytes;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Bytes> {
        Number::<0, MAX>::read(value, spot, findings).map(|kib| Bytes::kib(kib.into()))
    }

    fn print(value: &Bytes) -> String {
        (value.get() >> 10).to_string()
    }
}

/// A size of at least `MIN` bytes.
pub(super) struct Size<const MIN: u64>;

impl<const MIN: u64> Codec for Size<MIN> {
    type Value = Bytes;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Bytes> {
        const FORM: &str = "a size such as \"512MiB\" or \"1.5GiB\"";
        let text = string(value, spot, FORM, findings)?;
        let Ok(size) = text.parse::<Bytes>() else {
            findings.report(spot, format!("{} is not a size", describe(value.get_ref()))).expected(FORM);
            return None;
        };
        if size < Bytes::new(MIN) {
            let min_text = quantity::print_size(Bytes::new(MIN));
            findings
                .report(spot, format!("{text} is too small"))
                .expected(format!("at least \"{min_text}\""));
            return None;
        }
        Some(size)
    }

    fn print(value: &Bytes) -> String {
        print::string(&quantity::print_size(*value))
    }
}

/// A duration above zero.
pub(super) struct Time;

impl Codec for Time {
    type Value = Duration;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Duration> {
        const FORM: &str = "a duration such as \"10ms\", \"60s\" or \"1h30m\"";
        let text = string(value, spot, FORM, findings)?;
        let duration = quantity::parse_duration(&text);
        if duration.is_none() {
            findings
                .report(spot, format!("{} is not a duration", describe(value.get_ref())))
                .expected(format!("{FORM}, at most a year"));
        }
        if duration == Some(Duration::ZERO) {
            findings.report(spot, "a duration must not be zero").expected("at least \"1ms\"");
            return None;
        }
        duration
    }

    fn print(value: &Duration) -> String {
        print::string(&quantity::print_duration(*value))
    }
}

/// The parameter of a `Percentage` that may not be 0%.
pub(super) const ABOVE_ZERO: bool = false;
/// The parameter of a `Percentage` that may be 0%.
pub(super) const FROM_ZERO: bool = true;

/// A percentage, stored as a fraction. `ZERO` says whether 0% is allowed.
pub(super) struct Percentage<const ZERO: bool>;

impl<const ZERO: bool> Codec for Percentage<ZERO> {
    type Value = f64;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<f64> {
        let form = if ZERO {
            "a percentage from \"0%\" to \"100%\""
        } else {
            "a percentage above \"0%\" and up to \"100%\""
        };
        let text = string(value, spot, form, findings)?;
        let share = quantity::parse_share(&text).filter(|share| ZERO || *share > 0.0);
        if share.is_none() {
            findings
                .report(spot, format!("{} is not a valid percentage", describe(value.get_ref())))
                .expected(form);
        }
        share
    }

    fn print(value: &f64) -> String {
        print::string(&quantity::print_share(*value))
    }
}

/// A size, or a share of the memory of the host or of a device. It must be above zero.
pub(super) struct Ceiling;

impl Codec for Ceiling {
    type Value = Amount;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Amount> {
        const FORM: &str = "a size such as \"32GiB\" or a percentage such as \"75%\", above zero";
        let text = string(value, spot, FORM, findings)?;
        let amount = Amount::parse(&text).filter(|amount| match amount {
            Amount::Share(share) => *share > 0.0,
            Amount::Size(size) => *size > Bytes::ZERO,
        });
        if amount.is_none() {
            findings
                .report(spot, format!("{} is not a valid amount", describe(value.get_ref())))
                .expected(FORM);
        }
        amount
    }

    fn print(value: &Amount) -> String {
        print::string(&value.print())
    }
}

/// An amount of memory to keep free. It is a single amount, or the larger of two: `max(a, b)`.
pub(super) struct FloorExpression;

impl Codec for FloorExpression {
    type Value = Floor;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Floor> {
        const FORM: &str = "a size, a percentage, or the larger of two: \"max(1GiB, 5%)\"";
        let text = string(value, spot, FORM, findings)?;
        let floor = Floor::parse(&text);
        if floor.is_none() {
            findings
                .report(spot, format!("{} is not a valid amount", describe(value.get_ref())))
                .expected(FORM);
        }
        floor
    }

    fn print(value: &Floor) -> String {
        print::string(&value.print())
    }
}
