//! Gives the library the soname of the driver. Once it is loaded by its path, later loads by that name get this library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
