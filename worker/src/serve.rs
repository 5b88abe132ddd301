//! A worker's loop: take a task, do it, report; until told to end.
//!
//! Trusted code: it opens captures, compares, keeps the clock, and never loads a candidate. An attempt that fails
//! for the worker's own reasons is reported as INFRA_ERROR, and the worker goes on: the core decides what next.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use opt_shared::causes::chain;
use opt_shared::device::Device;
use opt_shared::message::{FromWorker, NONCE_VARIABLE, Report, SERVER_VARIABLE, Task, Work};
use opt_shared::outcome::{Body, Head, Status};

use crate::link::{Link, LinkError};
use crate::oom;
use crate::sandbox::spawn::Namespaces;
use crate::session::Backend;
use crate::session::cuda::{CudaBackend, WorkerDevice};
use crate::session::host::{HostBackend, Zygotes};
use crate::stage::{build, profile, replay, verify};

/// The supervisor leaves its own executable on the worker's standard input: the one descriptor that a plain spawn
/// passes on.
const EXECUTABLE_FD: i32 = 0;

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("{0} is not set: a worker is started by the supervisor, not by hand")]
    Environment(&'static str),
    #[error("arranging to end with the supervisor")]
    ParentDeath(#[source] std::io::Error),
    #[error("the supervisor ended before this worker was ready")]
    Orphaned,
    #[error("taking over this program's own file from standard input")]
    Executable(#[source] std::io::Error),
    #[error("the link to the supervisor")]
    Link(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn link_error(error: LinkError) -> WorkerError {
    WorkerError::Link(Box::new(error))
}

/// What candidates run on, for as long as this worker lives.
struct Host {
    device: WorkerDevice,
    zygotes: Rc<Zygotes>,
}

/// Entry point behind the hidden argument.
pub fn main(supervisor: u32, device: Device) -> Result<(), WorkerError> {
    end_with_supervisor(supervisor)?;
    let server = std::env::var(SERVER_VARIABLE).map_err(|_| WorkerError::Environment(SERVER_VARIABLE))?;
    let nonce = std::env::var(NONCE_VARIABLE).map_err(|_| WorkerError::Environment(NONCE_VARIABLE))?;
    let executable = take_executable().map_err(WorkerError::Executable)?;
    raise_open_files();
    // Our own runners' orphans come to us, so that none is lost.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| WorkerError::ParentDeath(errno.into()))?;
    // What is not to be had is left out at the first clone, and reported with every runner.
    let namespaces = Namespaces::ALL;
    let link = Link::connect(&server, nonce, executable, namespaces).map_err(link_error)?;
    let mut host = Host { device: WorkerDevice::new(device), zygotes: Rc::default() };
    while let Some(task) = link.next_task() {
        let lease = task.lease;
        let report = perform(&link, &mut host, &task);
        // Whatever it held, and however it ended: that is over.
        link.holds_nothing().map_err(link_error)?;
        link.send(FromWorker::Finished { lease, report: Box::new(report) }).map_err(link_error)?;
    }
    Ok(())
}

/// A batch holds some descriptors of every entry: as many as we may have, whatever a shell thinks enough. Runners have
/// a limit of their own.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Refused, the limit stays what it was; what it stops is then reported.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Moves the executable away from standard input and puts /dev/null there.
fn take_executable() -> std::io::Result<OwnedFd> {
    // SAFETY: standard input is open (the supervisor put its executable there) and stays open during the call.
    let input = unsafe { BorrowedFd::borrow_raw(EXECUTABLE_FD) };
    let executable = rustix::io::fcntl_dupfd_cloexec(input, 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(executable)
}

fn end_with_supervisor(supervisor: u32) -> Result<(), WorkerError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|errno| WorkerError::ParentDeath(errno.into()))?;
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(parent) != Ok(supervisor) {
        return Err(WorkerError::Orphaned);
    }
    // Refused, the kernel may end this worker no sooner than the supervisor, which loses nothing.
    let _ = oom::raise_score(oom::WORKER);
    // A runner without a namespace must not look into the memory that holds expected outputs.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // Out of the terminal's foreground group: Ctrl-C is for the supervisor alone.
    let _ = rustix::process::setsid();
    // The supervisor blocks the signals it reads from a descriptor, and we inherit that.
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
    Ok(())
}

fn perform(link: &Link, host: &mut Host, task: &Task) -> Report {
    let started = Instant::now();
    let mut head = Head::passed();
    let body = attempt(link, host, task, &mut head);
    let mut report = match body {
        Ok(body) => Report::new(head, body),
        Err(error) => Report::failed(task.stage(), Status::InfraError, chain(&*error)),
    };
    report.head.ms = started.elapsed().as_secs_f64() * 1e3;
    report
}

fn attempt(
    link: &Link,
    host: &mut Host,
    task: &Task,
    head: &mut Head,
) -> Result<Body, Box<dyn std::error::Error>> {
    let Task { lease, ref work } = *task;
    match work {
        Work::Build(build) => Ok(Body::Build(build::run(link, lease, build, head)?)),
        Work::Verify(_) | Work::Profile(_) if host.device.runs_device_code() => {
            call(&CudaBackend::new(host.device.hold()?)?, link, task, head)
        }
        Work::Verify(_) | Work::Profile(_) | Work::Replay(_) => {
            call(&HostBackend::new(link, lease, &host.zygotes), link, task, head)
        }
    }
}

/// A stage in which a candidate is called, on whatever runs it.
fn call<B: Backend>(
    backend: &B,
    link: &Link,
    task: &Task,
    head: &mut Head,
) -> Result<Body, Box<dyn std::error::Error>> {
    let progress = |done, total, bytes| {
        // A supervisor that is gone ends this worker.
        let _ = link.send(FromWorker::Progress { lease: task.lease, done, total, bytes });
    };
    Ok(match &task.work {
        Work::Build(_) => return Err("a build calls no candidate".into()),
        Work::Verify(verify) => Body::Verify(verify::run(backend, &progress, verify, head)?),
        Work::Profile(profile) => Body::Profile(profile::run(backend, &progress, profile, head)?),
        Work::Replay(replay) => Body::Replay(replay::run(backend, &progress, replay, head)),
    })
}
