//! Residency: bytes are on a device only where and while they are needed.
//!
//! Owns how bytes are placed: a device (`device`) and what it counts (`budget`), its first implementation (`host`),
//! the ledger of all its memory, staging (`staging`), and the order of a load (`load`). Others decide what the bytes
//! are for and when they are needed.
//!
//! The ledger's peak of a load is W + max(A, w) + k·s; `opt_shared::placement` explains the letters. Holding
//! everything at once would exceed it; the benchmark `residency` shows by how much.

pub mod budget;
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
pub(crate) mod tests;
