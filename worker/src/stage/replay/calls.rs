//! Makes the calls of a replay. Each step's call runs in a session of its own, whose input tensors lie in slots of the
//! pool. The outputs are compared with the recorded ones.
//!
//! A candidate with host code can access only the slots of its own step, which are loaded before it starts. A kernel on
//! a device can access the whole pool.

use std::time::Duration;

use opt_shared::arguments::{Argument, ArgumentValue};
use opt_shared::formula::load_timeout;
use opt_shared::launch::{Address, Pointer, ResolvedLaunch, Value, resolve};
use opt_shared::message::{ReplayCallee, ReplayTask};
use opt_shared::outcome::{EntryFailure, MAX_REPORTED_STEPS, ReplayStep, RunnerEnd};
use opt_shared::replay::{Need, Step};
use opt_shared::units::Bytes;

use super::captures::{CapturesError, Locations, OpenedEntry, open_entry};
use super::pool::ReadySlot;
use super::steps::{Caller, Launches};
use crate::page_cache::EntryGuards;
use crate::recorded::{Recorded, allocated_bytes};
use crate::session::{
    Answer, Backend, Candidate, Ending, KernelLaunch, Loaded, PoolSlot, Session, SessionError, Verdict,
};
use crate::stage::calls::{CallEnd, EntryCalls, EntryEnd};
use crate::stage::failure::{
    capture_failure, entry_failure, unless_damaged, unless_tasks_were_refused, verdict_of_refusal,
};
use crate::stage::{POISONS, Progress, informative_end, printed};

/// The number of the output slot that a step's only call writes.
const SLOT: u32 = 0;
const POISON: u8 = POISONS[0];

/// The number of bytes of an output that are read and digested at a time.
const CHUNK: usize = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Captures(#[from] CapturesError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{}: {}", .0.failure.status, .0.failure.detail)]
    Failed(Box<Failed>),
}

/// A step whose call failed or gave a wrong result.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: usize,
    pub(crate) failure: EntryFailure,
    pub(crate) end: Option<RunnerEnd>,
}

pub(crate) struct Calls<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) progress: Progress<'a>,
    pub(crate) task: &'a ReplayTask,
    /// The opened candidates, in the order of the task's callees.
    pub(crate) candidates: Vec<B::Candidate>,
    pub(crate) locations: &'a Locations,
    /// The memory of the pool, which each session maps.
    pub(crate) arena: B::Arena,
    pub(crate) opened: Option<OpenedEntry>,
    /// Present if the task drops cached pages: guards for the parts of the capture that the current step reads without
    /// using the pool, mainly expected outputs.
    pub(crate) guards: Option<EntryGuards>,
    pub(crate) steps: Vec<ReplayStep>,
    pub(crate) outputs_digest: blake3::Hasher,
    pub(crate) peak_owed: Bytes,
    pub(crate) output_truncated: bool,
}

impl<B: Backend> Caller for Calls<'_, B> {
    type Error = StepError;

    fn needs(&mut self, step: usize) -> Result<Option<(Step, Vec<Need>)>, StepError> {
        let Some(call) = self.task.steps.get(step) else { return Ok(None) };
        // This starts the session's process early, so that it starts while headers are read and while the step waits
        // for its constants.
        self.backend.prepare(&self.candidates[call.callee as usize]);
        // Dropping the previous guards drops the previous step's cached pages. The new guards must exist before any of
        // this entry is read.
        self.guards = None;
        let watch = || EntryGuards::watch(std::slice::from_ref(&call.entry), true);
        let mut guards = self.task.drop_cache.then(watch);
        let name = Step { job: self.callee(step).job.clone(), entry: call.entry.name.clone() };
        let opened = open_entry(&call.entry, &self.callee(step).callee.signature)?;
        if let Some(guards) = &mut guards {
            guards.watch_data_of(&opened.recorded);
        }
        self.guards = guards;
        let needs = opened.needs.clone();
        self.opened = Some(opened);
        Ok(Some((name, needs)))
    }

    fn call(&mut self, step: usize, slots: &[ReadySlot]) -> Result<Launches, StepError> {
        let Some(opened) = self.opened.take() else { return Ok(Launches::default()) };
        let entry = opened.recorded.name.clone();
        let (took, launches) = self.one_call(step, opened, slots)?;
        self.guards = None;
        if self.steps.len() < MAX_REPORTED_STEPS {
            let callee = self.callee(step);
            self.steps.push(ReplayStep {
                job: callee.job.clone(),
                entry,
                candidate: callee.callee.candidate.clone(),
                ms: 0.0,
                stall_ms: 0.0,
                call_ms: took.as_secs_f64() * 1e3,
            });
        }
        let done = u32::try_from(step + 1).unwrap_or(u32::MAX);
        let total = u32::try_from(self.task.steps.len()).unwrap_or(u32::MAX);
        (self.progress)(done, total, Bytes::ZERO);
        Ok(launches)
    }
}

