//! Formats figures and foreign texts for people. A foreign text comes from a plan, a candidate or a compiler. It is not
//! trusted, and can contain any character.

use std::collections::BTreeMap;
use std::fmt::Display;

use opt_shared::language::Tier;
use opt_shared::nonfinite;
use opt_shared::outcome::Estimate;

use crate::record::CandidateRecord;

/// Returns a time with about three digits and a suitable unit.
pub(super) fn time(milliseconds: f64) -> String {
    if let Some(text) = nonfinite::text(milliseconds) {
        return text.to_owned();
    }
    let (value, unit) = match milliseconds {
        ms if ms.abs() >= 1e3 => (ms / 1e3, "s"),
        ms if ms.abs() >= 1.0 => (ms, "ms"),
        ms if ms.abs() >= 1e-3 => (ms * 1e3, "µs"),
        ms => (ms * 1e6, "ns"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Names the candidates whose verdicts are weaker than those of others, with the reason.
pub(super) fn weaker_tiers<'a>(candidates: impl Iterator<Item = &'a CandidateRecord>) -> Option<String> {
    const NAMED: usize = 5;
    let mut by_tier: BTreeMap<Tier, Vec<String>> = BTreeMap::new();
    for candidate in candidates {
        if let Some(tier) = candidate.tier.filter(|&tier| tier != Tier::A) {
            by_tier.entry(tier).or_default().push(one_line(&candidate.name));
        }
    }
    let sentences = by_tier.iter().map(|(tier, names)| {
        let unnamed = names.len().saturating_sub(NAMED);
        let and_more = if unnamed == 0 { String::new() } else { format!(" and {unnamed} more") };
        let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        format!("tier {} ({}): {shown}{and_more}", tier.name(), tier.meaning())
    });
    Some(sentences.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
}

/// Returns a time for a call that can be compared within a job. It is the baseline's time divided by the speed-up,
/// because the two were timed side by side. If the speed-up or the baseline's time is missing, it is the measured time.
pub(super) fn median(candidate: &CandidateRecord, baseline: Option<&CandidateRecord>) -> Option<f64> {
    let measured = |it: &CandidateRecord| it.profile.as_ref()?.times.median_time_ms;
    match (candidate.speedup, baseline.and_then(measured)) {
        (Some(speedup), Some(of_baseline)) => Some(of_baseline / speedup.value),
        _ => measured(candidate),
    }
}

pub(super) fn speedup(estimate: &Estimate) -> String {
    let [value, low, high] = [estimate.value, estimate.ci_low, estimate.ci_high].map(ratio);
    format!("{value}x [{low}–{high}]")
}

/// Returns a ratio of two times as text. On a busy machine, a bound can be a million, which would not fit in its
/// column.
fn ratio(ratio: f64) -> String {
    if (9999.5..f64::INFINITY).contains(&ratio) { ">9999".to_owned() } else { three_digits(ratio) }
}

/// Returns a percentage as text. If it is finite and not negative, it has at most five characters. The noise column
/// therefore has room for it and a mark.
pub(super) fn percent(share: f64) -> String {
    match nonfinite::text(share) {
        Some(text) => text.to_owned(),
        None if share.abs() < 0.0995 => format!("{:.1} %", share * 100.0),
        None if 9.995 <= share.abs() => ">999%".to_owned(),
        None => format!("{:.0} %", share * 100.0),
    }
}

/// Returns a duration as text.
pub(super) fn elapsed(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..60 => format!("{}.{} s", seconds, milliseconds % 1000 / 100),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Returns an error or a tolerance with few digits, and with an exponent if it is very small or very large.
pub(super) fn small(number: f64) -> String {
    match nonfinite::text(number) {
        Some(text) => text.to_owned(),
        None if number == 0.0 => "0".to_owned(),
        None if (1e-3..1e5).contains(&number.abs()) => three_digits(number),
        None => format!("{number:.2e}"),
    }
}

pub(super) fn three_digits(value: f64) -> String {
    if let Some(text) = nonfinite::text(value) {
        return text.to_owned();
    }
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Returns the number with the noun in the singular or the plural.
pub(crate) fn counted<N: Display + PartialEq + From<u8>>(number: N, one: &str, many: &str) -> String {
    format!("{number} {}", if number == N::from(1) { one } else { many })
}

/// Replaces the characters of a foreign text that could move a terminal's cursor, change its colours or reorder text.
pub(crate) fn printable(text: &str) -> String {
    let replace = |character: char| match character {
        '\n' => '\n',
        '\t' => ' ',
        character if character.is_control() => '\u{fffd}',
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        character => character,
    };
    text.replace("\r\n", "\n").chars().map(replace).collect()
}

/// Puts a foreign text on one line.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace('\n', " ")
}

/// Returns the beginning of a text, at most `width` characters.
pub(super) fn head_of(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Shortens a text to `width` characters and puts an ellipsis in the middle, so that a path keeps its end.
pub(super) fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept_chars = width.saturating_sub(1);
    let (head, tail) = (kept_chars / 3, kept_chars - kept_chars / 3);
    let end: String = text.chars().skip(length - tail).collect();
    format!("{}…{end}", text.chars().take(head).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_have_few_digits_and_a_unit() {
        for (ms, text) in [
            (12.345, "12.3 ms"),
            (0.012_345, "12.3 µs"),
            (0.000_000_5, "0.500 ns"),
            (1500.0, "1.50 s"),
            (99.96, "100 ms"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(time(ms), text);
        }
        assert_eq!(speedup(&Estimate { value: 2.0, ci_low: 0.5, ci_high: 123.4 }), "2.00x [0.500–123]");
        assert_eq!(speedup(&Estimate { value: 9999.0, ci_low: 0.0, ci_high: 1e6 }), "9999x [0.000–>9999]");
        assert_eq!(
            [0.008, 0.0994, 0.1, 1.497, 12.3].map(percent),
            ["0.8 %", "9.9 %", "10 %", "150 %", ">999%"]
        );
        assert_eq!(small(1.5e-7), "1.50e-7");
        for (ms, text) in [(9_990, "9.9 s"), (61_000, "1:01 min"), (86_400_000, "24:00 h")] {
            assert_eq!(elapsed(ms), text);
        }
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(printable("a\x1b[31mb\r\nc\x07\u{202e}"), "a\u{fffd}[31mb\nc\u{fffd}\u{fffd}");
    }

    proptest! {
        #[test]
        fn shortened_text_fits_and_keeps_its_end(text in "\\PC{0,40}", width in 4usize..30) {
            let short = shorten(&text, width);
            prop_assert!(short.chars().count() <= width);
            prop_assert_eq!(short.chars().last(), text.chars().last());
        }
    }
}
