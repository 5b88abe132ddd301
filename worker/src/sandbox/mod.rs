//! Sandboxed processes: started in namespaces, locked down by their own code, watched and reaped by the process that
//! started them.
//!
//! This module does not depend on the code that runs in them.

pub mod canary;
pub mod confine;
pub mod handle;
#[cfg(target_env = "gnu")]
pub mod interpose;
pub(crate) mod policy;
pub(crate) mod scheduling;
pub(crate) mod sibling;
pub mod spawn;
pub(crate) mod streams;
pub(crate) mod timeout;
