//! Reads numpy's arrays, scalars and dtypes from pickles. They are kept as bytes with a description, or as a list of
//! objects. Nothing is computed with them, except that some bytes are swapped to little-endian order.
//!
//! Only plain dtypes are supported. Structured dtypes and dates have further fields and are refused, because no kernel
//! takes them.

use std::sync::Arc;

use super::calls::mismatch;
use super::globals::Global;
use super::machine::Machine;
use super::node::{ArrayContents, ArrayNode, Node, NodeId, NumpyDType};
use crate::capture::error::{Fault, quoted};
use crate::units::Bytes;

impl Machine {
    pub(super) fn call_numpy(&mut self, global: Global, arguments: &[NodeId]) -> Result<Node, Fault> {
        match (global, arguments) {
            // The other arguments describe an empty array, which is filled later, when its state is set.
            (Global::NumpyReconstruct, &[class, _shape, _code])
                if matches!(self.arena.get(class), Node::Global(Global::NumpyArray)) =>
            {
                self.charge_tensor(1)?;
                Ok(Node::NumpyArray(Box::new(ArrayNode {
                    dtype: Arc::new(dtype_of("i1")?),
                    shape: vec![0],
                    fortran_order: false,
                    contents: ArrayContents::Missing,
                })))
            }
            (Global::NumpyFromBuffer, &[data, dtype, shape, order]) => {
                let order = self.arena.text(order).ok_or_else(|| mismatch(global))?;
                let fortran_order = match &**order {
                    "C" => false,
                    "F" => true,
                    _ => return Err(mismatch(global)),
                };
                let array = self.array(dtype, shape, fortran_order, data)?;
                Ok(Node::NumpyArray(Box::new(array)))
            }
            (Global::NumpyDType, &[name, ref flags @ ..]) if flags.len() <= 2 => {
                let name = self.arena.text(name).ok_or_else(|| mismatch(global))?;
                Ok(Node::NumpyDType(Arc::new(dtype_of(name)?)))
            }
            (Global::NumpyScalar, &[dtype, bytes]) => {
                let (Node::NumpyDType(dtype), Node::Bytes(bytes)) =
                    (self.arena.get(dtype), self.arena.get(bytes))
                else {
                    return Err(mismatch(global));
                };
                if dtype.kind == 'O' || dtype.item_bytes != bytes.len() as u64 {
                    return Err(mismatch(global));
                }
                let (dtype, bytes) = (dtype.clone(), bytes.clone());
                let (dtype, bytes) = self.native(dtype, bytes)?;
                Ok(Node::NumpyScalar { dtype, bytes })
            }
            _ => Err(mismatch(global)),
        }
    }

    pub(super) fn build_numpy(&mut self, target: NodeId, state: NodeId) -> Result<(), Fault> {
        let malformed = || Fault::bad_pickle("a numpy object has a malformed state");
        let state = self.arena.tuple(state).ok_or_else(malformed)?;
        let node = match self.arena.get(target) {
            // The state: (version, byte order, subdtype, names, fields, item size, alignment, flags[, metadata])
            Node::NumpyDType(dtype) => {
                let (&[_version, order, subdtype, names, fields], _) =
                    state.split_first_chunk::<5>().ok_or_else(malformed)?;
                if [subdtype, names, fields].iter().any(|&part| !matches!(self.arena.get(part), Node::None)) {
                    return Err(Fault::unsupported(
                        "it contains a numpy dtype with fields, which this program does not support",
                    ));
                }
                let order = match self.arena.text(order).map(|order| &**order) {
                    Some("<" | "=") => '<',
                    Some(">") => '>',
                    Some("|") => '|',
                    _ => return Err(malformed()),
                };
                Node::NumpyDType(Arc::new(NumpyDType { order, ..(**dtype).clone() }))
            }
            // The state: (version, shape, dtype, is Fortran, data)
            Node::NumpyArray(_) => {
                let &[_version, shape, dtype, fortran_order, data] = state else { return Err(malformed()) };
                let fortran_order = match self.arena.get(fortran_order) {
                    Node::Bool(value) => *value,
                    Node::Int(value) => *value != 0,
                    _ => return Err(malformed()),
                };
                let mut array = self.array(dtype, shape, fortran_order, data)?;
                // An array made from a buffer keeps its byte order. An array that is filled from a state does not.
                if let ArrayContents::Bytes(bytes) = array.contents {
                    let (dtype, bytes) = self.native(array.dtype, bytes)?;
                    (array.dtype, array.contents) = (dtype, ArrayContents::Bytes(bytes));
                }
                Node::NumpyArray(Box::new(array))
            }
            _ => return Err(malformed()),
        };
        *self.arena.get_mut(target) = node;
        Ok(())
    }

