//! Carries out the calls of allowed names in a pickle: there is one match arm for each name, and every other call is
//! refused.
//!
//! This file creates containers and plain values; `rebuild` creates tensors, and `numpy` creates numpy's objects.

use std::sync::Arc;

use super::globals::{self, Global};
use super::machine::Machine;
use super::node::{Node, NodeId};
use crate::capture::error::{Fault, quoted};
use crate::capture::{DictKind, SequenceKind};

impl Machine {
    pub(super) fn call(&mut self, global: Global, arguments: &[NodeId]) -> Result<NodeId, Fault> {
        match global {
            Global::OrderedDict => self.make_dict(DictKind::Ordered, arguments),
            Global::Counter => self.make_dict(DictKind::Counter, arguments),
            Global::DefaultDict => match arguments {
                [] | [_] => self.make_dict(DictKind::Default, &[]),
                _ => Err(mismatch(global)),
            },
            Global::Set => self.make_set(SequenceKind::Set, arguments),
            Global::FrozenSet => self.make_set(SequenceKind::FrozenSet, arguments),
            Global::NumpyReconstruct | Global::NumpyFromBuffer | Global::NumpyDType | Global::NumpyScalar => {
                let node = self.call_numpy(global, arguments)?;
                self.arena.add(node)
            }
            Global::RebuildFromType => self.rebuild_from_type(arguments),
            _ => {
                let node = self.plain_call(global, arguments)?;
                self.arena.add(node)
            }
        }
    }

    fn plain_call(&mut self, global: Global, arguments: &[NodeId]) -> Result<Node, Fault> {
        match (global, arguments) {
            (
                Global::RebuildTensor
                | Global::RebuildTensorV2
                | Global::RebuildTensorV3
                | Global::RebuildParameter
                | Global::RebuildParameterWithState,
                _,
            ) => self.rebuild(global, arguments),
            (Global::Size, &[sizes]) => {
                let sizes = self.arena.sequence(sizes).ok_or_else(|| mismatch(global))?.to_vec();
                if sizes.iter().any(|&size| self.arena.int(size).is_none()) {
                    return Err(mismatch(global));
                }
                self.arena.charge_slots(sizes.len())?;
                Ok(Node::Sequence(SequenceKind::Size, sizes))
            }
            // The second argument contains fields in addition to the sequence. It is ignored, because no return type
            // uses such fields.
            (Global::ReturnType(class), &[items] | &[items, _]) => {
                let items = self.arena.tuple(items).ok_or_else(|| mismatch(global))?.to_vec();
                self.arena.charge_slots(items.len())?;
                Ok(Node::Sequence(SequenceKind::ReturnType(class), items))
            }
            (Global::Device, &[name]) => {
                let name = self.arena.text(name).ok_or_else(|| mismatch(global))?;
                Ok(Node::Device(name.clone()))
            }
            (Global::Device, &[kind, index]) => {
                let (Some(kind), Some(index)) = (self.arena.text(kind), self.arena.int(index)) else {
                    return Err(mismatch(global));
                };
                let name: Arc<str> = format!("{kind}:{index}").into();
                self.arena.charge_derived(name.len())?;
                Ok(Node::Device(name))
            }
            (Global::GetLayout, &[name]) => {
                let name = self.arena.text(name).ok_or_else(|| mismatch(global))?;
                globals::layout(name)
                    .map(|layout| Node::Global(Global::Layout(layout)))
                    .ok_or_else(|| Fault::bad_pickle(format!("{} is not a layout", quoted(name))))
            }
            (Global::Complex, &[real, imaginary]) => {
                let (Some(real), Some(imaginary)) = (self.float(real), self.float(imaginary)) else {
                    return Err(mismatch(global));
                };
                Ok(Node::Complex(real, imaginary))
            }
            (Global::Slice, &[start, stop, step]) => Ok(Node::Slice([start, stop, step])),
            (Global::Range, &[start, stop, step]) => {
                let is_int = |id| matches!(self.arena.get(id), Node::Int(_) | Node::BigInt(_));
                if !(is_int(start) && is_int(stop) && is_int(step)) || self.arena.int(step) == Some(0) {
                    return Err(mismatch(global));
                }
                Ok(Node::Range([start, stop, step]))
            }
            (Global::Encode, &[text, encoding]) => self.latin1(text, encoding).map(Node::Bytes),
            (Global::Bytes, &[]) => Ok(Node::Bytes(Arc::from([]))),
            (Global::ByteArray, &[]) => Ok(Node::ByteArray(Arc::from([]))),
            (Global::ByteArray, &[bytes]) => match self.arena.get(bytes) {
                Node::Bytes(bytes) | Node::ByteArray(bytes) => Ok(Node::ByteArray(bytes.clone())),
                _ => Err(mismatch(global)),
            },
            (Global::ByteArray, &[text, encoding]) => self.latin1(text, encoding).map(Node::ByteArray),
            _ => Err(mismatch(global)),
        }
    }

