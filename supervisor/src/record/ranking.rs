//! The ranking of a job: settled or not.

use serde::{Deserialize, Serialize};

/// Whether the times are known well enough for the given ranks.
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
