//! Calling a candidate: the seam between policy (`stage`) and whatever runs kernels.
//!
//! A *backend* places recorded calls where a candidate can reach them and starts *sessions*: one loaded candidate
//! each, with its entries and its outputs. A session's *clock* times blocks of calls. Policy knows these traits and
//! nothing behind them: no process, descriptor or pointer. Everything a candidate could have written is a claim.
//!
//! ```text
//! start ──▶ load ──Ready──▶ (plan | call | block | idle)* ──▶ finish
//!             │ Refused                 │ Died                   ▲
//!             └─────────────────────────┴────────────────────────┘
//! ```
//!
//! Every method returns with the candidate at a standstill: nothing of it runs until the next one is called.

mod artifact;
pub(crate) mod cuda;
mod error;
pub mod host;
#[cfg(test)]
pub(crate) mod scripted;

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use opt_shared::message::{Callee, EntryRef};
use opt_shared::outcome::{DevicePoint, ReadReport, RunnerEnd, Status};
use opt_shared::settings::InputMemory;
use opt_shared::units::Bytes;

pub(crate) use self::error::{InputFault, SessionError};
use crate::judge::BytesSource;
use crate::recorded::Recorded;
use crate::residency::device::{Device, DeviceError};

/// What runs kernels on one device. One per worker.
pub(crate) trait Backend {
    /// A recorded call whose inputs lie where a session can show them to a candidate.
    type Placed: AsRef<Recorded>;
    /// Memory of the device that a replay keeps its tensors in.
    type Pool: Device + Send;
    /// That memory, as sessions are shown it.
    type Arena;
    /// An artifact that is still the one that was built, with the limits of its sessions.
    type Candidate: Candidate;
    /// Memory for inputs that are new for every timed call.
    type Variants: VariantMemory;

    /// Opens the artifact and compares its digest with the build's.
    fn open(&self, callee: &Callee) -> Result<Self::Candidate, SessionError>;

    /// Begins what the candidate's next session needs whatever its entries are, beside their opening and loading.
    /// What cannot be begun is done by `start`.
    fn prepare(&self, candidate: &Self::Candidate);

    /// The entries of a task in order, opened as they are wanted, in groups that share a session. Those that a candidate
    /// is verified on are opened ahead, the first group from now on.
    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Self::Placed> + 'b>, SessionError>;

    /// Whether another session can be started: not where a candidate has brought down what all of them need.
    fn goes_on(&self) -> bool {
        true
    }

    /// Memory of the device at named points, over all sessions; none where there is none.
    fn device_points(&self) -> Vec<DevicePoint> {
        Vec::new()
    }

    /// A pool of this many bytes, charged to this worker.
    fn pool(&self, bytes: Bytes) -> Result<(Self::Pool, Self::Arena), DeviceError>;

    /// An entry whose tensors lie in a pool.
    /// `slots`: where each tensor among its arguments lies, in order; none where nothing of it does.
    fn place_in_pool(
        &self,
        recorded: Recorded,
        arena: &Self::Arena,
        slots: &[Option<PoolSlot>],
    ) -> Result<Self::Placed, InputFault>;

    /// So much memory, charged to this worker until its task is over.
    fn variants(&self, bytes: Bytes) -> Result<Self::Variants, DeviceError>;

    /// Starts a session over these entries whose calls are verified. All inputs are in place before it loads anything, and it
    /// cannot change any. Each entry has two slots over the same memory: one ends where memory ends, the other begins where it
    /// begins, so that a store just outside either faults in one of them.
    fn start<'b>(
        &'b self,
        candidate: &'b Self::Candidate,
        entries: &'b [Self::Placed],
    ) -> Result<Box<dyn Session + 'b>, SessionError>;

    /// Starts a session whose calls are timed: with a ring of at least two slots, one for each call of a block, and with what
    /// varies of its inputs.
    fn start_timed<'b>(
        &'b self,
        candidate: &'b Self::Candidate,
        entries: &'b [Self::Placed],
        varied: Option<Varied<'b, Self::Variants>>,
    ) -> Result<Box<dyn Session + 'b>, SessionError>;
}

/// What policy needs to know of an opened artifact.
pub(crate) trait Candidate {
    /// CPU numbers that its sessions are pinned to; none where it runs on none.
    fn cpus(&self) -> &[u32];
}

/// Which entries are wanted, and how they are to be grouped.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'b> {
    pub(crate) callee: &'b Callee,
    pub(crate) entries: &'b [EntryRef],
    pub(crate) lifetime: Lifetime<'b>,
    /// Leave no page of the captures in the cache that was not there before.
    pub(crate) drop_cache: bool,
}

