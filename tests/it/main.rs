//! Integration tests of the built program, and checks of the repository itself. Build all programs first, with
//! `cargo build --workspace --bins`, as the README's test command does.

// libtest starts tests in the order of their names. The longest test runs the tutorial, so its module has an early
// name: `book`.
mod book;
mod captures;
mod changed_arguments;
mod control;
mod cuda;
mod cuda_ffi;
mod cuda_launchers;
mod cuda_recorded;
mod cycles;
mod demo;
mod device_runs;
mod devices;
mod doctor;
mod faults;
mod ffi;
mod fixtures;
mod gpu_check;
mod hostile;
mod imports;
mod isolation;
mod log;
mod memory;
mod messages;
mod openmp;
mod ops;
mod plan_mistakes;
mod printed;
mod python;
mod python_kernels;
mod reads;
mod recycle;
mod related_inputs;
mod replay;
mod report;
mod results;
mod stalls;
mod storm;
mod tidy;
mod top;
mod torch_compile;
mod torch_extensions;
mod triton;
mod triton_device;
