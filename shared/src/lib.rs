//! Code that the supervisor and its workers share. It defines units, ids, settings, messages and outcomes, reads
//! captures, and turns them into arguments. This crate makes no decisions and runs no candidates.

pub mod arguments;
pub mod batch;
pub mod cache;
pub mod capture;
pub mod causes;
pub mod child;
pub mod device;
pub mod digest;
pub mod folder;
pub mod formula;
pub mod ids;
pub mod kernel_files;
pub mod language;
pub mod launch;
pub mod message;
pub mod mode;
pub mod nonfinite;
pub mod numbers;
pub mod outcome;
pub mod placement;
pub mod process_text;
pub mod program;
pub mod protection;
pub mod replay;
pub mod room;
pub mod settings;
pub mod stage;
pub mod stream;
pub mod units;
pub mod wait;
