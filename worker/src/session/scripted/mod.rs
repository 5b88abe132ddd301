//! A backend for tests that follows a script instead of running processes, so that policies can be tested with every
//! possible answer of a candidate.
//!
//! Entries are real captures from `tests/data`, and outputs are compared with recorded ones. A script defines the
//! effect of each call of a session on the outputs, and the candidate's claims about it.

mod clock;
mod plays;
mod tasks;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use opt_shared::arguments::Signature;
use opt_shared::message::{Callee, EntryRef};
use opt_shared::outcome::ReadReport;
use opt_shared::units::Bytes;

pub(crate) use self::plays::{Asked, AskedBlock, AskedInputs, BlockPlay, Play, Script, Shown, Values, done};
pub(crate) use self::tasks::{callee, entries_of, verify_settings};
use super::{
    Answer, Backend, Called, Candidate, Clock, Ending, Group, Groups, InputFault, Loaded, PoolSlot, Session,
    SessionError, Sharing, StrayWrite, TimedSession, VariantMemory, Varied, Verdict, Wanted,
};
use crate::judge::BytesSource;
use crate::recorded::{Recorded, RecordedError, allocated_bytes};
use crate::residency::device::DeviceError;
use crate::residency::host::HostDevice;

pub(crate) struct ScriptedBackend {
    /// The scripts of sessions, in the order of their start. A script with a name is only for that candidate.
    scripts: RefCell<VecDeque<(Option<String>, Script)>>,
    /// The candidates whose last script is in use. It is repeated in all their further sessions.
    lasting: RefCell<BTreeSet<String>>,
    pub(crate) asked: Rc<RefCell<Vec<Asked>>>,
    /// The number of entries that share a session in verification.
    pub(crate) together: usize,
    /// Entries that cannot be opened.
    pub(crate) broken: Vec<usize>,
    /// Files that are truncated once they are open.
    pub(crate) emptied: Vec<PathBuf>,
    /// The number of sessions that can be started.
    pub(crate) lost_after: usize,
}

impl ScriptedBackend {
    pub(crate) fn playing(scripts: &[Script]) -> Self {
        Self {
            scripts: RefCell::new(scripts.iter().map(|script| (None, script.clone())).collect()),
            lasting: RefCell::default(),
            asked: Rc::default(),
            together: 1,
            broken: Vec::new(),
            emptied: Vec::new(),
            lost_after: usize::MAX,
        }
    }

    /// Uses each candidate's scripts in order; the last one repeats.
    pub(crate) fn playing_each(scripts: &[(&str, Script)]) -> Self {
        let named = scripts.iter().map(|(name, script)| (Some((*name).to_owned()), script.clone()));
        Self { scripts: RefCell::new(named.collect()), ..Self::playing(&[]) }
    }

    /// Returns true if every script was used.
    pub(crate) fn is_over(&self) -> bool {
        let lasting = self.lasting.borrow();
        self.scripts.borrow().iter().all(|(name, _)| name.as_ref().is_some_and(|name| lasting.contains(name)))
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

    fn leaves_a_cpu(&self) -> bool {
        true
    }
}

impl Backend for ScriptedBackend {
    type Placed = Recorded;
    type Pool = HostDevice;
    type Arena = ();
    type Candidate = ScriptedCandidate;
    type Variants = ScriptedVariants;

    fn open(&self, callee: &Callee) -> Result<ScriptedCandidate, SessionError> {
        Ok(ScriptedCandidate(callee.candidate.clone()))
    }

    fn prepare(&self, candidate: &ScriptedCandidate) {
        self.asked.borrow_mut().push(Asked::Prepare(candidate.0.clone()));
    }

    fn prepare_beside(&self, candidate: &ScriptedCandidate) {
        self.asked.borrow_mut().push(Asked::PrepareBeside(candidate.0.clone()));
    }

    fn make_ahead(&self, candidate: &ScriptedCandidate) {
        self.asked.borrow_mut().push(Asked::MakeAhead(candidate.0.clone()));
    }

    fn groups<'b>(&'b self, wanted: &Wanted<'b>) -> Result<Box<dyn Groups<Recorded> + 'b>, SessionError> {
        let count = wanted.entries.len();
        self.asked.borrow_mut().push(Asked::Groups(count));
        let ranges = match wanted.sharing {
            Sharing::UpTo { .. } => {
                (0..count).step_by(self.together).map(|at| at..count.min(at + self.together)).collect()
            }
            Sharing::Batches { batches, .. } => batches.to_vec(),
        };
        Ok(Box::new(ScriptedGroups {
            backend: self,
            entries: wanted.entries.to_vec(),
            signature: wanted.callee.signature.clone(),
            ranges: VecDeque::from(ranges),
        }))
    }

