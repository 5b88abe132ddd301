//! Defines the two ways to end a run or a worker on request: after the attempts in progress, or at once.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Lets running attempts finish.
    #[default]
    Drain,
    /// Ends running attempts at once.
    Now,
}
