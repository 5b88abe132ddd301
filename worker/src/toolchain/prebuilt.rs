//! Uses libraries, PTX and machine code that were built elsewhere as artifacts. No command is run.

use opt_shared::message::BuildTask;

use super::{Folders, Recipe, Toolchain};

pub(super) struct Prebuilt;

impl Toolchain for Prebuilt {
    fn recipe(&self, task: &BuildTask, _: &Folders<'_>) -> Recipe {
        if let Some(why) = task.source.language.kind().missing {
            return Recipe::Refused(why.to_owned());
        }
        match task.source.sources.as_slice() {
            [library] => Recipe::Keep { artifact: library.clone(), by: None },
            _ => Recipe::Refused("a prebuilt artifact must be one file".to_owned()),
        }
    }
}
