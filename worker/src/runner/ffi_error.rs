//! Reads the kind and message of the error that a library built with tvm-ffi raises when its function returns nonzero.
//! Uses the public C ABI of `libtvm_ffi.so` (`tvm/ffi/c_api.h`).
//!
//! All of this is read in the candidate's process, so a bad pointer crashes only the candidate. The worker treats the
//! text as a claim, and `control` limits its length.

use std::ffi::{CStr, c_char, c_void};

use super::abi::objects::Object;
use super::loader::find_function;

/// The type index of an error (`kTVMFFIError`).
const ERROR_TYPE_INDEX: i32 = 67;
/// The largest number of bytes of a kind or message that are read. A message contains the function's whole signature,
/// and the control page has room for fewer bytes.
const MAX_PART: usize = 64 << 10;

/// `TVMFFIErrorMoveFromRaised`, which takes the error that this thread has raised. It stores null if there is none.
type MoveFromRaised = unsafe extern "C" fn(*mut *mut c_void);

/// `TVMFFIByteArray`.
#[repr(C)]
struct ByteArray {
    data: *const c_char,
    size: usize,
}

/// The beginning of a `TVMFFIErrorCell`, which follows the head of the object.
#[repr(C)]
struct ErrorCell {
    kind: ByteArray,
    message: ByteArray,
}

const _: () = assert!(size_of::<ByteArray>() == 16);

/// Takes the errors that a candidate raises, if `libtvm_ffi.so` is loaded or the candidate contains the torch glue.
pub(crate) struct RaisedErrors {
    move_from_raised: Option<MoveFromRaised>,
}

impl RaisedErrors {
    /// Looks up the function that takes a raised error. `library` is a handle of `dlopen`.
    pub(crate) fn find(library: *mut c_void) -> Self {
        const NAME: &CStr = c"TVMFFIErrorMoveFromRaised";
        let address = find_function(library, NAME);
        // SAFETY: the public ABI gives this signature to the function of this name.
        let function = |address| unsafe { std::mem::transmute::<*mut c_void, MoveFromRaised>(address) };
        Self { move_from_raised: address.map(function) }
    }

    /// Takes the raised error, in the form `kind: message`.
    pub(crate) fn take(&self) -> Option<String> {
        let move_from_raised = self.move_from_raised?;
        let mut object: *mut c_void = std::ptr::null_mut();
        // SAFETY: the ABI's function, with a pointer to one handle.
        unsafe { move_from_raised(&raw mut object) };
        let object = object.cast::<Object>();
        // SAFETY: the pointer is not null, so by the ABI it points to an object. The reference to the object is never
        // released, because a process makes at most a few calls that fail.
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
    // SAFETY: by the ABI there are this many bytes, and at most `MAX_PART` of them are read.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.data.cast::<u8>(), bytes.size.min(MAX_PART)) };
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct ErrorObject {
        head: Object,
        cell: ErrorCell,
    }

    fn bytes(text: &'static [u8]) -> ByteArray {
        ByteArray { data: text.as_ptr().cast(), size: text.len() }
    }

    /// Stores an error of this type, with a short kind and a long message that is not UTF-8.
    ///
    /// # Safety
    /// `to` points to a handle.
    unsafe fn store(to: *mut *mut c_void, type_index: i32) {
        static MESSAGE: [u8; 2 * MAX_PART] = [0xff; 2 * MAX_PART];
        let head = Object { reference_counts: 1, type_index, padding: 0, deleter: std::ptr::null_mut() };
        let cell = ErrorCell { kind: bytes(b"ValueError"), message: bytes(&MESSAGE) };
        // SAFETY: the caller's obligation.
        unsafe { *to = Box::into_raw(Box::new(ErrorObject { head, cell })).cast() };
    }

    unsafe extern "C" fn raises(to: *mut *mut c_void) {
        // SAFETY: the caller's obligation.
        unsafe { store(to, ERROR_TYPE_INDEX) };
    }

    unsafe extern "C" fn returns_another_object(to: *mut *mut c_void) {
        // SAFETY: the caller's obligation.
        unsafe { store(to, ERROR_TYPE_INDEX + 1) };
    }

    unsafe extern "C" fn raises_nothing(_: *mut *mut c_void) {}

    #[test]
    fn raised_error_is_read_up_to_its_limit() {
        let taken = |function: MoveFromRaised| RaisedErrors { move_from_raised: Some(function) }.take();
        let text = taken(raises).expect("an error");
        assert_eq!(text, format!("ValueError: {}", "\u{fffd}".repeat(MAX_PART)));
        assert_eq!((taken(returns_another_object), taken(raises_nothing)), (None, None));
        assert_eq!(RaisedErrors { move_from_raised: None }.take(), None);
        assert_eq!(super::text(&ByteArray { data: std::ptr::null(), size: 9 }), "");
    }
}
