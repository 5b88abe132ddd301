//! The twin of NVML: a shared library with those functions of NVML that the supervisor calls. Its answers follow a
//! script.
//!
//! The script is the file `nvml.json` beside the library, so each copy of the library is a separate twin. The twin
//! reads the script anew for each answer, so a test can rewrite the script during a run. Times in the script count from
//! the moment when the twin first saw the process, or from the process's death.

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

/// Returns the path of a library of this workspace that Cargo has built for this program. If the program is a test, the
/// library is beside it; otherwise it is in the folder `deps` beside the program.
pub fn built(library: &str) -> std::io::Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name(library);
    let in_deps = beside.with_file_name("deps").join(library);
    Ok(if beside.exists() { beside } else { in_deps })
}

impl Twin {
    /// Copies the library to a folder, and writes the script beside it.
    pub fn install(folder: &Path, script: &Script) -> std::io::Result<Self> {
        let twin = Self { library: folder.join("libnvidia-ml.so") };
        std::fs::copy(built("libopt_nvml_twin.so")?, &twin.library)?;
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