impl<B: Backend> Calls<'_, B> {
    fn callee(&self, step: usize) -> &ReplayCallee {
        &self.task.callees[self.task.steps[step].callee as usize]
    }

    /// Makes the step's call. Returns the call's launches and its time, which includes the hand-off.
    fn one_call(
        &mut self,
        step: usize,
        opened: OpenedEntry,
        slots: &[ReadySlot],
    ) -> Result<(Duration, Launches), StepError> {
        let OpenedEntry { recorded, needs, need_of_tensor } = opened;
        let name = recorded.name.clone();
        let slots: Vec<Option<PoolSlot>> = need_of_tensor
            .iter()
            .map(|need| need.and_then(|need| slots.get(need)).map(ReadySlot::slot))
            .collect();
        let (backend, number) = (self.backend, self.task.steps[step].callee as usize);
        let placed = match backend.place_in_pool(recorded, &self.arena, &slots) {
            Ok(placed) => [placed],
            Err(fault) => {
                let failure = capture_failure(&name, fault)?;
                return Err(StepError::Failed(Box::new(Failed { step, failure, end: None })));
            }
        };
        let recorded: &Recorded = placed[0].as_ref();
        let candidate = &self.candidates[number];
        let launch = &self.task.callees[number].callee.launch;
        let resolved = candidate.recorded_launches(recorded);
        let resolved = resolved.or_else(|| resolve(launch, &recorded.arguments, &recorded.outputs).ok());
        let planned = planned_launches(resolved, recorded, &slots);
        let mut session = backend.start(candidate, &placed)?;
        // The process of the next step starts and enters its control group during this call.
        if let Some(next) = self.task.steps.get(step + 1) {
            backend.prepare_beside(&self.candidates[next.callee as usize]);
        }
        let called = drive(&self.task.callees[number], recorded, &mut *session, &mut self.outputs_digest);
        let actual = session.launched(0);
        let ending = session.finish()?;
        self.peak_owed = self.peak_owed.max(ending.peak_owed);
        self.output_truncated |= ending.end.output_truncated;
        let over = match called? {
            Ok(took) => return Ok((took, Launches { planned, actual })),
            Err(over) => over,
        };
        let (failure, end) = failure_of(recorded, over, ending);
        // A failure ends the replay, so there is time to look for damaged captures. Captures of other entries are
        // checked too, because a constant is loaded from the first capture that contains it.
        let elsewhere = || self.locations.check_crcs(&needs, recorded.capture.path());
        let failure = unless_damaged(failure, recorded, elsewhere)?;
        Err(StepError::Failed(Box::new(Failed { step, failure, end })))
    }
}

