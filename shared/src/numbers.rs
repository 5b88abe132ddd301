//! What is known of one recorded call in bytes, from headers alone: the terms of every memory formula.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::batch::{Constant, Share};
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryNumbers {
    /// Size of the file when the plan was checked; another size now is a capture error.
    pub file: Bytes,
    /// I: distinct bytes of all inputs together; what batches are composed by.
    pub inputs: Bytes,
    /// O: all outputs as a verification lays them out.
    pub outputs: Bytes,
    /// R: as many of them as a block of a profile has calls.
    pub ring: Bytes,
    /// V: variants of the inputs that may change between timed calls.
    pub varied: Bytes,
    /// U: what of the inputs cannot be mapped in place and is owed.
    pub unmapped: Bytes,
    /// What the inputs take where they are copied.
    pub copied: Bytes,
    /// What of them other entries of the job have, too.
    #[serde(serialize_with = "as_slice", deserialize_with = "of_list")]
    pub constants: Arc<[Constant]>,
}

fn as_slice<S: Serializer>(constants: &Arc<[Constant]>, serializer: S) -> Result<S::Ok, S::Error> {
    constants[..].serialize(serializer)
}

fn of_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[Constant]>, D::Error> {
    Vec::deserialize(deserializer).map(Arc::from)
}

impl EntryNumbers {
    pub fn share(&self) -> Share<'_> {
        Share { inputs: self.inputs, constants: &self.constants }
    }
}
