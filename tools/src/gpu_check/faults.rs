//! Tests kernels that misbehave: what the device reports, what the fault costs, and whether the emulated device agrees.
//!
//! The faulty kernel runs in a child process. A fault must end the context of that process and no other context, so a
//! second child must still be able to compute afterwards.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use opt_shared::units::Bytes;
use opt_worker::trial::{TrialArgument, TrialBuffer, TrialDevice, TrialEnd, TrialFault, TrialLaunch};
use serde::{Deserialize, Serialize};

use crate::Arguments;
use crate::cases::{self, BAD};
use crate::host::Numbers;
use crate::kernels::{self, answer};
use crate::row::{Judgement, Row};
use crate::steps::{Step, own_command};

const COUNT: usize = 200;
const THREADS: u32 = 64;
/// The time limit of the endless kernel.
const ENDLESS_LIMIT: Duration = Duration::from_secs(1);
/// The time limit for a child's answer. Creating a context can take seconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);
/// The time limit for the answer about an endless kernel. There may be no answer, because the launch may never return.
const ENDLESS_ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The work that a child is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Attempted {
    IllegalAddress,
    Misaligned,
    Trap,
    Assert,
    Endless,
    /// A kernel without a fault.
    Good,
}

impl Attempted {
    fn name(self) -> Result<String> {
        let value = clap::ValueEnum::to_possible_value(&self).context("an attempt without a name")?;
        Ok(value.get_name().to_owned())
    }

    /// Returns the kernel of `configs/cuda/bad.cu`, and the code that the driver's documentation gives for its fault.
    /// `Good` runs a kernel of `cases.rs` instead.
    const fn kernel(self) -> (&'static str, u32) {
        match self {
            Self::IllegalAddress => ("writes_to_nowhere", 700),
            Self::Misaligned => ("loads_misaligned", 716),
            Self::Trap => ("traps", 719),
            Self::Assert => ("asserts", 710),
            Self::Endless => ("loops_forever", 702),
            Self::Good => ("naive", 0),
        }
    }
}

/// The findings of a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    text: String,
    code: Option<u32>,
    /// The code of a later call in the same process, or `None` if the call succeeded or was not made.
    later: Option<u32>,
    /// Whether the kernel ended without a fault and, for `Good`, with the right result.
    ended_well: bool,
}

fn end_of(kernel: &'static str, device: &TrialDevice, limit: Duration) -> TrialEnd {
    let values = Numbers::new(10).floats(COUNT);
    let buffers =
        [TrialBuffer::Input(cases::bytes_of(&values)), TrialBuffer::Output(COUNT * size_of::<f32>())];
    let count = TrialArgument::I64(i64::try_from(COUNT).unwrap_or(i64::MAX));
    let launch = TrialLaunch {
        symbol: kernel,
        grid: [u32::try_from(COUNT).unwrap_or(u32::MAX).div_ceil(THREADS), 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        arguments: vec![TrialArgument::Buffer(0), TrialArgument::Buffer(1), count],
    };
    device.run(BAD.as_bytes(), &buffers, &[launch], limit)
}

fn shown(fault: &TrialFault) -> String {
    match fault.ptx_line {
        Some(line) => format!("{}, PTX line {line}", fault.name),
        None => fault.name.clone(),
    }
}

/// Returns the time limit of a faulty kernel. In a dry run, the endless kernel gets no more time than on a card,
/// because it exceeds any limit.
fn limit_of(what: Attempted, arguments: &Arguments) -> Duration {
    if what == Attempted::Endless { ENDLESS_LIMIT } else { arguments.limit(kernels::LIMIT) }
}

/// The work of the child: runs the kernel, and prints what happened.
pub(crate) fn attempt(what: Attempted, arguments: &Arguments) -> Result<()> {
    let device = TrialDevice::card(arguments.device).map_err(Error::msg)?;
    let found = if what == Attempted::Good {
        let case = cases::of(Step::Relu).swap_remove(0);
        let answer = answer(&case, &device, arguments.limit(kernels::LIMIT));
        Found { text: answer.text, code: None, later: None, ended_well: answer.is_right }
    } else {
        let (text, code, ended_well) = match end_of(what.kernel().0, &device, limit_of(what, arguments)) {
            TrialEnd::Fault(fault) => (shown(&fault), Some(fault.code), false),
            TrialEnd::Endless => (format!("not complete after {} s", ENDLESS_LIMIT.as_secs()), None, false),
            TrialEnd::Over { .. } => ("it ended without an error".to_owned(), None, true),
        };
        // A later call would wait for the endless kernel.
        let asks = code.is_some() && what != Attempted::Endless;
        let later = if asks { device.allocate(Bytes::kib(4)).err().map(|fault| fault.code) } else { None };
        Found { text, code, later, ended_well }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&found)?)?;
    out.flush()?;
    // End without releasing the context, because releasing it would wait for an endless kernel.
    std::process::exit(0);
}

