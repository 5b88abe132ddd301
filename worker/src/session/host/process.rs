//! One runner, seen from its worker: start it, hand it entries, let it call, stop it, see it dead, reap it.
//!
//! Owns the order of these steps. What the calls mean is up to `stage`; what a death is called, to `death`.
//! Everything that comes from the runner is a claim; the only facts are its pidfd and what `waitid` says.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use opt_shared::ids::LeaseId;
use opt_shared::message::{KillReason, Pack, Protection};
use opt_shared::outcome::RunnerEnd;
use opt_shared::units::Bytes;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::libraries::Library;
use crate::link::{Link, LinkError, RunnerNotice};
use crate::runner::control::{ControlMap, FaultPlace, Phase, publish, wait_for_change};
use crate::runner::frame::{EntrySetup, FrameError, Reply, Setup, ToRunner, receive_reply, send_to_runner};
use crate::runner::serve::CONTROL_FD;
use crate::runner::zygote::RUNNER_DESCRIPTORS;
use crate::sandbox::handle::{End, HandleError, RunnerHandle, Stop};
use crate::sandbox::spawn::SOCKET_FD;
use crate::sandbox::spawn::spawn_runner;
use crate::sandbox::streams::Stream;
use crate::sandbox::timeout::Timeout;
use crate::session::{Called, Loaded};

/// How much of standard error is reported.
const STDERR_TAIL: usize = 2048;
/// A stop takes microseconds unless the runner hangs in the kernel.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// A killed runner that is not dead by then is in the kernel's hands (D state): the worker gives up.
const DEATH_TIMEOUT: Duration = Duration::from_secs(60);
/// Waiting for a done-mark also looks at the pidfd, first often, then every 100 ms.
const FIRST_SLICE: Duration = Duration::from_millis(2);
const LAST_SLICE: Duration = Duration::from_millis(100);

/// A runner that maps and copies its inputs does what we ask of it, at the disk's rate; this is a disk that hangs.
const SETUP_TIMEOUT: Duration = Duration::from_mins(10);
/// Between a runner's closing its socket and its being seen dead, if it is dying.
const CLOSED_TIMEOUT: Duration = Duration::from_secs(2);
/// What is said of a library that speaks in its runner's name while it is being loaded.
const FORGED_REPLY: &str = "the library wrote to its runner's socket while it was being loaded";
const CLOSED_SOCKET: &str = "the library closed its runner's socket while it was being loaded";

/// What a new runner gets.
pub(crate) struct RunnerSpec<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) setup: Setup,
    pub(crate) artifact: BorrowedFd<'a>,
    /// Loaded before it.
    pub(crate) libraries: &'a [Library],
    /// What the runner may owe beyond what its process owes anyway, maps included.
    pub(crate) limit: Bytes,
    /// The outputs' memfds and materialised values that it will map.
    pub(crate) shared: Bytes,
    /// What it will map of memory that this worker holds and is charged for.
    pub(crate) of_worker: Bytes,
    /// Bytes of captures that are mapped in place.
    pub(crate) mapped: Bytes,
    /// Threads it may have where a control group counts them.
    pub(crate) tasks: u32,
}

