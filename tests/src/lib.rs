//! What tests of the built program stand on, and the benches of `opt-tools` with them: scenarios, what a command left
//! behind, fixtures to kill in, interpreters of Python.
//!
//! Panics where a test would. The tests themselves are in `it/`.

pub mod cycles;
pub mod hostile;
pub mod outcome;
pub mod places;
pub mod processes;
pub mod python;
pub mod scenario;
pub mod storm;
pub mod summary;
pub mod users;
pub mod waiting;

pub use self::outcome::Outcome;
pub use self::places::{binary, built, data, repository};
pub use self::scenario::Scenario;
pub use self::summary::Summary;