    /// Converts items to this machine's byte order, as numpy does on a little-endian machine.
    fn native(
        &mut self,
        dtype: Arc<NumpyDType>,
        bytes: Arc<[u8]>,
    ) -> Result<(Arc<NumpyDType>, Arc<[u8]>), Fault> {
        if dtype.order != '>' {
            return Ok((dtype, bytes));
        }
        let part = match dtype.kind {
            'c' => dtype.item_bytes / 2,
            'U' => 4,
            _ => dtype.item_bytes,
        };
        self.arena.charge_derived(bytes.len())?;
        let mut swapped = bytes.to_vec();
        swapped.chunks_exact_mut(Bytes::new(part).to_usize().max(1)).for_each(<[u8]>::reverse);
        Ok((Arc::new(NumpyDType { order: '<', ..(*dtype).clone() }), swapped.into()))
    }

    fn array(
        &mut self,
        dtype: NodeId,
        shape: NodeId,
        fortran_order: bool,
        data: NodeId,
    ) -> Result<ArrayNode, Fault> {
        let malformed =
            || Fault::bad_pickle("the dtype, shape and data of a numpy array do not fit together");
        let Node::NumpyDType(dtype) = self.arena.get(dtype) else { return Err(malformed()) };
        let dtype = dtype.clone();
        let shape = self.sizes(shape)?;
        self.charge_tensor(shape.len())?;
        let count =
            shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size)).ok_or_else(malformed)?;
        let contents = match self.arena.get(data) {
            Node::Bytes(bytes) | Node::ByteArray(bytes) if dtype.kind != 'O' => {
                if count.checked_mul(dtype.item_bytes) != Some(bytes.len() as u64) {
                    return Err(malformed());
                }
                ArrayContents::Bytes(bytes.clone())
            }
            Node::Sequence(_, items) if dtype.kind == 'O' => {
                if count != items.len() as u64 {
                    return Err(malformed());
                }
                let items = items.clone();
                self.arena.charge_slots(items.len())?;
                ArrayContents::Objects(items)
            }
            _ => return Err(malformed()),
        };
        // If at most one axis is longer than one, both orders are the same.
        let orders_differ = !shape.contains(&0) && shape.iter().filter(|&&size| size > 1).count() > 1;
        Ok(ArrayNode { dtype, shape, fortran_order: fortran_order && orders_differ, contents })
    }
}

fn dtype_of(name: &str) -> Result<NumpyDType, Fault> {
    let malformed = || Fault::bad_pickle(format!("{} is not a numpy dtype", quoted(name)));
    let mut characters = name.chars();
    let kind = characters.next().ok_or_else(malformed)?;
    let count = characters.as_str();
    let units: u64 =
        if kind == 'O' && count.is_empty() { 8 } else { count.parse().map_err(|_| malformed())? };
    let item_bytes = match kind {
        'b' | 'i' | 'u' | 'f' | 'c' if (1..=32).contains(&units) => Some(units),
        'S' | 'V' => Some(units),
        'U' => units.checked_mul(4),
        'O' => Some(8),
        'M' | 'm' => {
            return Err(Fault::unsupported(format!(
                "it contains the numpy dtype {} of dates or durations, which this program does not support",
                quoted(name)
            )));
        }
        _ => None,
    };
    let one_byte = item_bytes == Some(1) || matches!(kind, 'S' | 'V' | 'O');
    Ok(NumpyDType {
        kind,
        count: if kind == 'O' { String::new() } else { units.to_string() },
        order: if one_byte { '|' } else { '<' },
        item_bytes: item_bytes.ok_or_else(malformed)?,
    })
}
