//! Records the launches that a candidate's host code makes, in the sandboxed process of a build.
//!
//! The process loads the candidate's library and forks for each call, so that no call sees what an earlier one has
//! changed. The child calls the candidate and sends its result through a pipe. The candidate runs in this process too
//! (constructors) and can forge every result, but a result is only a list of launches, which a worker checks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use opt_shared::launch::Pointer;
use opt_shared::wait::readable;

use super::abi::{Arguments, Form, NOTHING, ON_CUDA};
use super::cudart::recording::Places;
use super::cudart::{self, recording};
use super::frame::{EntrySetup, InputRange};
use super::load::Loaded;
use super::load::dlopen;
use super::passing;
use super::recording_format::{HostView, MAX_CALLS_BYTES, RecordOrder, RecordedCall, Recording};

/// The time limit for one call. Host code that only launches kernels needs microseconds; its kernels are already loaded.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// How long a process may take to end after it has closed its pipe, and the pause between two looks at it.
const END_LIMIT: Duration = Duration::from_secs(1);
const END_PAUSE: Duration = Duration::from_millis(1);
/// The largest size of a call's result, in bytes.
const MAX_RESULT: u64 = MAX_CALLS_BYTES as u64;
/// The code with which a candidate refuses an entry (`OPT_UNSUPPORTED`).
const REFUSES_ENTRY: i32 = -2;
/// The prefix of the error text of a call that was not done in time.
const TIMEOUT: &str = "opt.Timeout: ";
const INCOMPLETE: &str = "the arguments of the recorder are not a library, an order, `-o` and an output file";

type Recorded = Result<RecordedCall, String>;

/// The arguments of the recorder, with the order that they name.
pub(super) struct Order {
    library: PathBuf,
    output: PathBuf,
    order: RecordOrder,
}

impl Order {
    /// Reads the order. No code of the candidate has run yet.
    pub(super) fn read(arguments: &[OsString]) -> Result<Self, String> {
        let [library, order, flag, output] = arguments else { return Err(INCOMPLETE.to_owned()) };
        if flag != "-o" {
            return Err(INCOMPLETE.to_owned());
        }
        let path = Path::new(order);
        let failed =
            |what: &str, error: &dyn std::fmt::Display| format!("{what} {}: {error}", path.display());
        let bytes = std::fs::read(path).map_err(|error| failed("reading", &error))?;
        let order = postcard::from_bytes(&bytes).map_err(|error| failed("decoding", &error))?;
        Ok(Self { library: library.into(), output: output.into(), order })
    }

    /// Records all calls and writes the artifact. Returns the exit code, or the reason why nothing could be recorded.
    pub(super) fn record(&self) -> Result<i32, String> {
        record(&self.library, &self.order, &self.output)
    }
}

fn record(library: &Path, order: &RecordOrder, output: &Path) -> Result<i32, String> {
    recording::begin_loading(order.card);
    let loaded = dlopen::load_for_recording(library, &order.library_path, &order.symbol);
    let loaded = loaded.map_err(cudart::explain).and_then(|loaded| match recording::end_loading() {
        Some(why) => Err(why),
        None if loaded.plan.is_some() => Err(format!(
            "opt.Unsupported: the library has a plan function, which {} does not call",
            cudart::DEVICE_NAME
        )),
        None => Ok(loaded),
    });
    let mut calls = Vec::with_capacity(order.calls.len());
    let mut overdue = None;
    for view in &order.calls {
        let key = view.key().map_err(|error| format!("encoding a call: {error}"))?;
        let result = match (&loaded, &overdue) {
            (Err(text), _) | (_, Some(text)) => Err(text.clone()),
            (Ok(loaded), None) => in_children(loaded, view)?,
        };
        // If one call hangs, others probably hang too, and each would take its whole time.
        overdue = result.as_ref().err().filter(|text| text.starts_with(TIMEOUT)).cloned();
        calls.push((key, result.map_err(|text| text.replace(cudart::DEVICE_NAME, cudart::RECORDER_NAME))));
    }
    let content = Recording { images: recording::images(), calls }.to_bytes();
    let content = content.map_err(|error| format!("encoding the recorded launches: {error}"))?;
    let Some(content) = content else {
        eprintln!(
            "the recorded launches of all calls take more than {} MiB (select fewer entries with `entries`)",
            MAX_CALLS_BYTES >> 20
        );
        return Ok(1);
    };
    std::fs::write(output, content).map_err(|error| format!("writing {}: {error}", output.display()))?;
    Ok(0)
}

/// Makes a call in two copies of this process, with different addresses, and combines the results. The outer error is one
/// of ours.
fn in_children(loaded: &Loaded, view: &HostView) -> Result<Recorded, String> {
    let [first, second] = recording::PLACES;
    let first = match in_child(loaded, view, first)? {
        Ok(call) => call,
        Err(text) => return Ok(Err(text)),
    };
    Ok(in_child(loaded, view, second)?.and_then(|second| first.combined(&second)))
}

