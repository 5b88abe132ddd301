//! Reports whether a candidate's fault occurred in an input, in a guard page, or elsewhere.
//!
//! The handler writes to the control page, and lets the signal recur with its default action, so that the worker sees
//! the real signal. If a candidate installs its own handlers, nothing is reported, and its death counts as an ordinary
//! crash.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::control::{ControlPage, FaultedMemory};
use super::map::Mapped;

/// The size of the alternate stack of the handler, in bytes. The handler needs its own stack because it also runs after
/// a stack overflow.
const HANDLER_STACK: usize = 64 * 1024;

/// A mapping that is searched for the address of a fault.
pub(crate) struct WatchedMapping {
    pub(crate) mapped: Mapped,
    /// True if the mapping is an output, false if it is an input.
    pub(crate) output: bool,
    /// The index of the input or output.
    pub(crate) index: u32,
}

struct Table {
    page: &'static ControlPage,
    watched: Vec<WatchedMapping>,
    /// The size of a guard page, in bytes.
    guard: usize,
}

// SAFETY: the raw addresses in the table are only compared, and never dereferenced.
unsafe impl Send for Table {}
// SAFETY: as above; the table is never changed after it is set.
unsafe impl Sync for Table {}

static TABLE: OnceLock<Table> = OnceLock::new();

/// Installs the handler. Call this once, before the candidate is loaded.
pub(crate) fn report_faults_in(page: &'static ControlPage, watched: Vec<WatchedMapping>) {
    let guard = rustix::param::page_size();
    if TABLE.set(Table { page, watched, guard }).is_err() {
        return;
    }
    let stack = Box::leak(vec![0u8; HANDLER_STACK].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: HANDLER_STACK };
    // SAFETY: the stack is leaked and has the stated size. The handler is async-signal-safe, because it reads a table
    // that is never changed, and stores to atomics.
    unsafe {
        libc::sigaltstack(&raw const stack, std::ptr::null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let Some(table) = TABLE.get() else { return };
    // SAFETY: Linux hands a valid siginfo to an SA_SIGINFO handler.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut found = (FaultedMemory::Elsewhere, 0);
    for mapping in &table.watched {
        let Mapped { start, end, .. } = mapping.mapped;
        if start <= address && address < end {
            let in_guard = address < start + table.guard || end - table.guard <= address;
            let kind = match (mapping.output, in_guard) {
                (true, _) => FaultedMemory::OutputGuard,
                (false, true) => FaultedMemory::InputGuard,
                (false, false) => FaultedMemory::Input,
            };
            found = (kind, mapping.index);
            break;
        }
    }
    let page = table.page;
    page.fault_address.store(address as u64, Ordering::Relaxed);
    page.fault_memory.store(found.0 as u32, Ordering::Relaxed);
    page.fault_index.store(found.1, Ordering::Relaxed);
    page.fault_signal.store(signal.unsigned_abs(), Ordering::SeqCst);
    // SA_RESETHAND has restored the default action. After a fault, returning repeats the instruction, and the signal
    // then kills the process. A signal that was sent (`kill`) would not recur, so it is raised again. SAFETY: raise is
    // async-signal-safe. The signal is blocked until we return, and then its default action ends this process.
    if unsafe { (*info).si_code } <= 0 {
        // SAFETY: as above.
        unsafe { libc::raise(signal) };
    }
}
