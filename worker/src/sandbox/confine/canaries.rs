//! Tests of the lock-down, in which runners attempt each forbidden operation and report the result.
//!
//! A test starts its own executable as a runner. In the runner, a constructor runs before the test harness, and
//! therefore before any thread is started. The constructor runs the scenario that an environment variable names, and
//! exits. If the tests run as root, most of them run again as an ordinary user.

mod candidate;
mod compiler;
mod missing_protections;
#[cfg(target_env = "gnu")]
mod refusals;
mod scenario;
mod start_and_stop;
