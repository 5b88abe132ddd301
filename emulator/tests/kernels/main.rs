//! Runs kernels on the emulated device. The results of about seventy that NVRTC compiled, and of three that Triton
//! compiled, are compared with references. Kernels with planted mistakes or races must be reported.

mod algorithms;
mod elementwise;
mod kit;
mod matrices;
mod mistakes;
mod races;
mod rows;
mod tensor;
mod triton;
