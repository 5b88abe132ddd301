//! Residency: keeps bytes on a device only while they are needed.
//!
//! Owns the placement of bytes: the interface of a device (`device`), the count of its allocated bytes (`budget`), its
//! first implementation (`host`), the ledger of its memory (`ledger`), staging (`staging`) and the order of a load
//! (`load`). Callers decide which bytes are needed, and when.
//!
//! The ledger's peak of a load is W + max(A, w) + k·s; `opt_shared::placement` explains the letters.

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