/// The worker cannot go on with this runner, and it is not the candidate's fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunnerError {
    #[error("starting a runner")]
    Spawn(#[source] crate::sandbox::spawn::SpawnError),
    #[error("preparing a runner's descriptors")]
    Descriptors(#[source] rustix::io::Errno),
    #[error("talking to a runner")]
    Frame(#[from] FrameError),
    #[error("talking to the supervisor")]
    Link(#[from] LinkError),
    #[error("a runner could not be set up: {text}")]
    Setup { text: String },
    #[error("a runner was not set up within {SETUP_TIMEOUT:?} (is a disk hanging?)")]
    NotSetUp,
    #[error("holding a runner")]
    Handle(#[from] HandleError),
    #[error("throwing inputs and outputs out of the caches (profile with cache_state = \"warm\")")]
    Evict(#[source] rustix::io::Errno),
    #[error("a killed runner did not end within {DEATH_TIMEOUT:?}")]
    Undead,
}

/// What became of something the runner was asked to do.
#[derive(Debug)]
pub(crate) enum Heard<T> {
    Done(T),
    /// It is dead; see `Runner::finish`.
    Died,
    TimedOut,
}

/// What the kernel counts of a runner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) threads: u32,
    /// On which it runs or last ran.
    pub(crate) cpu: u32,
}

/// Everything known about a runner's death.
#[derive(Debug)]
pub(crate) struct Death {
    pub(crate) end: End,
    /// The supervisor's own kill.
    pub(crate) killed: Option<KillReason>,
    pub(crate) peak_owed: Bytes,
    pub(crate) report: RunnerEnd,
    /// The size of an allocation that was refused to it, if it says so.
    pub(crate) refused: Option<Bytes>,
    pub(crate) fault: Option<Fault>,
    pub(crate) phase: Phase,
    /// It said that it was locked down: something foreign may have run. Its word was still ours then.
    pub(crate) locked: bool,
    pub(crate) namespaced: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) place: FaultPlace,
    pub(crate) index: u32,
    pub(crate) address: u64,
    pub(crate) signal: i32,
}

/// A runner's process before it is given anything: our own code, waiting at its socket. Dropped, it is killed and reaped.
pub(crate) struct Process {
    handle: RunnerHandle,
    /// What it owes before its candidate does anything.
    base: Bytes,
    /// What it shares with the zygote that it is a copy of.
    inherited: Bytes,
    control: ControlMap,
    socket: OwnedFd,
    stdout: Stream,
    stderr: Stream,
}

/// What a runner's process is made with.
pub(super) struct Parts {
    null: OwnedFd,
    stdout: Stream,
    stderr: Stream,
    theirs: OwnedFd,
    control: ControlMap,
    ours: OwnedFd,
}

impl Parts {
    /// `output`: what is kept of each standard stream.
    pub(super) fn create(output: Bytes) -> Result<Self, RunnerError> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(RunnerError::Descriptors)?;
        Ok(Self {
            null: null()?,
            stdout: Stream::create(output).map_err(RunnerError::Descriptors)?,
            stderr: Stream::create(output).map_err(RunnerError::Descriptors)?,
            theirs,
            control: ControlMap::create().map_err(RunnerError::Descriptors)?,
            ours,
        })
    }

    /// In the order of the numbers that they have in a runner.
    pub(super) fn descriptors(&self) -> Result<[BorrowedFd<'_>; RUNNER_DESCRIPTORS], RunnerError> {
        let control = self.control.descriptor().ok_or(RunnerError::Descriptors(rustix::io::Errno::BADF))?;
        Ok([
            self.null.as_fd(),
            self.stdout.descriptor(),
            self.stderr.descriptor(),
            self.theirs.as_fd(),
            control,
        ])
    }

    /// Starts the process by exec. `base`: what it will owe before its candidate does anything.
    pub(super) fn start(
        self,
        link: &Link,
        environment: &[CString],
        base: Bytes,
    ) -> Result<Process, RunnerError> {
        let [null, stdout, stderr, socket, control] = self.descriptors()?;
        let spawned = spawn_runner(
            link.executable(),
            &[c"opt-runner", crate::RUNNER_ARGUMENT],
            environment,
            &[(null, 0), (stdout, 1), (stderr, 2), (socket, SOCKET_FD), (control, CONTROL_FD)],
            link.namespaces(),
        )
        .map_err(RunnerError::Spawn)?;
        Ok(self.with(spawned.into(), base, Bytes::ZERO))
    }

    /// The process is this one, which has them.
    pub(super) fn with(self, handle: RunnerHandle, base: Bytes, inherited: Bytes) -> Process {
        let Self { stdout, stderr, control, ours, .. } = self;
        Process { handle, base, inherited, control, socket: ours, stdout, stderr }
    }
}

pub(super) fn null() -> Result<OwnedFd, RunnerError> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()).map_err(RunnerError::Descriptors)
}

pub(crate) struct Runner {
    handle: RunnerHandle,
    control: ControlMap,
    socket: OwnedFd,
    stdout: Stream,
    stderr: Stream,
    sequence: u32,
    locked: bool,
}

impl Runner {
    /// Tells the supervisor of the process and sends its setup. It waits for `Begin`.
    pub(crate) fn start(link: &Link, process: Process, spec: &RunnerSpec<'_>) -> Result<Self, RunnerError> {
        let Process { handle, base, inherited, control, socket, stdout, stderr } = process;
        let shared = spec.shared + stdout.size() + stderr.size();
        let runner = Self { handle, control, socket, stdout, stderr, sequence: 0, locked: false };
        link.runner_started(&RunnerNotice {
            lease: spec.lease,
            pid: runner.handle.pid(),
            start_time: runner.handle.start_time()?,
            limit: spec.limit + base,
            shared,
            of_worker: spec.of_worker,
            inherited,
            pack: Pack { files: spec.mapped, tasks: spec.tasks, tree: false },
        })?;
        let mut descriptors = vec![spec.artifact];
        descriptors.extend(spec.libraries.iter().map(Library::descriptor));
        runner.tell(&ToRunner::Setup(spec.setup.clone()), &descriptors)?;
        Ok(runner)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.handle.pid()
    }

