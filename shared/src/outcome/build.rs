//! Defines the result of a build: the artifact, the command and the beginning of the compiler's output.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Built {
    pub artifact: Option<Artifact>,
    /// First line of `COMPILER --version`; `None` if no compiler ran.
    pub compiler: Option<String>,
    /// The command with its arguments, the compiler first.
    pub command: Vec<String>,
    /// The beginning of the compiler's output.
    pub log_head: String,
    pub source_digest: String,
    /// How the compiler ended: the signal, or a digest of the output without the parts that differ in each build. It is
    /// set if the build's status is INFRA_ERROR because how the compiler ended does not show whether the machine or the
    /// source is to blame. If the next build ends in the same way, the source is to blame.
    #[serde(default)]
    pub unexplained: Option<String>,
}

/// The file that a build produced. It is kept in the run's `artifacts` folder, under a name that contains its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// BLAKE3 of the file, in hex.
    pub digest: String,
    pub path: std::path::PathBuf,
    pub bytes: Bytes,
}
