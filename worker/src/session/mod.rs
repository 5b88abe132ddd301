//! The interface between the policy (`stage`) and the backends, which load, call and time candidates.
//!
//! A *backend* places recorded calls where a candidate can reach them, and starts *sessions*. A session is one loaded
//! candidate, with its entries and its outputs. The policy reaches candidates only through these traits, and handles no
//! process, descriptor or pointer (except in build, which runs compilers). Data that a candidate could have written is
//! treated as a claim.
//!
//! ```text
//! start ──▶ load ──Ready──▶ (plan | call | block | idle)* ──▶ finish
//!             │ Refused                 │ Died                   ▲
//!             └─────────────────────────┴────────────────────────┘
//! ```
//!
//! When a method returns, the candidate is stopped or dead, and none of its code runs until the next method is called.
//! The exception is a candidate that was `Refused`: it may run until `finish`, which is the only method that may then
//! be called.

mod artifact;
pub(crate) mod cuda;
mod error;
pub mod host;
pub(crate) mod pace;
#[cfg(test)]
pub(crate) mod scripted;
mod stray_write;
mod varied;

use std::ops::Range;
use std::time::{Duration, Instant};

use opt_shared::launch::ResolvedLaunch;
use opt_shared::message::{Callee, EntryRef};
use opt_shared::outcome::{DevicePoint, EmulatedKernel, ReadReport, RunnerEnd, Status};
use opt_shared::replay::Digest;
use opt_shared::settings::{InputMemory, Priority};
use opt_shared::units::Bytes;

pub(crate) use self::error::{InputFault, SessionError};
use self::pace::Pace;
pub(crate) use self::stray_write::{StrayWrite, describe_stray_write};
pub(crate) use self::varied::{Range64, VariantMemory, Variants, Varied, VariedInput};
use crate::judge::BytesSource;
use crate::recorded::Recorded;
use crate::residency::device::{Device, DeviceError};

/// Runs kernels on one device.
pub(crate) trait Backend {
    /// A recorded call with its inputs in memory that a session can pass to a candidate.
    type Placed: AsRef<Recorded>;
    /// Device memory in which a replay keeps its tensors.
    type Pool: Device + Send;
    /// A pool's memory, in the form in which sessions map it.
    type Arena;
    type Candidate: Candidate;
    /// Memory for inputs that differ in every timed call.
    type Variants: VariantMemory;

    fn open(&self, callee: &Callee) -> Result<Self::Candidate, SessionError>;

    /// Starts, in the background, those parts of the candidate's next session that do not depend on its entries.
    fn prepare(&self, candidate: &Self::Candidate);

    /// Like `prepare`, but may be called while another candidate's session is in use, and takes nothing away from that
    /// session.
    fn prepare_beside(&self, _candidate: &Self::Candidate) {}

    /// Prepares, in the background, resources that the next session of any candidate can use. No candidate may be timed
    /// meanwhile.
    fn make_ahead(&self, _candidate: &Self::Candidate) {}

    /// Opens the entries of a task in order, in groups that share a session. In verification, groups may be opened
    /// ahead of their turn, the first one immediately.
    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Self::Placed> + 'b>, SessionError>;

    /// Returns false if no other session can be started, for example because a candidate has broken the device.
    fn can_start_sessions(&self) -> bool {
        true
    }

    /// Returns the highest figures at each point, over all sessions. Empty if the backend has no device.
    fn device_points(&self) -> Vec<DevicePoint> {
        Vec::new()
    }

    /// Returns what the emulated device counted for each kernel, over all sessions. Empty unless the device is
    /// emulated.
    fn emulated_kernels(&self) -> Vec<EmulatedKernel> {
        Vec::new()
    }

    fn is_device(&self) -> bool {
        false
    }

    /// The unit in which a pool's memory is counted.
    fn pool_grain(&self) -> Bytes;

    /// Creates a pool of this size, charged to this worker.
    fn pool(&self, bytes: Bytes) -> Result<(Self::Pool, Self::Arena), DeviceError>;

    /// Places an entry whose tensors lie in a pool. `slots` has one item for each tensor argument, in order. The item
    /// of a tensor without bytes is `None`.
    fn place_in_pool(
        &self,
        recorded: Recorded,
        arena: &Self::Arena,
        slots: &[Option<PoolSlot>],
    ) -> Result<Self::Placed, InputFault>;