    pub(crate) fn add_entry(
        &self,
        setup: &EntrySetup,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), RunnerError> {
        self.tell(&ToRunner::Entry(setup.clone()), descriptors)
    }

    /// Sends a frame. A runner that is already dead hears nothing; `begin` notices.
    fn tell(&self, frame: &ToRunner, descriptors: &[BorrowedFd<'_>]) -> Result<(), RunnerError> {
        match send_to_runner(self.socket.as_fd(), frame, descriptors) {
            Ok(()) | Err(FrameError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets it lock down and load, once the supervisor watches it. `timeout` is the candidate's own, from the moment at
    /// which its code may run.
    pub(crate) fn begin(&mut self, link: &Link, timeout: Duration) -> Result<Heard<Loaded>, RunnerError> {
        link.wait_watched(self.handle.pid())?;
        self.tell(&ToRunner::Begin, &[])?;
        let mut limit = Timeout::of(self.handle.pid(), SETUP_TIMEOUT);
        let mut slice = FIRST_SLICE;
        // Until it says that it is locked down, nothing foreign was loaded and its word is ours.
        let mut locked = false;
        // What a dead runner had to say is read first.
        let mut dead = false;
        loop {
            match receive_reply(self.socket.as_fd(), slice) {
                Ok(Some(Reply::Locked { protections })) if !locked => {
                    locked = true;
                    self.locked = true;
                    limit = Timeout::of(self.handle.pid(), timeout);
                    link.enforced(|| {
                        let mut all = self.handle.protections().to_vec();
                        all.extend(protections.lines().filter_map(Protection::from_line));
                        all
                    })?;
                }
                Ok(Some(Reply::Trouble { text })) if !locked => return Err(RunnerError::Setup { text }),
                Ok(Some(Reply::Loaded { has_plan, returned })) if locked => {
                    return Ok(Heard::Done(Loaded::Ready { has_plan, returned }));
                }
                Ok(Some(Reply::LoadFailed { text })) if locked => {
                    return Ok(Heard::Done(Loaded::Refused { text }));
                }
                Ok(None) if dead => return Ok(Heard::Died),
                Ok(None) => {}
                // A constructor can write what it likes, and close the socket: its own end, whatever it is.
                Ok(Some(_)) | Err(FrameError::Malformed { .. }) if locked => {
                    return Ok(Heard::Done(Loaded::Refused { text: FORGED_REPLY.to_owned() }));
                }
                // A runner that ends closes the socket before it is seen dead.
                Err(FrameError::Closed) => {
                    if self.handle.wait_dead(CLOSED_TIMEOUT)? {
                        return Ok(Heard::Died);
                    }
                    if !locked {
                        return Err(FrameError::Closed.into());
                    }
                    return Ok(Heard::Done(Loaded::Refused { text: CLOSED_SOCKET.to_owned() }));
                }
                Ok(Some(_)) => return Err(FrameError::Malformed { what: "order" }.into()),
                Err(error) => return Err(error.into()),
            }
            dead = self.is_dead()?;
            if !dead && limit.ends_after(slice) {
                return if locked { Ok(Heard::TimedOut) } else { Err(RunnerError::NotSetUp) };
            }
            slice = (slice * 2).min(LAST_SLICE);
        }
    }

    /// Writes a command into the control page and wakes the runner.
    pub(crate) fn command(&mut self, entry: u32, calls: u32, first_slot: u32, flags: u32, spin: Duration) {
        let page = self.control.page();
        page.entry.store(entry, Ordering::Relaxed);
        page.calls.store(calls, Ordering::Relaxed);
        page.first_slot.store(first_slot, Ordering::Relaxed);
        page.flags.store(flags, Ordering::Relaxed);
        page.spin_us.store(u32::try_from(spin.as_micros()).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.sequence = self.sequence.wrapping_add(1);
        publish(&page.command, &page.runner_waits, self.sequence);
    }

    /// Waits for the command's end.
    pub(crate) fn wait_done(
        &mut self,
        spin: Duration,
        timeout: Duration,
    ) -> Result<Heard<Called>, RunnerError> {
        let mut limit = Timeout::of(self.handle.pid(), timeout);
        let before = self.sequence.wrapping_sub(1);
        let mut spin = spin;
        let mut slice = FIRST_SLICE;
        loop {
            let page = self.control.page();
            if wait_for_change(&page.done, &page.worker_waits, before, spin, slice) {
                // Any other value than the sequence is forged; then the calls are as undone as if it said nothing.
                if page.done.load(Ordering::Acquire) == self.sequence {
                    return Ok(Heard::Done(Called {
                        result: page.result.load(Ordering::Relaxed),
                        calls_done: page.calls_done.load(Ordering::Relaxed),
                        returned_value: page.returned_value.load(Ordering::Relaxed) != 0,
                        raised: page.raised.claim(),
                        claimed: Duration::from_nanos(page.claimed_ns.load(Ordering::Relaxed)),
                        elapsed: Duration::ZERO,
                    }));
                }
                std::thread::yield_now();
            }
            if self.is_dead()? {
                return Ok(Heard::Died);
            }
            if limit.ends_after(spin + slice) {
                return Ok(Heard::TimedOut);
            }
            spin = Duration::ZERO;
            slice = (slice * 2).min(LAST_SLICE);
        }
    }

    /// Stopped and seen stopped. False if it is dead.
    pub(crate) fn stop(&mut self) -> Result<bool, RunnerError> {
        if self.is_dead()? {
            return Ok(false);
        }
        Ok(self.handle.stop(STOP_TIMEOUT)? == Stop::Stopped)
    }

    pub(crate) fn resume(&mut self) -> Result<(), RunnerError> {
        Ok(self.handle.cont()?)
    }

    /// CPU time of all its threads, those that ended included: exact while it is stopped. While it runs, what the threads
    /// on other CPUs used since the scheduler last looked is left out.
    pub(crate) fn cpu_time(&self) -> Result<Duration, RunnerError> {
        Ok(self.handle.cpu_time()?)
    }

    pub(crate) fn counts(&self) -> Option<Counts> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.handle.pid())).ok()?;
        // After the parenthesised name: state is field 3, num_threads field 20, processor field 39.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Counts {
            threads: fields.nth(20 - 3)?.parse().ok()?,
            cpu: fields.nth(39 - 20 - 1)?.parse().ok()?,
        })
    }

