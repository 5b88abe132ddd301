//! Controls one runner: starts it, sends it entries, requests calls, stops it, and reaps it once it is dead.
//!
//! Everything that the runner sends after it is locked down is only a claim. Facts come from its pidfd and from the
//! result of `waitid`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use opt_shared::ids::LeaseId;
use opt_shared::message::{GroupLimits, KillReason, Protection};
use opt_shared::outcome::RunnerEnd;
use opt_shared::process_text;
use opt_shared::units::Bytes;

use super::error::{DEATH_TIMEOUT, RunnerError, SETUP_TIMEOUT};
use super::fresh::Process;
use super::libraries::Library;
use crate::link::{Link, RunnerNotice};
use crate::runner::control::{ControlMap, FaultedMemory, Phase, one_line, publish, wait_for_change};
use crate::runner::frame::{EntrySetup, FrameError, Reply, Setup, ToRunner, receive_reply, send_to_runner};
use crate::sandbox::handle::{End, HandleError, RunnerHandle, Stop};
use crate::sandbox::scheduling::{Scheduling, set_scheduling};
use crate::sandbox::streams::Stream;
use crate::sandbox::timeout::{self, Timeout};
use crate::session::{Called, Loaded};

/// The maximum number of bytes that are reported from the end of standard error, and of standard output.
const OUTPUT_TAIL: usize = 2048;
/// The time limit of a stop, which takes microseconds unless a thread of the runner hangs in a system call.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The first and the longest interval between checks of the pidfd while the worker waits for the end of a command.
const FIRST_SLICE: Duration = Duration::from_millis(2);
const LAST_SLICE: Duration = Duration::from_millis(100);

/// The longest time that a runner may live after its socket has closed.
const CLOSED_TIMEOUT: Duration = Duration::from_secs(2);
const FORGED_REPLY: &str = "the candidate wrote to its runner's socket while it was being loaded";
const CLOSED_SOCKET: &str = "the candidate closed its runner's socket while it was being loaded";

pub(crate) struct RunnerSpec<'a> {
    pub(crate) lease: LeaseId,
    pub(crate) setup: Setup,
    pub(crate) artifact: BorrowedFd<'a>,
    /// Libraries that are loaded before the artifact.
    pub(crate) libraries: &'a [Library],
    /// The memory, mappings included, that the runner may owe in addition to its base memory.
    pub(crate) limit: Bytes,
    /// The size of the output memfd and of the materialised values, which the runner maps.
    pub(crate) shared: Bytes,
    /// The size of those mappings of the runner whose memory this worker owns and is charged for.
    pub(crate) of_worker: Bytes,
    /// The size of the mapped inputs, and of the libraries or the interpreter's files.
    pub(crate) mapped: Bytes,
    pub(crate) tasks: u32,
}

#[derive(Debug)]
pub(crate) enum Response<T> {
    Done(T),
    /// The runner is dead. `Runner::finish` returns the details.
    Died,
    TimedOut,
}

/// What Linux reports about a runner's threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) threads: u32,
    /// The CPU on which its first thread runs or ran last.
    pub(crate) cpu: u32,
}

#[derive(Debug)]
pub(crate) struct Death {
    pub(crate) end: End,
    /// The reason, if the supervisor killed it.
    pub(crate) killed: Option<KillReason>,
    pub(crate) tasks_refused: bool,
    pub(crate) peak_owed: Bytes,
    pub(crate) report: RunnerEnd,
    /// The size of an allocation that was refused, if the runner reported one.
    pub(crate) refused: Option<Bytes>,
    pub(crate) fault: Option<Fault>,
    pub(crate) phase: Phase,
    /// True if the runner reported that it was locked down. This is not a claim, because only our code had run before
    /// the report.
    pub(crate) locked: bool,
    pub(crate) namespaced: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) memory: FaultedMemory,
    pub(crate) index: u32,
    pub(crate) address: u64,
    pub(crate) signal: i32,
}

/// A runner that has received its setup.
pub(crate) struct Runner {
    handle: RunnerHandle,
    control: ControlMap,
    socket: OwnedFd,
    stdout: Stream,
    stderr: Stream,
    /// The number of the last command.
    sequence: u32,
    locked: bool,
}

