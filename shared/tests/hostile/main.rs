//! Tests with hostile files. Each is refused or read as expected. Most tests also limit the memory that reading takes.

mod chance;
mod files;
mod memory;
mod objects;
mod pickles;
mod zips;
