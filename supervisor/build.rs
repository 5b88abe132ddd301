//! Lets libraries that a runner loads find the allocation functions which `opt-worker` interposes: the executable
//! must export them. The worker's own build script owns their names.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let symbols = std::env::var("DEP_OPT_INTERPOSE_SYMBOLS").unwrap_or_default();
    for symbol in symbols.split(',').filter(|symbol| !symbol.is_empty()) {
        println!("cargo::rustc-link-arg-bins=-Wl,--undefined={symbol},--export-dynamic-symbol={symbol}");
    }
}
