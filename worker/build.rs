//! Makes an executable that links this crate export the allocation functions of `sandbox/interpose.rs`.
//!
//! Owns the list of their names. The test executable of this crate gets the linker arguments from here. Crates that link
//! the real executable read the list as `DEP_OPT_INTERPOSE_SYMBOLS` in their build scripts.

/// The functions that `sandbox/interpose.rs` defines.
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
    // The definitions call functions that only glibc has.
    let is_glibc = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu");
    let symbols: &[&str] = if is_glibc { &SYMBOLS } else { &[] };
    println!("cargo::metadata=symbols={}", symbols.join(","));
    for symbol in symbols {
        // Link the definition from its archive, and export it to libraries that are loaded later.
        println!("cargo::rustc-link-arg=-Wl,--undefined={symbol},--export-dynamic-symbol={symbol}");
    }
}
