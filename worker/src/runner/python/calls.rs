//! Loads the module of a Python candidate, and makes the calls of its entries available as functions of the C candidate
//! interface.
//!
//! The *driver* is `driver.py`, which is the Python code that the interpreter runs. Its class `Driver` loads the
//! module.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use opt_shared::language::Launcher;
use opt_shared::units::Bytes;

use super::Interpreter;
use super::api::{Api, Object};
use crate::runner::abi::{Any, DlTensor};
use crate::runner::frame::{Setup, WireCall};

/// The largest size of a source that is accepted.
const MAX_SOURCE: Bytes = Bytes::mib(16);
/// The text that the driver returns for `OPT_UNSUPPORTED`.
const UNSUPPORTED_TEXT: &str = "opt.Unsupported";
/// The codes of the candidate interface for an unsupported entry and, below it, for a failed call.
const UNSUPPORTED: c_int = -2;
const FAILED: c_int = 1;
const NO_ANSWER_TEXT: &str = "loading the module ended without an error text: the interpreter has no memory left, or the \
                              module has replaced something that reports its errors";
const OUT_OF_MEMORY_TEXT: &str = "the interpreter has no memory left to load the module";

thread_local! {
    /// The error text of the last failed call.
    static RAISED: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(in crate::runner) fn take_raised() -> Option<String> {
    RAISED.take()
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    /// The deleter is always null, because the memory stays mapped for the process's life.
    deleter: *mut c_void,
}

/// The state that the calls of one entry need. It lives as long as the process.
struct EntryCalls {
    api: &'static Api,
    call: *mut Object,
    plan: *mut Object,
    /// The indices of the tensor arguments.
    tensors: Vec<usize>,
    /// The number of arguments before the outputs.
    arguments: usize,
    managed: Vec<Managed>,
    capsules: Vec<*mut Object>,
}

pub(in crate::runner) struct Calls {
    /// The first argument that `run` and `plan` take, for each entry.
    pub(in crate::runner) entries: Vec<*mut c_void>,
    /// True if the module has a plan function (`<symbol>_plan`).
    pub(in crate::runner) has_plan: bool,
    /// True if the candidate returns its outputs, which the driver then copies to the output memory.
    pub(in crate::runner) returned: bool,
}

/// Loads the module for these entries, each of which comes with the number of its arguments before the outputs. The
/// error says what failed. If the module raised an exception, the error is the exception's text.
pub(in crate::runner) fn load(
    interpreter: Interpreter,
    setup: &Setup,
    artifact: OwnedFd,
    libraries: &[OwnedFd],
    entries: &[(WireCall, usize)],
) -> Result<Calls, String> {
    let source = setup.module.as_ref().map(|_| read(&File::from(artifact))).transpose();
    let source = source.map_err(|error| format!("reading the module: {error}"))?.unwrap_or_default();
    let name = setup.module.as_deref().unwrap_or_default();
    let graphs = graphs(setup, libraries);
    let Interpreter { api, driver } = interpreter;
    // SAFETY: the lock has been held since `ready`. No null pointer is passed on, and no object is released twice. The
    // answer is never released, because entries refer to its parts. After an early error, nothing is released, because
    // the process then ends.
    unsafe {
        let bytes = |bytes: &[u8]| (api.bytes)(bytes.as_ptr().cast(), length(bytes.len()));
        let text = |text: &str| (api.text)(text.as_ptr().cast(), length(text.len()));
        let texts = (api.tuple)(length(entries.len()));
        let method = (api.attribute)(driver, c"load".as_ptr());
        let arguments = [
            bytes(&source),
            text(name),
            text(&setup.symbol),
            (api.integer)(c_long::from(setup.threads)),
            text(&graphs),
            texts,
        ];
        if method.is_null() || arguments.iter().any(|argument| argument.is_null()) {
            return Err(OUT_OF_MEMORY_TEXT.to_owned());
        }
        for (at, (call, _)) in entries.iter().enumerate() {
            let entry_text = text(&call.text);
            if entry_text.is_null() {
                return Err(OUT_OF_MEMORY_TEXT.to_owned());
            }
            (api.set_item)(texts, length(at), entry_text);
        }
        let answer = (api.call)(method, arguments.as_ptr(), arguments.len(), std::ptr::null_mut());
        for argument in arguments.into_iter().chain([method]) {
            (api.release)(argument);
        }
        if answer.is_null() {
            (api.forget_error)();
            return Err(NO_ANSWER_TEXT.to_owned());
        }
        read_answer(api, answer, entries)
    }
}

/// Returns a JSON object that maps each graph's key to its path. It is empty if the launcher needs no graphs.
fn graphs(setup: &Setup, libraries: &[OwnedFd]) -> String {
    let path = |library: &OwnedFd| format!("/proc/self/fd/{}", library.as_raw_fd());
    let pairs = setup.libraries.iter().zip(libraries).map(|(key, library)| (key, path(library)));
    let paths: BTreeMap<&String, String> = pairs.collect();
    if setup.launcher == Launcher::Graphs { serde_json::json!(paths).to_string() } else { String::new() }
}

/// Reads the whole file. Does not use the position of the open file, because other runners share this position.
fn read(artifact: &File) -> io::Result<Vec<u8>> {
    let size = Bytes::new(artifact.metadata()?.len());
    if MAX_SOURCE < size {
        return Err(io::Error::other(format!("it is larger than {MAX_SOURCE}")));
    }
    let mut source = vec![0; size.to_usize()];
    artifact.read_exact_at(&mut source, 0)?;
    Ok(source)
}

/// Reads what `Driver.load` returned. The answer must never be released, because entries refer to its parts.
///
/// # Safety
/// The lock must be held, and `answer` must be the result of `Driver.load`.
unsafe fn read_answer(
    api: &'static Api,
    answer: *mut Object,
    entries: &[(WireCall, usize)],
) -> Result<Calls, String> {
    // SAFETY: `Driver.load` returns a tuple of four items: an error text or None, an int, the calls, and the plan
    // calls. The calls are a tuple with one function for each entry. The plan calls are such a tuple too, or an empty
    // one.
    unsafe {
        let error = (api.item)(answer, 0);
        if error != api.none {
            return Err(api.read(error).unwrap_or_default());
        }
        let returned = (api.as_integer)((api.item)(answer, 1)) != 0;
        let (calls, plans) = ((api.item)(answer, 2), (api.item)(answer, 3));
        let has_plan = (api.size)(plans) != 0;
        let entries = entries.iter().enumerate().map(|(at, (call, arguments))| {
            let calls = EntryCalls {
                api,
                call: (api.item)(calls, length(at)),
                plan: if has_plan { (api.item)(plans, length(at)) } else { std::ptr::null_mut() },
                tensors: call.tensors.iter().map(|&index| index as usize).collect(),
                arguments: *arguments,
                managed: Vec::new(),
                capsules: Vec::new(),
            };
            Box::into_raw(Box::new(calls)).cast::<c_void>()
        });
        Ok(Calls { entries: entries.collect(), has_plan, returned })
    }
}

/// Makes the ordinary call of an entry.
///
/// # Safety
/// The requirements of `call` apply.
pub(in crate::runner) unsafe extern "C" fn run(
    this: *mut c_void,
    arguments: *const Any,
    count: i32,
    _: *mut Any,
) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe { call(this, arguments, count, false) }
}

