//! The control page: the one piece of memory that a worker and its runner share for the timing hand-off.
//!
//! Owns its layout and the futex calls on it. What a command means is `serve`'s (runner) and `executor`'s
//! (worker) affair. The runner is hostile from the moment its candidate is loaded: the worker reads every field
//! as a claim, never as a fact, and clamps it before use. The page lies in a memfd sealed against resizing, so
//! that no read of it can raise SIGBUS.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opt_shared::units::Bytes;
use opt_shared::wait::timespec;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::memfd;

/// What a runner has reached; written by the runner.
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

/// What lies at the address of a fault, as the runner's handler found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FaultPlace {
    Elsewhere = 0,
    /// In an input, which can be read: so it was a store.
    Input = 1,
    /// In the guard page before or after an input.
    InputGuard = 2,
    /// In the guard page before or after an output.
    OutputGuard = 3,
}

impl FaultPlace {
    pub fn from_claim(claim: u32) -> Self {
        match claim {
            1 => Self::Input,
            2 => Self::InputGuard,
            3 => Self::OutputGuard,
            _ => Self::Elsewhere,
        }
    }
}

/// Flags of a command.
pub const FLAG_VERIFY: u32 = 1;
/// Call `<symbol>_plan` instead.
pub const FLAG_PLAN: u32 = 2;
/// Show each call the variant of its slot.
pub const FLAG_VARIED: u32 = 4;

/// Layout is fixed by `repr(C)`; both ends are the same executable.
#[repr(C, align(64))]
pub struct ControlPage {
    // Worker to runner.
    pub command: AtomicU32,
    pub entry: AtomicU32,
    pub calls: AtomicU32,
    pub first_slot: AtomicU32,
    pub flags: AtomicU32,
    pub spin_us: AtomicU32,
    pub runner_waits: AtomicU32,
    padding: [u32; 9],
    // Runner to worker, on a cache line of its own.
    pub done: AtomicU32,
    pub worker_waits: AtomicU32,
    pub result: AtomicI32,
    pub calls_done: AtomicU32,
    pub returned_value: AtomicU32,
    pub phase: AtomicU32,
    pub fault_signal: AtomicU32,
    /// What lies at the address of the fault: a `FaultPlace`.
    pub fault_place: AtomicU32,
    pub fault_index: AtomicU32,
    padding_2: u32,
    pub fault_address: AtomicU64,
    pub claimed_ns: AtomicU64,
    pub refused_bytes: AtomicU64,
    /// The error that a failed call left behind.
    pub raised: RaisedText,
}

/// Longest error text that is handed on; the page holds it and there is room for as much again.
const LONGEST_RAISED: usize = 1024;

/// A text in shared memory: the reader copies it byte by byte and trusts neither length nor content.
#[repr(C)]
pub struct RaisedText {
    length: AtomicU32,
    bytes: [AtomicU8; LONGEST_RAISED],
}

impl RaisedText {
    /// Runner side; what does not fit is cut.
    pub fn tell(&self, text: &str) {
        let length = text.len().min(LONGEST_RAISED);
        for (place, byte) in self.bytes.iter().zip(text.bytes()) {
            place.store(byte, Ordering::Relaxed);
        }
        self.length.store(u32::try_from(length).unwrap_or(0), Ordering::Relaxed);
    }

    pub fn clear(&self) {
        self.length.store(0, Ordering::Relaxed);
    }

    /// Worker side, on one line and without control characters.
    pub fn claim(&self) -> Option<String> {
        let length =
            usize::try_from(self.length.load(Ordering::Relaxed)).map_or(0, |n| n.min(LONGEST_RAISED));
        let bytes: Vec<u8> = self.bytes[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        let text: String = String::from_utf8_lossy(&bytes)
            .chars()
            .map(|c| if c.is_whitespace() { ' ' } else { c })
            .filter(|c| !c.is_control())
            .collect();
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

/// The page mapped into this process.
pub struct ControlMap {
    page: NonNull<ControlPage>,
    descriptor: Option<OwnedFd>,
    bytes: usize,
}

// SAFETY: the page consists of atomics only; every access to it is atomic from whatever thread.
unsafe impl Send for ControlMap {}
// SAFETY: as above.
unsafe impl Sync for ControlMap {}

impl ControlMap {
    /// A new sealed page (worker).
    pub fn create() -> rustix::io::Result<Self> {
        let descriptor = memfd::fixed("opt-control", Bytes::from(page_bytes()))?;
        let mut map = Self::attach(descriptor.as_fd())?;
        map.descriptor = Some(descriptor);
        Ok(map)
    }

    /// Maps an existing page (runner). The descriptor may be closed afterwards.
    pub fn attach(descriptor: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let bytes = page_bytes();
        // SAFETY: a fresh shared map of a whole sealed memfd; nothing is replaced.
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

    /// For a runner, whose maps live as long as the process.
    pub fn leak(self) -> &'static ControlPage {
        let page = self.page;
        std::mem::forget(self);
        // SAFETY: never unmapped from here on.
        unsafe { page.as_ref() }
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for ControlMap {
    fn drop(&mut self) {
        // SAFETY: our own map, not used after this.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), self.bytes) };
    }
}

fn page_bytes() -> usize {
    rustix::param::page_size().max(size_of::<ControlPage>())
}

/// Waits until `word` differs from `old`: spins for `spin`, then sleeps on the futex for at most `slice`.
/// Returns whether it changed. `waits` tells the other side that a wake-up is needed.
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

/// Publishes a new value and wakes the other side if it sleeps.
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
    fn a_change_is_seen_by_a_sleeper() {
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
            assert!(waiter.join().expect("the waiter ends"));
        });
    }

    #[test]
    fn a_raised_error_is_read_within_bounds_whatever_stands_there() {
        let map = ControlMap::create().expect("a sealed memfd");
        let raised = &map.page().raised;
        assert_eq!(raised.claim(), None);
        raised.tell("ValueError: only\n float32\u{1b}[31m");
        assert_eq!(raised.claim().as_deref(), Some("ValueError: only  float32[31m"));
        raised.tell(&"é".repeat(LONGEST_RAISED));
        assert!(raised.claim().is_some_and(|text| text.len() <= LONGEST_RAISED));
        raised.length.store(u32::MAX, Ordering::Relaxed);
        assert!(raised.claim().is_some_and(|text| text.len() <= 3 * LONGEST_RAISED));
        raised.clear();
        assert_eq!(raised.claim(), None);
    }

    #[test]
    fn the_page_cannot_be_resized() {
        let map = ControlMap::create().expect("a sealed memfd");
        let descriptor = map.descriptor().expect("the creator keeps it");
        assert!(rustix::fs::ftruncate(descriptor, 0).is_err());
        assert!(rustix::fs::ftruncate(descriptor, 1 << 20).is_err());
    }
}
