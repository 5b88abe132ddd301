//! Python: a module is its own artifact, for an interpreter that has torch. A function of torch has none but a word.

use std::fs;

use opt_shared::message::BuildTask;

use super::{Folders, Recipe, Toolchain};
use crate::interpreter;

pub(super) struct Python;

impl Toolchain for Python {
    fn recipe(&self, task: &BuildTask, _: &Folders<'_>) -> Recipe {
        let [module] = task.source.sources.as_slice() else {
            return Recipe::Refused("a Python kernel is one file".to_owned());
        };
        match interpreter::find(&task.build.python) {
            Ok(found) => Recipe::Keep { artifact: module.clone(), by: Some(found.said.clone()) },
            Err(why) => Recipe::Unavailable(why),
        }
    }
}

pub(super) struct Torch;

impl Toolchain for Torch {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let artifact = folders.scratch.join("torch.py");
        match (
            interpreter::find(&task.build.python),
            fs::write(&artifact, "# The recorded function itself.\n"),
        ) {
            (Ok(found), Ok(())) => Recipe::Keep { artifact, by: Some(found.said.clone()) },
            (Err(why), _) => Recipe::Unavailable(why),
            (_, Err(error)) => Recipe::Unavailable(format!("writing {}: {error}", artifact.display())),
        }
    }
}
