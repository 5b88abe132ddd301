//! Tests of the lock-down: runners that attempt each forbidden operation and report the result.
//!
//! A test starts its own executable as a runner. In the runner, a constructor runs before the test harness, and so
//! before any thread is started. It runs the scenario that an environment variable names, and exits. As root, most
//! tests also run as an ordinary user.

mod candidate;
mod compiler;
mod missing_protections;
#[cfg(target_env = "gnu")]
mod refusals;
mod scenario;
mod start_and_stop;
