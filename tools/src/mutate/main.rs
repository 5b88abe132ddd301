//! `mutate`: passes changed inputs to every reader of untrusted bytes, on stable Rust.
//!
//! It looks for panics, for inputs that take a reader more than two seconds of CPU time, and for excessive use of
//! memory. The changes are derived from the number of the try, so a run can continue from the last number that was
//! saved, and a finding can be reproduced from its number. A finding is written to a file in the folder, and the run
//! then ends with status 1.

mod change;
mod memory;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use opt_tests::hostile::{TARGETS, Target, corpus};

/// The CPU time that a reader may take for one input. If it takes more, this counts as a hang.
const MAX_CPU_TIME: Duration = Duration::from_secs(2);
/// The wall-clock time that a reader may take for one input. It is needed because a reader that waits uses no CPU time.
const MAX_WALL_TIME: Duration = Duration::from_secs(60);
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The memory that a reader may use for any input, in bytes.
const BASE_MEMORY: usize = 24 << 20;
/// The additional memory that a reader may use for each byte of input. A list of small numbers needs about forty times
/// the size of its pickle.
const MEMORY_PER_BYTE: usize = 256;
/// The maximum length of an input. Longer inputs of the corpus are skipped, because they are slow.
const MAX_INPUT: usize = 16 << 10;
const FINDING: &str = "finding";
/// The number of tries after which the state is saved.
const TRIES_PER_STATE: u64 = 10_000;

/// Pass changed inputs to every reader of untrusted bytes
#[derive(Parser)]
struct Arguments {
    /// Only these targets; by default, all of them in turn
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// The number of changed inputs for each target, over all runs with this folder
    #[arg(long, default_value_t = 100_000)]
    tries: u64,
    /// The folder of the state and the findings
    #[arg(long, default_value = "target/mutate")]
    folder: PathBuf,
    /// Repeat this one try and write its input to a file
    #[arg(long, value_name = "NUMBER")]
    again: Option<u64>,
    /// Write the unchanged inputs to this folder, as seeds for another fuzzer, and end
    #[arg(long, value_name = "FOLDER", conflicts_with = "again")]
    seeds: Option<PathBuf>,
}

/// The input that is being read, for the watchdog.
#[derive(Default)]
struct Current {
    /// A counter that is incremented when a reader starts.
    number: AtomicU64,
    input: Mutex<Vec<u8>>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.folder)
        .with_context(|| format!("making {}", arguments.folder.display()))?;
    let chosen: Vec<&Target> = match &arguments.target[..] {
        [] => TARGETS.iter().collect(),
        names => names.iter().map(|name| named(name)).collect::<anyhow::Result<_>>()?,
    };
    if let Some(folder) = &arguments.seeds {
        return chosen.iter().try_for_each(|target| write_seeds(target, folder));
    }
    let current = Arc::new(Current::default());
    watch(&current, &arguments.folder)?;
    // Suppress the default message of a panic, because panics are reported below.
    std::panic::set_hook(Box::new(|_| {}));
    for target in chosen {
        try_inputs(target, &arguments, &current)?;
    }
    Ok(())
}

fn named(name: &str) -> anyhow::Result<&'static Target> {
    TARGETS.iter().find(|target| target.name == name).with_context(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        format!("there is no target `{name}` (the targets are {})", names.join(", "))
    })
}

/// Returns the corpus of a target, without inputs that are too long.
fn short_inputs(target: &Target) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut inputs = corpus(target);
    inputs.retain(|input| input.len() <= MAX_INPUT);
    anyhow::ensure!(!inputs.is_empty(), "{} has no corpus", target.name);
    Ok(inputs)
}

fn write_seeds(target: &Target, folder: &Path) -> anyhow::Result<()> {
    let folder = folder.join(target.name);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for input in short_inputs(target)? {
        write_input(&folder, "seed", &input)?;
    }
    Ok(())
}