    /// Creates memory of this size, charged to this worker until its task ends.
    fn variants(&self, bytes: Bytes) -> Result<Self::Variants, DeviceError>;

    /// Starts a session over these entries for verification. All inputs are in place before the candidate is loaded. A
    /// candidate on the CPU cannot change them; changes on a device are detected.
    fn start<'b>(
        &'b self,
        candidate: &'b Self::Candidate,
        entries: &'b [Self::Placed],
    ) -> Result<Box<dyn Session + 'b>, SessionError>;

    /// Starts a session for timing. For its outputs, each entry has a ring of at least two slots, one for each call of
    /// a block, in memory that the entries share. If the entries are called in turns, each has a single slot in
    /// separate memory.
    fn start_timed<'b>(
        &'b self,
        candidate: &'b Self::Candidate,
        entries: &'b [Self::Placed],
        varied: Option<Varied<'b, Self::Variants>>,
        how: TimedSession,
    ) -> Result<Box<dyn Session + 'b>, SessionError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedSession {
    /// True if its entries are called in turns.
    pub(crate) in_turns: bool,
    /// The priority of its threads in a block.
    pub(crate) priority: Priority,
    /// True if rough times are enough. The hand-off is then measured with fewer empty blocks.
    pub(crate) brief: bool,
}

impl TimedSession {
    /// The settings of a session whose times are not used.
    pub(crate) const TRIAL: Self = Self { in_turns: false, priority: Priority::None, brief: true };
}

/// An opened artifact, as the policy uses it.
pub(crate) trait Candidate {
    /// The CPUs on which its sessions run; empty if they do not run on a CPU.
    fn cpus(&self) -> &[u32];

    /// Returns true if its sessions leave a CPU to other processes.
    fn leaves_a_cpu(&self) -> bool;

    /// Returns the launches that its host code has made for this call; `None` if none are recorded.
    fn recorded_launches(&self, _: &Recorded) -> Option<ResolvedLaunch> {
        None
    }
}

/// The entries of a task, and the way to group them.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'b> {
    pub(crate) callee: &'b Callee,
    pub(crate) entries: &'b [EntryRef],
    pub(crate) sharing: Sharing<'b>,
    /// True if pages of the captures that were not in the cache before are dropped after use.
    pub(crate) drop_cache: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sharing<'b> {
    /// One entry of any size, or several consecutive ones if their outputs and their unmappable input bytes together
    /// take at most `cap`. Used in verification.
    UpTo { cap: Bytes },
    /// The entries of one of these ranges; `inputs` selects the memory of their inputs. Used in a profile.
    Batches { batches: &'b [Range<usize>], inputs: InputMemory },
}

/// Iterates over the groups of a task's entries. In verification, reads their inputs ahead of the candidate.
pub(crate) trait Groups<P> {
    /// Returns the next group; `None` after the last one. The previous group must have been given back.
    fn next(&mut self) -> Result<Option<Group<P>>, SessionError>;

    /// Takes the group's entries back, once no session uses them any more.
    fn give_back(&mut self, placed: Vec<P>);

    /// Returns a report on the reads of the captures, over all groups.
    fn finish(self: Box<Self>) -> ReadReport;
}

/// Entries that share a session, or an error if one of them could not be opened.
pub(crate) struct Group<P> {
    /// The group's range among all entries of the task.
    pub(crate) range: Range<usize>,
    /// If an entry could not be opened, its index in the range and the error.
    pub(crate) placed: Result<Vec<P>, (usize, InputFault)>,
}

/// The location of an input in a pool: an offset in its arena or, on a device, an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSlot {
    /// The constant's number in the catalog.
    pub(crate) constant: u32,
    pub(crate) address: u64,
    /// The address of the input's first byte, modulo 64.
    pub(crate) phase: u8,
    /// The size of the slot.
    pub(crate) bytes: Bytes,
    /// The size of the input.
    pub(crate) length: Bytes,
    /// The digest of the input's bytes in the recording.
    pub(crate) digest: Digest,
}

/// The outcome of a request to a candidate.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer<T> {
    Done(T),
    Died,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// If `has_plan` is true, a plan call is made for each entry before its other calls. If `returned` is true, the
    /// candidate returns its outputs, which are copied before the call ends.
    Ready { has_plan: bool, returned: bool },
    /// The candidate cannot be called. `text` is the loader's message, with advice.
    Refused { text: String },
}

