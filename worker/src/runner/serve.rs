//! Runs the steps of a runner: maps inputs, locks the process down, loads the candidate, and serves calls until the
//! process is killed.
//!
//! A runner is a separate process that contains only one candidate with its inputs and outputs. It decides and compares
//! nothing, and the time that it measures is only a claim. Once the candidate is loaded, it controls the whole process,
//! so no message from the process can be trusted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use opt_shared::causes::chain;
use opt_shared::message::Protection;
use opt_shared::units::Bytes;
use rustix::process::DumpableBehavior::{Dumpable, NotDumpable};
use rustix::process::set_dumpable_behavior;

use super::abi::{self, Form};
use super::control::{
    ControlMap, ControlPage, FLAG_PLAN, FLAG_VARIED, FLAG_VERIFY, Phase, publish, wait_for_change,
};
use super::cudart;
use super::entry::{Entry, EntryError, Inputs};
use super::fault::{self, WatchedMapping};
use super::frame::{FrameError, Reply, Setup, ToRunner, receive_from_worker, send_reply};
use super::load::{self, LoadInputs, Loaded};
use super::map::Mapped;
use super::passing;
use super::python::{self, Interpreter};
use crate::sandbox::confine::{self, Descriptors};
use crate::sandbox::policy;
use crate::sandbox::scheduling;
use crate::sandbox::spawn::SOCKET_FD;

pub const CONTROL_FD: i32 = 4;
/// The largest number of entries in one runner.
const MAX_ENTRIES: usize = 100_000;
/// The prefix of errors that were caused by a lack of memory.
const HOST_MEMORY: &str = "opt.HostMemory: ";
/// The prefix of errors that have no status of their own.
const RAISED: &str = "opt.Raised: ";
/// The longest single wait on the futex. The wait is repeated until a command arrives.
const WAIT_SLICE: Duration = Duration::from_millis(100);

pub fn main() -> i32 {
    begin(None)
}

/// Runs all steps of a runner once its descriptors are in place. `host` is the interpreter that hosts this process, if
/// there is one. Returns the exit code.
pub(super) fn begin(host: Option<Interpreter>) -> i32 {
    // SAFETY: the worker that started us opened these two descriptors for us, and no other code uses them.
    let (socket, control) =
        unsafe { (BorrowedFd::borrow_raw(SOCKET_FD), BorrowedFd::borrow_raw(CONTROL_FD)) };
    // While this process waits for its setup, the worker's other runner may be executing a candidate, which must not be
    // able to read or trace this process.
    let _ = set_dumpable_behavior(NotDumpable);
    super::stdout::write_line_by_line();
    let Ok(page) = ControlMap::attach(control) else { return 3 };
    let page = page.leak();
    #[cfg(target_env = "gnu")]
    crate::sandbox::interpose::note_refusals_in(&page.refused_bytes);
    let received = SetupFrame::receive(socket);
    let _ = set_dumpable_behavior(Dumpable);
    match received {
        Ok(setup_frame) => match setup_frame.setup.python.clone().filter(|_| host.is_none()) {
            Some(python) => python::host(
                &python,
                Box::new(move |interpreter| match interpreter {
                    Ok(interpreter) => run_steps(socket, page, setup_frame, Some(interpreter)),
                    Err(text) => end(socket, Ending::Reply(Reply::Failed { text })),
                }),
            ),
            None => run_steps(socket, page, setup_frame, host),
        },
        Err(ending) => end(socket, ending),
    }
}

/// Receives the frames after the setup, and runs the candidate. Returns the exit code of the process.
fn run_steps(
    socket: BorrowedFd<'static>,
    page: &'static ControlPage,
    setup_frame: SetupFrame,
    interpreter: Option<Interpreter>,
) -> i32 {
    match prepare(socket, page, setup_frame, interpreter) {
        Ok(runner) => runner.serve(page),
        Err(ending) => end(socket, ending),
    }
}

fn end(socket: BorrowedFd<'_>, ending: Ending) -> i32 {
    match ending {
        Ending::Reply(reply) => {
            let _ = send_reply(socket, &reply);
            // The worker reads the reply before it notices that this process has ended.
            2
        }
        Ending::WorkerGone => 0,
    }
}

enum Ending {
    Reply(Reply),
    WorkerGone,
}

impl From<FrameError> for Ending {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed => Self::WorkerGone,
            other => Self::Reply(Reply::Failed { text: chain(&other) }),
        }
    }
}

impl From<EntryError> for Ending {
    fn from(error: EntryError) -> Self {
        match error {
            EntryError::Map(error) => Self::Reply(Reply::Failed { text: chain(&error) }),
            EntryError::Frame(text) => failure(text),
        }
    }
}

/// The forms in which the function and the plan function expect their arguments.
#[derive(Default)]
struct Forms {
    run: Form,
    plan: Form,
}

