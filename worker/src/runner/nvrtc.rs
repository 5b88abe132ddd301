//! Runs NVRTC in a sandboxed process: loads the library, compiles one source, writes one file, and prints NVRTC's log
//! to standard error.
//!
//! The process takes the command line of a compiler (options, `-o FILE`, a source), so that the build command that a
//! result shows is readable.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use super::loader::loader_error;

// The signatures of NVRTC's functions.
type Create = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(*mut c_void, *mut usize) -> c_int;
/// The type of the functions `nvrtcGetNumSupportedArchs` and `nvrtcGetSupportedArchs`.
type Numbers = unsafe extern "C" fn(*mut c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;

/// The suffix of the output file with which machine code is requested instead of PTX.
const MACHINE_CODE: &str = "cubin";
/// The exit code of a compiler that found an error in the source.
const SOURCE_ERROR: i32 = 1;
const INCOMPLETE: &str = "the arguments of NVRTC do not end with `-o`, an output file and a source file";

/// Compiles a source. Returns the exit code, or the reason why nothing could be compiled.
pub(super) fn compile(library: &Path, arguments: &[OsString]) -> Result<i32, String> {
    let order = Order::read(arguments)?;
    let source = std::fs::read(&order.source)
        .map_err(|error| format!("reading {}: {error}", order.source.display()))?;
    let Ok(source) = CString::new(source) else {
        eprintln!("{}: error: the file contains a zero byte", order.source.display());
        return Ok(SOURCE_ERROR);
    };
    let nvrtc = Library::open(library)?;
    nvrtc.check_architecture(&order.options)?;
    let Some(built) = nvrtc.build(&order, &source)? else { return Ok(SOURCE_ERROR) };
    std::fs::write(&order.output, built)
        .map_err(|error| format!("writing {}: {error}", order.output.display()))?;
    Ok(0)
}

/// The parts of a compiler's command line.
struct Order {
    options: Vec<CString>,
    output: PathBuf,
    source: PathBuf,
}

impl Order {
    fn read(arguments: &[OsString]) -> Result<Self, String> {
        let [options @ .., flag, output, source] = arguments else {
            return Err(INCOMPLETE.to_owned());
        };
        if flag != "-o" {
            return Err(INCOMPLETE.to_owned());
        }
        let option =
            |option: &OsString| CString::new(option.clone().into_vec()).map_err(|error| error.to_string());
        Ok(Self {
            options: options.iter().map(option).collect::<Result<_, _>>()?,
            output: output.into(),
            source: source.into(),
        })
    }
}

struct Library {
    handle: *mut c_void,
}

impl Library {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the name is NUL-terminated, and the library's constructors run in the compiler's sandbox.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("loading NVRTC: {}", loader_error()));
        }
        Ok(Self { handle })
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the library that this handle belongs to is open.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if found.is_null() {
            Err(format!("this NVRTC library has no function {}", name.to_string_lossy()))
        } else {
            Ok(found)
        }
    }

    /// Returns an error if an option requests machine code for an architecture that this NVRTC does not support.
    /// NVRTC's own message would look as if the source contained a mistake.
    fn check_architecture(&self, options: &[CString]) -> Result<(), String> {
        let flag = options.iter().rev().filter_map(|option| option.to_str().ok()).find_map(|option| {
            let (name, value) = option.split_once('=')?;
            ["-arch", "--gpu-architecture"].contains(&name).then_some(value)
        });
        let Some(wanted) = flag.and_then(|flag| flag.strip_prefix("sm_")) else { return Ok(()) };
        let Some(known) = self.architectures() else { return Ok(()) };
        let Ok(number) = wanted.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse::<c_int>() else {
            return Ok(());
        };
        if known.contains(&number) {
            return Ok(());
        }
        Err(format!(
            "this version of NVRTC cannot compile for sm_{wanted}, only for {} (install another version, or name an \
             architecture in extra_flags, such as `-arch=compute_80`)",
            known.iter().map(|number| format!("sm_{number}")).collect::<Vec<_>>().join(", ")
        ))
    }

    /// Returns the architectures that this NVRTC supports, or `None` if it does not report them.
    fn architectures(&self) -> Option<Vec<c_int>> {
        // SAFETY: these are the types of the library's interface.
        let (count, get) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Numbers>(self.symbol(c"nvrtcGetNumSupportedArchs").ok()?),
                std::mem::transmute::<*mut c_void, Numbers>(self.symbol(c"nvrtcGetSupportedArchs").ok()?),
            )
        };
        let mut found = 0;
        // SAFETY: the number is written by the call.
        if unsafe { count(&mut found) } != 0 {
            return None;
        }
        let mut known = vec![0; usize::try_from(found).ok()?];
        // SAFETY: the call writes as many numbers as the previous call reported.
        (unsafe { get(known.as_mut_ptr()) } == 0).then_some(known)
    }

    /// Compiles the source and prints the log. Returns `None` if NVRTC reports an error, which is usually in the
    /// source.
    fn build(&self, order: &Order, source: &CStr) -> Result<Option<Vec<u8>>, String> {
        // SAFETY: these are the types of the library's interface.
        let (create, compile) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Create>(self.symbol(c"nvrtcCreateProgram")?),
                std::mem::transmute::<*mut c_void, Compile>(self.symbol(c"nvrtcCompileProgram")?),
            )
        };
        let name = CString::new(order.source.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        let options: Vec<*const c_char> = order.options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).map_err(|_| "too many options".to_owned())?;
        let mut program = null_mut();
        // SAFETY: source and name are NUL-terminated, and no headers are passed.
        let code = unsafe { create(&mut program, source.as_ptr(), name.as_ptr(), 0, null(), null()) };
        if code != 0 {
            return Err(format!("NVRTC could not create a program: error {code}"));
        }
        // SAFETY: the program was created above, and `options` contains `count` NUL-terminated strings.
        let code = unsafe { compile(program, count, options.as_ptr()) };
        let log = self.read_bytes(program, c"nvrtcGetProgramLogSize", c"nvrtcGetProgramLog")?;
        let log = String::from_utf8_lossy(log.strip_suffix(&[0]).unwrap_or(&log)).into_owned();
        if !log.is_empty() {
            eprintln!("{log}");
        }
        if code != 0 {
            if log.is_empty() {
                eprintln!("NVRTC: error {code}");
            }
            return Ok(None);
        }
        let machine_code = order.output.extension().is_some_and(|suffix| suffix == MACHINE_CODE);
        let mut built = if machine_code {
            self.read_bytes(program, c"nvrtcGetCUBINSize", c"nvrtcGetCUBIN")?
        } else {
            self.read_bytes(program, c"nvrtcGetPTXSize", c"nvrtcGetPTX")?
        };
        if !machine_code && built.last() == Some(&0) {
            built.pop();
        }
        Ok(Some(built))
    }

    /// Calls a pair of NVRTC's functions, one of which returns a size, and the other the bytes.
    fn read_bytes(&self, program: *mut c_void, size: &CStr, text: &CStr) -> Result<Vec<u8>, String> {
        let failed = |code: c_int| format!("{} failed with error {code}", text.to_string_lossy());
        // SAFETY: these are the types of the library's interface.
        let (size, get) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Size>(self.symbol(size)?),
                std::mem::transmute::<*mut c_void, Text>(self.symbol(text)?),
            )
        };
        let mut bytes = 0;
        // SAFETY: the program was created by this library.
        let code = unsafe { size(program, &mut bytes) };
        if code != 0 {
            return Err(failed(code));
        }
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the library reported.
        let code = unsafe { get(program, buffer.as_mut_ptr().cast()) };
        if code == 0 { Ok(buffer) } else { Err(failed(code)) }
    }
}
