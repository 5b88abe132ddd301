//! Places bytes on a device, and keeps them there only while they are needed.
//!
//! `device` is the interface of a device, and `host` implements it for host memory. `budget` counts a device's
//! allocated bytes, and `ledger` records every allocation and release. `staging` copies bytes to a device, and `load`
//! defines the order in which storages are loaded. Callers decide which bytes are needed, and when.
//!
//! The ledger's peak during a load is W + max(A, w) + k·s. `opt_shared::placement` explains these terms.

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
