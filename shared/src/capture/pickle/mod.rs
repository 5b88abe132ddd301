//! Reads pickles as data: converts the bytes of a pickle to a `Value` and the storages that the pickle names.
//!
//! # The security boundary
//!
//! Nothing that a pickle names is ever called. `globals` contains the fixed list of known names and what they stand
//! for. `machine` works on inert nodes, and its documentation explains why this program has its own pickle reader.
//! `arena` counts the nodes, and `convert` turns them into shared values of limited depth. All limits are in
//! `capture::limits`.
//!
//! This module does not read files. `archive` and `legacy` locate the bytes of storages.

mod arena;
mod calls;
mod convert;
mod globals;
mod keys;
mod machine;
mod node;
mod numpy;
mod opcode;
mod rebuild;

use std::sync::Arc;

use convert::Converter;
use machine::Machine;

use super::Value;
use super::error::Fault;

pub(super) use opcode::pickle_length;

/// A storage as described in a pickle.
#[derive(Clone, Debug)]
pub(super) struct StorageName {
    pub(super) key: Arc<str>,
    pub(super) bytes: u64,
    /// The element size of the storage's class, or 1 for an untyped storage.
    pub(super) element_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Unpickled {
    pub(super) root: Value,
    /// Storages in the root, by `StorageId`.
    pub(super) storages: Vec<StorageName>,
    /// Storages that the pickle names but that are not part of the root. They must be in the file too.
    pub(super) unused: Vec<StorageName>,
}

/// Reads the first pickle in `bytes`.
pub(super) fn unpickle(bytes: &[u8]) -> Result<Unpickled, Fault> {
    let (machine, root, _) = Machine::run(bytes)?;
    let mut converter = Converter::new(&machine.arena);
    let root = converter.root(root)?;
    let order = converter.storage_order;
    let storages: Vec<StorageName> =
        order.iter().map(|&index| machine.storages[index as usize].clone()).collect();
    let mut used = vec![false; machine.storages.len()];
    order.iter().for_each(|&index| used[index as usize] = true);
    let unused = machine.storages.iter().zip(used).filter(|(_, used)| !used).map(|(name, _)| name.clone());
    Ok(Unpickled { root, storages, unused: unused.collect() })
}
