//! A virtual clock: kernels, fills and copies within the device take the time that a model gives. As on a card, events
//! and synchronisation wait for them. Copies to and from the host neither take time nor wait.
//!
//! The model is in a file in one of the folders of `LD_LIBRARY_PATH`, because a worker gets this variable, but none
//! that only the twin knows. The file has two numbers: the nanoseconds that an instruction of a warp takes, and the
//! bytes that are moved in a microsecond. Without the file, an operation takes as long as its emulation. If the
//! emulation takes longer than the model says, more time passes on the host than on the device, as on a busy machine.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The name of the file with the model.
const MODEL_FILE: &str = "cuda-clock";

#[derive(Clone, Copy)]
struct Model {
    instruction: Duration,
    bytes_per_us: u64,
}

static MODEL: LazyLock<Option<Model>> = LazyLock::new(read_model);
/// The moment at which everything that was queued is complete.
static DONE: Mutex<Option<Instant>> = Mutex::new(None);

fn read_model() -> Option<Model> {
    let folders = std::env::var_os("LD_LIBRARY_PATH")?;
    let text =
        std::env::split_paths(&folders).find_map(|it| std::fs::read_to_string(it.join(MODEL_FILE)).ok())?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (instruction, bytes_per_us) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Model { instruction: Duration::from_nanos(instruction), bytes_per_us })
}

/// Queues work that takes a given time. It begins at `begun` or when all earlier work is complete, whichever is later.
fn queue(begun: Instant, takes: Duration) {
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    *done = Some(done.map_or(begun, |done| done.max(begun)) + takes);
}

/// Queues the time of a kernel.
pub(crate) fn ran(begun: Instant, warp_instructions: u64) {
    if let Some(model) = *MODEL {
        let instructions = u32::try_from(warp_instructions).unwrap_or(u32::MAX);
        queue(begun, model.instruction.saturating_mul(instructions));
    }
}

/// Queues the time of a fill or of a copy within the device.
pub(crate) fn moved(begun: Instant, bytes: u64) {
    if let Some(model) = *MODEL {
        queue(begun, Duration::from_micros(bytes.checked_div(model.bytes_per_us).unwrap_or(0)));
    }
}

/// The moment at which an operation that is queued now begins.
pub(crate) fn next() -> Instant {
    let (now, done) = (Instant::now(), *DONE.lock().unwrap_or_else(PoisonError::into_inner));
    done.map_or(now, |done| done.max(now))
}

/// Waits until everything that was queued is complete.
pub(crate) fn wait() {
    std::thread::sleep(next().saturating_duration_since(Instant::now()));
}
