//! Residency: bytes live on a device only where and while they are needed.
//!
//! Owns the way to place bytes: a device (`device`), its first implementation (`host`), the ledger that all its memory goes
//! through, staging (`staging`), and the order of a load (`load`). What the bytes are for and when they are wanted is left to others.
//!
//! The ledger's peak of a lazy load equals W + max(A, w) + k·s, whose letters `opt_shared::placement` says. An eager load, which
//! holds everything at once, is above that wherever a storage that takes memory is loaded twice or for nobody, or all sources
//! and A together take more than max(A, w): whenever sources take memory and A is not 0, or they take more than the one w.

pub mod device;
pub mod host;
pub mod ledger;
pub mod load;
mod pages;
mod places;
pub mod staging;

#[cfg(test)]
pub(crate) mod counting;
#[cfg(test)]
mod tests;
