//! Runs kernels on the emulated device. About seventy were compiled by NVRTC and three by Triton; their results are
//! compared with references. Others have planted mistakes or races, which must be reported, or are correct in ways that
//! could be taken for races.

mod algorithms;
mod elementwise;
mod kit;
mod matrices;
mod mistakes;
mod races;
mod rows;
mod tensor;
mod triton;
mod wmma;
