//! A virtual clock: kernels, fills and copies take the time that a model gives. As on a card, events and
//! synchronisation wait for them, and streams do not wait for each other. Copies without a stream neither take time nor
//! wait.
//!
//! The model is in a file in one of the folders of `LD_LIBRARY_PATH`, because a worker's environment has this variable,
//! but none that only the twin knows. The file has two or three numbers: the nanoseconds that an instruction of a warp
//! takes, the bytes that are moved within the device in a microsecond, and those that are copied from or to the host in
//! a microsecond (without the third number, such copies take no time). Without the file, an operation takes as long as
//! its emulation. If the emulation takes longer than the model says, more time passes on the host than on the device,
//! as on a busy machine.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The name of the file with the model.
const MODEL_FILE: &str = "cuda-clock";

#[derive(Clone, Copy)]
struct Model {
    instruction: Duration,
    bytes_per_us: u64,
    /// `None` if copies from and to the host take no time.
    host_bytes_per_us: Option<u64>,
}

static MODEL: LazyLock<Option<Model>> = LazyLock::new(read_model);
/// For each stream, the moment at which everything that was queued on it is complete.
static DONE: LazyLock<Mutex<HashMap<usize, Instant>>> = LazyLock::new(Mutex::default);

fn read_model() -> Option<Model> {
    let folders = std::env::var_os("LD_LIBRARY_PATH")?;
    let text =
        std::env::split_paths(&folders).find_map(|it| std::fs::read_to_string(it.join(MODEL_FILE)).ok())?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (instruction, bytes_per_us) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let host_bytes_per_us = numbers.next().and_then(Result::ok);
    Some(Model { instruction: Duration::from_nanos(instruction), bytes_per_us, host_bytes_per_us })
}

fn done() -> MutexGuard<'static, HashMap<usize, Instant>> {
    DONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues work that takes a given time. It begins at `begun` or when all earlier work of its stream is complete,
/// whichever is later.
fn queue(stream: *mut c_void, begun: Instant, takes: Duration) {
    let mut done = done();
    let of_stream = done.entry(stream.addr()).or_insert(begun);
    *of_stream = (*of_stream).max(begun) + takes;
}

/// Queues the time of a kernel.
pub(crate) fn ran(stream: *mut c_void, begun: Instant, warp_instructions: u64) {
    if let Some(model) = *MODEL {
        let instructions = u32::try_from(warp_instructions).unwrap_or(u32::MAX);
        queue(stream, begun, model.instruction.saturating_mul(instructions));
    }
}

/// Queues the time of a fill or of a copy within the device.
pub(crate) fn moved(stream: *mut c_void, begun: Instant, bytes: u64) {
    if let Some(model) = *MODEL {
        queue(stream, begun, time_of(bytes, model.bytes_per_us));
    }
}

/// Queues the time of a copy from or to the host.
pub(crate) fn copied(stream: *mut c_void, begun: Instant, bytes: u64) {
    if let Some(bytes_per_us) = MODEL.and_then(|model| model.host_bytes_per_us) {
        queue(stream, begun, time_of(bytes, bytes_per_us));
    }
}

fn time_of(bytes: u64, bytes_per_us: u64) -> Duration {
    Duration::from_micros(bytes.checked_div(bytes_per_us).unwrap_or(0))
}

/// The moment at which an operation that is queued now on this stream begins.
pub(crate) fn next(stream: *mut c_void) -> Instant {
    let (now, done) = (Instant::now(), done().get(&stream.addr()).copied());
    done.map_or(now, |done| done.max(now))
}

/// Waits until everything that was queued on this stream is complete.
pub(crate) fn wait(stream: *mut c_void) {
    sleep_until(next(stream));
}

/// Waits until everything that was queued on any stream is complete.
pub(crate) fn wait_for_all() {
    let last = done().values().copied().max();
    sleep_until(last.unwrap_or_else(Instant::now));
}

fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}
