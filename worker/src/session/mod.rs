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

pub(crate) mod cuda;
mod error;
pub mod host;
#[cfg(test)]
pub(crate) mod scripted;

use std::ops::Range;
use std::time::Duration;

use opt_shared::message::{Callee, EntryRef};
use opt_shared::outcome::{ReadReport, RunnerEnd, Status};
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

    /// Opens the artifact and compares its digest with the build's.
    fn open(&self, callee: &Callee) -> Result<Self::Candidate, SessionError>;

    /// The entries of a task in order, opened as they are wanted, in groups that share a session.
    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Self::Placed> + 'b>, SessionError>;

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

    /// Starts a session over these entries. All inputs are in place, and cannot be changed, before it loads anything.
    fn start<'b>(
        &'b self,
        candidate: &'b Self::Candidate,
        entries: &'b [Self::Placed],
        slots: Slots,
    ) -> Result<Box<dyn Session + 'b>, SessionError>;
}

/// What policy needs to know of an opened artifact.
pub(crate) trait Candidate {
    /// CPU numbers that its sessions are pinned to; none where it runs on none.
    fn cpus(&self) -> &[u32];
}

/// Which entries are wanted, and how they are to be grouped.
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

/// How many outputs of a call are held at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    /// Two slots over the same memory: one ends where memory ends, the other begins where it begins, so that a store
    /// just outside either faults in one of them.
    AgainstGuards,
    /// A ring of slots for the calls of a block, at least two.
    Ring,
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
    /// `has_plan`: it has a plan call, made once for each entry before its calls.
    Ready { has_plan: bool },
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

    /// The first byte beside an output that no longer holds `poison`. Only with `Slots::AgainstGuards`.
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
    /// Measures the hand-off with empty blocks, unless it is known for the way in which this process waits now.
    fn settle_handoff(&mut self) -> Result<(), SessionError>;

    /// What is subtracted from every block.
    fn handoff(&self) -> Duration;

    /// Two sessions of one machine have the same work to do for a hand-off: no more than this is subtracted.
    fn limit_handoff(&mut self, most: Duration);

    /// From warm-up blocks: whether a CPU is left for this process to spin on while it waits.
    fn settle_wait(&mut self, threads: u32, cpus_busy: f64);

    /// Makes a block and times it.
    fn block(&mut self, block: &BlockOrder) -> Result<Answer<Block>, SessionError>;

    /// Wakes the candidate as for a block and asks for nothing.
    fn idle(&mut self, entry: usize) -> Result<Answer<IdleRound>, SessionError>;
}

/// What is to be timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockOrder {
    pub(crate) entry: usize,
    /// Each into a slot of its own, from the first on.
    pub(crate) calls: u32,
    /// The plan call instead.
    pub(crate) plan: bool,
    /// How long it should take; decides how long is spun for its end.
    pub(crate) expected: Duration,
    pub(crate) limit: Duration,
}

/// What a block came to.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Between the stamps, hand-off not yet subtracted.
    pub(crate) elapsed: Duration,
    pub(crate) called: Called,
    /// CPU time used before the calls were asked for, at least; and what that may be.
    pub(crate) cpu_early: Duration,
    pub(crate) wake: WakeCost,
    /// CPUs that the candidate kept busy, from standstill to standstill.
    pub(crate) cpus_busy: f64,
    pub(crate) major_faults: u64,
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
