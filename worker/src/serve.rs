//! The main loop of a worker, which takes one task after another, carries it out and reports the result, until the
//! supervisor ends the worker.
//!
//! An attempt that the worker cannot carry out is reported as INFRA_ERROR, and the worker continues. If the channel to
//! the supervisor closes while the worker waits for a task, the worker ends normally. If the worker cannot send a
//! message, it ends with an error.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use opt_shared::causes::{chain, is_lack_of_processes};
use opt_shared::device::Device;
use opt_shared::language::Launcher;
use opt_shared::message::{FromWorker, NONCE_VARIABLE, Report, SERVER_VARIABLE, Task, Work};
use opt_shared::outcome::{Body, Head, Status};

use crate::link::{Link, LinkError};
use crate::oom;
use crate::sandbox::spawn::Namespaces;
use crate::session::Backend;
use crate::session::cuda::{CudaBackend, WorkerDevice};
use crate::session::host::{HostBackend, Zygotes};
use crate::stage::{build, profile, replay, verify};

/// The descriptor of the supervisor's executable. The supervisor passes it as standard input, because all of its other
/// descriptors are close-on-exec.
const EXECUTABLE_FD: i32 = 0;

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("{0} is not set: a worker is started by the supervisor, not by hand")]
    Environment(&'static str),
    #[error("arranging that this worker ends with the supervisor")]
    ParentDeath(#[source] std::io::Error),
    #[error("arranging that this worker adopts orphaned processes")]
    Subreaper(#[source] std::io::Error),
    #[error("the supervisor ended before this worker was ready")]
    Orphaned,
    #[error("moving the descriptor of the executable off standard input")]
    Executable(#[source] std::io::Error),
    #[error("communicating with the supervisor")]
    Link(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn link_error(error: LinkError) -> WorkerError {
    WorkerError::Link(Box::new(error))
}

/// The state that a worker keeps from one task to the next.
struct Kept {
    device: WorkerDevice,
    zygotes: Rc<Zygotes>,
    /// Decisions on which inputs vary in timed calls. They belong to the job whose candidate was profiled last.
    decisions: profile::Decisions,
}

/// The entry point of a worker. `supervisor` is the pid of the expected parent.
pub fn main(supervisor: u32, device: Device) -> Result<(), WorkerError> {
    end_with_supervisor(supervisor)?;
    crate::heap::return_blocks_from(crate::heap::WORKER);
    let server = std::env::var(SERVER_VARIABLE).map_err(|_| WorkerError::Environment(SERVER_VARIABLE))?;
    let nonce = std::env::var(NONCE_VARIABLE).map_err(|_| WorkerError::Environment(NONCE_VARIABLE))?;
    let executable = take_executable().map_err(WorkerError::Executable)?;
    raise_open_files();
    // Orphaned descendants of our runners become children of this process, so that none is lost.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| WorkerError::Subreaper(errno.into()))?;
    // If Linux refuses some of these namespaces when a runner is cloned, fewer are used.
    let namespaces = Namespaces::ALL;
    let link = Link::connect(&server, nonce, executable, namespaces).map_err(link_error)?;
    let mut kept = Kept {
        device: WorkerDevice::new(device),
        zygotes: Rc::default(),
        decisions: profile::Decisions::default(),
    };
    while let Some(task) = link.next_task() {
        let lease = task.lease;
        let report = perform(&link, &mut kept, &task);
        // The task is over, and its memory files have been freed even if it failed.
        link.holds_nothing().map_err(link_error)?;
        link.send(FromWorker::Finished { lease, report: Box::new(report) }).map_err(link_error)?;
    }
    Ok(())
}

/// Raises the limit on open files to the hard limit, because a batch needs several descriptors for each entry. Runners
/// set their own limit.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If Linux refuses this, the old limit stays, and an attempt that exceeds it reports an error.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Moves the descriptor of the executable off standard input, and opens /dev/null as standard input.
fn take_executable() -> std::io::Result<OwnedFd> {
    // SAFETY: standard input is open (the supervisor put its executable there) and stays open during the call.
    let input = unsafe { BorrowedFd::borrow_raw(EXECUTABLE_FD) };
    let executable = rustix::io::fcntl_dupfd_cloexec(input, 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(executable)
}

/// Arranges that Linux kills this process when the supervisor ends and that, if memory runs out, it kills this process
/// before the supervisor. Also protects this process's memory from runners, separates the process from the terminal,
/// and unblocks all signals.
fn end_with_supervisor(supervisor: u32) -> Result<(), WorkerError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|errno| WorkerError::ParentDeath(errno.into()))?;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(parent) != Ok(supervisor) {
        return Err(WorkerError::Orphaned);
    }
    // If this is refused, Linux may kill the supervisor before this worker when memory runs out.
    let _ = oom::raise_score(oom::WORKER);
    // A runner without its own PID namespace must not be able to read this process's memory, which contains expected
    // outputs.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // This process leaves the terminal's foreground group, so that Ctrl-C reaches only the supervisor.
    let _ = rustix::process::setsid();
    // The supervisor blocks the signals that it reads from a descriptor, and this process inherits the mask.
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
    Ok(())
}

fn perform(link: &Link, kept: &mut Kept, task: &Task) -> Report {
    let started = Instant::now();
    let mut head = Head::passed();
    let body = attempt(link, kept, task, &mut head);
    let mut lacked_processes = link.take_processes_refused();
    let mut report = match body {
        Ok(body) => Report::new(head, body),
        Err(error) => {
            lacked_processes |= is_lack_of_processes(&*error);
            let mut report = Report::failed(task.stage(), Status::InfraError, chain(&*error));
            report.head.room = head.room;
            report
        }
    };
    if lacked_processes && report.head.status == Status::InfraError {
        report.head.room.get_or_insert_default().pids = Some(0);
    }
    report.head.ms = started.elapsed().as_secs_f64() * 1e3;
    report
}

fn attempt(
    link: &Link,
    kept: &mut Kept,
    task: &Task,
    head: &mut Head,
) -> Result<Body, Box<dyn std::error::Error>> {
    let Task { lease, ref work } = *task;
    let decisions = &mut kept.decisions;
    match work {
        Work::Build(build) => Ok(Body::Build(build::run(link, lease, build, head)?)),
        Work::Verify(verify)
            if kept.device.runs_device_code() && verify.callee.launcher == Launcher::Kernel =>
        {
            call(&CudaBackend::new(kept.device.hold()?, verify.device_cap)?, link, task, head, decisions)
        }
        Work::Profile(profile) if kept.device.runs_device_code() => {
            call(&CudaBackend::new(kept.device.hold()?, profile.device_cap)?, link, task, head, decisions)
        }
        Work::Replay(replay) if kept.device.runs_device_code() => {
            call(&CudaBackend::new(kept.device.hold()?, replay.device_cap)?, link, task, head, decisions)
        }
        Work::Verify(_) | Work::Profile(_) | Work::Replay(_) => {
            call(&HostBackend::new(link, lease, &kept.zygotes), link, task, head, decisions)
        }
    }
}

fn call<B: Backend>(
    backend: &B,
    link: &Link,
    task: &Task,
    head: &mut Head,
    decisions: &mut profile::Decisions,
) -> Result<Body, Box<dyn std::error::Error>> {
    let progress = |done, total, bytes| {
        // A failure is ignored, because if the supervisor is gone, a later send or receive fails too.
        let _ = link.send(FromWorker::Progress { lease: task.lease, done, total, bytes });
    };
    Ok(match &task.work {
        Work::Build(_) => return Err("a build does not call a candidate".into()),
        Work::Verify(verify) => Body::Verify(verify::run(backend, &progress, verify, head)?),
        Work::Profile(profile) => Body::Profile(profile::run(backend, &progress, profile, head, decisions)?),
        Work::Replay(replay) => Body::Replay(replay::run(backend, &progress, replay, head)),
    })
}
