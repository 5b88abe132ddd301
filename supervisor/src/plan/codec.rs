//! Reads, checks, merges and prints the values in a plan, with a codec for each kind of value. A codec is a zero-sized
//! type. `schema` chooses the codec of each key.

use std::marker::PhantomData;

use toml::de::DeValue;

use super::error::{Findings, Spot, suggest};
use super::print;
use super::table::{TomlValue, describe, wrong_type};

pub(super) trait Codec {
    type Value: Clone + PartialEq + std::fmt::Debug;

    /// Reads and checks a value. Returns `None` if a mistake was reported.
    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value>;

    /// Prints a value as TOML on one line that reads back as the same value.
    fn print(value: &Self::Value) -> String;

    /// Merges the value of a stronger layer into that of a weaker one.
    fn merge(weaker: &mut Self::Value, stronger: &Self::Value) {
        *weaker = stronger.clone();
    }

    /// Returns the value that must be merged into `weaker` to get `value`, or `None` if the two are equal.
    fn difference(weaker: &Self::Value, value: &Self::Value) -> Option<Self::Value> {
        (weaker != value).then(|| value.clone())
    }
}

/// A string without NUL characters, because a string with one cannot be passed to a program as an argument.
pub(super) struct Text;

impl Codec for Text {
    type Value = String;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
        let text = string(value, spot, "a string", findings)?;
        if text.contains('\0') {
            findings.report(spot, "this string contains a NUL character");
            return None;
        }
        Some(text)
    }

    fn print(value: &String) -> String {
        print::string(value)
    }
}

/// A string that is not blank.
pub(super) struct NonEmptyText;

impl Codec for NonEmptyText {
    type Value = String;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
        let text = Text::read(value, spot, findings)?;
        if text.trim().is_empty() {
            findings.report(spot, "this string is empty or has only spaces");
            return None;
        }
        Some(text)
    }

    fn print(value: &String) -> String {
        print::string(value)
    }
}

pub(super) struct Flag;

impl Codec for Flag {
    type Value = bool;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<bool> {
        if let DeValue::Boolean(value) = value.get_ref() {
            return Some(*value);
        }
        wrong_type(value.get_ref(), spot, "`true` or `false`", findings);
        None
    }

    fn print(value: &bool) -> String {
        value.to_string()
    }
}

/// A whole number between two bounds, both included.
pub(super) struct Number<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Codec for Number<MIN, MAX> {
    type Value = u32;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<u32> {
        let number = integer(value, spot, &format!("a whole number from {MIN} to {MAX}"), findings)?;
        let checked = u32::try_from(number).ok().filter(|n| (MIN..=MAX).contains(n));
        if checked.is_none() {
            findings
                .report(spot, format!("{number} is out of range"))
                .expected(format!("a whole number from {MIN} to {MAX}"));
        }
        checked
    }

    fn print(value: &u32) -> String {
        value.to_string()
    }
}

/// A seed for random numbers: a whole number, 0 or more.
pub(super) struct Seed;

impl Codec for Seed {
    type Value = u64;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<u64> {
        let number = integer(value, spot, "a whole number, 0 or more", findings)?;
        if number < 0 {
            findings.report(spot, format!("{number} is out of range")).expected("a whole number, 0 or more");
        }
        u64::try_from(number).ok()
    }

    fn print(value: &u64) -> String {
        value.to_string()
    }
}

/// Either a value, or a word such as `auto`. The word is read as `None`.
pub(super) struct OrWord<W, C>(PhantomData<(W, C)>);

/// A word that is given by a type, because a string cannot be a type parameter.
pub(super) trait WordName {
    const WORD: &'static str;
}

pub(super) struct AutoWord;
impl WordName for AutoWord {
    const WORD: &'static str = "auto";
}

pub(super) struct CoresWord;
impl WordName for CoresWord {
    const WORD: &'static str = "cores";
}

impl<W: WordName, C: Codec> Codec for OrWord<W, C> {
    type Value = Option<C::Value>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        if value.get_ref().as_str() == Some(W::WORD) {
            return Some(None);
        }
        let before = findings.count();
        let read = C::read(value, spot, findings).map(Some);
        let mut errors = findings.split_off(before);
        for error in &mut errors {
            error.expected = error.expected.take().map(|expected| format!("{expected}, or \"{}\"", W::WORD));
        }
        findings.put_back(errors);
        read
    }

    fn print(value: &Self::Value) -> String {
        value.as_ref().map_or_else(|| print::string(W::WORD), C::print)
    }
}

