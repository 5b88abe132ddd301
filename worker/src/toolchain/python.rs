//! Prepares Python candidates, whose artifact is the module itself. The module needs an interpreter that has torch, and
//! also Triton if the module uses Triton. The artifact of a torch function is a placeholder.

use std::fs;

use opt_shared::message::BuildTask;

use super::{Folders, Recipe, Toolchain};
use crate::interpreter::{self, Interpreter};

pub(super) struct Python;

impl Toolchain for Python {
    fn recipe(&self, task: &BuildTask, _: &Folders<'_>) -> Recipe {
        keep(task, |found| Ok(found.version.clone()))
    }
}

pub(super) struct Triton;

impl Toolchain for Triton {
    fn recipe(&self, task: &BuildTask, _: &Folders<'_>) -> Recipe {
        keep(task, Interpreter::with_triton)
    }
}

/// Uses the module itself as the artifact. `describe` returns a description of the interpreter that runs the module, or
/// says what the interpreter lacks.
fn keep(task: &BuildTask, describe: impl FnOnce(&Interpreter) -> Result<String, String>) -> Recipe {
    let [module] = task.source.sources.as_slice() else {
        return Recipe::Refused("a Python kernel must be one file".to_owned());
    };
    match interpreter::find(&task.build.python).and_then(|found| describe(&found)) {
        Ok(by) => Recipe::Keep { artifact: module.clone(), by: Some(by) },
        Err(why) => Recipe::Unavailable(why),
    }
}

/// The toolchain of a candidate that is the recorded torch function itself.
pub(super) struct Torch;

impl Toolchain for Torch {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let artifact = folders.scratch.join("torch.py");
        match (
            interpreter::find(&task.build.python),
            fs::write(&artifact, "# The recorded function itself.\n"),
        ) {
            (Ok(found), Ok(())) => Recipe::Keep { artifact, by: Some(found.version.clone()) },
            (Err(why), _) => Recipe::Unavailable(why),
            (_, Err(error)) => Recipe::Unavailable(format!("writing {}: {error}", artifact.display())),
        }
    }
}