    /// Evaluates `text.encode("latin1")`, by which pickles of protocol 2 represent bytes.
    fn latin1(&mut self, text: NodeId, encoding: NodeId) -> Result<Arc<[u8]>, Fault> {
        let malformed = || Fault::bad_pickle("bytes are not written as latin1 text");
        let encoding = self.arena.text(encoding).ok_or_else(malformed)?;
        if !matches!(&**encoding, "latin1" | "latin-1") {
            return Err(malformed());
        }
        let text = self.arena.text(text).ok_or_else(malformed)?.clone();
        self.arena.charge_derived(text.len())?;
        let bytes: Result<Vec<u8>, _> =
            text.chars().map(|character| u8::try_from(u32::from(character))).collect();
        Ok(bytes.map_err(|_| malformed())?.into())
    }

    fn float(&self, id: NodeId) -> Option<f64> {
        match self.arena.get(id) {
            Node::Float(value) => Some(*value),
            #[expect(
                clippy::cast_precision_loss,
                reason = "Python's complex() rounds its arguments in the same way"
            )]
            Node::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Creates an empty dict, or a dict from another dict or from a list of pairs (as Python 2 wrote it).
    fn make_dict(&mut self, kind: DictKind, arguments: &[NodeId]) -> Result<NodeId, Fault> {
        let malformed = || Fault::bad_pickle("a dict is made of something other than pairs");
        let pairs: Vec<NodeId> = match arguments {
            [] => Vec::new(),
            &[source] => match self.arena.get(source) {
                Node::Dict(source) => source.items.iter().flat_map(|&(key, value)| [key, value]).collect(),
                Node::Sequence(_, items) => {
                    let mut pairs = Vec::new();
                    for &item in items {
                        let &[key, value] = self.arena.sequence(item).ok_or_else(malformed)? else {
                            return Err(malformed());
                        };
                        pairs.extend([key, value]);
                    }
                    pairs
                }
                _ => return Err(malformed()),
            },
            _ => return Err(malformed()),
        };
        let dict = self.arena.new_dict(kind)?;
        self.set_items(dict, &pairs)?;
        Ok(dict)
    }

    fn make_set(&mut self, kind: SequenceKind, arguments: &[NodeId]) -> Result<NodeId, Fault> {
        let items = match arguments {
            [] => Vec::new(),
            &[source] => match self.arena.get(source) {
                Node::Sequence(_, items) => items.clone(),
                Node::Set(source) => source.items.clone(),
                _ => return Err(Fault::bad_pickle("a set is made of something that is not a sequence")),
            },
            _ => return Err(Fault::bad_pickle("a set is made of several arguments")),
        };
        let set = self.arena.new_set(kind)?;
        self.add_members(set, &items)?;
        Ok(set)
    }

    /// Sets the state of an object after its creation.
    pub(super) fn build(&mut self, target: NodeId, state: NodeId) -> Result<(), Fault> {
        match self.arena.get(target) {
            Node::NumpyDType(_) | Node::NumpyArray(_) => self.build_numpy(target, state),
            // The state contains the attributes of a state dict (`_metadata`), which no kernel can see.
            Node::Dict(dict) if dict.kind == DictKind::Ordered => Ok(()),
            Node::Object(_) => self.extend_object(target, &[state]),
            _ => Err(Fault::bad_pickle("state is set on an object that cannot have a state")),
        }
    }
}

pub(super) fn mismatch(global: Global) -> Fault {
    Fault::bad_pickle(format!("the arguments of a call of {global:?} do not fit"))
}
