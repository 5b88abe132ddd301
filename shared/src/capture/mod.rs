//! Reading `.pt` files as `torch.save` writes them: the zip format and the one before it.
//!
//! `CaptureFile::open` reads directory and pickle; `logical_values` streams the values of a tensor; `inspect` shows
//! a capture to people and programs; a capture may lie in a `store`. Everything that comes out of a file is checked here, once: whoever holds a
//! `Tensor` may rely on what its documentation says.

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
pub use values::logical_values;
