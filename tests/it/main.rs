//! Tests of the built program at its public face, and of the repository itself. Build the program first: `cargo build`,
//! as the README's test command does.

mod control;
mod demo;
mod ffi;
mod fixtures;
mod isolation;
mod openmp;
mod ops;
mod plan_mistakes;
mod recycle;
mod results;
mod storm;
mod support;
mod tidy;
