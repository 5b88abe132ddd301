//! A backend that plays a script: policy is tested against every answer there is, without a process.
//!
//! Entries are real captures of `tests/data`, so that what is compared is what was recorded. A script says what each call
//! of a session does to the outputs and what is claimed of it; the log has what policy asked for.

mod tasks;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use opt_shared::arguments::Signature;
use opt_shared::message::{Callee, EntryRef};
use opt_shared::outcome::{ReadReport, RunnerEnd, Status};
use opt_shared::units::Bytes;

pub(crate) use self::tasks::{callee, entries_of, verify_settings};
use super::{
    Answer, Backend, Block, BlockOrder, Called, Candidate, Clock, Ending, Group, Groups, IdleRound,
    InputFault, Lifetime, Loaded, PoolSlot, Session, SessionError, Slots, Trespass, Verdict, WakeCost,
    Wanted,
};
use crate::judge::BytesSource;
use crate::recorded::{Recorded, RecordedError, allocated_bytes};
use crate::residency::device::DeviceError;
use crate::residency::host::HostDevice;

/// What a call does.
#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// Every output as recorded.
    Right,
    /// As recorded, but for every element from this one on, which is something else.
    WrongFrom(usize),
    /// As recorded, but for every element from this one on, which stays as it was.
    UnwrittenFrom(usize),
    /// As recorded, with bytes written beside an output.
    Beside(Trespass),
    /// Writes nothing, and claims this.
    Claims(Called),
    Dies,
    /// The worker's own trouble.
    Fails,
}

impl Play {
    /// Returns a code other than 0.
    pub(crate) fn code(result: i32) -> Self {
        Self::Claims(Called { result, ..Called::default() })
    }
}

/// What a timed block is.
#[derive(Clone, Debug)]
pub(crate) struct BlockPlay {
    /// What each of its calls does, by its number in the block.
    pub(crate) play: fn(u32) -> Play,
    pub(crate) per_call: Duration,
    /// The candidate's own clock, over ours.
    pub(crate) claim: f64,
    pub(crate) cpu_early: Duration,
    pub(crate) major_faults: u64,
}

impl BlockPlay {
    pub(crate) fn honest(per_call: Duration) -> Self {
        Self { play: |_| Play::Right, per_call, claim: 0.99, cpu_early: Duration::ZERO, major_faults: 0 }
    }
}

/// One session. The last of `calls`, `blocks` and `idle` goes on for ever.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) load: Answer<Loaded>,
    pub(crate) plan: Answer<Called>,
    pub(crate) calls: Vec<Play>,
    pub(crate) handoff: Duration,
    pub(crate) blocks: Vec<BlockPlay>,
    /// CPU time in idle rounds; none if it dies in one.
    pub(crate) idle: Vec<Option<Duration>>,
    /// What its death is called.
    pub(crate) death: (Status, &'static str),
    pub(crate) end: RunnerEnd,
    pub(crate) peak_owed: Bytes,
}

impl Script {
    pub(crate) fn of(calls: &[Play]) -> Self {
        Self {
            load: Answer::Done(Loaded::Ready { has_plan: false }),
            plan: Answer::Done(done(1)),
            calls: calls.to_vec(),
            handoff: Duration::from_micros(1),
            blocks: vec![BlockPlay::honest(Duration::from_micros(100))],
            idle: vec![Some(Duration::from_micros(10))],
            death: (Status::Crashed, "ended by SIGSEGV in a call"),
            end: RunnerEnd { signal: Some("SIGSEGV".to_owned()), ..RunnerEnd::default() },
            peak_owed: Bytes::mib(1),
        }
    }

    pub(crate) fn timed(blocks: &[BlockPlay]) -> Self {
        Self { blocks: blocks.to_vec(), ..Self::of(&[Play::Right]) }
    }
}

pub(crate) fn done(calls_done: u32) -> Called {
    Called { calls_done, elapsed: Duration::from_micros(3), ..Called::default() }
}

