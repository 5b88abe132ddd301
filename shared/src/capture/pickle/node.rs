//! Defines the nodes that represent the objects of a pickle while the pickle is read. Nodes refer to each other by
//! number.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use num_bigint::BigInt;

use super::globals::Global;
use crate::capture::{DType, DictKind, SequenceKind};

/// The number of a node in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodeId(pub(super) u32);

#[derive(Debug)]
pub(super) enum Node {
    None,
    Ellipsis,
    Bool(bool),
    Int(i64),
    BigInt(Arc<BigInt>),
    Float(f64),
    Complex(f64, f64),
    Str(Arc<str>),
    Bytes(Arc<[u8]>),
    ByteArray(Arc<[u8]>),
    /// All sequences except sets.
    Sequence(SequenceKind, Vec<NodeId>),
    Set(Box<Set>),
    Dict(Box<Dict>),
    Slice([NodeId; 3]),
    Range([NodeId; 3]),
    Global(Global),
    Object(Box<ObjectNode>),
    Device(Arc<str>),
    /// A storage, by its index in the machine's list, with the element type of its class.
    Storage {
        index: u32,
        dtype: DType,
    },
    Tensor(Box<TensorNode>),
    NumpyDType(Arc<NumpyDType>),
    NumpyArray(Box<ArrayNode>),
    NumpyScalar {
        dtype: Arc<NumpyDType>,
        bytes: Arc<[u8]>,
    },
}

/// An unknown name, or an object made by calling one.
#[derive(Clone, Debug)]
pub(super) struct ObjectNode {
    pub(super) name: Arc<str>,
    pub(super) made: MadeNode,
    pub(super) state: Vec<NodeId>,
}

/// How an object of an unknown class was made, like `value::Creation`.
#[derive(Clone, Debug)]
pub(super) enum MadeNode {
    Named,
    Called(Vec<NodeId>),
    New(Vec<NodeId>),
}

#[derive(Debug)]
pub(super) struct Set {
    pub(super) kind: SequenceKind,
    pub(super) items: Vec<NodeId>,
    /// The numbers that `keys` gave to the members. Equal members have the same number.
    pub(super) members: HashSet<u32>,
}

#[derive(Debug)]
pub(super) struct Dict {
    pub(super) kind: DictKind,
    pub(super) items: Vec<(NodeId, NodeId)>,
    /// The position of each item, by the number of its key.
    pub(super) positions: HashMap<u32, usize>,
}

#[derive(Clone, Debug)]
pub(super) struct TensorNode {
    pub(super) storage: u32,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    pub(super) stride: Vec<u64>,
    pub(super) storage_offset: u64,
    pub(super) requires_grad: bool,
    pub(super) parameter: bool,
    pub(super) conjugate: bool,
    pub(super) negative: bool,
}

/// A numpy dtype without fields.
#[derive(Clone, Debug)]
pub(super) struct NumpyDType {
    /// The kind: `f`, `i`, `O` and so on.
    pub(super) kind: char,
    /// The text after the kind: `4` in `<f4`; empty for objects.
    pub(super) count: String,
    /// The byte order: `<`, `>` or `|`.
    pub(super) order: char,
    pub(super) item_bytes: u64,
}

#[derive(Debug)]
pub(super) struct ArrayNode {
    pub(super) dtype: Arc<NumpyDType>,
    pub(super) shape: Vec<u64>,
    pub(super) fortran_order: bool,
    pub(super) contents: ArrayContents,
}

#[derive(Debug)]
pub(super) enum ArrayContents {
    /// The array is still empty: `_reconstruct` has created it, and the state that fills it has not been set.
    Missing,
    Bytes(Arc<[u8]>),
    Objects(Vec<NodeId>),
}
