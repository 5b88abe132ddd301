//! Starts processes in sandboxes, and watches and reaps them. A sandboxed process is started in its own namespaces, and
//! its own code then locks it down.
//!
//! This module does not depend on the code that runs in these processes.

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