/// What policy asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A session of this candidate over these entries.
    Start(String, Vec<String>),
    Plan(usize),
    /// Entry, slot, poison.
    Call(usize, u32, u8),
    Finish,
    GiveBack(usize),
}

pub(crate) struct ScriptedBackend {
    /// Scripts of the sessions, in the order in which they are started.
    scripts: RefCell<VecDeque<Script>>,
    pub(crate) asked: Rc<RefCell<Vec<Asked>>>,
    /// How many entries share a session.
    pub(crate) together: usize,
    /// Entries that cannot be opened.
    pub(crate) broken: Vec<usize>,
}

impl ScriptedBackend {
    pub(crate) fn playing(scripts: &[Script]) -> Self {
        Self {
            scripts: RefCell::new(scripts.to_vec().into()),
            asked: Rc::default(),
            together: 1,
            broken: Vec::new(),
        }
    }

    /// Every script was played.
    pub(crate) fn is_over(&self) -> bool {
        self.scripts.borrow().is_empty()
    }

    pub(crate) fn count(&self, asked: impl Fn(&Asked) -> bool) -> usize {
        self.asked.borrow().iter().filter(|it| asked(it)).count()
    }
}

impl AsRef<Recorded> for Recorded {
    fn as_ref(&self) -> &Recorded {
        self
    }
}

pub(crate) struct ScriptedCandidate(String);

impl Candidate for ScriptedCandidate {
    fn cpus(&self) -> &[u32] {
        &[7]
    }
}

impl Backend for ScriptedBackend {
    type Placed = Recorded;
    type Pool = HostDevice;
    type Arena = ();
    type Candidate = ScriptedCandidate;

    fn open(&self, callee: &Callee) -> Result<ScriptedCandidate, SessionError> {
        Ok(ScriptedCandidate(callee.candidate.clone()))
    }

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Recorded> + 'b>, SessionError> {
        let count = wanted.entries.len();
        let ranges = match wanted.lifetime {
            Lifetime::Entry { .. } => {
                (0..count).step_by(self.together).map(|at| at..count.min(at + self.together)).collect()
            }
            Lifetime::Batch { batches, .. } => batches.to_vec(),
        };
        Ok(Box::new(ScriptedGroups {
            backend: self,
            entries: wanted.entries.to_vec(),
            signature: wanted.callee.signature.clone(),
            ranges: VecDeque::from(ranges),
        }))
    }

    fn pool(&self, bytes: Bytes) -> Result<(HostDevice, ()), DeviceError> {
        Ok((HostDevice::create(bytes)?, ()))
    }

    fn place_in_pool(
        &self,
        recorded: Recorded,
        (): &(),
        _: &[Option<PoolSlot>],
    ) -> Result<Recorded, InputFault> {
        Ok(recorded)
    }

    fn start<'b>(
        &'b self,
        candidate: &'b ScriptedCandidate,
        entries: &'b [Recorded],
        slots: Slots,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        let names = entries.iter().map(|entry| entry.name.clone()).collect();
        self.asked.borrow_mut().push(Asked::Start(candidate.0.clone(), names));
        let script = self.scripts.borrow_mut().pop_front().expect("a session that no script is for");
        Ok(Box::new(ScriptedSession {
            entries,
            asked: Rc::clone(&self.asked),
            script,
            slots,
            outputs: BTreeMap::new(),
            beside: None,
            calls: 0,
            blocks: 0,
            rounds: 0,
            most_handoff: Duration::MAX,
            dead: false,
        }))
    }
}

struct ScriptedGroups<'b> {
    backend: &'b ScriptedBackend,
    entries: Vec<EntryRef>,
    signature: Signature,
    ranges: VecDeque<std::ops::Range<usize>>,
}

