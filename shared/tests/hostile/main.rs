//! Files that want to hurt: every one is refused cleanly (or read, where it is valid), with memory in proportion.

mod chance;
mod files;
mod memory;
mod objects;
mod pickles;
mod zips;
