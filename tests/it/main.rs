//! Tests of the built program at its public face, and of the repository itself. Build the program first: `cargo build`,
//! as the README's test command does.

mod isolation;
mod tidy;
