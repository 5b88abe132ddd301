//! Exports `malloc`, `mmap` and other allocation functions, which all libraries in the process then use instead of
//! those of the C library. Each function forwards to the C library, and records the size of a refused request, as proof
//! that a candidate failed for lack of memory.
//!
//! They are not exported under a fuzzer or Miri, because AddressSanitizer and Miri have their own allocation functions.
//!
//! Nothing is recorded before [`note_refusals_in`] is called. `build.rs` must list each of these functions, so that the
//! linker exports it.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use opt_shared::units::to_index;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_valloc(size: usize) -> *mut c_void;
    fn __libc_pvalloc(size: usize) -> *mut c_void;
    fn __sbrk(increment: libc::intptr_t) -> *mut c_void;
}

/// The location in which the largest refused size is stored. It is null until `note_refusals_in` sets it.
static NOTE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// From now on, stores in `note` the size, in bytes, of the largest request that was refused for lack of memory.
pub fn note_refusals_in(note: &'static AtomicU64) {
    NOTE.store(ptr::from_ref(note).cast_mut(), Ordering::Release);
}

/// Records the size of a failed request if it failed for lack of memory. An allocation function also returns null for
/// other reasons, such as an invalid alignment.
#[cold]
fn refused(size: usize) {
    // SAFETY: errno of this thread is always readable.
    if unsafe { *libc::__errno_location() } == libc::ENOMEM {
        note(size);
    }
}

fn note(size: usize) {
    let note = NOTE.load(Ordering::Acquire);
    // SAFETY: the pointer is null, or comes from a reference that lives forever.
    if let Some(note) = unsafe { note.as_ref() } {
        note.fetch_max(size as u64, Ordering::Relaxed);
    }
}

#[inline]
fn checked(pointer: *mut c_void, size: usize) -> *mut c_void {
    if pointer.is_null() {
        refused(size);
    }
    pointer
}

/// C's `malloc`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    checked(unsafe { __libc_malloc(size) }, size)
}

/// C's `calloc`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    checked(unsafe { __libc_calloc(count, size) }, count.saturating_mul(size))
}

/// C's `realloc`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    let pointer = unsafe { __libc_realloc(old, size) };
    // With size zero, `realloc` frees the block and returns null, although it succeeded. In this case, errno may be
    // left over from another call, so it must not be examined.
    if size == 0 { pointer } else { checked(pointer, size) }
}

/// C's `memalign`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    checked(unsafe { __libc_memalign(alignment, size) }, size)
}

/// C's `aligned_alloc`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        // SAFETY: errno of this thread is always writable.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return ptr::null_mut();
    }
    // SAFETY: the caller's obligation, passed on.
    checked(unsafe { __libc_memalign(alignment, size) }, size)
}

/// C's `posix_memalign`.
///
/// # Safety
///
/// Like the C function: `result` must be writable.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // `posix_memalign` reports errors only by its return value, and does not change errno. SAFETY: errno belongs to
    // this thread; the rest is the caller's obligation.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let pointer = __libc_memalign(alignment, size);
        *errno = before;
        if pointer.is_null() {
            note(size);
            return libc::ENOMEM;
        }
        *result = pointer;
    }
    0
}

/// C's `valloc`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    checked(unsafe { __libc_valloc(size) }, size)
}

/// C's `pvalloc`.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    checked(unsafe { __libc_pvalloc(size) }, size)
}

/// C's `sbrk`, which allocators within libraries call. Calls from within the C library do not come here.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn sbrk(increment: libc::intptr_t) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    let before = unsafe { __sbrk(increment) };
    if before.addr() == usize::MAX {
        refused(usize::try_from(increment).unwrap_or(0));
    }
    before
}

/// C's `mmap`, which allocators within libraries call.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // This makes the system call directly, because the C library has no other public name for `mmap`. Calls from within
    // the C library do not come here. SAFETY: the caller's obligation, passed on. The offset is in bytes on 64-bit
    // architectures.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            length,
            c_long::from(protection),
            c_long::from(flags),
            c_long::from(descriptor),
            offset,
        )
    };
    if mapped == -1 {
        refused(length);
    }
    // `syscall` returns an address, or -1, which is MAP_FAILED.
    ptr::with_exposed_provenance_mut(to_index(mapped.cast_unsigned()))
}

/// C's `mmap64`, which is `mmap` with 64-bit offsets.
///
/// # Safety
///
/// Like the C function.
#[cfg_attr(not(any(fuzzing, miri)), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: the caller's obligation, passed on.
    unsafe { mmap(address, length, protection, flags, descriptor, offset) }
}