/// The result of calls. On the CPU, everything but `elapsed` is the candidate's claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Called {
    /// 0 for success, `UNSUPPORTED` for an entry that it does not support, and any other value for an error.
    pub(crate) result: i32,
    pub(crate) calls_done: u32,
    /// True if a value was returned through `ret`.
    pub(crate) returned_value: bool,
    /// True if the outputs were returned through `ret`, and copied before the call ended.
    pub(crate) returned_outputs: bool,
    /// The error that the candidate raised, if its language supports that.
    pub(crate) raised: Option<String>,
    /// The time by the candidate's clock.
    pub(crate) claimed: Duration,
    /// The time by the worker's clock, including the hand-off. Not used for blocks: see [`Block::elapsed`].
    pub(crate) elapsed: Duration,
}

/// The return value of a candidate that does not support an entry.
pub(crate) const UNSUPPORTED: i32 = -2;

/// A status, with one line of detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) status: Status,
    pub(crate) detail: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Ending {
    /// The verdict on the candidate's death. Meaningful only if an answer was `Died`.
    pub(crate) verdict: Verdict,
    pub(crate) end: RunnerEnd,
    pub(crate) peak_owed: Bytes,
    /// True if a control group above the session's own refused a process or thread during the session.
    pub(crate) tasks_refused: bool,
}

/// A launch of a kernel in a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelLaunch {
    pub symbol: String,
    /// The indices of the parameters that point into a constant, each with the constant's number in the catalog.
    pub constants: Vec<(usize, u32)>,
}

/// One candidate, with the entries that it is called with and its own outputs.
pub(crate) trait Session {
    /// Loads the candidate. Must be called once, before anything else.
    fn load(&mut self, limit: Duration) -> Result<Answer<Loaded>, SessionError>;

    /// Makes the plan call of an entry. Call it only if the candidate has a plan call.
    fn plan(&mut self, entry: usize, limit: Duration) -> Result<Answer<Called>, SessionError>;

    /// Fills every output and the bytes beside it with `poison`, restores each argument that the call changes, and then
    /// calls the candidate.
    fn call(
        &mut self,
        entry: usize,
        slot: u32,
        poison: u8,
        limit: Duration,
    ) -> Result<Answer<Called>, SessionError>;

    /// The number of slots for an entry's outputs.
    fn slots(&self, entry: usize) -> u32;

    fn output(&self, entry: usize, output: usize, slot: u32) -> Box<dyn BytesSource + '_>;

    /// Returns the first byte beside an output that is no longer `poison`.
    fn damage(&self, entry: usize, slot: u32, poison: u8) -> Result<Option<StrayWrite>, SessionError>;

    /// Returns the launches of an entry's last call, as they were passed to the device's driver, each with those of its
    /// arguments that lie in a pool. Empty if the candidate has host code, which makes its own launches.
    fn launched(&self, _entry: usize) -> Vec<KernelLaunch> {
        Vec::new()
    }

    fn clock(&mut self) -> &mut dyn Clock;

    /// Ends the session. Must be called for every session, except after an error.
    fn finish(self: Box<Self>) -> Result<Ending, SessionError>;
}

/// The longest hand-off that is ever subtracted from the time of a block. Longer ones are caused by a busy machine, or
/// by a candidate that slows down empty blocks to make its calls look fast.
pub(crate) const MAX_HANDOFF: Duration = Duration::from_micros(100);

/// Times a session's calls from outside the session.
pub(crate) trait Clock {
    /// Returns the current time of the clock that time limits use.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Measures the hand-off with empty blocks, unless it is known for the current way of waiting (sleeping or
    /// spinning).
    fn settle_handoff(&mut self) -> Result<(), SessionError>;

    /// Returns the time that a block takes in addition to its calls. It is subtracted from the time of every block.
    fn handoff(&self) -> Duration;

    /// Limits the hand-off that is subtracted. Waking a session is the same work for all sessions on a machine, so the
    /// shortest hand-off limits all of them.
    fn limit_handoff(&mut self, max: Duration);

    /// Discards the known hand-off, so that the next `settle_handoff` measures it again.
    fn forget_handoff(&mut self) {}

    /// Returns true if a candidate that has this many threads and keeps this many CPUs busy leaves a CPU on which this
    /// process can spin.
    fn leaves_room(&self, threads: u32, cpus_busy: f64) -> bool;

    /// Sets whether this process may spin while it waits for the end of a block.
    fn wait_spinning(&mut self, spin: bool);

