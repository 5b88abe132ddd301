//! From a capture to the arguments a kernel sees: one implementation for verify, profile and `check`.
//!
//! KernelForge's rule: the first recorded `signature` of the job wins; otherwise positional arguments (`arg0`, …)
//! and then the union of keyword names in first-seen order over all entries; defaults fill gaps; every entry of a
//! job has one arity. The plan's `params` and `defaults` override it.

mod bind;
mod call;
mod class;
mod describe;
mod digest;
mod element;
mod entry;
mod facts;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
mod heavy;
mod pieces;
mod plain;
mod print;
mod settle;
#[cfg(test)]
mod settle_tests;
mod skeleton;
#[cfg(test)]
mod skeleton_tests;
mod variation;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::capture::{DType, Tensor};

pub use bind::{BindError, bind, outputs};
pub use call::{Call, Form, Part, call};
pub use class::{class_key, short_name};
pub use describe::{Observed, table};
pub use element::numbers;
pub use entry::{Entry, EntryError, RecordedSignature};
pub use facts::{EntryFacts, may_vary};
pub use pieces::{Piece, pieces};
pub use plain::{Refusal, plain_value};
pub use settle::{SignatureBuilder, SignatureError};
pub use skeleton::c_skeleton;
pub use variation::VaryChoice;

/// Arguments of one call. Far above any op (a bidirectional LSTM of 8 layers has 69), low enough that a call
/// always fits a frame and a page or two of the runner.
pub const MAX_ARGUMENTS: usize = 1024;

/// The order in which a kernel sees its parameters, settled once per job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signature {
    pub params: Vec<String>,
    /// For entries that lack a parameter.
    pub defaults: BTreeMap<String, PlainValue>,
    /// How many leading names of `captured` are positional (`arg0`, `arg1`, …) because no signature was recorded.
    pub positional: usize,
    /// Every parameter of the captures in their own order: what a positional argument of an entry is called.
    /// `params` is a choice from it.
    pub captured: Vec<String>,
    /// Parameters that hold lists of tensors, with how many arguments each becomes in every entry.
    pub lists: BTreeMap<String, usize>,
}

/// An argument that is no tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlainValue {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    DType(DType),
    /// `cpu`, `cuda:1`.
    Device(String),
    /// A tuple or list, nested ones flattened in place; becomes a 1-D CPU tensor.
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
}

/// What a kernel receives in one place.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgumentValue {
    Tensor(Arc<Tensor>),
    Plain(PlainValue),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// The parameter it came from.
    pub parameter: String,
    /// Where it was found: `input`, or `tensors[1]` for one flattened out of a list.
    pub path: String,
    pub value: ArgumentValue,
}

/// One tensor that the call returned.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTensor {
    /// `output`, or `output[1]`.
    pub path: String,
    pub tensor: Arc<Tensor>,
}
