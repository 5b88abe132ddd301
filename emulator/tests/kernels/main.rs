//! What NVRTC makes of some sixty kernels, and Triton of two, on the emulated device, against truth that is computed here in `f64`.

mod algorithms;
mod elementwise;
mod kit;
mod matrices;
mod mistakes;
mod rows;
mod triton;
