//! Defines whether the ranking of a job's candidates is settled by the measurements.

use serde::{Deserialize, Serialize};

/// Whether the measurements settle the ranks that were given to the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ranking {
    Settled,
    Unsettled,
}

impl Ranking {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Unsettled => "unsettled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Settled, Self::Unsettled].into_iter().find(|it| it.name() == name)
    }
}
