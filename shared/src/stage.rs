//! Defines the stages of a candidate or a replay, in order.
//!
//! This is the only list of stages. Plans, the database, results and reports use its names.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Build,
    Verify,
    /// A short profile that shows which candidates need no further timing.
    Screen,
    Profile,
    /// A second profile of the best candidates. It is needed because the first profile overestimates them: the best of
    /// many measured times is partly due to chance.
    Confirm,
    Replay,
}

impl Stage {
    pub const ALL: [Self; 6] =
        [Self::Build, Self::Verify, Self::Screen, Self::Profile, Self::Confirm, Self::Replay];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Verify => "verify",
            Self::Screen => "screen",
            Self::Profile => "profile",
            Self::Confirm => "confirm",
            Self::Replay => "replay",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    pub const fn is_timed(self) -> bool {
        matches!(self, Self::Screen | Self::Profile | Self::Confirm)
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_names_do_not_change_and_parse_back() {
        assert_eq!(
            Stage::ALL.map(Stage::name),
            ["build", "verify", "screen", "profile", "confirm", "replay"]
        );
        for stage in Stage::ALL {
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
            assert_eq!(serde_json::to_value(stage).expect("a word"), stage.name());
        }
    }
}
