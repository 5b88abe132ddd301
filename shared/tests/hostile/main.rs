//! Tests with hostile files. Each is either refused or read as valid, with memory in proportion to its size.

mod chance;
mod files;
mod memory;
mod objects;
mod pickles;
mod zips;
