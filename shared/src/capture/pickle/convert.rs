//! Converts the nodes of a pickle to the shared, immutable values that the rest of the program uses.
//!
//! The nodes are visited depth first, which determines the numbers of tensors and storages. A subtree without cycles is
//! converted once and shared. A reference to a container that is still open (that is, to a container around the
//! reference) is converted to that container's path. The path depends on where the reference occurs, so the subtree
//! that contains the reference is converted, and counted, at each of its occurrences.

use std::collections::HashMap;
use std::sync::Arc;

use super::arena::Arena;
use super::globals::Global;
use super::node::{ArrayContents, ArrayNode, MadeNode, Node, NodeId, NumpyDType, ObjectNode, TensorNode};
use crate::capture::error::Fault;
use crate::capture::limits::{
    MAX_CYCLE_PATH_BYTES, MAX_CYCLES, MAX_DEPTH, MAX_NODES, MAX_SLOTS, MAX_UNFOLDED,
};
use crate::capture::python::{float_text, quoted_text};
use crate::capture::{NumpyArray, NumpyContents, Object, Tensor, Value, value};
use crate::ids::StorageId;
use crate::units::Bytes;

pub(super) struct Converter<'a> {
    arena: &'a Arena,
    done: HashMap<NodeId, Converted>,
    /// The open containers, with their levels.
    open: HashMap<NodeId, usize>,
    path: Vec<Step>,
    storage_ids: HashMap<u32, StorageId>,
    /// The numbers that the machine gave to the storages, in order of their first appearance.
    pub(super) storage_order: Vec<u32>,
    tensors: u32,
    visits_left: usize,
    cycles_left: usize,
}

/// The size of a value, which is limited in order to bound the work of code that visits the value.
#[derive(Clone, Copy)]
struct Extent {
    /// The number of levels of containers in the value, including the value itself.
    height: usize,
    /// The number of values in the value, including the value itself. A shared value is counted at each occurrence.
    unfolded: u64,
    /// True if the value contains the path of an open container. It is then valid only at this position.
    placed: bool,
}

impl Extent {
    const LEAF: Self = Self { height: 0, unfolded: 1, placed: false };
    /// An empty container.
    const CONTAINER: Self = Self { height: 1, unfolded: 1, placed: false };

    /// The extent of a container after one more value is added.
    fn around(self, inner: Self) -> Result<Self, Fault> {
        let unfolded = self.unfolded.saturating_add(inner.unfolded);
        if unfolded > MAX_UNFOLDED {
            return Err(Fault::limit("shared containers unfold into too many values", MAX_UNFOLDED));
        }
        Ok(Self { height: self.height.max(1 + inner.height), unfolded, placed: self.placed || inner.placed })
    }
}

/// The step from a container to a value in it.
#[derive(Clone, Copy)]
enum Step {
    Index(usize),
    Value(NodeId),
    Key(NodeId),
    /// The step to a member that no path can name. Paths inside this member begin at the member.
    Member,
}

type Converted = (Value, Extent);

impl<'a> Converter<'a> {
    pub(super) fn new(arena: &'a Arena) -> Self {
        Self {
            arena,
            done: HashMap::new(),
            open: HashMap::new(),
            path: Vec::new(),
            storage_ids: HashMap::new(),
            storage_order: Vec::new(),
            tensors: 0,
            visits_left: MAX_NODES + MAX_SLOTS,
            cycles_left: MAX_CYCLES,
        }
    }

    pub(super) fn root(&mut self, id: NodeId) -> Result<Value, Fault> {
        self.convert(id).map(|(value, _)| value)
    }

    fn convert(&mut self, id: NodeId) -> Result<Converted, Fault> {
        self.visits_left = self
            .visits_left
            .checked_sub(1)
            .ok_or_else(|| Fault::limit("the pickle unfolds into too many values", MAX_NODES + MAX_SLOTS))?;
        let arena = self.arena;
        let value = match arena.get(id) {
            Node::None => Value::None,
            Node::Ellipsis => Value::Ellipsis,
            Node::Bool(value) => Value::Bool(*value),
            Node::Int(value) => Value::Int(*value),
            Node::BigInt(value) => Value::BigInt(Arc::clone(value)),
            Node::Float(value) => Value::Float(*value),
            Node::Complex(real, imaginary) => Value::Complex { real: *real, imaginary: *imaginary },
            Node::Str(text) => Value::Str(text.clone()),
            Node::Bytes(bytes) => Value::Bytes(bytes.clone()),
            Node::ByteArray(bytes) => Value::ByteArray(bytes.clone()),
            Node::Device(name) => Value::Device(name.clone()),
            Node::Global(global) => named(*global)?,
            Node::Storage { index, .. } => Value::Storage(self.storage(*index)),
            Node::NumpyScalar { dtype, bytes } => {
                Value::NumpyScalar { dtype: descr(dtype), bytes: bytes.clone() }
            }
            Node::NumpyDType(_) => {
                return Err(Fault::unsupported(
                    "it contains a numpy dtype as a value, which this program does not support",
                ));
            }
            Node::Tensor(_)
            | Node::Object(_)
            | Node::Sequence(..)
            | Node::Set(_)
            | Node::Dict(_)
            | Node::Slice(_)
            | Node::Range(_)
            | Node::NumpyArray(_) => return self.convert_shared(id),
        };
        Ok((value, Extent::LEAF))
    }

