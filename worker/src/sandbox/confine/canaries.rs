//! Proof of the lock-down: runners that try each forbidden thing and say what became of it.
//!
//! A test starts this very test executable as a runner. A constructor that runs before the test harness, and so
//! before the first thread, notices an environment variable and plays the scenario it names; the harness never
//! starts in such a process. Where the tests run as root, each runs once more as an ordinary user.

mod candidate;
mod compiler;
mod lives;
mod poorer;
#[cfg(target_env = "gnu")]
mod refusals;
mod stage;
