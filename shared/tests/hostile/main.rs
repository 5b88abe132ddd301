//! Tests with hostile files. Each is refused or read as expected. For most, the memory that this takes has a limit.

mod chance;
mod files;
mod memory;
mod objects;
mod pickles;
mod zips;
