//! Shows a capture: as a JSON document for programs (`document`), or as a tree for people (`tree`).

mod json;
mod tree;

pub use json::document;
pub use tree::tree;
