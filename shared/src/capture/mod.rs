//! Reads the `.pt` files that `torch.save` writes, in the zip format and in the older one.
//!
//! `CaptureFile::open` reads the directory and the pickle. `logical_values` streams the values of a tensor. `inspect`
//! shows a capture as a tree of text or as JSON. `store` reads captures from a store.
//!
//! This module checks everything that it reads from a file, so that other code need not check it again. The
//! documentation of `Tensor` states what callers may rely on.

mod archive;
mod body;
mod dtype;
mod error;
mod file;
mod foreign;
mod identity;
pub mod inspect;
mod legacy;
mod limits;
mod pickle;
mod python;
pub mod store;
mod value;
mod values;

pub use dtype::{DType, Kind};
pub use error::{CaptureError, ErrorKind};
pub use file::{CaptureFile, RecordRange};
pub use identity::FileIdentity;
pub use value::*;
pub use values::{bytes_read, logical_values};
