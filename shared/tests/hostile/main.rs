//! Hostile files: each is refused cleanly, or read if it is valid, with memory in proportion to its size.

mod chance;
mod files;
mod memory;
mod objects;
mod pickles;
mod zips;
