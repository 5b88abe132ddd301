//! Tests of the lock-down: runners that try each forbidden thing and report the result.
//!
//! A test starts its own test executable as a runner. A constructor that runs before the test harness, and so
//! before the first thread, sees an environment variable and plays the scenario that it names; the harness never
//! starts in such a process. As root, each test also runs as an ordinary user.

mod candidate;
mod compiler;
mod lives;
mod poorer;
#[cfg(target_env = "gnu")]
mod refusals;
mod stage;
