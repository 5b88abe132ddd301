//! The errors of the dynamic loader.

/// The reason why the last `dlopen` of this thread failed.
pub(super) fn loader_error() -> String {
    // SAFETY: dlerror returns null or a NUL-terminated text that stays until the next dl call of this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "dlopen failed without a message".to_owned();
    }
    // SAFETY: as above, not null.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
