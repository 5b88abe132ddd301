//! Runs about seventy kernels that NVRTC compiled, and two that Triton compiled, on the emulated device. Compares their
//! results with references that are computed in `f64`.

mod algorithms;
mod elementwise;
mod kit;
mod matrices;
mod mistakes;
mod races;
mod rows;
mod tensor;
mod triton;