/// How many entries a session lives for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lifetime<'b> {
    /// One entry; or several in a row, if what they owe together (unmapped inputs and outputs) is at most `cap`.
    Entry { cap: Bytes },
    /// The entries of each of these ranges, whose inputs lie in `inputs`.
    Batch { batches: &'b [Range<usize>], inputs: InputMemory },
}

/// Goes through the entries of a task. Whatever is read ahead of a candidate is read here.
pub(crate) trait Groups<P> {
    /// The next group; none after the last. The group before must have been given back.
    fn next(&mut self) -> Result<Option<Group<P>>, SessionError>;

    /// No session holds the group's entries any more.
    fn give_back(&mut self, placed: Vec<P>);

    /// How the captures were read, over all groups.
    fn finish(self: Box<Self>) -> ReadReport;
}

/// Entries that share a session, or the one that could not be opened.
pub(crate) struct Group<P> {
    /// Which of the wanted entries.
    pub(crate) range: Range<usize>,
    /// One for each of the range; or what is wrong with the entry at this place of the range.
    pub(crate) placed: Result<Vec<P>, (usize, InputFault)>,
}

/// Where an input lies in a pool's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSlot {
    pub(crate) address: u64,
    /// Where in its first 64 bytes it begins.
    pub(crate) phase: u8,
    pub(crate) bytes: Bytes,
}

/// Writable by this process alone, and shown to every session that is started with it.
pub(crate) trait VariantMemory {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
}

/// The inputs of a session's entries that are new for every timed call.
pub(crate) struct Varied<'b, M> {
    pub(crate) memory: &'b M,
    /// Of each entry. All lie in the same memory: only one entry is called at a time.
    pub(crate) entries: &'b [Variants],
}

impl<M> Clone for Varied<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Varied<'_, M> {}

/// The variants of one entry's inputs. Call k of a block is shown number k.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variants {
    /// How many there are; 0 where nothing varies.
    pub(crate) count: u32,
    pub(crate) inputs: Vec<VariedInput>,
}

/// Where the variants of one input lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VariedInput {
    /// Counts the tensors among the arguments. One that is passed twice varies as a whole.
    pub(crate) tensor: usize,
    /// Of the region that holds them: page-aligned.
    pub(crate) region: Range64,
    /// Where in the region the first one starts.
    pub(crate) data: u64,
    /// From one to the next.
    pub(crate) stride: u64,
}

impl VariedInput {
    /// Where a variant is written to.
    pub(crate) fn at(&self, variant: u32) -> u64 {
        self.region.start + self.data + self.stride * u64::from(variant)
    }
}

/// Bytes from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range64 {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// What became of something a candidate was asked to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer<T> {
    Done(T),
    /// It ended, or was ended because a limit was reached: `finish` says how.
    Died,
}

/// What a loader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// `has_plan`: it has a plan call, made once for each entry before its calls. `returned`: it returns its outputs, and they are
    /// copied before a call is over.
    Ready { has_plan: bool, returned: bool },
    /// It cannot be called: the loader's words, and what can be done.
    Refused { text: String },
}

/// What a candidate claims about calls that have ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Called {
    /// What the last call returned: 0 is done, `UNSUPPORTED` is "not this entry".
    pub(crate) result: i32,
    pub(crate) calls_done: u32,
    /// A value was returned through `ret`.
    pub(crate) returned_value: bool,
    /// The error that the candidate raised with its code, where it has a way to.
    pub(crate) raised: Option<String>,
    /// Measured by the candidate's own clock.
    pub(crate) claimed: Duration,
    /// Measured by our clock, hand-off included.
    pub(crate) elapsed: Duration,
}

/// The code by which a candidate says that it does not do an entry.
pub(crate) const UNSUPPORTED: i32 = -2;

/// A store outside an output that did not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trespass {
    /// Which output.
    pub(crate) output: usize,
    /// Bytes past its end; before its start if negative.
    pub(crate) past: i64,
}

/// The status given to an end, with its one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) status: Status,
    pub(crate) detail: String,
}

/// How a session ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    /// What its death is called, if it died of its own, by the entry it was called with last.
    pub(crate) verdict: Verdict,
    pub(crate) end: RunnerEnd,
    pub(crate) peak_owed: Bytes,
}

/// One candidate over some entries, with outputs of its own.
pub(crate) trait Session {
    /// Loads the candidate. Once, before everything else.
    fn load(&mut self, limit: Duration) -> Result<Answer<Loaded>, SessionError>;

    /// The plan call of an entry. Only where there is one.
    fn plan(&mut self, entry: usize, limit: Duration) -> Result<Answer<Called>, SessionError>;

