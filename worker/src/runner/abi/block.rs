//! The memory block that holds an entry's arguments: its layout, and the structures in it.

use super::objects::{Object, Sequence};
use super::{Any, Device, DlTensor, Payload, any, type_index, words};
use crate::runner::frame::WireType;

/// Assigns positions in the block. `words` is the size so far.
#[derive(Default)]
pub(super) struct Layout {
    pub(super) words: usize,
}

/// The word indices of one tensor's parts.
pub(super) struct TensorOffsets {
    /// The `DLTensor`, which follows the head of an object.
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

/// The size of an array object with `count` values, in words.
pub(super) fn array_words(count: usize) -> usize {
    words::<Object>() + words::<Sequence>() + count * words::<Any>()
}

/// The live block while it is being filled. Word indices come from its own `Layout`.
pub(super) struct Block {
    pub(super) base: *mut u64,
}

impl Block {
    fn at(&self, word: usize) -> *mut u64 {
        // SAFETY: `word` was handed out by the layout that sized the block.
        unsafe { self.base.add(word) }
    }

    pub(super) fn put_any(&mut self, word: usize, any: Any) {
        // SAFETY: two words of the block, aligned to eight like `Any`.
        unsafe { self.at(word).cast::<Any>().write(any) }
    }

    pub(super) fn bytes(&mut self, offsets: &TensorOffsets, bytes: &[u8]) -> *mut u8 {
        let target = self.at(offsets.bytes).cast::<u8>();
        // SAFETY: the layout took `bytes.len()` rounded up to words at this offset.
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
        // SAFETY: `rank` words each were taken; a stride list that is longer than the shape is cut.
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
        // SAFETY: six words of the block, aligned like `DlTensor`, after the words of an `Object`.
        unsafe {
            structure.write(tensor);
            structure.cast::<Object>().sub(1).write(Object::held(type_index::OWNED_TENSOR));
        }
        any(type_index::TENSOR, Payload { pointer: structure.cast() })
    }

    /// The object that contains a tensor of the block.
    pub(super) fn owned(&self, offsets: &TensorOffsets) -> Any {
        let object = self.at(offsets.structure - words::<Object>());
        any(type_index::OWNED_TENSOR, Payload { pointer: object.cast() })
    }

    /// Writes an array object to the beginning of the block, which must have `array_words` for these values, and returns
    /// the argument that points to it.
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