impl Groups<Recorded> for ScriptedGroups<'_> {
    fn next(&mut self) -> Result<Option<Group<Recorded>>, SessionError> {
        let Some(range) = self.ranges.pop_front() else { return Ok(None) };
        let open = |at: usize| {
            let entry = &self.entries[at];
            if self.backend.broken.contains(&at) {
                let missing = io::Error::from(io::ErrorKind::InvalidData);
                let fault = RecordedError::Materialise { name: entry.name.clone(), source: missing };
                return Err((at - range.start, fault.into()));
            }
            Ok(Recorded::open(entry, &self.signature).expect("a capture of tests/data"))
        };
        let placed = range.clone().map(open).collect();
        Ok(Some(Group { range, placed }))
    }

    fn give_back(&mut self, placed: Vec<Recorded>) {
        self.backend.asked.borrow_mut().push(Asked::GiveBack(placed.len()));
    }

    fn finish(self: Box<Self>) -> ReadReport {
        ReadReport { page_by_page: 1, ..ReadReport::default() }
    }
}

struct ScriptedSession<'b> {
    entries: &'b [Recorded],
    asked: Rc<RefCell<Vec<Asked>>>,
    script: Script,
    slots: Slots,
    /// Keyed by entry, output and slot. With `AgainstGuards` all slots are one memory.
    outputs: BTreeMap<(usize, usize, u32), Vec<u8>>,
    beside: Option<Trespass>,
    calls: usize,
    blocks: usize,
    rounds: usize,
    most_handoff: Duration,
    dead: bool,
}

fn nth<T: Clone>(plays: &[T], number: usize) -> T {
    plays[number.min(plays.len() - 1)].clone()
}

impl ScriptedSession<'_> {
    fn memory_of(&self, slot: u32) -> u32 {
        if self.slots == Slots::AgainstGuards { 0 } else { slot }
    }

    fn fill(&mut self, entry: usize, slot: u32, poison: u8) {
        for (leaf, output) in self.entries[entry].leaves.iter().enumerate() {
            let bytes = usize::try_from(allocated_bytes(&output.tensor)).expect("small");
            self.outputs.insert((entry, leaf, self.memory_of(slot)), vec![poison; bytes]);
        }
    }

    /// Writes what the play writes, and says what is claimed of it; none if it dies.
    fn play(&mut self, entry: usize, slot: u32, play: Play) -> Result<Option<Called>, SessionError> {
        let (kept, wrong) = match play {
            Play::Right => (usize::MAX, false),
            Play::WrongFrom(element) => (element, true),
            Play::UnwrittenFrom(element) => (element, false),
            Play::Beside(trespass) => {
                self.beside = Some(trespass);
                (usize::MAX, false)
            }
            Play::Claims(called) => return Ok(Some(called)),
            Play::Dies => {
                self.dead = true;
                return Ok(None);
            }
            Play::Fails => {
                return Err(SessionError::Run {
                    candidate: "scripted".to_owned(),
                    source: io::Error::other("the script says so").into(),
                });
            }
        };
        let slot = self.memory_of(slot);
        for (leaf, output) in self.entries[entry].leaves.iter().enumerate() {
            let bytes = self.outputs.get_mut(&(entry, leaf, slot)).expect("filled before");
            let element = usize::try_from(output.tensor.dtype.size()).expect("small");
            let kept = kept.saturating_mul(element).min(bytes.len());
            let mut right = vec![0; bytes.len()];
            self.entries[entry].expected(&output.tensor).read_at(0, &mut right).expect("recorded");
            bytes[..kept].copy_from_slice(&right[..kept]);
            if wrong {
                for (to, from) in bytes[kept..].chunks_exact_mut(4).zip(right[kept..].chunks_exact(4)) {
                    let value = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                    to.copy_from_slice(&(value * 1.5 + 1.0).to_le_bytes());
                }
            }
        }
        Ok(Some(done(1)))
    }
}

