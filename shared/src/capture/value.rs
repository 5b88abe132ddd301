//! Defines the values of a capture, which are inert data: none of them can be called.
//!
//! This file also computes the sizes and strides of tensors. The reader creates values, and `arguments` turns them into
//! the arguments of a call. A tensor refers to its storage, whose bytes remain in the file.

use std::sync::Arc;

use num_bigint::BigInt;

use super::DType;
use super::limits::FAR_APART_BYTES;
use super::store::BlobId;
use crate::ids::StorageId;
use crate::units::Bytes;

/// A value of a pickle. Objects shared in the pickle are shared here too (through `Arc`), so a small file cannot become
/// a large tree. Cycles are the exception; their number is limited.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    None,
    Ellipsis,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit into 64 bits.
    BigInt(Arc<BigInt>),
    Float(f64),
    Complex {
        real: f64,
        imaginary: f64,
    },
    Str(Arc<str>),
    Bytes(Arc<[u8]>),
    ByteArray(Arc<[u8]>),
    Sequence {
        kind: SequenceKind,
        items: Arc<[Value]>,
    },
    Dict {
        kind: DictKind,
        items: Arc<[(Value, Value)]>,
    },
    Slice(Arc<[Value; 3]>),
    Range(Arc<[Value; 3]>),
    DType(DType),
    /// The name of a torch dtype that kernels cannot take, such as `quint8`.
    OtherDType(Arc<str>),
    Device(Arc<str>),
    Layout(Arc<str>),
    MemoryFormat(Arc<str>),
    Tensor(Arc<Tensor>),
    /// A storage that is not part of a tensor.
    Storage(StorageId),
    NumpyArray(Arc<NumpyArray>),
    /// `dtype` is numpy's `descr`, such as `<f4`.
    NumpyScalar {
        dtype: Arc<str>,
        bytes: Arc<[u8]>,
    },
    /// An unknown name, or an object made by calling one.
    Object(Arc<Object>),
    /// A reference from inside a container to the container itself. It is represented by the path of the container.
    Cycle(Arc<str>),
}

/// An unknown function, a module attribute, or an instance of an unknown class, as described by the pickle. Nothing in
/// it was looked up, created or called.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// `module.name` as in the pickle.
    pub name: Arc<str>,
    pub made: Creation,
    /// Attributes that were set after the object's creation, and items that were added.
    pub state: Vec<Value>,
}

/// How Python would create an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Creation {
    /// The named object itself; nothing is called.
    Named,
    /// A call with these arguments. Enum members and many other objects are created like this.
    Called(Arc<[Value]>),
    /// A call of `__new__` with these arguments; `__init__` is not called. Named tuples and data classes are created
    /// like this.
    New(Arc<[Value]>),
}

