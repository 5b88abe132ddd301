//! How one value of a plan is read, checked, laid over a weaker one, and printed again.
//!
//! One zero-sized type per kind of value. Which key has which kind stands in `schema`.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::Duration;

use opt_shared::units::Bytes;
use toml::de::DeValue;

use super::error::{Findings, Located, Spot, suggest};
use super::print;
use super::quantity::{self, Amount, Floor};
use super::table::{TableReader, TomlValue, describe, wrong_type};

/// A kind of value.
pub(super) trait Codec {
    type Value: Clone + PartialEq + std::fmt::Debug;

    /// `None` if something was reported.
    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value>;

    /// As TOML, on one line; read back as the same value.
    fn print(value: &Self::Value) -> String;

    /// Lays a stronger layer's value over this one.
    fn lay_over(weaker: &mut Self::Value, stronger: &Self::Value) {
        *weaker = stronger.clone();
    }

    /// What has to be laid over `weaker` to get `value`; `None` if nothing.
    fn difference(weaker: &Self::Value, value: &Self::Value) -> Option<Self::Value> {
        (weaker != value).then(|| value.clone())
    }
}

/// Any text without NUL, which no program takes as an argument.
pub(super) struct Text;

impl Codec for Text {
    type Value = String;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
        let text = string(value, spot, "a string", findings)?;
        if text.contains('\0') {
            findings.report(spot, "holds a NUL character");
            return None;
        }
        Some(text)
    }

    fn print(value: &String) -> String {
        print::string(value)
    }
}

/// A text that names something.
pub(super) struct NonEmptyText;

impl Codec for NonEmptyText {
    type Value = String;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
        let text = Text::read(value, spot, findings)?;
        if text.trim().is_empty() {
            findings.report(spot, "is empty").expected("a name");
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
pub(super) struct Number<const LEAST: u32, const MOST: u32>;

impl<const LEAST: u32, const MOST: u32> Codec for Number<LEAST, MOST> {
    type Value = u32;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<u32> {
        let number = integer(value, spot, &format!("a whole number from {LEAST} to {MOST}"), findings)?;
        let checked = u32::try_from(number).ok().filter(|n| (LEAST..=MOST).contains(n));
        if checked.is_none() {
            findings
                .report(spot, format!("{number} is out of range"))
                .expected(format!("a whole number from {LEAST} to {MOST}"));
        }
        checked
    }

    fn print(value: &u32) -> String {
        value.to_string()
    }
}

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

/// Written as a number of KiB.
pub(super) struct Kibibytes<const MOST: u32>;

impl<const MOST: u32> Codec for Kibibytes<MOST> {
    type Value = Bytes;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Bytes> {
        Number::<0, MOST>::read(value, spot, findings).map(|kib| Bytes::kib(kib.into()))
    }

    fn print(value: &Bytes) -> String {
        (value.get() >> 10).to_string()
    }
}

/// A size of at least so many bytes.
pub(super) struct Size<const LEAST: u64>;

impl<const LEAST: u64> Codec for Size<LEAST> {
    type Value = Bytes;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Bytes> {
        const FORM: &str = "a size such as \"512MiB\" or \"1.5GiB\"";
        let text = string(value, spot, FORM, findings)?;
        let Ok(size) = text.parse::<Bytes>() else {
            findings.report(spot, format!("{} is not a size", describe(value.get_ref()))).expected(FORM);
            return None;
        };
        if size < Bytes::new(LEAST) {
            let least = quantity::print_size(Bytes::new(LEAST));
            findings.report(spot, format!("{text} is too small")).expected(format!("at least \"{least}\""));
            return None;
        }
        Some(size)
    }

    fn print(value: &Bytes) -> String {
        print::string(&quantity::print_size(*value))
    }
}

/// A word that stands for "as the machine has it", or a value.
pub(super) struct OrWord<W, C>(PhantomData<(W, C)>);

/// A word as a type.
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
                .expected(format!("{FORM}, of a year at most"));
        }
        if duration == Some(Duration::ZERO) {
            findings.report(spot, "a duration of zero leaves no time").expected("at least \"1ms\"");
            return None;
        }
        duration
    }

    fn print(value: &Duration) -> String {
        print::string(&quantity::print_duration(*value))
    }
}

/// A percentage, kept as a fraction.
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
                .report(spot, format!("{} is no such percentage", describe(value.get_ref())))
                .expected(form);
        }
        share
    }

    fn print(value: &f64) -> String {
        print::string(&quantity::print_share(*value))
    }
}

/// A ratio above 0 and at most 1, as a number.
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

/// A tolerance.
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

/// A share or a size, not zero.
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
            findings.report(spot, format!("{} is no such amount", describe(value.get_ref()))).expected(FORM);
        }
        amount
    }

    fn print(value: &Amount) -> String {
        print::string(&value.print())
    }
}

pub(super) struct FloorExpression;

impl Codec for FloorExpression {
    type Value = Floor;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Floor> {
        const FORM: &str = "a size, a percentage, or the larger of two: \"max(1GiB, 5%)\"";
        let text = string(value, spot, FORM, findings)?;
        let floor = Floor::parse(&text);
        if floor.is_none() {
            findings.report(spot, format!("{} is no such amount", describe(value.get_ref()))).expected(FORM);
        }
        floor
    }

    fn print(value: &Floor) -> String {
        print::string(&value.print())
    }
}

/// An enum whose values are words.
pub(super) trait Words: Copy + PartialEq + std::fmt::Debug + 'static {
    const ALL: &'static [(&'static str, Self)];
}

pub(super) struct Word<E>(PhantomData<E>);

