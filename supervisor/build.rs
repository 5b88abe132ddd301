//! Makes the executable export the allocation functions that `opt-worker` interposes and the CUDA runtime functions
//! that it replaces, so that libraries loaded by a runner find them. The worker's own build script owns their names.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let symbols = std::env::var("DEP_OPT_INTERPOSE_SYMBOLS").unwrap_or_default();
    for symbol in symbols.split(',').filter(|symbol| !symbol.is_empty()) {
        println!("cargo::rustc-link-arg-bins=-Wl,--undefined={symbol},--export-dynamic-symbol={symbol}");
    }
}