fn start(what: Attempted, arguments: &Arguments) -> Result<Child> {
    let mut command = own_command(arguments)?;
    command.args(["--attempt", &what.name()?]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().context("starting a child")
}

/// How the wait for a child ended.
enum Waited {
    Answered(Found),
    /// The child ended without an answer.
    Ended,
    TooLong,
}

/// Waits for a child's answer, and then kills the child. Returns the answer, and how long it took to kill and reap the
/// child.
fn finish(mut child: Child, limit: Duration) -> Result<(Waited, Duration)> {
    let out = child.stdout.take().context("a child without output")?;
    let (send, received) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(std::result::Result::ok);
        let found = lines.filter_map(|line| serde_json::from_str::<Found>(&line).ok()).next();
        // Sending fails if the time limit has passed, because the receiver then no longer exists.
        let _ = send.send(found);
    });
    let waited = match received.recv_timeout(limit) {
        Ok(Some(found)) => Waited::Answered(found),
        Ok(None) => Waited::Ended,
        Err(_) => Waited::TooLong,
    };
    let started = Instant::now();
    child.kill().context("ending a child")?;
    child.wait().context("reaping a child")?;
    Ok((waited, started.elapsed()))
}

/// Returns whether a new process can still compute, and its answer.
fn afterwards(arguments: &Arguments) -> Result<(bool, String)> {
    let (waited, _) = finish(start(Attempted::Good, arguments)?, arguments.limit(ANSWER_LIMIT))?;
    Ok(match waited {
        Waited::Answered(found) => (found.ended_well, format!("a new process: {}", found.text)),
        Waited::Ended | Waited::TooLong => (false, "a new process gave no answer".to_owned()),
    })
}

/// Returns the code and the text with which the emulated device reports the fault of the same kernel.
fn emulated(kernel: &'static str, limit: Duration) -> (Option<u32>, String) {
    match end_of(kernel, &TrialDevice::emulated(), limit) {
        TrialEnd::Fault(fault) => (Some(fault.code), shown(&fault)),
        TrialEnd::Endless => (None, "not complete".to_owned()),
        TrialEnd::Over { .. } => (None, "it ended without an error".to_owned()),
    }
}

pub(crate) fn rows(what: Attempted, arguments: &Arguments) -> Result<Vec<Row>> {
    let (kernel, documented) = what.kernel();
    let (waited, _) = finish(start(what, arguments)?, arguments.limit(ANSWER_LIMIT))?;
    let (works, after) = afterwards(arguments)?;
    let (emulated_code, emulated) = emulated(kernel, limit_of(what, arguments));
    let fault = format!("the fault of `{kernel}`");
    let Waited::Answered(found) = waited else {
        return Ok(vec![Row::no_answer(&fault, "its process said nothing").emulated(emulated)]);
    };
    let is_documented = found.code == Some(documented);
    let agreement = if found.code == emulated_code {
        "the same code on both".to_owned()
    } else {
        "the two devices report different codes".to_owned()
    };
    let is_same = is_documented && found.code == emulated_code;
    let is_sticky = found.code.is_some() && found.later == found.code;
    let later = match found.later {
        Some(code) => format!("a later call: error {code}"),
        None => "a later call succeeds".to_owned(),
    };
    Ok(vec![
        Row::new(&fault, Judgement::of(is_same), found.text, agreement).emulated(emulated),
        Row::new(
            format!("`{kernel}` affects only its own process"),
            Judgement::of(is_sticky && works),
            later,
            after,
        ),
    ])
}

