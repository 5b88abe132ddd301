//! Makes an executable that links this crate export the allocation functions of `sandbox/interpose.rs`.
//!
//! Owns the list of their names. Our own test executable gets the linker arguments here; whoever links the real one
//! reads the list as `DEP_OPT_INTERPOSE_SYMBOLS` in its build script.

/// What `sandbox/interpose.rs` defines.
const SYMBOLS: [&str; 11] = [
    "malloc",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "sbrk",
    "mmap",
    "mmap64",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The definitions forward to names that only glibc has.
    let is_glibc = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu");
    let symbols: &[&str] = if is_glibc { &SYMBOLS } else { &[] };
    println!("cargo::metadata=symbols={}", symbols.join(","));
    for symbol in symbols {
        // Pull the definition out of its archive, and let libraries loaded later find it.
        println!("cargo::rustc-link-arg=-Wl,--undefined={symbol},--export-dynamic-symbol={symbol}");
    }
}