impl Session for ScriptedSession<'_> {
    fn load(&mut self, limit: Duration) -> Result<Answer<Loaded>, SessionError> {
        assert!(Duration::from_secs(1) <= limit, "no loader is that fast: {limit:?}");
        self.dead = self.script.load == Answer::Died;
        Ok(self.script.load.clone())
    }

    fn plan(&mut self, entry: usize, _: Duration) -> Result<Answer<Called>, SessionError> {
        self.asked.borrow_mut().push(Asked::Plan(entry));
        self.dead = self.script.plan == Answer::Died;
        Ok(self.script.plan.clone())
    }

    fn call(
        &mut self,
        entry: usize,
        slot: u32,
        poison: u8,
        _: Duration,
    ) -> Result<Answer<Called>, SessionError> {
        assert!(!self.dead, "a dead candidate is called");
        self.asked.borrow_mut().push(Asked::Call(entry, slot, poison));
        self.fill(entry, slot, poison);
        self.beside = None;
        let play = nth(&self.script.calls, self.calls);
        self.calls += 1;
        Ok(self.play(entry, slot, play)?.map_or(Answer::Died, Answer::Done))
    }

    fn slots(&self, _: usize) -> u32 {
        match self.slots {
            Slots::AgainstGuards => 2,
            Slots::Ring => 24,
        }
    }

    fn output(&self, entry: usize, leaf: usize, slot: u32) -> Box<dyn BytesSource + '_> {
        assert!(!self.dead, "outputs of a dead candidate are read");
        Box::new(Memory(&self.outputs[&(entry, leaf, self.memory_of(slot))]))
    }

    fn damage(&self, _: usize, _: u32, _: u8) -> Result<Option<Trespass>, SessionError> {
        Ok(self.beside)
    }

    fn poison(&mut self, entry: usize, calls: u32, poison: u8) -> Result<(), SessionError> {
        (0..calls).for_each(|slot| self.fill(entry, slot, poison));
        Ok(())
    }

    fn clock(&mut self) -> &mut dyn Clock {
        self
    }

    fn finish(self: Box<Self>) -> Result<Ending, SessionError> {
        self.asked.borrow_mut().push(Asked::Finish);
        let (status, detail) = self.script.death;
        let verdict = Verdict { status, detail: detail.to_owned() };
        Ok(Ending { verdict, end: self.script.end.clone(), peak_owed: self.script.peak_owed })
    }
}

impl Clock for ScriptedSession<'_> {
    fn settle_handoff(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn handoff(&self) -> Duration {
        self.script.handoff.min(self.most_handoff)
    }

    fn limit_handoff(&mut self, most: Duration) {
        self.most_handoff = most;
    }

    fn settle_wait(&mut self, _: u32, _: f64) {}

    fn block(&mut self, order: &BlockOrder) -> Result<Answer<Block>, SessionError> {
        assert!(!self.dead, "a dead candidate is timed");
        let play = nth(&self.script.blocks, self.blocks);
        let elapsed = play.per_call * order.calls + self.script.handoff;
        let mut called = match (order.plan, self.script.plan.clone()) {
            (false, _) => {
                self.blocks += 1;
                done(order.calls)
            }
            (true, Answer::Done(called)) => called,
            (true, Answer::Died) => {
                self.dead = true;
                return Ok(Answer::Died);
            }
        };
        for call in (0..order.calls).filter(|_| !order.plan) {
            match self.play(order.entry, call, (play.play)(call))? {
                None => return Ok(Answer::Died),
                Some(claimed) if claimed.result != 0 || claimed.returned_value || claimed.calls_done == 0 => {
                    called = Called { calls_done: call, ..claimed };
                    break;
                }
                Some(_) => {}
            }
        }
        called.claimed = (play.per_call * order.calls).mul_f64(play.claim);
        Ok(Answer::Done(Block {
            elapsed,
            called,
            cpu_early: play.cpu_early,
            wake: WakeCost { cpu: Duration::from_micros(1), threads: 1 },
            cpus_busy: 1.0,
            major_faults: play.major_faults,
        }))
    }

    fn idle(&mut self, _: usize) -> Result<Answer<IdleRound>, SessionError> {
        let cpu = nth(&self.script.idle, self.rounds);
        self.rounds += 1;
        self.dead |= cpu.is_none();
        let wake = WakeCost { cpu: Duration::from_micros(1), threads: 1 };
        Ok(cpu.map_or(Answer::Died, |cpu| Answer::Done(IdleRound { cpu, wake })))
    }
}

struct Memory<'a>(&'a [u8]);

impl BytesSource for Memory<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).expect("small");
        let bytes = self.0.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}