pub(crate) fn endless(arguments: &Arguments) -> Result<Vec<Row>> {
    let (kernel, watchdog) = Attempted::Endless.kernel();
    let (waited, reaped) = finish(start(Attempted::Endless, arguments)?, ENDLESS_ANSWER_LIMIT)?;
    let (works, after) = afterwards(arguments)?;
    let (_, emulated) = emulated(kernel, ENDLESS_LIMIT);
    // A driver with a watchdog, or the twin, may end the kernel itself.
    let (is_endless, text) = match waited {
        Waited::Answered(found) => {
            (!found.ended_well && found.code.is_none_or(|code| code == watchdog), found.text)
        }
        Waited::TooLong => {
            (true, format!("its process said nothing for {} s", ENDLESS_ANSWER_LIMIT.as_secs()))
        }
        Waited::Ended => (false, "its process ended without an answer".to_owned()),
    };
    Ok(vec![
        Row::new(format!("the end of `{kernel}`"), Judgement::of(is_endless), text, "").emulated(emulated),
        Row::new(
            format!("`{kernel}` affects only its own process"),
            Judgement::of(works),
            format!("killed and reaped after {:.1} ms", reaped.as_secs_f64() * 1e3),
            after,
        ),
    ])
}

pub(crate) fn out_of_memory(arguments: &Arguments) -> Result<Vec<Row>> {
    const OUT_OF_MEMORY: u32 = 2;
    let devices = [TrialDevice::card(arguments.device).map_err(Error::msg)?, TrialDevice::emulated()];
    let [one, other] = devices.map(|device| {
        let refused = device.allocate(device.total() + Bytes::gib(1)).err();
        let then = device.allocate(Bytes::mib(1)).is_ok();
        let is_right = refused.as_ref().is_some_and(|fault| fault.code == OUT_OF_MEMORY) && then;
        let refused = refused.map_or("given".to_owned(), |fault| fault.name);
        (
            is_right,
            format!("{refused}; a small allocation afterwards {}", if then { "works" } else { "fails" }),
        )
    });
    let judgement = Judgement::of(one.0 && other.0);
    let asked = "asked for 1 GiB more than the whole device has";
    Ok(vec![Row::new("an allocation that is too large", judgement, one.1, asked).emulated(other.1)])
}

/// Checks a store just past the end of a buffer. No card reports this as a fault, because the page continues there, but
/// the guard band beside the buffer reveals the store.
pub(crate) fn past_the_end(arguments: &Arguments) -> Result<Vec<Row>> {
    const KERNEL: &str = "writes_past_the_end";
    const ILLEGAL_ADDRESS: u32 = 700;
    let device = TrialDevice::card(arguments.device).map_err(Error::msg)?;
    let limit = arguments.limit(kernels::LIMIT);
    let (is_noticed, text) = match end_of(KERNEL, &device, limit) {
        TrialEnd::Over { stores_beyond: Some(_), .. } => {
            (true, "the band beside the output shows it".to_owned())
        }
        TrialEnd::Over { stores_beyond: None, .. } => (false, "not noticed".to_owned()),
        // A driver that checks every access, such as the twin, reports the store itself.
        TrialEnd::Fault(fault) => (fault.code == ILLEGAL_ADDRESS, shown(&fault)),
        TrialEnd::Endless => (false, "not complete".to_owned()),
    };
    let (code, emulated) = emulated(KERNEL, limit);
    let judgement = Judgement::of(is_noticed && code == Some(ILLEGAL_ADDRESS));
    let figures = "the two differ on purpose: only the emulated device checks every access";
    Ok(vec![Row::new(format!("the store of `{KERNEL}`"), judgement, text, figures).emulated(emulated)])
}
