//! Tests with hostile files. Each is refused or read as expected, and most must not need more memory than a fixed limit.

mod chance;
mod files;
mod memory;
mod objects;
mod pickles;
mod zips;
