//! The code of a runner, the process that holds one candidate and nothing else.

pub mod confine;
#[cfg(target_env = "gnu")]
pub mod interpose;
