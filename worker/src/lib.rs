//! Nothing here yet.

pub mod judge;
