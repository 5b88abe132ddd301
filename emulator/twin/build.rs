//! Gives the library the soname `libcuda.so`, so that loading `libcuda.so` by name returns it once it has been loaded
//! by its path.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
}
