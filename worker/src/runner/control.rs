//! The control page, which is the only memory that a worker and its runner share to hand calls over to each other.
//!
//! Owns the layout of the page and the futex calls. `serve` (in the runner) and `session::host` (in the worker) define
//! the commands. The runner is hostile once its candidate is loaded, so the worker treats every field as a claim, and
//! clamps it before use. The page is in a memfd that is sealed against resizing, so reading the page cannot raise
//! SIGBUS.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opt_shared::units::Bytes;
use opt_shared::wait::timespec;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::memfd;

/// The phase that a runner has reached. The runner writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    Starting = 0,
    Mapped = 1,
    Loading = 2,
    Loaded = 3,
    Planning = 4,
    Calling = 5,
    Idle = 6,
}

impl Phase {
    pub fn from_claim(claim: u32) -> Self {
        match claim {
            1 => Self::Mapped,
            2 => Self::Loading,
            3 => Self::Loaded,
            4 => Self::Planning,
            5 => Self::Calling,
            6 => Self::Idle,
            _ => Self::Starting,
        }
    }
}

/// The kind of memory at the address of a fault, according to the runner's signal handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FaultedMemory {
    Elsewhere = 0,
    /// An input. Inputs are readable, so a SIGSEGV there must have been caused by a store.
    Input = 1,
    /// The guard page before or after an input.
    InputGuard = 2,
    /// The guard page before or after an output.
    OutputGuard = 3,
}

impl FaultedMemory {
    pub fn from_claim(claim: u32) -> Self {
        match claim {
            1 => Self::Input,
            2 => Self::InputGuard,
            3 => Self::OutputGuard,
            _ => Self::Elsewhere,
        }
    }
}

/// A flag of the calls of a verification or a replay. After such calls, the runner flushes what the candidate printed,
/// and drops the output pages from its page tables.
pub const FLAG_VERIFY: u32 = 1;
/// A flag that requests a call of `<symbol>_plan` instead of `<symbol>`.
pub const FLAG_PLAN: u32 = 2;
/// A flag that requests that each call get the variant of its slot as input.
pub const FLAG_VARIED: u32 = 4;

/// The page that a worker and its runner share. Both run the same executable, and `repr(C)` fixes the layout.
#[repr(C, align(64))]
pub struct ControlPage {
    // These fields are written by the worker and read by the runner.
    /// The number of the command. The runner executes a command when this number changes.
    pub command: AtomicU32,
    pub entry: AtomicU32,
    pub calls: AtomicU32,
    pub first_slot: AtomicU32,
    pub flags: AtomicU32,
    /// How long the runner spins before it sleeps, in microseconds.
    pub spin_us: AtomicU32,
    /// 1 while the runner sleeps, so that the worker must wake it.
    pub runner_waits: AtomicU32,
    padding: [u32; 9],
    // These fields are written by the runner and read by the worker. They are on a separate cache line.
    /// The number of the last command that the runner has executed.
    pub done: AtomicU32,
    /// 1 while the worker sleeps, so that the runner must wake it.
    pub worker_waits: AtomicU32,
    pub result: AtomicI32,
    pub calls_done: AtomicU32,
    /// 1 if a call returned a value, which the candidate interface does not allow.
    pub returned_value: AtomicU32,
    pub phase: AtomicU32,
    pub fault_signal: AtomicU32,
    /// The kind of memory at the address of the fault, as a `FaultedMemory`.
    pub fault_memory: AtomicU32,
    pub fault_index: AtomicU32,
    /// 1 once a function has returned its outputs instead of writing them.
    pub returned_outputs: AtomicU32,
    pub fault_address: AtomicU64,
    /// The duration of the calls according to the runner's own clock.
    pub claimed_ns: AtomicU64,
    /// The largest size of an allocation that was refused for lack of memory; 0 if there was none.
    pub refused_bytes: AtomicU64,
    pub raised: RaisedText,
}

/// The largest size, in bytes, of an error text that is passed on.
const MAX_RAISED: usize = 1024;

/// A text in shared memory. The reader copies it byte by byte, and relies on neither its length nor its content.
#[repr(C)]
pub struct RaisedText {
    length: AtomicU32,
    bytes: [AtomicU8; MAX_RAISED],
}

impl RaisedText {
    /// Writes the text. Called in the runner. Truncates the text if it does not fit.
    pub fn write_text(&self, text: &str) {
        let length = text.len().min(MAX_RAISED);
        for (target, byte) in self.bytes.iter().zip(text.bytes()) {
            target.store(byte, Ordering::Relaxed);
        }
        self.length.store(u32::try_from(length).unwrap_or(0), Ordering::Relaxed);
    }

    pub fn clear(&self) {
        self.length.store(0, Ordering::Relaxed);
    }

