//! Residency: bytes live on a device only where and while they are needed.
//!
//! Owns the way to place bytes: a device (`device`), its first implementation (`host`), the ledger that all memory goes
//! through, and the order of a load. What a call means and when it is made is left to others.

pub mod device;
pub mod host;
pub mod ledger;
mod pages;
mod places;
pub mod staging;