struct Runner {
    loaded: Loaded,
    /// True if the arguments are in the memory of the emulated device.
    on_device: bool,
    forms: Forms,
    entries: Vec<Entry>,
    /// The index of the entry that was called last.
    last: Option<usize>,
}

struct SetupFrame {
    setup: Setup,
    artifact: OwnedFd,
    libraries: Vec<OwnedFd>,
}

impl SetupFrame {
    fn receive(socket: BorrowedFd<'_>) -> Result<Self, Ending> {
        let (first, mut descriptors) = receive_from_worker(socket)?;
        let ToRunner::Setup(setup) = first else {
            return Err(failure("the first frame is not a setup"));
        };
        if descriptors.len() != 1 + setup.libraries.len() {
            return Err(failure(
                "the setup does not come with one descriptor for the artifact and one for each library",
            ));
        }
        let artifact = descriptors.remove(0);
        Ok(Self { setup, artifact, libraries: descriptors })
    }
}

fn prepare(
    socket: BorrowedFd<'_>,
    page: &'static ControlPage,
    setup_frame: SetupFrame,
    interpreter: Option<Interpreter>,
) -> Result<Runner, Ending> {
    let SetupFrame { setup, artifact, libraries } = setup_frame;
    pin(&setup.cpus);
    // If Linux refuses this, the runner keeps the usual time slices.
    let _ = scheduling::set_scheduling(0, scheduling::Scheduling::Short);
    let mut entries = Vec::new();
    let mut calls = Vec::new();
    let mut arity = (0, 0);
    let mut watched = Vec::new();
    let mut inputs = Inputs::new();
    let on_device = setup.launcher.has_cuda_runtime();
    loop {
        match receive_from_worker(socket)? {
            (ToRunner::Begin, _) => break,
            (ToRunner::Entry(_), _) if MAX_ENTRIES <= entries.len() => {
                return Err(failure("there are too many entries for one runner"));
            }
            (ToRunner::Entry(entry), descriptors) => {
                entries.push(Entry::map(&entry, descriptors, on_device, &mut inputs, &mut watched)?);
                let passed = entry.outputs.iter().filter(|output| output.arguments.is_empty());
                arity = (entry.arguments.len(), passed.count());
                calls.extend(entry.call.map(|call| (call, entry.arguments.len())));
            }
            (ToRunner::Setup(_) | ToRunner::Compile(_) | ToRunner::Load, _) => {
                return Err(failure("the worker sent a frame that does not belong before the lock-down"));
            }
        }
    }
    let unsealed = seal_inputs(&watched);
    page.phase.store(Phase::Mapped as u32, Ordering::SeqCst);
    let mut lines =
        vec![Protection::new("sealed_inputs", unsealed.is_none(), unsealed.unwrap_or_default()).line()];
    let confinement = policy::add_present_usage(setup.confinement.clone());
    let kept_libraries: Vec<BorrowedFd<'_>> = libraries.iter().map(AsFd::as_fd).collect();
    let descriptors =
        Descriptors { worker: socket, artifact: Some(artifact.as_fd()), libraries: &kept_libraries };
    match confine::lock_down(&confinement, &descriptors) {
        Ok(protections) => {
            lines.extend(protections.iter().map(Protection::line));
        }
        Err(error) => return Err(Ending::Reply(Reply::Failed { text: chain(&error) })),
    }
    fault::report_faults_in(page, watched);
    send_reply(socket, &Reply::Locked { protections: lines.join("\n") })?;
    let (ToRunner::Load, _) = receive_from_worker(socket)? else {
        return Err(failure("the worker did not order the candidate to be loaded"));
    };
    let given = LoadInputs { artifact, libraries, interpreter, calls, arity };
    let loaded = load::load(&setup, given, page).map_err(|text| Ending::Reply(Reply::LoadFailed { text }))?;
    for (entry, this) in entries.iter_mut().zip(&loaded.entries) {
        entry.arguments.set_self(*this);
    }
    send_reply(socket, &Reply::Loaded { has_plan: loaded.plan.is_some(), returned: loaded.returned })?;
    Ok(Runner { loaded, on_device, forms: Forms::default(), entries, last: None })
}

fn failure(text: &str) -> Ending {
    Ending::Reply(Reply::Failed { text: text.to_owned() })
}

