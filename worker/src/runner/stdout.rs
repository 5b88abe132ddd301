//! Controls when runners and zygotes write out what is buffered in C's standard streams.

use std::ffi::c_int;

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    fn setvbuf(stream: *mut libc::FILE, buffer: *mut libc::c_char, mode: c_int, size: libc::size_t) -> c_int;
}

/// `_IOLBF` of `<stdio.h>`.
const LINE_BUFFERED: c_int = 1;

/// Makes standard output write each line at once, as on a terminal. Otherwise, what a candidate prints before it
/// crashes would be lost. Call this while the stream is empty.
pub(super) fn write_line_by_line() {
    // SAFETY: `stdout` is initialised before `main`, and nothing is in the stream. No buffer is passed, so the C
    // library allocates one itself.
    unsafe { setvbuf(stdout, std::ptr::null_mut(), LINE_BUFFERED, 0) };
}

/// Writes out everything that is buffered in C's streams of this process.
pub(super) fn flush() {
    // SAFETY: this flushes all streams, and none of our own threads closes one.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}
