//! The memory block that contains an entry's arguments: decides on its layout, and writes the structures into it.

use super::objects::{Object, Sequence};
use super::{Any, Device, DlTensor, Payload, any, type_index, words};
use crate::runner::frame::WireType;

/// Assigns positions in the block. `words` is the number of words that are assigned so far.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) words: usize,
}

/// The positions of a tensor's parts in the block, as word indices.
pub(super) struct TensorOffsets {
    /// The position of the `DLTensor`, which follows the head of an object.
    pub(super) structure: usize,
    shape: usize,
    strides: usize,
    pub(super) bytes: usize,
}

impl Layout {
    pub(super) fn take(&mut self, words: usize) -> usize {
        let at = self.words;
        self.words += words;
        at
    }

    pub(super) fn tensor(&mut self, rank: usize, bytes: usize) -> TensorOffsets {
        self.take(words::<Object>());
        TensorOffsets {
            structure: self.take(words::<DlTensor>()),
            shape: self.take(rank.max(1)),
            strides: self.take(rank.max(1)),
            bytes: self.take(bytes.div_ceil(8)),
        }
    }
}

/// Returns the size of an array object with `count` values, in words.
pub(super) fn array_words(count: usize) -> usize {
    words::<Object>() + words::<Sequence>() + count * words::<Any>()
}

/// The block while it is being filled. Word indices come from the block's own `Layout`.
pub(super) struct Block {
    pub(super) base: *mut u64,
}

impl Block {
    fn at(&self, word: usize) -> *mut u64 {
        // SAFETY: `word` was assigned by the layout that also determined the block's size.
        unsafe { self.base.add(word) }
    }

    pub(super) fn put_any(&mut self, word: usize, any: Any) {
        // SAFETY: these are two words of the block, and `Any` needs an alignment of eight, which words have.
        unsafe { self.at(word).cast::<Any>().write(any) }
    }

    pub(super) fn bytes(&mut self, offsets: &TensorOffsets, bytes: &[u8]) -> *mut u8 {
        let target = self.at(offsets.bytes).cast::<u8>();
        // SAFETY: the layout has assigned `bytes.len()`, rounded up to words, at this position.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        target
    }

    /// Writes a `DLTensor` into the block, and returns the argument that points to it.
    pub(super) fn tensor(
        &mut self,
        offsets: &TensorOffsets,
        data: *mut u8,
        dtype: WireType,
        shape: &[i64],
        stride: &[i64],
        device: i32,
    ) -> Any {
        let (shape_at, strides_at) = (self.at(offsets.shape), self.at(offsets.strides));
        // SAFETY: the layout has assigned `rank` words to each. A stride list that is longer than the shape is cut off.
        unsafe {
            std::ptr::copy_nonoverlapping(shape.as_ptr(), shape_at.cast(), shape.len());
            std::ptr::copy_nonoverlapping(stride.as_ptr(), strides_at.cast(), stride.len().min(shape.len()));
        }
        let tensor = DlTensor {
            data: data.cast(),
            device: Device { kind: device, index: 0 },
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_possible_wrap,
                reason = "the reader limits ranks to 64"
            )]
            ndim: shape.len() as i32,
            dtype: dtype.into(),
            shape: shape_at.cast(),
            strides: strides_at.cast(),
            byte_offset: 0,
        };
        let structure = self.at(offsets.structure).cast::<DlTensor>();
        // SAFETY: these are six words of the block, aligned as `DlTensor` requires, and an `Object` fits before them.
        unsafe {
            structure.write(tensor);
            structure.cast::<Object>().sub(1).write(Object::held(type_index::OWNED_TENSOR));
        }
        any(type_index::TENSOR, Payload { pointer: structure.cast() })
    }

    /// Returns the object that contains a tensor of the block, as an argument.
    pub(super) fn owned(&self, offsets: &TensorOffsets) -> Any {
        let object = self.at(offsets.structure - words::<Object>());
        any(type_index::OWNED_TENSOR, Payload { pointer: object.cast() })
    }

    /// Writes an array object to the beginning of the block, and returns the argument that points to it. The block must
    /// have `array_words` words for these values.
    pub(super) fn array(&mut self, values: &[Any]) -> Any {
        let object = self.at(0).cast::<Object>();
        let count = i64::try_from(values.len()).unwrap_or(i64::MAX);
        // SAFETY: the block has the words of a head, a sequence and these values, which are all aligned to eight.
        unsafe {
            let sequence = object.add(1).cast::<Sequence>();
            let elements = sequence.add(1).cast::<Any>();
            object.write(Object::held(type_index::ARRAY));
            sequence.write(Sequence { elements, count, capacity: count, deleter: std::ptr::null_mut() });
            std::ptr::copy_nonoverlapping(values.as_ptr(), elements, values.len());
        }
        any(type_index::ARRAY, Payload { pointer: object.cast() })
    }
}
