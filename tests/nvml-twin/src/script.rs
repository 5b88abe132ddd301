//! The script with which a test determines what the twin of NVML answers.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The name of the script's file, which is beside the library.
pub(crate) const FILE: &str = "nvml.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    pub devices: Vec<Device>,
    /// The error codes to return, by the name of the function. `*` stands for all functions whose names begin with
    /// `nvmlDevice`.
    pub fails: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    pub uuid: String,
    pub name: String,
    /// The total memory. If it is `None`, the answer is NOT_SUPPORTED, as on machines with unified memory.
    pub total_mib: Option<u64>,
    /// Memory that is in use but belongs to no process.
    pub held_mib: u64,
    /// The utilisation in per cent. If it is `None`, the answer is NOT_SUPPORTED.
    pub utilisation: Option<u32>,
    pub processes: Vec<Process>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub who: Who,
    /// Pairs of a time and an amount of memory, in ascending order. The process holds this many MiB from this time on,
    /// counted in milliseconds since the process was first seen. It is not listed before the first time.
    pub mib_from_ms: Vec<(u64, u64)>,
    /// For how long the process is still listed after its death, with the memory that it held.
    #[serde(default)]
    pub listed_after_death_ms: u64,
    /// For how long its memory then stays in use without belonging to a listed process.
    #[serde(default)]
    pub held_after_death_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    Pid(u32),
    /// Every descendant of the calling process that has a context of the twin of libcuda beside this library. A
    /// descendant that has ended counts too, if it got its context after this library's first answer.
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
