//! Residency: bytes live on a device only where and while they are needed.
//!
//! Owns the way to place bytes: a device (`device`), its first implementation (`host`), the ledger that all its memory goes
//! through, staging (`staging`), and the order of a load (`load`). What the bytes are for and when they are wanted is left to others.
//!
//! The ledger's peak of a load equals W + max(A, w) + k·s, whose letters `opt_shared::placement` says. One that held
//! everything at once would be above it: the bench `residency` shows by how much.

pub mod device;
mod free_list;
pub mod host;
pub mod ledger;
pub mod load;
mod pages;
pub mod staging;

#[cfg(test)]
pub(crate) mod counting;
#[cfg(test)]
mod tests;
