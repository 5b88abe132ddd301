//! Writes an `f64` as a number or, if JSON cannot represent it, as one of the texts "NaN", "Infinity" and "-Infinity".
//!
//! Use it with `#[serde(with = "opt_shared::nonfinite")]`. Binary formats, such as that of the channel, contain the
//! number itself.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serializer};

const NAN: &str = "NaN";
const INFINITY: &str = "Infinity";
const MINUS_INFINITY: &str = "-Infinity";

pub const fn text(number: f64) -> Option<&'static str> {
    if number.is_nan() {
        Some(NAN)
    } else if number == f64::INFINITY {
        Some(INFINITY)
    } else if number == f64::NEG_INFINITY {
        Some(MINUS_INFINITY)
    } else {
        None
    }
}

pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match text(*number) {
        Some(text) if serializer.is_human_readable() => serializer.serialize_str(text),
        _ => serializer.serialize_f64(*number),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    if deserializer.is_human_readable() {
        deserializer.deserialize_any(NumberOrText)
    } else {
        f64::deserialize(deserializer)
    }
}

struct NumberOrText;

impl Visitor<'_> for NumberOrText {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number, \"{NAN}\", \"{INFINITY}\" or \"{MINUS_INFINITY}\"")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    #[expect(clippy::cast_precision_loss, reason = "every JSON reader rounds a large whole number")]
    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "every JSON reader rounds a large whole number")]
    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        match text {
            NAN => Ok(f64::NAN),
            INFINITY => Ok(f64::INFINITY),
            MINUS_INFINITY => Ok(f64::NEG_INFINITY),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

/// Does the same for an optional number. `None` is written as `null`.
pub mod option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Number(#[serde(with = "super")] f64);

    pub fn serialize<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        number.map(Number).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Number>::deserialize(deserializer)?.map(|Number(number)| number))
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    struct Pair(#[serde(with = "super")] f64, #[serde(with = "super::option")] Option<f64>);

    #[test]
    fn finite_and_nonfinite_numbers_survive_json() {
        for (pair, text) in [
            (Pair(1.5, None), "[1.5,null]"),
            (Pair(f64::NAN, Some(f64::NAN)), r#"["NaN","NaN"]"#),
            (Pair(f64::INFINITY, Some(-0.0)), r#"["Infinity",-0.0]"#),
            (Pair(f64::NEG_INFINITY, Some(f64::MIN_POSITIVE)), r#"["-Infinity",2.2250738585072014e-308]"#),
        ] {
            assert_eq!(serde_json::to_string(&pair).expect("writes"), text);
            let back: Pair = serde_json::from_str(text).expect("reads");
            assert_eq!(back.0.total_cmp(&pair.0), std::cmp::Ordering::Equal, "{text}");
            assert_eq!(back.1.map(f64::to_bits), pair.1.map(f64::to_bits), "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_read_and_other_texts_and_kinds_are_refused() {
        let Pair(first, second) = serde_json::from_str("[3, -4]").expect("reads");
        assert_eq!((first, second), (3.0, Some(-4.0)));
        for text in [r#"["nan", 1]"#, r#"["1.5", 1]"#, r#"["inf", 1]"#, "[null, 1]", "[true, 1]"] {
            assert!(serde_json::from_str::<Pair>(text).is_err(), "{text}");
        }
    }
}