/// A number above 0 and at most 1.
pub(super) struct Ratio;

impl Codec for Ratio {
    type Value = f64;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<f64> {
        const FORM: &str = "a number above 0 and at most 1";
        let ratio = number(value, spot, FORM, findings)?;
        if !(ratio > 0.0 && ratio <= 1.0) {
            findings.report(spot, format!("{ratio} is out of range")).expected(FORM);
            return None;
        }
        Some(ratio)
    }

    fn print(value: &f64) -> String {
        print::float(*value)
    }
}

/// A tolerance: a finite number, 0 or more.
pub(super) struct NonNegative;

impl Codec for NonNegative {
    type Value = f64;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<f64> {
        const FORM: &str = "a finite number, 0 or more";
        let tolerance = number(value, spot, FORM, findings)?;
        if !tolerance.is_finite() || tolerance < 0.0 {
            findings.report(spot, format!("{tolerance} is out of range")).expected(FORM);
            return None;
        }
        Some(tolerance)
    }

    fn print(value: &f64) -> String {
        print::float(*value)
    }
}

/// An enum whose values are words in a plan.
pub(super) trait Words: Copy + PartialEq + std::fmt::Debug + 'static {
    const ALL: &'static [(&'static str, Self)];
}

/// One of the words that stand for the values of an enum.
pub(super) struct Word<E>(PhantomData<E>);

impl<E: Words> Codec for Word<E> {
    type Value = E;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<E> {
        let names: Vec<&str> = E::ALL.iter().map(|(name, _)| *name).collect();
        let form = format!("one of {}", super::error::list(&names));
        let text = string(value, spot, &form, findings)?;
        let found = E::ALL.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let near = super::error::nearest(&text, names.iter().copied());
            findings
                .report(spot, format!("{} is not a valid value", describe(value.get_ref())))
                .expected(form)
                .help_if(near.map(|near| format!("did you mean `{near}`?")));
        }
        found
    }

    fn print(value: &E) -> String {
        print::string(E::ALL.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name))
    }
}

/// Reports a word that is not in `known`. The message suggests the nearest known word, or lists all of them if none is
/// near.
pub(super) fn unknown_word(text: &str, known: &[&str], spot: &Spot, what: &str, findings: &mut Findings) {
    findings
        .report(spot, format!("`{}` is not {what}", super::error::quote(text)))
        .help(suggest(text, known));
}

pub(super) fn string(
    value: &TomlValue<'_>,
    spot: &Spot,
    form: &str,
    findings: &mut Findings,
) -> Option<String> {
    if let DeValue::String(text) = value.get_ref() {
        return Some(text.clone().into_owned());
    }
    wrong_type(value.get_ref(), spot, form, findings);
    None
}

pub(super) fn integer(
    value: &TomlValue<'_>,
    spot: &Spot,
    form: &str,
    findings: &mut Findings,
) -> Option<i64> {
    let DeValue::Integer(integer) = value.get_ref() else {
        wrong_type(value.get_ref(), spot, form, findings);
        return None;
    };
    let parsed = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
    if parsed.is_none() {
        findings.report(spot, format!("{} is out of range", describe(value.get_ref()))).expected(form);
    }
    parsed
}

/// Reads a float. An integer is accepted too.
pub(super) fn number(value: &TomlValue<'_>, spot: &Spot, form: &str, findings: &mut Findings) -> Option<f64> {
    match value.get_ref() {
        DeValue::Float(float) => {
            let parsed = float.as_str().parse().ok();
            if parsed.is_none() {
                findings
                    .report(spot, format!("{} is out of range", describe(value.get_ref())))
                    .expected(form);
            }
            parsed
        }
        #[expect(clippy::cast_precision_loss, reason = "tolerances written as whole numbers are small")]
        DeValue::Integer(_) => integer(value, spot, form, findings).map(|number| number as f64),
        other => {
            wrong_type(other, spot, form, findings);
            None
        }
    }
}
