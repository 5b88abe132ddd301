//! Support for tests of the built program and for the benchmarks of `opt-tools`: scenarios, detection of processes and
//! files that a command left behind, fixtures that kill processes, and Python interpreters.
//!
//! Most functions panic on failure, like a test. Those of `cycles` and `storm`, which benchmarks use too, return an
//! error. The tests themselves are in `it/`.

pub mod cycles;
pub mod devices;
pub mod faulty_disk;
pub mod hostile;
pub mod outcome;
pub mod paths;
pub mod processes;
pub mod python;
pub mod scenario;
pub mod storm;
pub mod summary;
pub mod users;
pub mod waiting;

pub use self::outcome::Outcome;
pub use self::paths::{binary, built, data, repository};
pub use self::scenario::Scenario;
pub use self::summary::Summary;