fn pin(cpus: &[u32]) {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        set.set(cpu as usize);
    }
    if !cpus.is_empty() {
        // If this fails, for example because these CPUs are no longer available, Linux chooses the CPU, and the
        // measured times are noisier.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Seals every input, so that it can be neither remapped nor made writable. Returns the reason if Linux cannot do this.
fn seal_inputs(watched: &[WatchedMapping]) -> Option<String> {
    for mapping in watched.iter().filter(|mapping| !mapping.output) {
        let Mapped { start, end, .. } = mapping.mapped;
        let Some(first) = NonNull::new(start as *mut u8) else { continue };
        if let Err(error) = confine::seal::seal_map(first, Bytes::from(end - start)) {
            return Some(error.to_string());
        }
    }
    None
}

impl Runner {
    /// Executes commands until the process is killed.
    fn serve(mut self, page: &'static ControlPage) -> i32 {
        let mut seen = 0;
        loop {
            let spin = Duration::from_micros(u64::from(page.spin_us.load(Ordering::Relaxed)));
            while !wait_for_change(&page.command, &page.runner_waits, seen, spin, WAIT_SLICE) {}
            seen = page.command.load(Ordering::Acquire);
            self.execute(page);
            page.phase.store(Phase::Idle as u32, Ordering::Relaxed);
            publish(&page.done, &page.worker_waits, seen);
        }
    }

    /// Makes the calls that the control page orders, and writes the result to the page.
    fn execute(&mut self, page: &ControlPage) {
        let flags = page.flags.load(Ordering::Relaxed);
        let calls = page.calls.load(Ordering::Relaxed);
        let first_slot = page.first_slot.load(Ordering::Relaxed);
        let function = if flags & FLAG_PLAN == 0 { Some(self.loaded.run) } else { self.loaded.plan };
        let number = page.entry.load(Ordering::Relaxed) as usize;
        // Entries may map the same pages for their outputs. The pages that the previous entry has touched must then be
        // dropped, because otherwise they would count once for each entry. Entries that are timed in turns have output
        // pages of their own, which are kept. Otherwise, each block would begin with page faults, and a candidate could
        // gain by preventing them.
        if let Some(last) = self.last.replace(number).filter(|last| *last != number)
            && let (Some(former), Some(next)) = (self.entries.get(last), self.entries.get(number))
            && former.shares_outputs_with(next)
        {
            former.drop_output_pages();
        }
        let entry = self.entries.get_mut(number);
        page.result.store(0, Ordering::Relaxed);
        page.returned_value.store(0, Ordering::Relaxed);
        page.calls_done.store(0, Ordering::Relaxed);
        page.raised.clear();
        let (Some(function), Some(entry)) = (function, entry) else { return };
        let phase = if flags & FLAG_PLAN == 0 { Phase::Calling } else { Phase::Planning };
        page.phase.store(phase as u32, Ordering::Relaxed);
        let planned = flags & FLAG_PLAN != 0;
        let form = if planned { &mut self.forms.plan } else { &mut self.forms.run };
        let start = Instant::now();
        'calls: for call in 0..calls {
            let slot = first_slot + call;
            let on_device = self.on_device;
            // Each repetition changes the form of at least one argument, so the call is repeated only a few times.
            let (mut code, mut value, mut raised) = loop {
                entry.renew_arguments(slot, planned, flags & FLAG_VARIED != 0, on_device);
                if on_device {
                    cudart::begin_call();
                }
                // SAFETY: the plan claims that the symbol has this signature. If the claim is false, only this process
                // is harmed.
                let (code, value) = unsafe { entry.arguments.call(function, form) };
                if on_device && let Some(text) = cudart::end_call(code) {
                    page.result.store(1, Ordering::Relaxed);
                    page.raised.write_text(&text);
                    break 'calls;
                }
                let raised = if code == 0 { None } else { self.loaded.raised.take() };
                let is_refused = self.loaded.may_refuse
                    && raised.as_deref().is_some_and(|error| {
                        passing::adapt(form, error, &entry.arguments, self.loaded.tensors.is_some())
                    });
                if !is_refused {
                    break (code, value, raised);
                }
            };
            if let Some(tensors) = self.loaded.tensors.as_ref().filter(|_| form.returns_outputs && !planned) {
                page.returned_outputs.store(1, Ordering::Relaxed);
                if code == 0 {
                    // SAFETY: the value came from a function whose parameters tvm-ffi has checked, and slots have the
                    // size of their outputs. If the function cheats, only this process is harmed.
                    match unsafe { tensors.copy(&value, entry.targets(slot)) } {
                        Ok(()) => value = abi::NOTHING,
                        Err(text) => (code, raised) = (1, Some(text)),
                    }
                }
            }
            let returned = value.type_index != abi::type_index::NONE;
            if code != 0 || returned {
                page.result.store(code, Ordering::Relaxed);
                page.returned_value.store(u32::from(returned && code == 0), Ordering::Relaxed);
                if let Some(text) = raised {
                    // A refused allocation proves a lack of memory; an error message does not.
                    let refused = page.refused_bytes.load(Ordering::Relaxed) != 0;
                    page.raised.write_text(&if refused {
                        text
                    } else {
                        text.replacen(HOST_MEMORY, RAISED, 1)
                    });
                }
                break;
            }
            page.calls_done.store(call + 1, Ordering::Relaxed);
        }
        let elapsed = start.elapsed().as_nanos();
        page.claimed_ns.store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
        if flags & FLAG_VERIFY != 0 {
            // Flush the candidate's output, so that it survives if the candidate is killed later.
            super::stdout::flush();
            entry.drop_output_pages();
        }
    }
}
