//! Integration tests of the built program, and checks of the repository itself. Build the program first with
//! `cargo build`, as the README's test command does.

mod captures;
mod changed_arguments;
mod control;
mod cuda;
mod cuda_launchers;
mod cycles;
mod demo;
mod device_runs;
mod devices;
mod doctor;
mod ffi;
mod fixtures;
mod gpu_probe;
mod hostile;
mod isolation;
mod log;
mod memory;
mod messages;
mod openmp;
mod ops;
mod plan_mistakes;
mod python;
mod python_kernels;
mod reads;
mod recycle;
mod replay;
mod report;
mod results;
mod stalls;
mod storm;
mod tidy;
mod top;
mod torch_extensions;
mod triton;
mod tutorial;