    fn can_start_sessions(&self) -> bool {
        self.count(|it| matches!(it, Asked::Start(..))) < self.lost_after
    }

    fn pool_grain(&self) -> Bytes {
        Bytes::from(rustix::param::page_size())
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

    fn variants(&self, bytes: Bytes) -> Result<ScriptedVariants, DeviceError> {
        self.asked.borrow_mut().push(Asked::Variants(bytes));
        let bytes = usize::try_from(bytes.get()).expect("small");
        Ok(ScriptedVariants { bytes: Rc::new(RefCell::new(vec![0; bytes])) })
    }

    fn start<'b>(
        &'b self,
        candidate: &'b ScriptedCandidate,
        entries: &'b [Recorded],
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Ok(self.session(candidate, entries, false, None))
    }

    fn start_timed<'b>(
        &'b self,
        candidate: &'b ScriptedCandidate,
        entries: &'b [Recorded],
        varied: Option<Varied<'b, ScriptedVariants>>,
        _: TimedSession,
    ) -> Result<Box<dyn Session + 'b>, SessionError> {
        Ok(self.session(candidate, entries, true, varied))
    }
}

/// Memory for variants, which scripted sessions read.
pub(crate) struct ScriptedVariants {
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl VariantMemory for ScriptedVariants {
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at).expect("small");
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn clear(&self) -> io::Result<()> {
        self.bytes.borrow_mut().fill(0);
        Ok(())
    }
}

impl ScriptedBackend {
    fn session<'b>(
        &'b self,
        candidate: &'b ScriptedCandidate,
        entries: &'b [Recorded],
        timed: bool,
        varied: Option<Varied<'b, ScriptedVariants>>,
    ) -> Box<dyn Session + 'b> {
        let names = entries.iter().map(|entry| entry.name.clone()).collect();
        self.asked.borrow_mut().push(Asked::Start(candidate.0.clone(), names));
        let mut scripts = self.scripts.borrow_mut();
        let mine = scripts.iter().position(|(name, _)| name.as_ref().is_none_or(|name| *name == candidate.0));
        let at = mine.expect("a script for this session");
        // The last script of a candidate repeats, because a policy may start more sessions than a test can list.
        let more = scripts.iter().skip(at + 1).any(|(name, _)| *name == scripts[at].0);
        let script = if scripts[at].0.is_none() || more {
            scripts.remove(at).expect("found").1
        } else {
            self.lasting.borrow_mut().insert(candidate.0.clone());
            scripts[at].1.clone()
        };
        Box::new(ScriptedSession {
            candidate: &candidate.0,
            entries,
            asked: Rc::clone(&self.asked),
            script,
            timed,
            varied,
            outputs: BTreeMap::new(),
            stray_write: None,
            unreadable: false,
            planned: Vec::new(),
            calls: 0,
            blocks: 0,
            rounds: 0,
            started: Instant::now(),
            passed: Duration::ZERO,
            max_handoff: Duration::MAX,
            dead: false,
        })
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
            let recorded = Recorded::open(entry, &self.signature).expect("a capture of tests/data");
            if self.backend.emptied.contains(&entry.path) {
                File::create(&entry.path).expect("emptied");
            }
            Ok(recorded)
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
    candidate: &'b str,
    entries: &'b [Recorded],
    asked: Rc<RefCell<Vec<Asked>>>,
    script: Script,
    timed: bool,
    varied: Option<Varied<'b, ScriptedVariants>>,
    /// Keyed by entry, output and slot. In verification, all slots share the same memory.
    outputs: BTreeMap<(usize, usize, u32), Vec<u8>>,
    stray_write: Option<StrayWrite>,
    unreadable: bool,
    /// The new values of the inputs at the last plan call.
    planned: Vec<Values>,
    calls: usize,
    blocks: usize,
    rounds: usize,
    started: Instant,
    passed: Duration,
    max_handoff: Duration,
    dead: bool,
}

fn nth<T: Clone>(plays: &[T], number: usize) -> T {
    plays[number.min(plays.len() - 1)].clone()
}