impl<E: Words> Codec for Word<E> {
    type Value = E;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<E> {
        let names: Vec<&str> = E::ALL.iter().map(|(name, _)| *name).collect();
        let form = super::error::list(&names);
        let text = string(value, spot, &form, findings)?;
        let found = E::ALL.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let near = super::error::nearest(&text, names.iter().copied());
            findings
                .report(spot, format!("{} is not known here", describe(value.get_ref())))
                .expected(form)
                .help_if(near.map(|near| format!("did you mean `{near}`?")));
        }
        found
    }

    fn print(value: &E) -> String {
        print::string(E::ALL.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name))
    }
}

/// An array; a stronger layer replaces it.
pub(super) struct List<C>(PhantomData<C>);

/// The longest list of flags, folders or names that a plan may hold: no command line takes more.
const LONGEST_LIST: usize = 4096;

impl<C: Codec> Codec for List<C> {
    type Value = Vec<C::Value>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        let items = located_list::<C>(value, spot, findings)?;
        Some(items.into_iter().map(|item| item.value).collect())
    }

    fn print(value: &Self::Value) -> String {
        format!("[{}]", value.iter().map(C::print).collect::<Vec<_>>().join(", "))
    }
}

/// The elements of an array with their places. `None` if one of them is wrong.
pub(super) fn located_list<C: Codec>(
    value: &TomlValue<'_>,
    spot: &Spot,
    findings: &mut Findings,
) -> Option<Vec<Located<C::Value>>> {
    let DeValue::Array(array) = value.get_ref() else {
        let report = findings
            .report(spot, format!("wrong type: found {}", describe(value.get_ref())))
            .expected("an array");
        if let DeValue::String(text) = value.get_ref() {
            report.help(format!("write [{}]", print::string(&super::error::quote(text))));
        }
        return None;
    };
    if array.len() > LONGEST_LIST {
        findings
            .report(spot, format!("holds {} elements", array.len()))
            .expected(format!("{LONGEST_LIST} at most"));
        return None;
    }
    let items: Vec<Option<Located<C::Value>>> = array
        .iter()
        .map(|item| {
            let spot = spot.at(item.span());
            C::read(item, &spot, findings).map(|value| Located { value, spot })
        })
        .collect();
    items.into_iter().collect()
}

/// An array of texts to which a stronger layer appends.
pub(super) struct Appended;

impl Codec for Appended {
    type Value = Vec<String>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vec<String>> {
        List::<Text>::read(value, spot, findings)
    }

    fn print(value: &Vec<String>) -> String {
        List::<Text>::print(value)
    }

    fn lay_over(weaker: &mut Vec<String>, stronger: &Vec<String>) {
        weaker.extend_from_slice(stronger);
    }

    fn difference(weaker: &Vec<String>, value: &Vec<String>) -> Option<Vec<String>> {
        // Layers only ever append, so the weaker list is always the beginning (`layers` sees to it for `--set`).
        let rest = value.strip_prefix(weaker.as_slice()).unwrap_or(value);
        (!rest.is_empty()).then(|| rest.to_vec())
    }
}

/// An existing folder, made absolute from the plan's own.
pub(super) struct Folder;

impl Codec for Folder {
    type Value = PathBuf;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<PathBuf> {
        let written = NonEmptyText::read(value, spot, findings)?;
        let path = findings.absolute(&written);
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => Some(path),
            Ok(_) => {
                findings.report(spot, format!("`{}` is not a folder", super::render::label(&path)));
                None
            }
            Err(error) => {
                findings.report(
                    spot,
                    format!("cannot find the folder `{}`: {error}", super::render::label(&path)),
                );
                None
            }
        }
    }

    fn print(value: &PathBuf) -> String {
        print::string(&value.to_string_lossy())
    }
}

/// Environment variables, merged key by key.
pub(super) struct Environment;

impl Codec for Environment {
    type Value = BTreeMap<String, String>;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        let table = TableReader::of(value, spot, findings)?;
        let mut variables = BTreeMap::new();
        let before = findings.count();
        for (name, value, spot, key_spot) in table.entries() {
            if name.is_empty() || name.contains(['=', '\0']) {
                findings
                    .report(&key_spot, "is no name of an environment variable")
                    .expected("no `=` and no NUL in it");
            }
            if let Some(text) = Text::read(value, &spot, findings) {
                variables.insert(name.to_owned(), text);
            }
        }
        (findings.count() == before).then_some(variables)
    }

    fn print(value: &Self::Value) -> String {
        let pairs: Vec<String> = value
            .iter()
            .map(|(name, text)| format!("{} = {}", print::key(name), print::string(text)))
            .collect();
        print::braces(&pairs)
    }

    fn lay_over(weaker: &mut Self::Value, stronger: &Self::Value) {
        weaker.extend(stronger.iter().map(|(name, text)| (name.clone(), text.clone())));
    }

    fn difference(weaker: &Self::Value, value: &Self::Value) -> Option<Self::Value> {
        let changed: Self::Value = value
            .iter()
            .filter(|(name, text)| weaker.get(*name) != Some(text))
            .map(|(name, text)| (name.clone(), text.clone()))
            .collect();
        (!changed.is_empty()).then_some(changed)
    }
}

/// One of a closed list that is too long to be shown whole.
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

/// A float, or an integer that stands for one.
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
        #[expect(
            clippy::cast_precision_loss,
            reason = "a tolerance written as a whole number is a small one"
        )]
        DeValue::Integer(_) => integer(value, spot, form, findings).map(|number| number as f64),
        other => {
            wrong_type(other, spot, form, findings);
            None
        }
    }
}
