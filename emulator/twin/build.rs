//! Gives the library the name of the driver's: whoever asks for it by that name gets this one, once it is loaded by its path.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
