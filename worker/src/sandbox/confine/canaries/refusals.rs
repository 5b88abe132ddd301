//! Tests that every allocation function records the size of a library's request for memory when the request is refused.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::candidate::locked_down;
use super::scenario::{ARTIFACT_FD, as_every_user, library, start};
use crate::sandbox::handle::End;
use crate::sandbox::interpose::note_refusals_in;
use crate::sandbox::spawn::Namespaces;

/// A size above the limit of `scenario::confinement` (256 MiB). Each function requests more than the one before it, so
/// that each raises the recorded size.
const BEYOND_MIB: u64 = 300;

const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *keep;
int ask(int way, size_t n) {
    void *p = NULL;
    switch (way) {
    case 0: p = malloc(n); break;
    case 1: p = calloc(n / 16, 16); break;
    case 2: p = realloc(malloc(10), n); break;
    case 3: p = memalign(64, n); break;
    case 4: p = aligned_alloc(64, n); break;
    case 5: if (posix_memalign(&p, 64, n)) p = NULL; break;
    case 6: p = valloc(n); break;
    case 7: p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED) p = NULL; break;
    case 8: p = sbrk((intptr_t)n); if (p == (void *)-1) p = NULL; else sbrk(-(intptr_t)n); break;
    }
    keep = p;
    if (p && way == 7) munmap(p, n); else if (way < 7) free(p);
    return p != NULL;
}
/* Requests that fail for other reasons than lack of memory. */
void misuse(void) {
    void *p = NULL;
    if (posix_memalign(&p, 3, 16) == 0) abort();
    if (aligned_alloc(3, 16)) abort();
    keep = realloc(malloc(10), 0);
    if (mmap(NULL, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) abort();
}
"#;

const WAYS: [&str; 9] =
    ["malloc", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign", "valloc", "mmap", "sbrk"];

#[test]
fn refused_size_is_noted_for_every_allocation_function() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let artifact = library(folder.path(), LIBRARY);
        let (answers, end) =
            start("refusals", folder.path(), Some(artifact.as_fd()), Namespaces::ALL).finish();
        assert_eq!(end, End::Exited { code: 0 }, "{answers:?}");
        assert_eq!(answers.get("misuse").map(String::as_str), Some("0"));
        for (way, size) in WAYS.iter().zip(BEYOND_MIB..) {
            assert_eq!(answers.get(&format!("{way} granted")).map(String::as_str), Some("1 0"), "{way}");
            let refused = format!("0 {}", size << 20);
            assert_eq!(answers.get(&format!("{way} refused")), Some(&refused), "{way}");
        }
        assert_eq!(answers.get("vec").map(String::as_str), Some(&*(400_u64 << 20).to_string()));
    });
}

pub(super) fn refused_in_every_way() {
    static NOTE: AtomicU64 = AtomicU64::new(0);
    locked_down();
    note_refusals_in(&NOTE);
    let path = format!("/proc/self/fd/{ARTIFACT_FD}\0");
    type Ask = extern "C" fn(libc::c_int, usize) -> libc::c_int;
    type Misuse = extern "C" fn();
    // SAFETY: this loads the library above, whose functions have these types.
    let (ask, misuse) = unsafe {
        let library = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW);
        assert!(!library.is_null(), "the library loads");
        let find = |name: &std::ffi::CStr| libc::dlsym(library, name.as_ptr());
        let ask = std::mem::transmute::<*mut libc::c_void, Ask>(find(c"ask"));
        (ask, std::mem::transmute::<*mut libc::c_void, Misuse>(find(c"misuse")))
    };
    misuse();
    println!("misuse={}", NOTE.load(Ordering::Relaxed));
    for ((way, name), size) in (0..).zip(WAYS).zip(BEYOND_MIB..) {
        for (outcome, mib) in [("granted", 16), ("refused", size)] {
            NOTE.store(0, Ordering::Relaxed);
            let granted = ask(way, usize::try_from(mib << 20).expect("64 bits"));
            println!("{name} {outcome}={granted} {}", NOTE.load(Ordering::Relaxed));
        }
    }
    NOTE.store(0, Ordering::Relaxed);
    // Rust's allocator uses the same functions, and can still return an error when they refuse a request.
    let refused = Vec::<u8>::new().try_reserve_exact(400 << 20).is_err();
    println!("vec={}", if refused { NOTE.load(Ordering::Relaxed) } else { 0 });
}
