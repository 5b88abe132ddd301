//! Hosts a Python interpreter in a runner. The interpreter runs the process from the start, and calls the runner's
//! code.
//!
//! ```text
//! main ── setup ──▶ Py_BytesMain ──▶ driver.py: import torch ──▶ ready ──▶ map, lock down, load, serve
//! ```
//!
//! torch is imported before the lock-down, because the import reads folders that the sandboxed runner may not be able
//! to enter. This is safe, because torch is the user's own and no code of a candidate has run by then.
//!
//! The interpreter's lock is held whenever our code runs, so threads of a candidate cannot run Python code between its
//! calls. As with a library, calls go through the C candidate interface: a function of this module makes the Python
//! call.

mod api;
mod calls;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use self::api::{Api, Object};
pub(super) use self::calls::{load, plan, run, take_raised};
use super::frame::Python;
use super::loader::loader_error;

const DRIVER: &str =
    concat!(include_str!("recorded_call.py"), include_str!("rehearsal.py"), include_str!("driver.py"));

/// The process's interpreter, ready to load a candidate. It lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct Interpreter {
    api: &'static Api,
    /// The `Driver` object of `driver.py`.
    driver: *mut Object,
}

impl Interpreter {
    /// Loads and calls a small module of our own, so that memory which later loads and calls use is initialised
    /// already.
    pub(super) fn rehearse(self) -> Result<(), String> {
        let Self { api, driver } = self;
        // SAFETY: the lock has been held since `ready`. No null pointer is passed on, and no object is released twice.
        unsafe {
            let method = (api.attribute)(driver, c"rehearse".as_ptr());
            let answer = if method.is_null() {
                std::ptr::null_mut()
            } else {
                (api.call)(method, std::ptr::null(), 0, std::ptr::null_mut())
            };
            if answer.is_null() {
                (api.forget_error)();
                return Err("it cannot call a function of this program".to_owned());
            }
            let error = if answer == api.none { None } else { api.read(answer) };
            (api.release)(method);
            (api.release)(answer);
            error.map_or(Ok(()), Err)
        }
    }

    /// Copies this process with `clone`, and runs the interpreter's fork hooks: one before the clone, and one after it
    /// in each of the two processes. `is_copy` returns true for the result in the copy.
    ///
    /// # Safety
    /// The requirements of `clone_sibling` apply, and the interpreter's lock must be held.
    pub(super) unsafe fn around_clone<T>(
        self,
        clone: impl FnOnce() -> T,
        is_copy: impl FnOnce(&T) -> bool,
    ) -> T {
        // SAFETY: these functions have no arguments and need the lock, which the caller guarantees.
        unsafe {
            (self.api.before_fork)();
            let cloned = clone();
            if is_copy(&cloned) {
                (self.api.after_fork_in_copy)()
            } else {
                (self.api.after_fork_here)()
            }
            cloned
        }
    }
}

/// The code that runs once the interpreter is ready. It gets the interpreter, or the reason why there is none.
type Continuation = Box<dyn FnOnce(Result<Interpreter, String>) -> i32>;

thread_local! {
    /// The code to run once the interpreter is ready.
    static CONTINUATION: RefCell<Option<(&'static Api, Continuation)>> = const { RefCell::new(None) };
}

/// Turns this process into an interpreter, and runs `continuation` in it. Returns the exit code, which is the result of
/// `continuation`.
pub(super) fn host(python: &Python, continuation: Continuation) -> i32 {
    let ready = ready as extern "C" fn(*mut Object, *mut Object) -> c_int;
    let arguments = [
        CString::new(python.executable.as_os_str().as_bytes()),
        CString::new("-I"),
        CString::new("-B"),
        CString::new("-c"),
        CString::new(DRIVER),
        CString::new((ready as usize).to_string()),
    ];
    let (api, arguments) = match (open(&python.library), arguments.into_iter().collect::<Result<Vec<_>, _>>())
    {
        (Ok(api), Ok(arguments)) => (api, arguments),
        (Err(error), _) => return continuation(Err(error)),
        (_, Err(error)) => return continuation(Err(error.to_string())),
    };
    let pointers: Vec<*const c_char> =
        arguments.iter().map(|argument| argument.as_ptr()).chain([std::ptr::null()]).collect();
    CONTINUATION.set(Some((api, continuation)));
    let count = c_int::try_from(arguments.len()).unwrap_or(0);
    // SAFETY: a null-terminated array of NUL-terminated arguments, all of which outlive the call.
    let code = unsafe { (api.main)(count, pointers.as_ptr()) };
    match CONTINUATION.take() {
        // The interpreter ended before it called back.
        Some((_, continuation)) => continuation(Err(format!(
            "the interpreter {} ended with code {code} before it was ready",
            python.executable.display()
        ))),
        None => code,
    }
}

fn open(library: &Path) -> Result<&'static Api, String> {
    let path = CString::new(library.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // The library is loaded globally, because Python's extension modules need its symbols.
    // SAFETY: the path is NUL-terminated, and the library is the user's own interpreter.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return Err(format!(
            "the interpreter's library {} cannot be loaded: {}",
            library.display(),
            loader_error()
        ));
    }
    Ok(Box::leak(Box::new(Api::find(handle)?)))
}

/// `driver.py` calls this once it is ready, with the interpreter's lock held. `driver` is its `Driver` object. `error`
/// is an error text, or None if there was no error.
extern "C" fn ready(driver: *mut Object, error: *mut Object) -> c_int {
    let Some((api, continuation)) = CONTINUATION.take() else { return 2 };
    if error == api.none {
        continuation(Ok(Interpreter { api, driver }))
    } else {
        // SAFETY: the lock is held, and the caller keeps its objects alive.
        let text = unsafe { api.read(error) }.unwrap_or_default();
        continuation(Err(format!(
            "the interpreter could not import the modules that every candidate needs: {text}"
        )))
    }
}
