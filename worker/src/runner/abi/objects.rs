//! Objects of tvm-ffi, for functions that do not accept a borrowed `DLTensor`.
//!
//! The layouts follow tvm-ffi's `c_api.h`. In each call, our objects have the same reference count, which is so high
//! that no candidate releases the last reference.

use std::ffi::c_void;

use super::Any;

/// `TVMFFIObject`, which is the head of every object.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::runner) struct Object {
    /// The number of strong references, and in the upper half the number of weak references.
    pub(in crate::runner) reference_counts: u64,
    pub(in crate::runner) type_index: i32,
    pub(in crate::runner) padding: u32,
    pub(in crate::runner) deleter: *mut c_void,
}

/// `TVMFFISeqCell`, which follows the head of an array or a list.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::runner) struct Sequence {
    pub(in crate::runner) elements: *const Any,
    pub(in crate::runner) count: i64,
    pub(in crate::runner) capacity: i64,
    /// The function that frees the elements, or null if they belong to the object.
    pub(in crate::runner) deleter: *mut c_void,
}

const _: () = assert!(size_of::<Object>() == 24 && size_of::<Sequence>() == 32);

impl Object {
    /// Returns the head of one of our objects.
    pub(super) fn held(type_index: i32) -> Self {
        const STRONG: u64 = 1 << 30;
        const WEAK: u64 = 1 << 32;
        let deleter = keep as extern "C" fn(*mut c_void, i32);
        Self { reference_counts: WEAK | STRONG, type_index, padding: 0, deleter: deleter as *mut c_void }
    }
}

/// The deleter of our objects. It does nothing, because their memory belongs to `Arguments`.
extern "C" fn keep(_: *mut c_void, _: i32) {}
