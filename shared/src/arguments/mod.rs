//! Turns captures into the arguments of a kernel. All stages and `check` use this code, so the arguments are always the
//! same.
//!
//! The order of the arguments follows KernelForge's rule:
//!
//! - If any entry of the job has a recorded `signature`, the first one determines the order.
//! - Without one, positional arguments (`arg0`, …) come first. The keyword names of all entries follow, in the order
//!   in which they are first seen.
//! - If an entry lacks a parameter, the parameter's default is used. All entries of a job therefore have the same
//!   number of arguments.
//!
//! The plan's `params` and `defaults` override this rule.

mod bind;
mod call;
mod changed;
mod class;
mod describe;
mod digest;
mod element;
mod entry;
mod facts;
mod fingerprint;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
mod heavy;
mod pieces;
mod plain;
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
pub use changed::{judged, returned};
pub use class::{class_key, short_name};
pub use describe::{Observed, table};
pub use element::numbers;
pub use entry::{Entry, EntryError, RecordedSignature};
pub use facts::{EntryFacts, may_vary};
pub use pieces::{Piece, pieces};
pub use plain::{Refusal, plain_value};
pub use settle::{SignatureBuilder, SignatureError};
pub use skeleton::c_skeleton;
pub use variation::{TOO_LARGE, VaryChoice};

/// Largest number of arguments of a call. No real op has nearly as many.
pub const MAX_ARGUMENTS: usize = 1024;
/// Largest total size of a call's arguments, in bytes and without the elements of tensors, in the message that
/// describes the call to a runner. The outputs take a few more kilobytes of the message.
pub const MAX_ARGUMENT_BYTES: usize = 120 << 10;

/// The order in which a kernel gets its parameters. It is settled once per job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signature {
    pub params: Vec<String>,
    /// Values for entries that lack a parameter.
    pub defaults: BTreeMap<String, PlainValue>,
    /// Number of positional names (`arg0`, `arg1`, …) at the start of `captured`; 0 if a signature was recorded.
    pub positional: usize,
    /// Every parameter in the captures, in the captures' order. Positional arguments get their names from this list.
    /// `params` contains some or all of these parameters, and those that only the plan's `params` and `defaults` name.
    pub captured: Vec<String>,
    /// Parameters that are lists of tensors, each with the number of arguments that it takes in every entry.
    pub lists: BTreeMap<String, usize>,
}

/// An argument that is not a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlainValue {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    DType(DType),
    /// A device's name, such as `cpu` or `cuda:1`.
    Device(String),
    /// A flattened tuple or list of integers. Like the next two variants, it is passed as a 1-D CPU tensor.
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
}

/// The value of one argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgumentValue {
    Tensor(Arc<Tensor>),
    Plain(PlainValue),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// The parameter to which the argument belongs.
    pub parameter: String,
    /// The path of the value: `input`, or `tensors[1]` for an element of a list.
    pub path: String,
    pub value: ArgumentValue,
}

/// A tensor that the call returned, or the value that an argument has after a call that changes it.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputTensor {
    /// `output`, `output[1]`, or the path of the argument.
    pub path: String,
    pub tensor: Arc<Tensor>,
    /// The indices of the arguments that have this value after the call. There are several if the same tensor is passed
    /// more than once, and none for a returned tensor.
    pub arguments: Vec<usize>,
}
