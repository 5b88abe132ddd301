//! Loads shared libraries by descriptor, and looks up their functions by name.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use opt_shared::language::Launcher;

use super::{Loaded, Raised};
use crate::runner::abi::Function;
use crate::runner::control::{ControlPage, Phase};
use crate::runner::cudart;
use crate::runner::ffi_error::RaisedErrors;
use crate::runner::frame::{MAX_LIBRARIES, Setup};
use crate::runner::loader::loader_error;
use crate::runner::returned::{Place, ReturnedTensors};

/// Loads the artifact, and looks up its functions. The error is the loader's message, or names the missing symbol.
pub(super) fn load(
    setup: &Setup,
    artifact: OwnedFd,
    libraries: Vec<OwnedFd>,
    page: &ControlPage,
) -> Result<Loaded, String> {
    open(setup, artifact, libraries, page).map(|(loaded, _)| loaded)
}

/// Loads an artifact that was built with the torch glue. The glue reports how many parameters the function has. If there
/// are as many as inputs, the function returns its outputs; otherwise it must have one for each input and output.
pub(super) fn load_over_libtorch(
    setup: &Setup,
    artifact: OwnedFd,
    libraries: Vec<OwnedFd>,
    (inputs, outputs): (usize, usize),
    page: &ControlPage,
) -> Result<Loaded, String> {
    let (mut loaded, handle) = open(setup, artifact, libraries, page)?;
    // SAFETY: a handle that dlopen returned and a NUL-terminated name.
    let address = unsafe { libc::dlsym(handle, c"opt_parameters".as_ptr()) };
    if address.is_null() {
        return Err("the library lacks `opt_parameters`, which its build should have added".to_owned());
    }
    // SAFETY: the glue defines this function with this type. Replacing it harms only this process.
    let parameters = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(address)() };
    let parameters = usize::try_from(parameters).unwrap_or(0);
    loaded.returned = parameters == inputs;
    if loaded.returned || parameters == inputs + outputs {
        return Ok(loaded);
    }
    Err(format!(
        "`{}` has {parameters} parameters; it must take the {inputs} arguments of the captures, or {} if the outputs follow them",
        setup.symbol,
        inputs + outputs
    ))
}

/// Loads the artifact's libraries and then the artifact. Returns the artifact's functions and its handle.
fn open(
    setup: &Setup,
    artifact: OwnedFd,
    libraries: Vec<OwnedFd>,
    page: &ControlPage,
) -> Result<(Loaded, *mut libc::c_void), String> {
    page.phase.store(Phase::Loading as u32, Ordering::SeqCst);
    // If an artifact's dependencies are already loaded, the loader finds them by their SONAME. They are loaded
    // globally, because some code generators leave them out of `DT_NEEDED`.
    for (name, library) in setup.libraries.iter().zip(libraries) {
        open_library(&library, libc::RTLD_NOW | libc::RTLD_GLOBAL, name)?;
    }
    let handle = open_library(&artifact, libc::RTLD_NOW | libc::RTLD_LOCAL, "the candidate's library")?;
    drop(artifact);
    let loaded = functions(handle, &setup.symbol, setup.launcher)?;
    page.phase.store(Phase::Loaded as u32, Ordering::SeqCst);
    Ok((loaded, handle))
}

/// Loads the library at this path, whose CUDA runtime records what host code does. The libraries that it needs are looked
/// up in the system's folders and in `folders`.
pub(in crate::runner) fn load_for_recording(
    path: &Path,
    folders: &[PathBuf],
    symbol: &str,
) -> Result<Loaded, String> {
    let mut left = MAX_LIBRARIES;
    let handle = open_with_needed(path, folders, libc::RTLD_LOCAL, &mut left)
        .map_err(|error| error.replace(&*path.to_string_lossy(), "the candidate's library"))?;
    functions(handle, symbol, Launcher::CudaRuntime)
}

/// Opens a library. If the loader does not find a library that it needs, opens that one first. `left` is the number of
/// libraries that may still be opened in this way.
fn open_with_needed(
    path: &Path,
    folders: &[PathBuf],
    scope: i32,
    left: &mut usize,
) -> Result<*mut libc::c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    loop {
        // SAFETY: the path is NUL-terminated. Constructors of the library run here, in a process that is meant for this.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | scope) };
        if !handle.is_null() {
            return Ok(handle);
        }
        let error = loader_error();
        let missing = error.split_once(": cannot open shared object file").map(|(name, _)| name);
        let found = missing.and_then(|name| folders.iter().map(|it| it.join(name)).find(|it| it.is_file()));
        match (found, left.checked_sub(1)) {
            (Some(needed), Some(rest)) if needed != path => {
                *left = rest;
                open_with_needed(&needed, folders, libc::RTLD_GLOBAL, left)?;
            }
            _ => return Err(error),
        }
    }
}

/// Looks up the functions of an artifact.
fn functions(handle: *mut libc::c_void, symbol: &str, launcher: Launcher) -> Result<Loaded, String> {
    let find = |name: &str| -> Option<Function> {
        let name = CString::new(name).ok()?;
        // SAFETY: a handle that dlopen returned and a NUL-terminated name.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: the plan says that this symbol is a function of the candidate interface.
        (!address.is_null()).then(|| unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) })
    };
    let run = find(&format!("__tvm_ffi_{symbol}")).or_else(|| find(symbol)).ok_or_else(|| {
        format!("the library has neither `__tvm_ffi_{symbol}` nor `{symbol}` (set `symbol` to the name of an exported function; C++ needs extern \"C\")")
    })?;
    let plan = find(&format!("__tvm_ffi_{symbol}_plan")).or_else(|| find(&format!("{symbol}_plan")));
    let raised = Raised::Library(RaisedErrors::find(handle));
    let may_refuse = matches!(launcher, Launcher::Dlopen | Launcher::CudaRuntime);
    let place = match launcher {
        Launcher::Dlopen => Some(Place::Host),
        Launcher::CudaRuntime => Some(Place::Device(cudart::read)),
        _ => None,
    };
    let tensors = place.map(|place| ReturnedTensors::of(handle, place));
    Ok(Loaded { run, plan, raised, returned: false, may_refuse, tensors, entries: Vec::new() })
}

/// Opens a library by its descriptor, because this process's user may not be able to enter the library's folder. `name`
/// is the name that error messages show.
fn open_library(library: &OwnedFd, flags: i32, name: &str) -> Result<*mut libc::c_void, String> {
    let descriptor_path = format!("/proc/self/fd/{}", library.as_raw_fd());
    let path = CString::new(descriptor_path.as_str()).map_err(|error| error.to_string())?;
    // SAFETY: the path is NUL-terminated. Constructors of the library run here, in a process that is meant for this.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
    if handle.is_null() { Err(loader_error().replace(&descriptor_path, name)) } else { Ok(handle) }
}
