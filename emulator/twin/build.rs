//! Gives the library the soname of the driver. After it was loaded by its path, a load by the driver's name returns
//! this library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