    /// How long its first thread has waited for a CPU while it could have run; none where the kernel does not tell.
    pub(crate) fn waited(&self) -> Option<Duration> {
        run_delay(&format!("/proc/{}/schedstat", self.handle.pid()))
    }

    fn is_dead(&self) -> Result<bool, RunnerError> {
        Ok(self.handle.peek_end()?.is_some())
    }

    fn wait_dead(&self) -> Result<(), RunnerError> {
        if self.handle.wait_dead(DEATH_TIMEOUT)? { Ok(()) } else { Err(RunnerError::Undead) }
    }

    /// Asks the supervisor to end it, for a reason that is written down first.
    pub(crate) fn end_for(&mut self, link: &Link, reason: KillReason) -> Result<(), RunnerError> {
        link.kill_wanted(self.handle.pid(), reason)?;
        if !self.handle.wait_dead(link.answer_timeout())? {
            self.handle.kill()?;
        }
        Ok(())
    }

    /// Ends it if it still lives, tells the supervisor, reaps it, and says all that is known.
    pub(crate) fn finish(mut self, link: &Link) -> Result<Death, RunnerError> {
        if !self.is_dead()? {
            self.handle.kill()?;
        }
        self.wait_dead()?;
        let word = link.runner_died(self.handle.pid())?;
        let page = self.control.page();
        let refused = page.refused_bytes.load(Ordering::Relaxed);
        let signal = i32::try_from(page.fault_signal.load(Ordering::SeqCst)).unwrap_or(0);
        let fault = (signal != 0).then(|| Fault {
            signal,
            place: FaultPlace::from_claim(page.fault_place.load(Ordering::Relaxed)),
            index: page.fault_index.load(Ordering::Relaxed),
            address: page.fault_address.load(Ordering::Relaxed),
        });
        let phase = Phase::from_claim(page.phase.load(Ordering::Relaxed));
        let end = self.handle.reap()?;
        let report = RunnerEnd {
            signal: end.signal_name().map(str::to_owned),
            exit_code: end.code(),
            stderr_tail: self.stderr.tail(STDERR_TAIL),
            output_truncated: self.stdout.is_truncated() || self.stderr.is_truncated(),
            unknown_sender: word.killed.is_none()
                && !self.handle.namespaces().pid
                && matches!(
                    end,
                    End::Signalled { signal: libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP }
                ),
        };
        Ok(Death {
            end,
            killed: word.killed,
            peak_owed: word.peak_owed,
            report,
            refused: (refused != 0).then_some(Bytes::new(refused)),
            fault,
            phase,
            locked: self.locked,
            namespaced: self.handle.namespaces().pid,
        })
    }
}

/// The second figure of a `schedstat`: nanoseconds on a run queue.
pub(super) fn run_delay(path: &str) -> Option<Duration> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(Duration::from_nanos(text.split_ascii_whitespace().nth(1)?.parse().ok()?))
}