    /// One call into `slot`, with every output and all that lies beside it filled with `poison` before.
    fn call(
        &mut self,
        entry: usize,
        slot: u32,
        poison: u8,
        limit: Duration,
    ) -> Result<Answer<Called>, SessionError>;

    /// How many slots an entry's outputs have.
    fn slots(&self, entry: usize) -> u32;

    /// The bytes of one output.
    fn output(&self, entry: usize, leaf: usize, slot: u32) -> Box<dyn BytesSource + '_>;

    /// The first byte beside an output that no longer holds `poison`. Only in sessions that verify.
    fn damage(&self, entry: usize, slot: u32, poison: u8) -> Result<Option<Trespass>, SessionError>;

    /// Fills the slots that a block of `calls` will write.
    fn poison(&mut self, entry: usize, calls: u32, poison: u8) -> Result<(), SessionError>;

    /// Times blocks of its calls.
    fn clock(&mut self) -> &mut dyn Clock;

    /// Ends it if it has not ended, and says how. The only way out.
    fn finish(self: Box<Self>) -> Result<Ending, SessionError>;
}

/// Times a session's calls from outside of it.
pub(crate) trait Clock {
    /// The time that limits are counted in.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Measures the hand-off with empty blocks, unless it is known for the way in which this process waits now.
    fn settle_handoff(&mut self) -> Result<(), SessionError>;

    /// What is subtracted from every block.
    fn handoff(&self) -> Duration;

    /// Two sessions of one machine have the same work to do for a hand-off: no more than this is subtracted.
    fn limit_handoff(&mut self, most: Duration);

    /// Whether a CPU is left for this process to spin on while a candidate works that has so many threads and keeps so many
    /// CPUs busy.
    fn leaves_room(&self, threads: u32, cpus_busy: f64) -> bool;

    /// How this process waits for the end of blocks from now on.
    fn wait_spinning(&mut self, spin: bool);

    /// Makes a block and times it.
    fn block(&mut self, block: &BlockOrder<'_>, renew: Renew<'_>) -> Result<Answer<Block>, SessionError>;

    /// Wakes the candidate as for a block and asks for nothing.
    fn idle(&mut self, entry: usize, renew: Renew<'_>) -> Result<Answer<IdleRound>, SessionError>;
}

/// Writes the inputs of a block. Called while the candidate stands still, right before the first stamp.
pub(crate) type Renew<'r> = &'r mut dyn FnMut() -> Result<(), SessionError>;

/// Where nothing varies.
pub(crate) fn nothing_new() -> Result<(), SessionError> {
    Ok(())
}

/// What is to be timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockOrder<'b> {
    pub(crate) entry: usize,
    /// Each into a slot of its own, from the first on.
    pub(crate) calls: u32,
    /// The plan call instead.
    pub(crate) plan: bool,
    /// Each call with its own variant of the inputs; otherwise all with the captured ones.
    pub(crate) varied: bool,
    /// Its inputs and outputs are in no cache when it begins.
    pub(crate) cold: bool,
    /// Elements that are read when the candidate says that it is done, before the second stamp.
    pub(crate) looks: &'b [Look],
    /// How long it should take; decides how long is spun for its end.
    pub(crate) expected: Duration,
    pub(crate) limit: Duration,
}

/// One element of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) leaf: usize,
    pub(crate) slot: u32,
    /// From the output's first byte.
    pub(crate) offset: u64,
    /// Bytes, at most [`WIDEST_ELEMENT`].
    pub(crate) width: usize,
}

/// Elements that are looked at in a block. Reading them takes some microseconds, and twenty blocks of them miss one in a thousand
/// candidates that leave a fiftieth undone.
pub(crate) const LOOKS: u32 = 64;

/// Bytes of the largest element there is: two 64-bit floats.
pub(crate) const WIDEST_ELEMENT: usize = 16;

/// What a block came to.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Between the stamps, hand-off not yet subtracted.
    pub(crate) elapsed: Duration,
    pub(crate) called: Called,
    pub(crate) wake: WakeCost,
    /// CPUs that the candidate kept busy, from standstill to standstill.
    pub(crate) cpus_busy: f64,
    /// How long the candidate's first thread and this process waited for a CPU meanwhile; none where the kernel does not tell.
    pub(crate) waited: Option<Duration>,
    /// The first of the looks whose element was another one when the candidate stood still: it said "done" before it was.
    pub(crate) changed: Option<usize>,
}

/// A round in which nothing was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleRound {
    /// CPU time of the candidate, less what it spun because it was told to.
    pub(crate) cpu: Duration,
    pub(crate) wake: WakeCost,
}

/// What it costs a candidate's process to be woken and stopped again before it can do anything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WakeCost {
    pub(crate) cpu: Duration,
    pub(crate) threads: u32,
}
