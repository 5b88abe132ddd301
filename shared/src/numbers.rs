//! The sizes of one recorded call, which are computed from headers alone and used in the memory formulas.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::batch::{Constant, Share};
use crate::units::Bytes;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryNumbers {
    /// Size of the file when the plan was checked. A different size later is a capture error.
    pub file: Bytes,
    /// I: the size of all inputs, with bytes that several inputs share counted once. The size limit of a batch applies
    /// to the sum of I over its entries.
    pub inputs: Bytes,
    /// O: bytes of all outputs, as allocated for a verification.
    pub outputs: Bytes,
    /// R: bytes of the outputs in a profile's ring, which has a slot for each call of a block.
    pub ring: Bytes,
    /// The largest number of buffers that the inputs and outputs need on a device.
    pub buffers: u32,
    /// V: bytes of all variants of the inputs that may change between timed calls.
    pub varied: Bytes,
    /// V if the entry runs on a card.
    pub varied_on_card: Bytes,
    /// U: the number of input bytes that cannot be mapped in place. They are copied, and are therefore owed memory.
    pub unmapped: Bytes,
    /// The memory that copies of the inputs take.
    pub copied: Bytes,
    /// The parts of the inputs that other entries of the job use too, as far as this can be seen from headers. Only
    /// large parts of captures in a store are recognised.
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