/// Returns the launches to expect of a call whose tensors lie in these slots. They are those that the plan file
/// describes, or those that were recorded. The list is empty if the description cannot be evaluated. In this case the
/// session refuses the candidate.
fn planned_launches(
    resolved: Option<ResolvedLaunch>,
    recorded: &Recorded,
    slots: &[Option<PoolSlot>],
) -> Vec<KernelLaunch> {
    let Some(resolved) = resolved else { return Vec::new() };
    let is_tensor = |argument: &&Argument| matches!(argument.value, ArgumentValue::Tensor(_));
    let constant_of = |value: &Value| {
        let (number, offset) = match value {
            Value::Pointer(Pointer::Argument(number)) => (*number, 0),
            // Only a parameter that consists of an address shows which constant it uses.
            Value::Bytes { bytes, addresses } if bytes.len() == size_of::<u64>() => {
                match addresses.as_slice() {
                    [Address { pointer: Pointer::Argument(number), offset, .. }] => (*number, *offset),
                    _ => return None,
                }
            }
            _ => return None,
        };
        // For an argument that the call changes, the kernel gets the output buffer and not the copy in the pool.
        if recorded.outputs.iter().any(|output| output.arguments.contains(&number)) {
            return None;
        }
        let tensor = recorded.arguments.get(..number)?.iter().filter(is_tensor).count();
        let slot = slots.get(tensor).copied().flatten()?;
        let is_inside = u64::try_from(offset).is_ok_and(|offset| offset < slot.length.get());
        is_inside.then_some(slot.constant)
    };
    let launched = resolved.steps.iter().filter(|step| !step.is_empty());
    launched
        .map(|step| KernelLaunch {
            symbol: step.symbol.clone(),
            constants: step
                .args
                .iter()
                .enumerate()
                .filter_map(|(at, value)| Some((at, constant_of(value)?)))
                .collect(),
        })
        .collect()
}

fn failure_of(recorded: &Recorded, over: EntryEnd, ending: Ending) -> (EntryFailure, Option<RunnerEnd>) {
    let tasks_refused = ending.tasks_refused;
    let (failure, end) = match over {
        EntryEnd::Failed(failure) => (*failure, printed(ending.end)),
        EntryEnd::Died => {
            let Verdict { status, detail } = ending.verdict;
            (entry_failure(recorded, status, detail), informative_end(ending.end))
        }
    };
    (unless_tasks_were_refused(failure, tasks_refused), end)
}

/// Loads the candidate, and makes its plan call (if it has one) and one call. If the outputs are correct, adds them to
/// the digest of all outputs.
fn drive(
    callee: &ReplayCallee,
    recorded: &Recorded,
    session: &mut dyn Session,
    digest: &mut blake3::Hasher,
) -> Result<Result<Duration, EntryEnd>, StepError> {
    let tolerances = recorded.tolerances(&callee.verify).map_err(CapturesError::from)?;
    let mut calls = EntryCalls::new(&callee.verify, recorded, &tolerances, 0);
    let has_plan = match session.load(load_timeout(callee.verify.call_timeout))? {
        Answer::Done(Loaded::Ready { has_plan, .. }) => has_plan,
        Answer::Done(Loaded::Refused { text }) => {
            let Verdict { status, detail } = verdict_of_refusal(text);
            return Ok(Err(EntryEnd::Failed(Box::new(entry_failure(recorded, status, detail)))));
        }
        Answer::Died => return Ok(Err(EntryEnd::Died)),
    };
    if has_plan && let Some(over) = calls.plan(session)? {
        return Ok(Err(over));
    }
    Ok(match calls.call(session, SLOT, POISON)? {
        CallEnd::Right(called) => {
            add_outputs(recorded, session, digest)?;
            Ok(called.elapsed)
        }
        CallEnd::Wrong(mismatch) => Err(calls.incorrect(mismatch)),
        CallEnd::Ended(over) => Err(over),
    })
}

fn add_outputs(
    recorded: &Recorded,
    session: &dyn Session,
    digest: &mut blake3::Hasher,
) -> Result<(), SessionError> {
    let mut chunk = [0; CHUNK];
    for (index, output) in recorded.outputs.iter().enumerate() {
        let mut actual = session.output(0, index, SLOT);
        let (mut at, all) = (0, allocated_bytes(&output.tensor));
        while at < all {
            let length = Bytes::new(all - at).to_usize().min(chunk.len());
            actual
                .read_at(at, &mut chunk[..length])
                .map_err(|source| SessionError::Outputs { entry: recorded.name.clone(), source })?;
            digest.update(&chunk[..length]);
            at += length as u64;
        }
    }
    Ok(())
}
