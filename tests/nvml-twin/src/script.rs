//! The script with which a test determines NVML's answers.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The script's file name. The file is beside the library.
pub(crate) const FILE: &str = "nvml.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    pub devices: Vec<Device>,
    /// The error codes of functions that fail, by name. `*` means all functions that begin with `nvmlDevice`.
    pub fails: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    pub uuid: String,
    pub name: String,
    /// The total memory. With `None` the answer is NOT_SUPPORTED, as on machines with unified memory.
    pub total_mib: Option<u64>,
    /// Memory that is in use but belongs to no process.
    pub held_mib: u64,
    /// The utilisation in per cent. With `None` the answer is NOT_SUPPORTED.
    pub utilisation: Option<u32>,
    pub processes: Vec<Process>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub who: Who,
    /// Pairs of a time in milliseconds since the process was first seen and the MiB that it holds from then on, in
    /// ascending order. The process is not listed before the first time.
    pub mib_from_ms: Vec<(u64, u64)>,
    /// The time for which the process is listed after its death, with the memory that it held.
    #[serde(default)]
    pub listed_after_death_ms: u64,
    /// The time for which its memory stays in use afterwards, without a process.
    #[serde(default)]
    pub held_after_death_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    Pid(u32),
    /// Every descendant of the calling process that has a context of the twin of libcuda beside this library. A process
    /// that has ended counts too if it got such a context after this library's first answer.
    Context,
}

impl Script {
    /// Replaces the file at `path` atomically, so a reader never sees a part of it.
    pub(crate) fn write(&self, path: &Path) -> std::io::Result<()> {
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(new, path)
    }

    pub(crate) fn read() -> Option<Self> {
        let path = beside_the_library(FILE)?;
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }
}

/// The path of a file in the folder of the library that contains this code.
pub(crate) fn beside_the_library(name: &str) -> Option<PathBuf> {
    Some(own_file()?.with_file_name(name))
}

/// The path of the library that contains this code.
fn own_file() -> Option<PathBuf> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let own: *const () = own_file as fn() -> Option<PathBuf> as *const ();
    // SAFETY: the address belongs to a function in this library, and `found` is valid for writing.
    if unsafe { libc::dladdr(own.cast(), found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call has initialised `found`, and the name lives as long as the library.
    let name = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
