//! Graphs: launches that are recorded while a stream is captured, and run when the graph is launched.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use opt_emulator::{Function, Launch};

use super::{INVALID_HANDLE, INVALID_VALUE, give_handle, run};

type Recorded = Vec<(Function, Launch)>;

#[derive(Default)]
struct Graphs {
    /// The launches of the capture that is under way.
    capture: Option<Recorded>,
    made: HashMap<usize, Recorded>,
}

static GRAPHS: LazyLock<Mutex<Graphs>> = LazyLock::new(Mutex::default);

fn graphs() -> MutexGuard<'static, Graphs> {
    GRAPHS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a launch if a capture is under way, and otherwise returns it.
pub(crate) fn record(function: Function, launch: Launch) -> Option<(Function, Launch)> {
    match &mut graphs().capture {
        Some(capture) => {
            capture.push((function, launch));
            None
        }
        None => Some((function, launch)),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(_: *mut c_void, _: c_uint) -> u32 {
    let mut graphs = graphs();
    if graphs.capture.is_some() {
        return INVALID_VALUE;
    }
    graphs.capture = Some(Recorded::new());
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(_: *mut c_void, graph: *mut *mut c_void) -> u32 {
    let Some(recorded) = graphs().capture.take() else { return INVALID_VALUE };
    // SAFETY: see the caller's contract.
    unsafe { give_recorded(graph, recorded) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut *mut c_void,
    graph: *mut c_void,
    _: u64,
) -> u32 {
    let Some(recorded) = graphs().made.get(&graph.addr()).cloned() else { return INVALID_HANDLE };
    // SAFETY: see the caller's contract.
    unsafe { give_recorded(executable, recorded) }
}

/// Writes a new handle, under which the launches are kept.
unsafe fn give_recorded(handle: *mut *mut c_void, recorded: Recorded) -> u32 {
    // SAFETY: see the caller's contract.
    let status = unsafe { give_handle(handle) };
    if status == 0 {
        // SAFETY: the call above has written it.
        graphs().made.insert(unsafe { (*handle).addr() }, recorded);
    }
    status
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: *mut c_void, stream: *mut c_void) -> u32 {
    let Some(recorded) = graphs().made.get(&executable.addr()).cloned() else { return INVALID_HANDLE };
    let mut codes = recorded.iter().map(|(function, launch)| run(function, launch, stream));
    codes.find(|&code| code != 0).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: *mut c_void) -> u32 {
    destroy(executable)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: *mut c_void) -> u32 {
    destroy(graph)
}

fn destroy(handle: *mut c_void) -> u32 {
    if graphs().made.remove(&handle.addr()).is_some() { 0 } else { INVALID_HANDLE }
}
