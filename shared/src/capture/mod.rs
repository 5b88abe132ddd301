//! Reading `.pt` files as `torch.save` writes them. (To be written: reader.)

mod dtype;
mod value;

pub use dtype::{DType, Kind};
pub use value::*;
