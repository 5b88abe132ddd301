//! NVML's twin: a shared library with the functions of NVML that the supervisor calls. It answers from a script.
//!
//! The script is the file `nvml.json` beside the library, so each copy of the library is a separate twin. The twin
//! reads the script again for each answer, so a test can rewrite it during a run. Times in the script count from the
//! moment at which the twin first saw a process.

mod functions;
mod play;
mod script;

use std::path::{Path, PathBuf};

pub use self::script::{Device, Process, Script, Who};

/// A copy of the twin in a test's folder.
#[derive(Clone, Debug)]
pub struct Twin {
    library: PathBuf,
}

impl Twin {
    /// Copies the library to a folder. Cargo puts the library beside each executable that depends on this package.
    pub fn install(folder: &Path, script: &Script) -> std::io::Result<Self> {
        let own = std::env::current_exe()?;
        let twin = Self { library: folder.join("libnvidia-ml.so") };
        std::fs::copy(own.with_file_name("libopt_nvml_twin.so"), &twin.library)?;
        twin.play(script)?;
        Ok(twin)
    }

    /// The path of the library that a program should load instead of the driver's.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Replaces the script.
    pub fn play(&self, script: &Script) -> std::io::Result<()> {
        script.write(&self.library.with_file_name(script::FILE))
    }
}