/// Makes a call in a copy of this process. The outer error is one of ours.
fn in_child(loaded: &Loaded, view: &HostView, places: Places) -> Result<Recorded, String> {
    let (ours, theirs) = std::io::pipe().map_err(|error| format!("creating a pipe: {error}"))?;
    // SAFETY: this process has one thread, unless the candidate has started others, which do not exist in the child. A
    // lock that such a thread holds can make the child wait; then it is killed at its time limit.
    match unsafe { fork() }.map_err(|error| format!("copying the process: {error}"))? {
        ForkResult::Child => {
            drop(ours);
            let result = call(loaded, view, places);
            super::stdout::flush();
            let sent = send(&theirs, &result);
            // SAFETY: ends this process without running destructors, which belong to the parent.
            unsafe { libc::_exit(i32::from(!sent)) }
        }
        ForkResult::Parent { child } => {
            drop(theirs);
            let received = receive(File::from(std::os::fd::OwnedFd::from(ours)));
            if !matches!(received, Received::Closed) {
                let _ = kill(child, Signal::SIGKILL);
            }
            let end = reap(child);
            Ok(match received {
                Received::All(bytes) => postcard::from_bytes(&bytes).unwrap_or_else(|_| {
                    Err("opt.Crashed: the host code damaged what was recorded".to_owned())
                }),
                Received::Closed => Err(format!("opt.Crashed: {end} while its launches were recorded")),
                Received::TooMuch => Err(format!(
                    "opt.Unsupported: the launches of a call take more than {} MiB, and {} records no more",
                    MAX_RESULT >> 20,
                    cudart::DEVICE_NAME
                )),
                Received::Overdue => Err(format!(
                    "{TIMEOUT}the host code was not done after {CALL_LIMIT:?} while its launches were recorded"
                )),
            })
        }
    }
}

/// Sends a result, after its length. Returns false if it cannot be sent.
fn send(mut pipe: &std::io::PipeWriter, result: &Recorded) -> bool {
    let Ok(bytes) = postcard::to_stdvec(result) else { return false };
    let length = (bytes.len() as u64).to_le_bytes();
    pipe.write_all(&length).and_then(|()| pipe.write_all(&bytes)).is_ok()
}

/// What has arrived from a child.
enum Received {
    All(Vec<u8>),
    /// The child has closed the pipe before it had sent everything.
    Closed,
    TooMuch,
    /// The child has not sent everything in time.
    Overdue,
}

/// Receives the result of a child.
fn receive(mut pipe: File) -> Received {
    let deadline = Instant::now() + CALL_LIMIT;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some((length, rest)) = bytes.split_first_chunk::<8>() {
            let length = u64::from_le_bytes(*length);
            if MAX_RESULT < length {
                return Received::TooMuch;
            }
            if length <= rest.len() as u64 {
                return Received::All(rest.to_vec());
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Received::Overdue;
        }
        if !readable(pipe.as_fd(), left).unwrap_or(true) {
            continue;
        }
        match pipe.read(&mut piece) {
            Ok(0) | Err(_) => return Received::Closed,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
        }
    }
}

/// Waits for the end of a child, and describes it. A child that does not end by itself is killed.
fn reap(child: Pid) -> String {
    let deadline = Instant::now() + END_LIMIT;
    loop {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => {
                return format!("the host code ended its process with code {code}");
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => return format!("the host code was ended by {signal}"),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {
                if deadline < Instant::now() {
                    let _ = kill(child, Signal::SIGKILL);
                }
                std::thread::sleep(END_PAUSE);
            }
            Err(error) => return format!("the process of the host code is lost ({error})"),
        }
    }
}

/// Calls the candidate once and returns its launches. The error text has a prefix that names a status.
fn call(loaded: &Loaded, view: &HostView, places: Places) -> Recorded {
    let mut form = Form::default();
    // Each repetition changes the form of at least one argument, so the call is repeated only a few times.
    loop {
        recording::begin(places);
        let inputs: Vec<*mut u8> = view
            .inputs
            .iter()
            .map(|input| match input.bytes {
                0 => std::ptr::null_mut(),
                _ => recording::show(Pointer::Argument(input.argument), input.phase),
            })
            .collect();
        let setup = EntrySetup {
            inputs: view
                .inputs
                .iter()
                .map(|input| InputRange { source: 0, file_offset: 0, bytes: input.bytes, address_phase: 0 })
                .collect(),
            arguments: view.arguments.clone(),
            outputs: view.outputs.clone(),
            page_by_page: false,
            resident: false,
            pooled: false,
            variants: Vec::new(),
            call: None,
        };
        let mut arguments = Arguments::build(&setup, &inputs, ON_CUDA).map_err(str::to_owned)?;
        let outputs = view.outputs.iter().enumerate().map(|(output, wire)| {
            if wire.shape.contains(&0) {
                std::ptr::null_mut()
            } else {
                recording::show(Pointer::Output(output), 0)
            }
        });
        let outputs: Vec<*mut u8> = outputs.collect();
        arguments.renew(false, outputs.into_iter());
        cudart::begin_call();
        // SAFETY: the plan claims that the symbol has this signature. If the claim is false, only this process is
        // harmed.
        let (code, value) = unsafe { arguments.call(loaded.run, &form) };
        if let Some(text) = cudart::end_call(code) {
            return Err(text);
        }
        if code == REFUSES_ENTRY {
            return Err(format!(
                "opt.Unsupported: the candidate does not support this entry (it returned {code})"
            ));
        }
        if code != 0 {
            let raised = loaded.raised.take();
            if raised.as_deref().is_some_and(|error| passing::adapt(&mut form, error, &arguments, true)) {
                continue;
            }
            let raised = raised.map_or(String::new(), |text| format!(": {text}"));
            return Err(format!("opt.Raised: the host code returned {code} (0 means done){raised}"));
        }
        if value.type_index != NOTHING.type_index {
            return Err(format!(
                "opt.Unsupported: the host code returns a value, and {} knows only outputs that are passed to it",
                cudart::DEVICE_NAME
            ));
        }
        return Ok(recording::take());
    }
}
