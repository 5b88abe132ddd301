//! Tests of the built program at its public face, and of the repository itself. Build the program first: `cargo build`,
//! as the README's test command does.

mod demo;
mod fixtures;
mod isolation;
mod ops;
mod plan_mistakes;
mod recycle;
mod results;
mod support;
mod tidy;
