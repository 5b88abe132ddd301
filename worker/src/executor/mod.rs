//! How the worker starts runners and holds them. What a runner then does lies in [`crate::runner`].

pub mod handle;
pub mod spawn;
