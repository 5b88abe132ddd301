//! Compares dict keys and set members as Python does: `1`, `1.0` and `True` are the same key, tuples are compared by
//! their items, and unhashable values are refused.
//!
//! Each distinct key gets a number, and a tuple is identified by the numbers of its items. The time and memory for
//! nested tuples that share parts are therefore proportional to the size of the file, and not to the size that the
//! tuples would have without sharing.

use std::collections::HashMap;
use std::sync::Arc;

use num_bigint::BigInt;

use super::node::{Node, NodeId};
use crate::capture::SequenceKind;
use crate::capture::error::Fault;
use crate::capture::limits::MAX_DEPTH;

/// A key in the form in which keys are compared. Two keys are equal if and only if they are equal in Python, with these
/// exceptions: integers and floats of 9e18 and more, complex numbers with a NaN, and values that are compared by
/// identity here.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Int(i64),
    BigInt(Arc<BigInt>),
    /// The bits of a float that is not an integer, or is too large for an `Int`.
    Float(u64),
    Complex(u64, u64),
    Str(Arc<str>),
    Bytes(Arc<[u8]>),
    Tuple(Vec<u32>),
    FrozenSet(Vec<u32>),
    Device(Arc<str>),
    /// A value that is treated as equal only to itself.
    Object(NodeId),
    /// A singleton: None, Ellipsis, a dtype, a layout or another known name.
    Named(String),
}

#[derive(Default)]
pub(super) struct Keys {
    numbers: HashMap<Key, u32>,
    of_nodes: HashMap<NodeId, u32>,
}

impl Keys {
    pub(super) fn number(&mut self, nodes: &[Node], id: NodeId) -> Result<u32, Fault> {
        self.number_at(nodes, id, 0)
    }

    fn number_at(&mut self, nodes: &[Node], id: NodeId, depth: usize) -> Result<u32, Fault> {
        if let Some(&number) = self.of_nodes.get(&id) {
            return Ok(number);
        }
        if depth > MAX_DEPTH {
            return Err(Fault::limit("a key is nested too deeply", MAX_DEPTH));
        }
        let mut inner = |items: &[NodeId]| {
            items.iter().map(|&item| self.number_at(nodes, item, depth + 1)).collect::<Result<Vec<_>, _>>()
        };
        let key = match &nodes[id.0 as usize] {
            Node::None => Key::Named("None".to_owned()),
            Node::Ellipsis => Key::Named("Ellipsis".to_owned()),
            Node::Bool(value) => Key::Int((*value).into()),
            Node::Int(value) => Key::Int(*value),
            Node::BigInt(value) => Key::BigInt(Arc::clone(value)),
            Node::Float(value) => float_key(*value, id),
            Node::Complex(real, imaginary) if *imaginary == 0.0 => float_key(*real, id),
            Node::Complex(real, imaginary) => {
                Key::Complex((real + 0.0).to_bits(), (imaginary + 0.0).to_bits())
            }
            Node::Str(text) => Key::Str(text.clone()),
            Node::Bytes(bytes) => Key::Bytes(bytes.clone()),
            Node::Sequence(SequenceKind::List, _) => return Err(unhashable("a list")),
            Node::Sequence(_, items) => Key::Tuple(inner(items)?),
            Node::Set(set) if set.kind == SequenceKind::FrozenSet => {
                let mut members = inner(&set.items)?;
                members.sort_unstable();
                Key::FrozenSet(members)
            }
            Node::Set(_) => return Err(unhashable("a set")),
            Node::Dict(_) => return Err(unhashable("a dict")),
            Node::ByteArray(_) => return Err(unhashable("a bytearray")),
            Node::NumpyArray(_) => return Err(unhashable("an array")),
            Node::Slice(_) => return Err(unhashable("a slice")),
            Node::Global(global) => Key::Named(format!("{global:?}")),
            Node::Device(name) => Key::Device(name.clone()),
            Node::Range(_)
            | Node::Storage { .. }
            | Node::Tensor(_)
            | Node::Object(_)
            | Node::NumpyDType(_)
            | Node::NumpyScalar { .. } => Key::Object(id),
        };
        // There are at most as many keys as nodes, and the numbers of nodes fit into a u32.
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(key).or_insert(next);
        self.of_nodes.insert(id, number);
        Ok(number)
    }
}

fn float_key(value: f64, id: NodeId) -> Key {
    if value.is_nan() {
        return Key::Object(id);
    }
    if value.fract() == 0.0 && value.abs() < 9e18 {
        #[expect(clippy::cast_possible_truncation, reason = "integral, and in the range of an i64")]
        return Key::Int(value as i64);
    }
    Key::Float(value.to_bits())
}

fn unhashable(what: &str) -> Fault {
    Fault::bad_pickle(format!("{what} is used as a key of a dict or a member of a set"))
}