    /// Returns the properties of the device whose clock this is; `None` on a CPU.
    fn device_facts(&self) -> Option<DeviceFacts> {
        None
    }

    fn block(&mut self, block: &BlockOrder<'_>, renew: Renew<'_>) -> Result<Answer<Block>, SessionError>;

    /// Wakes the candidate as for a block, without requesting a call.
    fn idle(&mut self, entry: usize, renew: Renew<'_>) -> Result<Answer<IdleRound>, SessionError>;
}

/// A function that writes the inputs of a block. It is called while the candidate is stopped, right before the clock
/// starts.
pub(crate) type Renew<'r> = &'r mut dyn FnMut() -> Result<(), SessionError>;

/// A `Renew` for blocks whose inputs do not vary.
pub(crate) fn nothing_new() -> Result<(), SessionError> {
    Ok(())
}

/// A request to time a block, which is a number of calls between two readings of the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockOrder<'b> {
    pub(crate) entry: usize,
    /// The number of calls. They write to the first slots, in order.
    pub(crate) calls: u32,
    /// True if the plan call is made instead of `calls` calls.
    pub(crate) plan: bool,
    /// If false, all calls get the captured inputs.
    pub(crate) varied: bool,
    /// True if inputs and outputs are evicted from the caches before the block; on a device, before each call.
    pub(crate) cold: bool,
    /// The byte with which the slots that the block will write are filled, right before the block. Arguments that the
    /// calls change are then restored, as by [`Session::call`]. `None` leaves the outputs as they are.
    pub(crate) poison: Option<u8>,
    /// Elements that are read when the candidate reports that it is done, before the clock stops.
    pub(crate) looks: &'b [Look],
    /// The expected duration. It limits how long this process spins. On a device, it also decides whether the calls are
    /// short enough to be launched as a graph.
    pub(crate) expected: Duration,
    pub(crate) limit: Duration,
}

/// One element of an output that is read at the end of a block, to find out whether it changes afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) output: usize,
    pub(crate) slot: u32,
    /// The offset from the output's first byte.
    pub(crate) offset: u64,
    /// The element's size in bytes, at most [`WIDEST_ELEMENT`].
    pub(crate) width: usize,
}

/// The number of elements that are read at the end of a block. If a candidate leaves a fiftieth of its output undone,
/// five blocks miss it with a probability of about 1 in 600.
pub(crate) const LOOKS: u32 = 64;

/// The size of the largest element: two 64-bit floats.
pub(crate) const WIDEST_ELEMENT: usize = 16;

/// The result of a timed block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The measured time, from which the hand-off has not been subtracted yet.
    pub(crate) elapsed: Duration,
    pub(crate) called: Called,
    pub(crate) wake: WakeCost,
    /// The average number of CPUs that the candidate kept busy between being resumed for the block and being stopped
    /// again.
    pub(crate) cpus_busy: f64,
    /// The total time that the candidate's threads and this thread waited for a CPU. Threads that have ended are not
    /// included. `None` if Linux does not report the time, or if there are too many threads.
    pub(crate) waited: Option<Duration>,
    /// The index of the first look whose element had changed by the time the candidate was stopped.
    pub(crate) changed: Option<usize>,
    /// Present if a device's clock timed the block. `called.claimed` is then the time by the host's clock.
    pub(crate) on_device: Option<DeviceBlock>,
}

/// The readings of a device around a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DeviceBlock {
    pub(crate) pace: Pace,
    /// True if the calls were launched as a graph.
    pub(crate) is_graph: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceFacts {
    /// The fastest rate, in bytes read and written per second, at which the device copied its own memory.
    pub(crate) copy_rate: Option<f64>,
    /// The features of timing that are missing on this device, each with the reason.
    pub(crate) lacks: Vec<String>,
}

/// A round in which the candidate is woken but no call is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleRound {
    /// The candidate's CPU time in the round.
    pub(crate) cpu: Duration,
    pub(crate) wake: WakeCost,
    /// The time from waking the candidate to its answer, measured in the same way as the time of a block. `None` on a
    /// device, whose blocks have no hand-off.
    pub(crate) elapsed: Option<Duration>,
    /// As in [`Block`].
    pub(crate) waited: Option<Duration>,
}

/// The cost of waking a candidate's process and stopping it again before it can do anything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WakeCost {
    pub(crate) cpu: Duration,
    pub(crate) threads: u32,
}
