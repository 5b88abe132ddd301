//! Gives the library the driver's soname. Once it has been loaded by its path, loading the driver by name returns this
//! library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