/// Makes the plan call of an entry, which calls the candidate's optional function `<symbol>_plan`, once, before the
/// entry's other calls.
///
/// # Safety
/// The requirements of `call` apply.
pub(in crate::runner) unsafe extern "C" fn plan(
    this: *mut c_void,
    arguments: *const Any,
    count: i32,
    _: *mut Any,
) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe { call(this, arguments, count, true) }
}

/// Calls the driver's function for an entry, with a DLPack capsule for each tensor. Returns a code of the candidate
/// interface.
///
/// # Safety
/// `this` must be one of `Calls::entries`, the arguments must be that entry's, and the interpreter's lock must be
/// held.
unsafe fn call(this: *mut c_void, arguments: *const Any, count: i32, planned: bool) -> i32 {
    // SAFETY: `this` points to an `EntryCalls`, and no other reference to it exists during the call.
    let entry = unsafe { &mut *this.cast::<EntryCalls>() };
    let api = entry.api;
    let outputs = entry.arguments..usize::try_from(count).unwrap_or(0);
    entry.managed.clear();
    for index in entry.tensors.iter().copied().chain(outputs) {
        // SAFETY: `index` is below `count`, and each of these arguments points to a tensor.
        let tensor = unsafe { *(*arguments.add(index)).payload.pointer.cast::<DlTensor>() };
        entry.managed.push(Managed { tensor, context: std::ptr::null_mut(), deleter: std::ptr::null_mut() });
    }
    entry.capsules.clear();
    for managed in &mut entry.managed {
        // SAFETY: the structure is read when a tensor is made from the capsule. Its `deleter` is read again when that
        // tensor is freed, which may be after later calls. Capsules that refer to the vector stay valid, because it
        // does not reallocate: every call of an entry has the same number of tensors.
        let capsule =
            unsafe { (api.capsule)((&raw mut *managed).cast(), c"dltensor".as_ptr(), std::ptr::null()) };
        entry.capsules.push(capsule);
    }
    let function = if planned { entry.plan } else { entry.call };
    // SAFETY: the objects are alive. If a capsule is null because it could not be made, nothing is called.
    let answer = unsafe {
        if entry.capsules.iter().any(|capsule| capsule.is_null()) {
            std::ptr::null_mut()
        } else {
            (api.call)(function, entry.capsules.as_ptr(), entry.capsules.len(), std::ptr::null_mut())
        }
    };
    for &capsule in entry.capsules.iter().filter(|capsule| !capsule.is_null()) {
        // SAFETY: the capsule was made above, and is released once.
        unsafe { (api.release)(capsule) };
    }
    if answer.is_null() {
        // SAFETY: the lock is held.
        unsafe { (api.forget_error)() };
        RAISED.set(Some("the interpreter could not make the call".to_owned()));
        return FAILED;
    }
    let done = answer == api.none;
    // SAFETY: the object is alive.
    let text = if done { None } else { unsafe { api.read(answer) } };
    // SAFETY: the reference is this function's own, and is released once.
    unsafe { (api.release)(answer) };
    match text {
        None if done => 0,
        Some(text) if text == UNSUPPORTED_TEXT => UNSUPPORTED,
        text => {
            RAISED.set(text);
            FAILED
        }
    }
}

fn length(count: usize) -> isize {
    isize::try_from(count).unwrap_or(0)
}
