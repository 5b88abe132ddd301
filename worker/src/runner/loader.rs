//! Functions and errors of the dynamic loader.

use std::ffi::{CStr, c_void};

/// The reason why the last `dlopen` of this thread failed.
pub(super) fn loader_error() -> String {
    // SAFETY: dlerror returns null or a NUL-terminated text that stays until the next dl call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "dlopen failed without a message".to_owned();
    }
    // SAFETY: as above, not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Looks a function up in a library that `dlopen` returned and in its dependencies, then in all global libraries.
pub(super) fn find_function(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    [library, libc::RTLD_DEFAULT]
        .into_iter()
        // SAFETY: a handle that dlopen returned or the pseudo-handle, and a NUL-terminated name.
        .map(|handle| unsafe { libc::dlsym(handle, name.as_ptr()) })
        .find(|address| !address.is_null())
}
