//! Defines how results write times: as RFC 3339 in UTC, with milliseconds.
//!
//! All texts have the same width, so that they sort like times, both in the document and in the store.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcTime(Timestamp);

/// The error for a text that is not a time in the expected format.
#[derive(Clone, Debug, thiserror::Error)]
#[error("`{text}` is not a time (write RFC 3339 in UTC, such as 2026-05-01T12:00:00.000Z)")]
pub struct NotATime {
    pub text: String,
    #[source]
    pub source: jiff::Error,
}

impl UtcTime {
    pub fn now() -> Self {
        Self::from(Timestamp::now())
    }

    /// Converts from milliseconds since 1970. Returns `None` for years that RFC 3339 cannot represent.
    pub fn from_millisecond(milliseconds: i64) -> Option<Self> {
        let time = Timestamp::from_millisecond(milliseconds).ok()?;
        (0..=9999).contains(&time.to_zoned(jiff::tz::TimeZone::UTC).year()).then_some(Self(time))
    }

    pub fn as_millisecond(self) -> i64 {
        self.0.as_millisecond()
    }
}

impl From<Timestamp> for UtcTime {
    /// Drops fractions of a millisecond, so that a time stays the same when it is written and read back.
    fn from(time: Timestamp) -> Self {
        Self(Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time))
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl FromStr for UtcTime {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let time: Timestamp =
            text.parse().map_err(|source| NotATime { text: text.chars().take(64).collect(), source })?;
        Ok(Self::from(time))
    }
}

impl Serialize for UtcTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UtcTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_have_one_width_and_end_in_z() {
        let time = UtcTime::from_millisecond(1_777_636_800_005).expect("in range");
        assert_eq!(time.to_string(), "2026-05-01T12:00:00.005Z");
        assert_eq!("2026-05-01T14:00:00.0059+02:00".parse::<UtcTime>().expect("reads"), time);
        assert!("yesterday".parse::<UtcTime>().is_err());
        assert_eq!(UtcTime::from_millisecond(i64::MAX), None);
    }

    proptest! {
        #[test]
        fn time_reads_back_and_sorts_like_its_text(one in 0i64..4_000_000_000_000, other in 0i64..4_000_000_000_000) {
            let (one, other) = (UtcTime::from_millisecond(one).unwrap(), UtcTime::from_millisecond(other).unwrap());
            prop_assert_eq!(one.to_string().parse::<UtcTime>().unwrap(), one);
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
        }
    }
}
