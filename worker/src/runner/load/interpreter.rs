//! Modules of an interpreted language: refused until a runner has an interpreter.

use opt_shared::language::NO_PYTHON;

use super::Loaded;

pub(super) fn load() -> Result<Loaded, String> {
    Err(NO_PYTHON.to_owned())
}
