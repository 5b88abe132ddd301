//! The error that a library built with tvm-ffi raises when it returns nonzero: its kind and message, fetched through
//! the public C ABI of `libtvm_ffi.so` (`tvm/ffi/c_api.h`).
//!
//! Everything here is the candidate's memory, read in the candidate's process: a pointer that lies is its own crash.
//! What is read goes to the worker as a claim, which `control` bounds.

use std::ffi::{CStr, c_char, c_void};

/// `kTVMFFIError`.
const ERROR_TYPE_INDEX: i32 = 67;
/// No message is read further; what is shown is shorter still.
const LONGEST_PART: usize = 4096;

/// `TVMFFIErrorMoveFromRaised`: hands over the error of this thread, null if none was raised.
type MoveFromRaised = unsafe extern "C" fn(*mut *mut c_void);

/// `TVMFFIObject`.
#[repr(C)]
struct Object {
    reference_counts: u64,
    type_index: i32,
    padding: u32,
    deleter: *mut c_void,
}

/// `TVMFFIByteArray`.
#[repr(C)]
struct ByteArray {
    data: *const c_char,
    size: usize,
}

/// The head of a `TVMFFIErrorCell`, which follows the object's own head.
#[repr(C)]
struct ErrorCell {
    kind: ByteArray,
    message: ByteArray,
}

const _: () = assert!(size_of::<Object>() == 24 && size_of::<ByteArray>() == 16);

/// Where a candidate's errors can be had, if it has `libtvm_ffi.so`.
pub(crate) struct RaisedErrors {
    move_from_raised: Option<MoveFromRaised>,
}

impl RaisedErrors {
    /// `library` is a handle of `dlopen`; what it needs is searched as well, and then what was loaded for all.
    pub(crate) fn find(library: *mut c_void) -> Self {
        const NAME: &CStr = c"TVMFFIErrorMoveFromRaised";
        let address = [library, libc::RTLD_DEFAULT]
            .into_iter()
            // SAFETY: a handle that dlopen returned or the pseudo-handle, and a NUL-terminated name.
            .map(|handle| unsafe { libc::dlsym(handle, NAME.as_ptr()) })
            .find(|address| !address.is_null());
        // SAFETY: the name is that of a function of this signature in the public ABI.
        let function = |address| unsafe { std::mem::transmute::<*mut c_void, MoveFromRaised>(address) };
        Self { move_from_raised: address.map(function) }
    }

    /// `kind: message` of the error that was raised, which is thereby taken.
    pub(crate) fn take(&self) -> Option<String> {
        let move_from_raised = self.move_from_raised?;
        let mut object: *mut c_void = std::ptr::null_mut();
        // SAFETY: the ABI's function, given a place for one handle.
        unsafe { move_from_raised(&raw mut object) };
        let object = object.cast::<Object>();
        // SAFETY: not null, so the ABI says that it is an object; its count is not given back, as the call that
        // failed is the last or nearly the last of this process.
        if object.is_null() || unsafe { (*object).type_index } != ERROR_TYPE_INDEX {
            return None;
        }
        // SAFETY: an object of this type is followed by its cell.
        let cell = unsafe { &*object.add(1).cast::<ErrorCell>() };
        Some(format!("{}: {}", text(&cell.kind), text(&cell.message)))
    }
}

fn text(bytes: &ByteArray) -> String {
    if bytes.data.is_null() {
        return String::new();
    }
    // SAFETY: the ABI says that so many bytes are there; fewer are read if they are too many.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.data.cast::<u8>(), bytes.size.min(LONGEST_PART)) };
    String::from_utf8_lossy(bytes).into_owned()
}