fn try_inputs(target: &Target, arguments: &Arguments, current: &Current) -> anyhow::Result<()> {
    let inputs = short_inputs(target)?;
    let state = arguments.folder.join(format!("{}.next", target.name));
    let (first, end) = match arguments.again {
        Some(number) => (number, number + 1),
        None => {
            let done = std::fs::read_to_string(&state).ok().and_then(|text| text.trim().parse().ok());
            (done.unwrap_or(0), arguments.tries)
        }
    };
    let (started, mut slowest, mut largest) = (Instant::now(), Duration::ZERO, 0);
    for number in first..end {
        let input = change::changed(&inputs, target.name, number);
        if arguments.again.is_some() {
            std::fs::write(arguments.folder.join(format!("{}.{number}", target.name)), &input)?;
        }
        current.input.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&input);
        current.number.fetch_add(1, Ordering::Release);
        let began = memory::cpu_time();
        let (end, peak) = memory::peak_of(|| catch_unwind(AssertUnwindSafe(|| (target.run)(&input))));
        let took = memory::cpu_time() - began;
        slowest = slowest.max(took);
        largest = largest.max(peak);
        let most = BASE_MEMORY + MEMORY_PER_BYTE * input.len();
        let what = match end {
            Err(panic) => Some(format!("the reader panics: {}", panic_text(&*panic))),
            Ok(()) if took > MAX_CPU_TIME => Some(format!("the reader takes {took:?} of CPU time")),
            Ok(()) if peak > most => {
                Some(format!("the reader allocates {peak} bytes for an input of {} bytes", input.len()))
            }
            Ok(()) => None,
        };
        if let Some(what) = what {
            let path = write_input(&arguments.folder, FINDING, &input)?;
            anyhow::bail!("{}, try {number}: {what} (the input is in {})", target.name, path.display());
        }
        if (number + 1).is_multiple_of(TRIES_PER_STATE) && arguments.again.is_none() {
            std::fs::write(&state, (number + 1).to_string()).context("writing the state")?;
        }
    }
    if arguments.again.is_none() && first < end {
        std::fs::write(&state, end.to_string()).context("writing the state")?;
    }
    println!(
        "{}: {} tries in {:.0?}, slowest {slowest:?}, largest {largest} bytes",
        target.name,
        end.saturating_sub(first),
        started.elapsed()
    );
    Ok(())
}

/// Ends the process if a reader takes too long, because there is no other way to stop an endless loop.
fn watch(current: &Arc<Current>, folder: &Path) -> anyhow::Result<()> {
    let (current, folder) = (Arc::clone(current), folder.to_owned());
    let spawned = std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        let (mut known, mut cpu, mut wall) = (0, Duration::ZERO, Instant::now());
        loop {
            std::thread::sleep(CHECK_INTERVAL);
            let number = current.number.load(Ordering::Acquire);
            if number != known {
                (known, cpu, wall) = (number, memory::cpu_time(), Instant::now());
            } else if memory::cpu_time() - cpu > MAX_CPU_TIME || wall.elapsed() > MAX_WALL_TIME {
                let input = current.input.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let where_it_is = match write_input(&folder, FINDING, &input) {
                    Ok(path) => format!("the input is in {}", path.display()),
                    Err(error) => format!("the input could not be written: {error:#}"),
                };
                eprintln!(
                    "the reader gave no answer after {MAX_CPU_TIME:?} of CPU time or {MAX_WALL_TIME:?} of wall-clock time; \
                     {where_it_is}"
                );
                std::process::exit(1);
            }
        }
    });
    spawned.context("starting the watch").map(drop)
}

/// Writes an input to a file. The name of the file consists of `what` and the input's digest.
fn write_input(folder: &Path, what: &str, input: &[u8]) -> anyhow::Result<PathBuf> {
    let name = blake3::hash(input).to_hex();
    let path = folder.join(format!("{what}-{}", &name.as_str()[..16]));
    std::fs::write(&path, input).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}