    fn convert_shared(&mut self, id: NodeId) -> Result<Converted, Fault> {
        let level = self.open.len();
        if let Some((value, extent)) = self.done.get(&id) {
            if level + extent.height > MAX_DEPTH {
                return Err(too_deep());
            }
            return Ok((value.clone(), *extent));
        }
        if let Some(&outer) = self.open.get(&id) {
            self.cycles_left = self
                .cycles_left
                .checked_sub(1)
                .ok_or_else(|| Fault::limit("too many containers contain themselves", MAX_CYCLES))?;
            let path = self.path_to(outer)?;
            return Ok((Value::Cycle(path), Extent { placed: true, ..Extent::LEAF }));
        }
        if level >= MAX_DEPTH {
            return Err(too_deep());
        }
        self.open.insert(id, level);
        let made = self.container(id);
        self.open.remove(&id);
        let (value, extent) = made?;
        if !extent.placed {
            self.done.insert(id, (value.clone(), extent));
        }
        Ok((value, extent))
    }

    fn container(&mut self, id: NodeId) -> Result<Converted, Fault> {
        let arena = self.arena;
        Ok(match arena.get(id) {
            Node::Sequence(kind, items) => {
                let (items, extent) = self.children(items, Step::Index)?;
                (Value::Sequence { kind: *kind, items: items.into() }, extent)
            }
            Node::Set(set) => {
                let (items, extent) = self.children(&set.items, |_| Step::Member)?;
                (Value::Sequence { kind: set.kind, items: items.into() }, extent)
            }
            Node::Dict(dict) => {
                let mut items = Vec::with_capacity(dict.items.len());
                let mut extent = Extent::CONTAINER;
                for &(key, value) in &dict.items {
                    let (made_key, key_extent) = self.child(key, Step::Key(key))?;
                    let (made_value, value_extent) = self.child(value, Step::Value(key))?;
                    extent = extent.around(key_extent)?.around(value_extent)?;
                    items.push((made_key, made_value));
                }
                (Value::Dict { kind: dict.kind, items: items.into() }, extent)
            }
            Node::Slice(parts) => {
                let (parts, extent) = self.slice_parts(parts)?;
                (Value::Slice(parts), extent)
            }
            Node::Range(parts) => {
                let (parts, extent) = self.slice_parts(parts)?;
                (Value::Range(parts), extent)
            }
            Node::NumpyArray(array) => self.array(array)?,
            Node::Object(object) => self.object(object)?,
            Node::Tensor(tensor) => (self.tensor(tensor), Extent::CONTAINER),
            _ => return Err(Fault::bad_pickle("an object is not a container")),
        })
    }

    fn object(&mut self, object: &ObjectNode) -> Result<Converted, Fault> {
        let (made, inner) = match &object.made {
            MadeNode::Named => (value::Creation::Named, Extent::CONTAINER),
            MadeNode::Called(arguments) => {
                let (values, extent) = self.children(arguments, |_| Step::Member)?;
                (value::Creation::Called(values.into()), extent)
            }
            MadeNode::New(arguments) => {
                let (values, extent) = self.children(arguments, |_| Step::Member)?;
                (value::Creation::New(values.into()), extent)
            }
        };
        let (state, extent) = self.children(&object.state, |_| Step::Member)?;
        let extent = Extent::CONTAINER.around(inner)?.around(extent)?;
        Ok((Value::Object(Arc::new(Object { name: object.name.clone(), made, state })), extent))
    }

    fn array(&mut self, array: &ArrayNode) -> Result<Converted, Fault> {
        let (contents, extent) = match &array.contents {
            ArrayContents::Missing => return Err(Fault::bad_pickle("a numpy array was never filled")),
            ArrayContents::Bytes(bytes) => (NumpyContents::Bytes(bytes.clone()), Extent::CONTAINER),
            ArrayContents::Objects(items) => {
                let (items, extent) = self.children(items, |_| Step::Member)?;
                (NumpyContents::Objects(items.into()), extent)
            }
        };
        let array = NumpyArray {
            dtype: descr(&array.dtype),
            shape: array.shape.clone(),
            fortran_order: array.fortran_order,
            contents,
        };
        Ok((Value::NumpyArray(Arc::new(array)), extent))
    }

