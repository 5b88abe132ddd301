//! Tests of the lock-down: runners that attempt each forbidden operation and report the result.
//!
//! A test starts its own executable as a runner. There, a constructor runs before the test harness starts, and so
//! before the first thread. It runs the scenario that an environment variable names, and exits. As root, each test
//! also runs as an ordinary user.

mod candidate;
mod compiler;
mod missing_protections;
#[cfg(target_env = "gnu")]
mod refusals;
mod scenario;
mod start_and_stop;
