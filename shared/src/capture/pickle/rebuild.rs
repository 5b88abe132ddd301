//! Rebuilds tensors from the shapes, strides and offsets in a pickle. Every number is checked before it is used.

use super::calls::mismatch;
use super::globals::Global;
use super::machine::Machine;
use super::node::{Node, NodeId, TensorNode};
use crate::capture::error::{ErrorKind, Fault, quoted};
use crate::capture::limits::{MAX_RANK, TENSOR_SLOTS};
use crate::capture::{DType, Kind};

impl Machine {
    pub(super) fn rebuild(&mut self, global: Global, arguments: &[NodeId]) -> Result<Node, Fault> {
        let tensor = match (global, arguments) {
            (Global::RebuildTensor, &[storage, offset, size, stride]) => {
                self.tensor(storage, offset, size, stride, None)?
            }
            (Global::RebuildTensorV2, &[storage, offset, size, stride, gradient, _hooks, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let mut tensor = self.tensor(storage, offset, size, stride, None)?;
                tensor.requires_grad = self.flag(gradient)?;
                self.apply_metadata(&mut tensor, rest)?;
                tensor
            }
            (
                Global::RebuildTensorV3,
                &[storage, offset, size, stride, gradient, _hooks, dtype, ref rest @ ..],
            ) if rest.len() <= 1 => {
                let dtype = match self.arena.get(dtype) {
                    Node::Global(Global::DType(dtype)) => *dtype,
                    Node::Global(Global::OtherDType(name)) => {
                        return Err(Fault::unsupported(format!(
                            "a tensor has dtype {name}, which kernels cannot take (record it as \
                             `tensor.view(torch.uint8)`)"
                        )));
                    }
                    _ => return Err(mismatch(global)),
                };
                let mut tensor = self.tensor(storage, offset, size, stride, Some(dtype))?;
                tensor.requires_grad = self.flag(gradient)?;
                self.apply_metadata(&mut tensor, rest)?;
                tensor
            }
            (Global::RebuildParameter, &[data, gradient, _hooks])
            | (Global::RebuildParameterWithState, &[data, gradient, _hooks, _]) => {
                let Node::Tensor(data) = self.arena.get(data) else { return Err(mismatch(global)) };
                let data = data.clone();
                self.charge_tensor(data.shape.len())?;
                TensorNode { requires_grad: self.flag(gradient)?, parameter: true, ..*data }
            }
            _ => return Err(mismatch(global)),
        };
        Ok(Node::Tensor(Box::new(tensor)))
    }

    /// Rebuilds a tensor with Python attributes: `_rebuild_from_type_v2(function, type, arguments, state)`. The
    /// attributes are dropped. A subclass other than `Parameter` and `Buffer` is refused, because it could interpret
    /// the tensor's bytes in any way.
    pub(super) fn rebuild_from_type(&mut self, arguments: &[NodeId]) -> Result<NodeId, Fault> {
        let refuse = || mismatch(Global::RebuildFromType);
        let &[function, class, inner, _state] = arguments else { return Err(refuse()) };
        if let Node::Object(object) = self.arena.get(class) {
            let name = quoted(&object.name);
            return Err(Fault::unsupported(format!(
                "the pickle holds a tensor of the class {name} (record it as a plain tensor, `tensor.as_subclass(torch.Tensor)`)"
            )));
        }
        let (Node::Global(function), Node::Global(Global::TensorType { parameter })) =
            (self.arena.get(function), self.arena.get(class))
        else {
            return Err(refuse());
        };
        let (function, parameter) = (*function, *parameter);
        let inner = self.arena.tuple(inner).ok_or_else(refuse)?.to_vec();
        self.arena.charge_slots(inner.len())?;
        let mut node = self.rebuild(function, &inner)?;
        if let Node::Tensor(tensor) = &mut node {
            tensor.parameter |= parameter;
        }
        self.arena.add(node)
    }

    fn tensor(
        &mut self,
        storage: NodeId,
        offset: NodeId,
        size: NodeId,
        stride: NodeId,
        dtype: Option<DType>,
    ) -> Result<TensorNode, Fault> {
        let malformed = || Fault::bad_pickle("a tensor has a malformed size, stride or offset");
        let &Node::Storage { index, dtype: stored } = self.arena.get(storage) else {
            return Err(Fault::bad_pickle("a tensor has no storage"));
        };
        let dtype = dtype.unwrap_or(stored);
        let storage_offset = self.arena.size(offset).ok_or_else(malformed)?;
        let shape = self.sizes(size)?;
        let stride = self.sizes(stride)?;
        if shape.len() != stride.len() {
            return Err(malformed());
        }
        self.charge_tensor(shape.len())?;
        let tensor = TensorNode {
            storage: index,
            dtype,
            shape,
            stride,
            storage_offset,
            requires_grad: false,
            parameter: false,
            conjugate: false,
            negative: false,
        };
        let storage = &self.storages[index as usize];
        if !fits(&tensor, storage.bytes)? {
            return Err(Fault::new(
                ErrorKind::OutOfBounds,
                format!(
                    "a tensor of shape {:?} and stride {:?} at element {} exceeds its storage {} of {} bytes",
                    tensor.shape,
                    tensor.stride,
                    tensor.storage_offset,
                    quoted(&storage.key),
                    storage.bytes
                ),
            ));
        }
        Ok(tensor)
    }

    /// Counts the slots of a shape against the limit. This is needed because many tensors may share one tuple of sizes,
    /// but each gets its own copy.
    pub(super) fn charge_tensor(&mut self, rank: usize) -> Result<(), Fault> {
        self.arena.charge_slots(TENSOR_SLOTS + 2 * rank)
    }

    pub(super) fn sizes(&self, id: NodeId) -> Result<Vec<u64>, Fault> {
        let malformed = || Fault::bad_pickle("a shape or stride contains something that is not a size");
        let items = self.arena.sequence(id).ok_or_else(malformed)?;
        if items.len() > MAX_RANK {
            return Err(Fault::limit("a tensor has too many axes", MAX_RANK));
        }
        items.iter().map(|&item| self.arena.size(item).ok_or_else(malformed)).collect()
    }

    fn flag(&self, id: NodeId) -> Result<bool, Fault> {
        match self.arena.get(id) {
            Node::Bool(value) => Ok(*value),
            Node::Int(value) => Ok(*value != 0),
            _ => Err(Fault::bad_pickle("requires_grad is not a bool")),
        }
    }

    /// Applies the conjugate and negative bits, if the pickle contains any.
    fn apply_metadata(&self, tensor: &mut TensorNode, rest: &[NodeId]) -> Result<(), Fault> {
        let malformed = || Fault::bad_pickle("a tensor has malformed metadata");
        let Some(&metadata) = rest.first() else { return Ok(()) };
        let bits = match self.arena.get(metadata) {
            Node::None => return Ok(()),
            Node::Dict(bits) => bits,
            _ => return Err(malformed()),
        };
        for &(name, value) in &bits.items {
            let (Some(name), &Node::Bool(set)) = (self.arena.text(name), self.arena.get(value)) else {
                return Err(malformed());
            };
            match &**name {
                "conj" => tensor.conjugate = set,
                "neg" => tensor.negative = set,
                _ => {
                    return Err(Fault::unsupported(format!(
                        "a tensor has the attribute {}, which this program does not know",
                        quoted(name)
                    )));
                }
            }
        }
        if tensor.conjugate && tensor.dtype.kind() != Kind::Complex {
            return Err(Fault::bad_pickle("a tensor that is not complex has its conj bit set"));
        }
        // The negative bit is refused for these types: bools have no negatives, flipping the sign bit of a fnuz float's
        // zero makes it a NaN, scales have no sign, and torch does not negate packed values.
        let no_sign = [
            DType::Bool,
            DType::Float8E4M3FnUz,
            DType::Float8E5M2FnUz,
            DType::Float8E8M0Fnu,
            DType::Float4E2M1FnX2,
        ]
        .contains(&tensor.dtype);
        if tensor.negative && no_sign {
            return Err(Fault::bad_pickle(format!("a tensor of {} has its neg bit set", tensor.dtype)));
        }
        Ok(())
    }
}

/// Checks that all elements are within a storage of this size. Sizes whose products or sums overflow are refused here,
/// so no later code has to check.
fn fits(tensor: &TensorNode, storage_bytes: u64) -> Result<bool, Fault> {
    let overflow = || {
        Fault::new(
            ErrorKind::OutOfBounds,
            "the size or offset of a tensor in bytes does not fit into 64 bits",
        )
    };
    let element = tensor.dtype.size();
    // Sizes of 0 are replaced by 1, so that products which overflow are refused for empty tensors too.
    tensor
        .shape
        .iter()
        .try_fold(element, |bytes, &size| bytes.checked_mul(size.max(1)))
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or_else(overflow)?;
    let start = tensor.storage_offset.checked_mul(element).ok_or_else(overflow)?;
    if tensor.shape.contains(&0) {
        return Ok(true);
    }
    let last = tensor
        .shape
        .iter()
        .zip(&tensor.stride)
        .try_fold(0u64, |last, (&size, &step)| last.checked_add((size - 1).checked_mul(step)?));
    let end = last
        .and_then(|last| last.checked_add(1)?.checked_mul(element)?.checked_add(start))
        .ok_or_else(overflow)?;
    Ok(end <= storage_bytes)
}