    /// Reads the text, as one line without control characters. Called in the worker.
    pub fn claim(&self) -> Option<String> {
        let length = usize::try_from(self.length.load(Ordering::Relaxed)).map_or(0, |n| n.min(MAX_RAISED));
        let bytes: Vec<u8> = self.bytes[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        let text = one_line(&String::from_utf8_lossy(&bytes));
        (!text.is_empty()).then_some(text)
    }
}

/// Converts a text that a candidate may have chosen to one line without control characters.
pub fn one_line(text: &str) -> String {
    let spaced = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    let line: String = spaced.filter(|c| !c.is_control()).collect();
    line.trim().to_owned()
}

pub struct ControlMap {
    page: NonNull<ControlPage>,
    descriptor: Option<OwnedFd>,
    bytes: usize,
}

// SAFETY: the page consists only of atomics, so every access is atomic from any thread.
unsafe impl Send for ControlMap {}
// SAFETY: as above.
unsafe impl Sync for ControlMap {}

impl ControlMap {
    /// Creates a sealed page. Called in the worker.
    pub fn create() -> rustix::io::Result<Self> {
        let descriptor = memfd::fixed("opt-control", Bytes::from(page_bytes()))?;
        let mut map = Self::attach(descriptor.as_fd())?;
        map.descriptor = Some(descriptor);
        Ok(map)
    }

    /// Maps an existing page. Called in the runner. The descriptor may be closed afterwards.
    pub fn attach(descriptor: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let bytes = page_bytes();
        // SAFETY: a fresh shared mapping of a whole sealed memfd; nothing is replaced.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                descriptor,
                0,
            )?
        };
        let page = NonNull::new(address.cast()).ok_or(rustix::io::Errno::FAULT)?;
        Ok(Self { page, descriptor: None, bytes })
    }

    pub fn page(&self) -> &ControlPage {
        // SAFETY: mapped for as long as `self` lives, at least one page, aligned to a page; all-atomic content.
        unsafe { self.page.as_ref() }
    }

    /// Returns the page, mapped for the rest of the process's life. Called in the runner.
    pub fn leak(self) -> &'static ControlPage {
        let page = self.page;
        std::mem::forget(self);
        // SAFETY: never unmapped after this.
        unsafe { page.as_ref() }
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for ControlMap {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), self.bytes) };
    }
}

fn page_bytes() -> usize {
    rustix::param::page_size().max(size_of::<ControlPage>())
}

/// Waits until `word` differs from `old`. Spins for `spin`, and then sleeps on the futex for at most `slice`. Returns
/// true if `word` has changed. During the sleep, `waits` is 1, which tells the process at the other end to wake this
/// one.
pub fn wait_for_change(
    word: &AtomicU32,
    waits: &AtomicU32,
    old: u32,
    spin: Duration,
    slice: Duration,
) -> bool {
    if !spin.is_zero() {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                if word.load(Ordering::Acquire) != old {
                    return true;
                }
                std::hint::spin_loop();
            }
            if spin < start.elapsed() {
                break;
            }
        }
    }
    waits.store(1, Ordering::SeqCst);
    let changed = if word.load(Ordering::SeqCst) == old {
        let _ = futex::wait(word, futex::Flags::empty(), old, Some(&timespec(slice)));
        word.load(Ordering::Acquire) != old
    } else {
        true
    };
    waits.store(0, Ordering::Relaxed);
    changed
}

/// Publishes a new value, and wakes the process at the other end if it sleeps.
pub fn publish(word: &AtomicU32, waits: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
    if waits.load(Ordering::SeqCst) != 0 {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_waiter_sees_a_change() {
        let map = ControlMap::create().expect("a sealed memfd");
        let page = map.page();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(20);
                while Instant::now() < deadline {
                    if wait_for_change(
                        &page.command,
                        &page.runner_waits,
                        0,
                        Duration::ZERO,
                        Duration::from_millis(100),
                    ) {
                        return true;
                    }
                }
                false
            });
            publish(&page.command, &page.runner_waits, 7);
            assert!(waiter.join().expect("the waiting thread ends"));
        });
    }

    #[test]
    fn raised_error_is_read_within_bounds() {
        let map = ControlMap::create().expect("a sealed memfd");
        let raised = &map.page().raised;
        assert_eq!(raised.claim(), None);
        raised.write_text("ValueError: only\n float32\u{1b}[31m");
        assert_eq!(raised.claim().as_deref(), Some("ValueError: only  float32[31m"));
        assert_eq!(one_line("\n\u{1b} Missing key(s):\n\t\"a\" \u{1b}\n"), "Missing key(s):  \"a\"");
        raised.write_text(&"é".repeat(MAX_RAISED));
        assert!(raised.claim().is_some_and(|text| text.len() <= MAX_RAISED));
        raised.length.store(u32::MAX, Ordering::Relaxed);
        assert!(raised.claim().is_some_and(|text| text.len() <= 3 * MAX_RAISED));
        raised.clear();
        assert_eq!(raised.claim(), None);
    }

    #[test]
    fn control_page_cannot_be_resized() {
        let map = ControlMap::create().expect("a sealed memfd");
        let descriptor = map.descriptor().expect("the creator keeps it");
        assert!(rustix::fs::ftruncate(descriptor, 0).is_err());
        assert!(rustix::fs::ftruncate(descriptor, 1 << 20).is_err());
    }
}
