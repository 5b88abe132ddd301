//! The functions of Python's C API that a runner uses. They are looked up by name in the interpreter's library.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

/// Python's `PyObject`, which is opaque here.
#[repr(C)]
pub(super) struct Object {
    opaque: [u8; 0],
}

/// A pointer to a Python object.
type Handle = *mut Object;

/// Looks up a function of type `T` in the library. If the library lacks it, the error contains the function's name.
///
/// # Safety
/// `T` must be a function pointer type that has the function's signature.
unsafe fn find<T: Copy>(library: *mut c_void, name: &CStr) -> Result<T, String> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    // SAFETY: a handle that dlopen returned and a NUL-terminated name.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("the interpreter's library lacks `{}`", name.to_string_lossy()));
    }
    // SAFETY: the pointer has the same size, and the caller guarantees the type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

macro_rules! api {
    ($($field:ident: $name:literal => $type:ty;)*) => {
        /// The functions of Python's C API, and the object `None`.
        pub(super) struct Api {
            $(pub(super) $field: $type,)*
            pub(super) none: Handle,
        }

        impl Api {
            /// Looks up all functions. `library` is a handle of the interpreter's library.
            pub(super) fn find(library: *mut c_void) -> Result<Self, String> {
                // SAFETY: the signatures are from Python's documentation.
                unsafe {
                    Ok(Self {
                        $($field: find::<$type>(library, $name)?,)*
                        none: find::<Handle>(library, c"_Py_NoneStruct")?,
                    })
                }
            }
        }
    };
}

api! {
    main: c"Py_BytesMain" => unsafe extern "C" fn(c_int, *const *const c_char) -> c_int;
    release: c"Py_DecRef" => unsafe extern "C" fn(Handle);
    capsule: c"PyCapsule_New" => unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void) -> Handle;
    attribute: c"PyObject_GetAttrString" => unsafe extern "C" fn(Handle, *const c_char) -> Handle;
    call: c"PyObject_Vectorcall" => unsafe extern "C" fn(Handle, *const Handle, usize, Handle) -> Handle;
    integer: c"PyLong_FromLong" => unsafe extern "C" fn(c_long) -> Handle;
    as_integer: c"PyLong_AsLong" => unsafe extern "C" fn(Handle) -> c_long;
    bytes: c"PyBytes_FromStringAndSize" => unsafe extern "C" fn(*const c_char, isize) -> Handle;
    text: c"PyUnicode_FromStringAndSize" => unsafe extern "C" fn(*const c_char, isize) -> Handle;
    as_text: c"PyUnicode_AsUTF8AndSize" => unsafe extern "C" fn(Handle, *mut isize) -> *const c_char;
    tuple: c"PyTuple_New" => unsafe extern "C" fn(isize) -> Handle;
    set_item: c"PyTuple_SetItem" => unsafe extern "C" fn(Handle, isize, Handle) -> c_int;
    item: c"PyTuple_GetItem" => unsafe extern "C" fn(Handle, isize) -> Handle;
    size: c"PyTuple_Size" => unsafe extern "C" fn(Handle) -> isize;
    before_fork: c"PyOS_BeforeFork" => unsafe extern "C" fn();
    after_fork_here: c"PyOS_AfterFork_Parent" => unsafe extern "C" fn();
    after_fork_in_copy: c"PyOS_AfterFork_Child" => unsafe extern "C" fn();
    forget_error: c"PyErr_Clear" => unsafe extern "C" fn();
}

impl Api {
    /// Returns the text of a str object, or `None` for other objects.
    ///
    /// # Safety
    /// The interpreter's lock must be held, and `object` must be alive.
    pub(super) unsafe fn read(&self, object: Handle) -> Option<String> {
        let mut length = 0;
        // SAFETY: the caller guarantees the lock and a live object, and `length` can be written.
        let start = unsafe { (self.as_text)(object, &raw mut length) };
        if start.is_null() {
            // SAFETY: the lock is held.
            unsafe { (self.forget_error)() };
            return None;
        }
        // SAFETY: `length` bytes are valid as long as the object lives, and they are copied below.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length.unsigned_abs()) };
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}
