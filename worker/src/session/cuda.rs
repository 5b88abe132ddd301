//! Kernels on a GPU.
