//! Tests of the built program at its public face. Build it first: `cargo build`, as the README's test command does.

mod isolation;
mod storm;
