//! Makes an executable that links this crate export the allocation functions of `sandbox/interpose.rs`, and the CUDA
//! runtime of `runner/cudart`.
//!
//! Owns the list of allocation functions, and reads the list of CUDA functions from a file. The linker arguments set
//! here apply to this crate's test executable. The build scripts of crates that link the real executable read the list
//! as `DEP_OPT_INTERPOSE_SYMBOLS`.

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

/// Names of CUDA runtime functions, one per line, without the prefix `__wrap_`.
const CUDA_FUNCTIONS: &str = include_str!("src/runner/cudart/functions.txt");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/runner/cudart/functions.txt");
    // `interpose.rs` calls functions that only glibc has.
    let is_glibc = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|environment| environment == "gnu");
    let interposed = SYMBOLS.iter().filter(|_| is_glibc).map(|name| (*name).to_owned());
    let of_cuda = CUDA_FUNCTIONS.lines().map(|name| format!("__wrap_{name}"));
    let symbols: Vec<String> = interposed.chain(of_cuda).collect();
    println!("cargo::metadata=symbols={}", symbols.join(","));
    for symbol in symbols {
        // Link the definition from its archive, and export it to libraries that are loaded later.
        println!("cargo::rustc-link-arg=-Wl,--undefined={symbol},--export-dynamic-symbol={symbol}");
    }
}