impl ScriptedSession<'_> {
    fn memory_of(&self, slot: u32) -> u32 {
        if self.timed { slot } else { 0 }
    }

    fn fill(&mut self, entry: usize, slot: u32, poison: u8) {
        for (index, output) in self.entries[entry].outputs.iter().enumerate() {
            let bytes = usize::try_from(allocated_bytes(&output.tensor)).expect("small");
            self.outputs.insert((entry, index, self.memory_of(slot)), vec![poison; bytes]);
        }
    }

    /// The new values of the inputs that vary, for a call into this slot; `None` if nothing varies.
    fn shown(&self, entry: usize, slot: u32) -> Option<Vec<Values>> {
        let varied = self.varied?;
        let variants = varied.entries.get(entry).filter(|it| it.count != 0)?;
        let memory = varied.memory.bytes.borrow();
        let values = variants.inputs.iter().map(|input| {
            let at = usize::try_from(input.at(slot % variants.count)).expect("small");
            let bytes = usize::try_from(input.stride).expect("small");
            (input.tensor, memory[at..at + bytes].to_vec())
        });
        Some(values.collect())
    }

    /// Carries out the effect of a call. Returns the candidate's claims, or `None` if the candidate dies.
    fn play(
        &mut self,
        entry: usize,
        slot: u32,
        play: Play,
        varied: bool,
    ) -> Result<Option<Called>, SessionError> {
        let remembered = matches!(play, Play::Remembered);
        let added = if let Play::OffBy(added) = play { added } else { 0.0 };
        let (kept, wrong) = match play {
            Play::Right | Play::Remembered | Play::OffBy(_) => (usize::MAX, false),
            Play::WrongFrom(element) => (element, true),
            Play::UnwrittenFrom(element) => (element, false),
            Play::WritesBeside(stray_write) => {
                self.stray_write = Some(stray_write);
                (usize::MAX, false)
            }
            Play::Unreadable => {
                self.unreadable = true;
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
                    source: io::Error::other("the script requests an error").into(),
                });
            }
        };
        let shown = self.shown(entry, slot).filter(|_| varied && !remembered);
        let slot = self.memory_of(slot);
        for (index, output) in self.entries[entry].outputs.iter().enumerate() {
            let bytes = self.outputs.get_mut(&(entry, index, slot)).expect("filled before");
            let element = usize::try_from(output.tensor.dtype.size()).expect("small");
            let kept = kept.saturating_mul(element).min(bytes.len());
            let mut right = vec![0; bytes.len()];
            self.entries[entry].expected(&output.tensor).read_at(0, &mut right).expect("recorded");
            if let Some(inputs) = &shown {
                let result = (self.script.kernel)(&Shown { inputs, planned: &self.planned }, &mut right);
                if result != 0 {
                    return Ok(Some(Called { result, ..done(1) }));
                }
            }
            if added != 0.0 {
                for element in right.chunks_exact_mut(4) {
                    let value = f32::from_le_bytes([element[0], element[1], element[2], element[3]]);
                    element.copy_from_slice(&(value + added).to_le_bytes());
                }
            }
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
        assert!(Duration::from_secs(1) <= limit, "the time limit for loading is too short: {limit:?}");
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
        self.stray_write = None;
        let play = nth(&self.script.calls, self.calls);
        self.calls += 1;
        Ok(self.play(entry, slot, play, false)?.map_or(Answer::Died, Answer::Done))
    }

    fn slots(&self, _: usize) -> u32 {
        if self.timed { self.script.slots } else { 2 }
    }

    fn output(&self, entry: usize, output: usize, slot: u32) -> Box<dyn BytesSource + '_> {
        assert!(!self.dead, "outputs of a dead candidate are read");
        if self.unreadable {
            return Box::new(Memory(&[]));
        }
        Box::new(Memory(&self.outputs[&(entry, output, self.memory_of(slot))]))
    }

    fn damage(&self, _: usize, _: u32, _: u8) -> Result<Option<StrayWrite>, SessionError> {
        Ok(self.stray_write)
    }

    fn clock(&mut self) -> &mut dyn Clock {
        self
    }

    fn finish(self: Box<Self>) -> Result<Ending, SessionError> {
        self.asked.borrow_mut().push(Asked::Finish);
        let (status, detail) = self.script.death;
        let verdict = Verdict { status, detail: detail.to_owned() };
        let Script { end, peak_owed, tasks_refused, .. } = &self.script;
        Ok(Ending { verdict, end: end.clone(), peak_owed: *peak_owed, tasks_refused: *tasks_refused })
    }
}

/// Bytes that the judge reads.
struct Memory<'a>(&'a [u8]);

impl BytesSource for Memory<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).expect("small");
        let bytes = self.0.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}
