//! A capture shown: as one JSON document for programs (`document`), as a tree for people (`tree`).

mod json;
mod tree;

pub use json::document;
pub use tree::tree;