impl Object {
    /// The value of an enum member. Any object that was made by a call with one plain value, and has no further state,
    /// is treated as an enum member.
    pub fn member_value(&self) -> Option<&Value> {
        match &self.made {
            Creation::Called(arguments) if self.state.is_empty() => match &**arguments {
                [
                    value @ (Value::Int(_)
                    | Value::BigInt(_)
                    | Value::Bool(_)
                    | Value::Float(_)
                    | Value::Str(_)),
                ] => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// The items of a named tuple. Any object that was made by `__new__` with arguments, and has no further state, is
    /// treated as a named tuple.
    pub fn tuple_items(&self) -> Option<&[Value]> {
        match &self.made {
            Creation::New(items) if self.state.is_empty() && !items.is_empty() => Some(items),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceKind {
    List,
    Tuple,
    /// `torch.Size`.
    Size,
    Set,
    FrozenSet,
    /// A named tuple of this class of `torch.return_types`, such as `max` or `topk`.
    ReturnType(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DictKind {
    Dict,
    Ordered,
    Default,
    Counter,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NumpyArray {
    /// numpy's `descr`, such as `<f4`.
    pub dtype: Arc<str>,
    pub shape: Vec<u64>,
    pub fortran_order: bool,
    pub contents: NumpyContents,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NumpyContents {
    /// The items as stored, in the dtype's byte order, and in Fortran order if `fortran_order` is true.
    Bytes(Arc<[u8]>),
    Objects(Arc<[Value]>),
}

/// A dense strided tensor. The reader has checked that every element lies within the storage and that the arithmetic in
/// the methods below cannot overflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Identifies the tensor object: all occurrences of one object have the same number.
    pub object: u32,
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The strides, in elements. They are never negative, because torch has no negative strides.
    pub stride: Vec<u64>,
    /// The offset in the storage, in elements.
    pub storage_offset: u64,
    pub storage: StorageId,
    pub requires_grad: bool,
    pub parameter: bool,
    /// The values are the complex conjugates of the stored ones.
    pub conjugate: bool,
    /// The values are the negatives of the stored ones.
    pub negative: bool,
}

impl Tensor {
    /// A contiguous tensor at the start of a storage, without flags. It is the first object of its pickle.
    pub fn dense(dtype: DType, shape: &[u64], storage: StorageId) -> Self {
        Self {
            object: 0,
            dtype,
            shape: shape.to_vec(),
            stride: contiguous_strides(shape),
            storage_offset: 0,
            storage,
            requires_grad: false,
            parameter: false,
            conjugate: false,
            negative: false,
        }
    }

    /// Number of elements; 1 for a 0-dim tensor.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Size of the values in row-major order.
    pub fn logical_bytes(&self) -> Bytes {
        Bytes::new(self.elements() * self.dtype.size())
    }

    /// Size of the distinct elements, where all elements along an expanded axis are counted as one.
    pub fn distinct_bytes(&self) -> Bytes {
        let axes = self.shape.iter().zip(&self.stride);
        let sizes = axes.map(|(&size, &stride)| if stride == 0 { size.min(1) } else { size });
        Bytes::new(sizes.product::<u64>() * self.dtype.size())
    }

    /// Number of elements from the first one used to the last one, inclusive; 0 if there are none.
    pub fn extent_elements(&self) -> u64 {
        extent_elements(&self.shape, &self.stride)
    }

    /// The bytes of the storage from this tensor's first element to its last.
    pub fn byte_range(&self) -> std::ops::Range<u64> {
        let start = self.storage_offset * self.dtype.size();
        start..start + self.extent_elements() * self.dtype.size()
    }

    /// Number of reads that are needed to get all values. Neighbours along an axis are read together unless they are
    /// far apart.
    pub fn scattered_reads(&self) -> u64 {
        if self.elements() == 0 {
            return 0;
        }
        let far = |stride: u64| stride.saturating_mul(self.dtype.size()) > FAR_APART_BYTES;
        let axes = self.shape.iter().zip(&self.stride);
        axes.filter(|&(_, &stride)| far(stride)).map(|(&size, _)| size).product()
    }

    /// True if the tensor is row-major without gaps, like `torch.Tensor.is_contiguous()`.
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.shape, &self.stride)
    }
}

/// Number of elements from the first one used to the last one, inclusive; 0 for a shape without elements.
pub fn extent_elements(shape: &[u64], stride: &[u64]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    1 + shape.iter().zip(stride).map(|(&size, &step)| (size - 1) * step).sum::<u64>()
}

/// Applies torch's rule: axes of size one may have any stride, and a tensor without elements is contiguous.
pub fn is_contiguous(shape: &[u64], stride: &[u64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    for (&size, &step) in shape.iter().zip(stride).rev() {
        if size != 1 {
            if step != expected {
                return false;
            }
            expected *= size;
        }
    }
    true
}

/// Row-major strides of a shape.
pub fn contiguous_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// A storage of a capture, and the location of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    pub id: StorageId,
    pub bytes: Bytes,
    /// Offset of the storage's first byte. In a store, it is counted within the blob or the manifest, otherwise within
    /// the capture file.
    pub file_offset: u64,
    /// The blob that contains the storage. `None` if the storage is empty or in the manifest, or if the capture is not
    /// in a store.
    pub blob: Option<BlobId>,
    /// CRC of the whole record. `None` if the writer computed none, if the file is in torch's old format, or if the
    /// storage is empty and has no record.
    pub crc32: Option<u32>,
    /// The record's name (`data/0`), or the key in torch's old format.
    pub name: String,
}