impl Runner {
    /// Sends the setup to the process, which then waits for `Begin`.
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
            group_limits: GroupLimits { files: spec.mapped, tasks: spec.tasks, tree: false },
        })?;
        let mut descriptors = vec![spec.artifact];
        descriptors.extend(spec.libraries.iter().map(Library::descriptor));
        runner.send(&ToRunner::Setup(spec.setup.clone()), &descriptors)?;
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
        self.send(&ToRunner::Entry(setup.clone()), descriptors)
    }

    /// Sends a frame. Returns no error if the runner is dead, because `begin` will notice that.
    fn send(&self, frame: &ToRunner, descriptors: &[BorrowedFd<'_>]) -> Result<(), RunnerError> {
        match send_to_runner(self.socket.as_fd(), frame, descriptors) {
            Ok(()) | Err(FrameError::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the runner lock itself down and, once it is watched, load the candidate. `timeout` limits the loading.
    pub(crate) fn begin(&mut self, link: &Link, timeout: Duration) -> Result<Response<Loaded>, RunnerError> {
        self.send(&ToRunner::Begin, &[])?;
        let mut limit = Timeout::of(self.handle.pid(), SETUP_TIMEOUT);
        let mut slice = FIRST_SLICE;
        // Until the runner reports that it is locked down, only our code has run, and its replies can be trusted.
        let mut locked = false;
        // If the runner is dead, the replies that it sent earlier are read before its death is reported.
        let mut dead = false;
        loop {
            match receive_reply(self.socket.as_fd(), slice) {
                Ok(Some(Reply::Locked { protections })) if !locked => {
                    locked = true;
                    self.locked = true;
                    link.enforced(|| {
                        let mut all = self.handle.protections().to_vec();
                        all.extend(protections.lines().filter_map(Protection::from_line));
                        all
                    })?;
                    // The supervisor's move of the runner into a control group takes as long as the lock-down, so the
                    // two run at the same time.
                    link.wait_watched(self.handle.pid())?;
                    self.send(&ToRunner::Load, &[])?;
                    limit = Timeout::of(self.handle.pid(), timeout);
                }
                Ok(Some(Reply::Failed { text })) if !locked => return Err(RunnerError::Setup { text }),
                Ok(Some(Reply::Loaded { has_plan, returned })) if locked => {
                    return Ok(Response::Done(Loaded::Ready { has_plan, returned }));
                }
                Ok(Some(Reply::LoadFailed { text })) if locked => {
                    return Ok(Response::Done(Loaded::Refused { text: one_line(&text) }));
                }
                Ok(None) if dead => return Ok(Response::Died),
                Ok(None) => {}
                // A constructor of the candidate can write to the socket or close it. The candidate is then to blame.
                Ok(Some(_)) | Err(FrameError::Malformed { .. }) if locked => {
                    return Ok(Response::Done(Loaded::Refused { text: FORGED_REPLY.to_owned() }));
                }
                // The socket of an ending runner closes before its death can be observed.
                Err(FrameError::Closed) => {
                    if self.handle.wait_dead(CLOSED_TIMEOUT)? {
                        return Ok(Response::Died);
                    }
                    if !locked {
                        return Err(FrameError::Closed.into());
                    }
                    return Ok(Response::Done(Loaded::Refused { text: CLOSED_SOCKET.to_owned() }));
                }
                Ok(Some(_)) => return Err(FrameError::Malformed { what: "order" }.into()),
                Err(error) => return Err(error.into()),
            }
            dead = self.is_dead()?;
            if !dead && limit.ends_after(slice) {
                return if locked { Ok(Response::TimedOut) } else { Err(RunnerError::NotSetUp) };
            }
            slice = (slice * 2).min(LAST_SLICE);
        }
    }

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

    pub(crate) fn wait_done(
        &mut self,
        spin: Duration,
        timeout: Duration,
    ) -> Result<Response<Called>, RunnerError> {
        let mut limit = Timeout::of(self.handle.pid(), timeout);
        let before = self.sequence.wrapping_sub(1);
        let mut spin = spin;
        let mut slice = FIRST_SLICE;
        loop {
            let page = self.control.page();
            if wait_for_change(&page.done, &page.worker_waits, before, spin, slice) {
                // The runner's own code writes only the current sequence number, so any other value is forged.
                if page.done.load(Ordering::Acquire) == self.sequence {
                    return Ok(Response::Done(Called {
                        result: page.result.load(Ordering::Relaxed),
                        calls_done: page.calls_done.load(Ordering::Relaxed),
                        returned_value: page.returned_value.load(Ordering::Relaxed) != 0,
                        returned_outputs: page.returned_outputs.load(Ordering::Relaxed) != 0,
                        raised: page.raised.claim(),
                        claimed: Duration::from_nanos(page.claimed_ns.load(Ordering::Relaxed)),
                        elapsed: Duration::ZERO,
                    }));
                }
                std::thread::yield_now();
            }
            if self.is_dead()? {
                return Ok(Response::Died);
            }
            if limit.ends_after(spin + slice) {
                return Ok(Response::TimedOut);
            }
            spin = Duration::ZERO;
            slice = (slice * 2).min(LAST_SLICE);
        }
    }

    /// Stops the runner. Returns false if it is dead, or if it did not stop in time and was killed.
    pub(crate) fn stop(&mut self, link: &Link) -> Result<bool, RunnerError> {
        if self.is_dead()? {
            return Ok(false);
        }
        match self.handle.stop(STOP_TIMEOUT) {
            // Either a system call of the candidate or the host delays the stop. If SIGKILL ends the runner, the
            // candidate is to blame. Otherwise, or if a tracer holds the runner stopped, the host is to blame.
            Err(HandleError::WouldNotStop { .. }) => {
                let would_not_stop = KillReason::WouldNotStop { limit: STOP_TIMEOUT };
                let is_traced = timeout::is_traced(self.handle.pid());
                self.end_for(link, if is_traced { KillReason::Stopped } else { would_not_stop })?;
                Ok(false)
            }
            stopped => Ok(stopped? == Stop::Stopped),
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), RunnerError> {
        Ok(self.handle.cont()?)
    }

    /// The CPU time of the runner, including threads that have ended. It is exact while the runner is stopped. While it
    /// runs, the time since the last scheduler tick is missing for threads on other CPUs.
    pub(crate) fn cpu_time(&self) -> Result<Duration, RunnerError> {
        Ok(self.handle.cpu_time()?)
    }

    /// Sets the scheduling of all threads of the runner. Ignores threads that have ended.
    pub(crate) fn set_scheduling(&self, scheduling: Scheduling) -> Result<(), RunnerError> {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.handle.pid())) else {
            return Ok(());
        };
        let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
        for number in numbers {
            match set_scheduling(number, scheduling) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(errno) => return Err(RunnerError::Priority(errno)),
            }
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> Option<Counts> {
        let text = process_text::read(self.handle.pid(), "stat").ok()?;
        // After the parenthesised name come state (field 3), num_threads (field 20) and processor (field 39).
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Counts {
            threads: fields.nth(20 - 3)?.parse().ok()?,
            cpu: fields.nth(39 - 20 - 1)?.parse().ok()?,
        })
    }

    fn is_dead(&self) -> Result<bool, RunnerError> {
        Ok(self.handle.peek_end()?.is_some())
    }

    fn wait_dead(&self) -> Result<(), RunnerError> {
        if self.handle.wait_dead(DEATH_TIMEOUT)? { Ok(()) } else { Err(RunnerError::Undead) }
    }

    /// Asks the supervisor to record the reason and then kill the runner. If the runner is not dead in time,
    /// it is killed here.
    pub(crate) fn end_for(&mut self, link: &Link, reason: KillReason) -> Result<(), RunnerError> {
        link.kill_wanted(self.handle.pid(), reason)?;
        if !self.handle.wait_dead(link.answer_timeout())? {
            self.handle.kill()?;
        }
        Ok(())
    }

    /// Kills the runner if it is still alive.
    pub(crate) fn finish(mut self, link: &Link) -> Result<Death, RunnerError> {
        if !self.is_dead()? {
            self.handle.kill()?;
        }
        self.wait_dead()?;
        let answer = link.runner_died(self.handle.pid())?;
        let page = self.control.page();
        let refused = page.refused_bytes.load(Ordering::Relaxed);
        let signal = i32::try_from(page.fault_signal.load(Ordering::SeqCst)).unwrap_or(0);
        let fault = (signal != 0).then(|| Fault {
            signal,
            memory: FaultedMemory::from_claim(page.fault_memory.load(Ordering::Relaxed)),
            index: page.fault_index.load(Ordering::Relaxed),
            address: page.fault_address.load(Ordering::Relaxed),
        });
        let phase = Phase::from_claim(page.phase.load(Ordering::Relaxed));
        let end = self.handle.reap()?;
        let report = RunnerEnd {
            signal: end.signal_name().map(str::to_owned),
            exit_code: end.code(),
            stderr_tail: self.stderr.tail(OUTPUT_TAIL),
            stdout_tail: self.stdout.tail(OUTPUT_TAIL),
            output_truncated: self.stdout.is_truncated() || self.stderr.is_truncated(),
            unknown_sender: answer.killed.is_none()
                && !self.handle.namespaces().pid
                && matches!(
                    end,
                    End::Signalled { signal: libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP }
                ),
        };
        Ok(Death {
            end,
            killed: answer.killed,
            tasks_refused: answer.tasks_refused,
            peak_owed: answer.peak_owed,
            report,
            refused: (refused != 0).then_some(Bytes::new(refused)),
            fault,
            phase,
            locked: self.locked,
            namespaced: self.handle.namespaces().pid,
        })
    }
}
