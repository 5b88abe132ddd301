//! Looks up functions with the dynamic loader, and reads its error messages.

use std::ffi::{CStr, c_void};

/// Returns the reason why the last `dlopen` of this thread failed.
pub(super) fn loader_error() -> String {
    // SAFETY: dlerror returns null, or a NUL-terminated text that stays valid until the next dl call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "dlopen failed without a message".to_owned();
    }
    // SAFETY: as above, and the pointer is not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Looks up a function in a library that `dlopen` returned and in the library's dependencies, and then in all global
/// libraries.
pub(super) fn find_function(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    [library, libc::RTLD_DEFAULT]
        .into_iter()
        // SAFETY: a handle that dlopen returned or the pseudo-handle, and a NUL-terminated name.
        .map(|handle| unsafe { libc::dlsym(handle, name.as_ptr()) })
        .find(|address| !address.is_null())
}