    fn tensor(&mut self, tensor: &TensorNode) -> Value {
        let object = self.tensors;
        self.tensors += 1;
        Value::Tensor(Arc::new(Tensor {
            object,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            stride: tensor.stride.clone(),
            storage_offset: tensor.storage_offset,
            storage: self.storage(tensor.storage),
            requires_grad: tensor.requires_grad,
            parameter: tensor.parameter,
            conjugate: tensor.conjugate,
            negative: tensor.negative,
        }))
    }

    fn child(&mut self, id: NodeId, step: Step) -> Result<Converted, Fault> {
        self.path.push(step);
        let made = self.convert(id);
        self.path.pop();
        made
    }

    fn children(
        &mut self,
        items: &[NodeId],
        step: impl Fn(usize) -> Step,
    ) -> Result<(Vec<Value>, Extent), Fault> {
        let mut values = Vec::with_capacity(items.len());
        let mut extent = Extent::CONTAINER;
        for (index, &item) in items.iter().enumerate() {
            let (value, inner) = self.child(item, step(index))?;
            extent = extent.around(inner)?;
            values.push(value);
        }
        Ok((values, extent))
    }

    fn slice_parts(&mut self, parts: &[NodeId; 3]) -> Result<(Arc<[Value; 3]>, Extent), Fault> {
        let (values, extent) = self.children(parts, |_| Step::Member)?;
        let values: [Value; 3] =
            values.try_into().map_err(|_| Fault::bad_pickle("a slice does not have three parts"))?;
        Ok((Arc::new(values), extent))
    }

    fn storage(&mut self, index: u32) -> StorageId {
        *self.storage_ids.entry(index).or_insert_with(|| {
            // The number of storages is limited to far fewer than u32::MAX.
            let id = StorageId(u32::try_from(self.storage_order.len()).unwrap_or(u32::MAX));
            self.storage_order.push(index);
            id
        })
    }

    /// The path of the open container at this level, such as `$['args'][0]`.
    fn path_to(&self, level: usize) -> Result<Arc<str>, Fault> {
        let steps = &self.path[..level];
        let start = steps.iter().rposition(|step| matches!(step, Step::Member)).map_or(0, |index| index + 1);
        let mut path = String::from("$");
        for step in &steps[start..] {
            match *step {
                Step::Index(index) => path.push_str(&format!("[{index}]")),
                Step::Value(key) => path.push_str(&format!("[{}]", self.key_text(key))),
                Step::Key(key) => path.push_str(&format!(".key({})", self.key_text(key))),
                Step::Member => {}
            }
            if path.len() > MAX_CYCLE_PATH_BYTES {
                return Err(Fault::limit(
                    "the path by which a container contains itself is too long",
                    Bytes::from(MAX_CYCLE_PATH_BYTES),
                ));
            }
        }
        Ok(path.into())
    }

    /// Writes a key as Python shows it, if the key is plain.
    fn key_text(&self, key: NodeId) -> String {
        match self.arena.get(key) {
            Node::None => "None".to_owned(),
            Node::Bool(true) => "True".to_owned(),
            Node::Bool(false) => "False".to_owned(),
            Node::Int(value) => value.to_string(),
            Node::BigInt(value) => value.to_string(),
            Node::Float(value) => float_text(*value),
            // With a longer key, the path would exceed its limit in any case.
            Node::Str(text) if text.len() <= MAX_CYCLE_PATH_BYTES => quoted_text(text),
            Node::Str(text) => "x".repeat(text.len().min(2 * MAX_CYCLE_PATH_BYTES)),
            _ => "…".to_owned(),
        }
    }
}

fn named(global: Global) -> Result<Value, Fault> {
    match global {
        Global::DType(dtype) => Ok(Value::DType(dtype)),
        Global::OtherDType(name) => Ok(Value::OtherDType(name.into())),
        Global::Layout(name) => Ok(Value::Layout(name.into())),
        Global::MemoryFormat(name) => Ok(Value::MemoryFormat(name.into())),
        _ => Err(Fault::unsupported(format!(
            "it contains a type or function as a value ({global:?}), which this program does not support"
        ))),
    }
}

fn descr(dtype: &NumpyDType) -> Arc<str> {
    format!("{}{}{}", dtype.order, dtype.kind, dtype.count).into()
}

fn too_deep() -> Fault {
    Fault::limit("containers are nested too deeply", MAX_DEPTH)
}
