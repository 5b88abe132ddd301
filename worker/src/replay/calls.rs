//! The calls of a replay: a runner for each step, over the pool's slots, its outputs held against the capture.
//!
//! A runner sees the slots of its own step and nothing else of the arena, and they are ready before it is started.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use opt_shared::causes::chain;
use opt_shared::formula::load_timeout;
use opt_shared::ids::LeaseId;
use opt_shared::message::{FromWorker, KillReason, ReplayCallee, ReplayTask};
use opt_shared::outcome::{EntryFailure, MOST_REPORTED_STEPS, ReplayStep, RunnerEnd, Status};
use opt_shared::replay::{Need, Step};
use opt_shared::units::Bytes;

use super::captures::{CapturesError, Locations, Looked, look};
use super::pool::Place;
use super::session::Caller;
use crate::attempt::{Callable, Trouble, kept};
use crate::classify::Verdict;
use crate::executor::outputs::{Outputs, POISONS, SlotLayout};
use crate::executor::prepare::Prepared;
use crate::executor::process::{Answer, Loaded, Runner};
use crate::executor::residue::Residue;
use crate::judge::BytesSource;
use crate::judge::check::{OutputCheck, is_the_captures};
use crate::link::Link;
use crate::runner::control::{FLAG_PLAN, FLAG_VERIFY};
use crate::runner::frame::{EntrySetup, InputRange};
use crate::verify::{failure, name_death, unless_damaged};

/// A step that ends the replay.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Captures(#[from] CapturesError),
    #[error(transparent)]
    Trouble(#[from] Trouble),
    #[error("{}: {}", .0.failure.status, .0.failure.detail)]
    Failed(Box<Failed>),
}

/// The call was made and is not right, or took its runner with it.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: usize,
    pub(crate) failure: EntryFailure,
    pub(crate) end: Option<RunnerEnd>,
}

pub(crate) struct Calls<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) lease: LeaseId,
    pub(crate) task: &'a ReplayTask,
    /// Of the task's callees, in their order.
    pub(crate) callables: Vec<Callable<'a>>,
    /// Where the pool loads from.
    pub(crate) locations: &'a Locations,
    /// The pool's memory, for runners to map.
    pub(crate) arena: File,
    /// The entry of the step in hand.
    pub(crate) looked: Option<Looked>,
    /// Of a large job: what the step in hand reads of its capture beside the pool, its expected outputs above all.
    pub(crate) residue: Option<Residue>,
    pub(crate) steps: Vec<ReplayStep>,
    pub(crate) outputs_digest: blake3::Hasher,
    pub(crate) peak_owed: Bytes,
    pub(crate) output_truncated: bool,
}

impl Caller for Calls<'_> {
    type Error = StepError;

    fn needs(&mut self, step: usize) -> Result<Option<(Step, Vec<Need>)>, StepError> {
        let Some(call) = self.task.steps.get(step) else { return Ok(None) };
        // Before anything of it is read; what the step before left goes now.
        self.residue = None;
        let watch = || Residue::watch(std::slice::from_ref(&call.entry), true);
        let mut residue = self.task.drop_cache.then(watch);
        let name = Step { job: self.callee(step).job.clone(), entry: call.entry.name.clone() };
        let looked = look(&call.entry, &self.callee(step).callee.signature)?;
        if let Some(residue) = &mut residue {
            residue.watch_data_of(&looked.prepared);
        }
        self.residue = residue;
        let needs = looked.needs.clone();
        self.looked = Some(looked);
        Ok(Some((name, needs)))
    }

    fn call(&mut self, step: usize, places: &[Place]) -> Result<(), StepError> {
        let Some(looked) = self.looked.take() else { return Ok(()) };
        let took = self.one_call(step, &looked, places)?;
        self.residue = None;
        if self.steps.len() < MOST_REPORTED_STEPS {
            let callee = self.callee(step);
            self.steps.push(ReplayStep {
                job: callee.job.clone(),
                entry: looked.prepared.name.clone(),
                candidate: callee.callee.candidate.clone(),
                ms: 0.0,
                stall_ms: 0.0,
                call_ms: took.as_secs_f64() * 1e3,
            });
        }
        let done = u32::try_from(step + 1).unwrap_or(u32::MAX);
        let total = u32::try_from(self.task.steps.len()).unwrap_or(u32::MAX);
        // Nobody is told twice that the supervisor is gone: the next runner finds out.
        let _ = self.link.send(FromWorker::Progress { lease: self.lease, done, total, bytes: Bytes::ZERO });
        Ok(())
    }
}

impl Calls<'_> {
    fn callee(&self, step: usize) -> &ReplayCallee {
        &self.task.callees[self.task.steps[step].callee as usize]
    }

    fn one_call(&mut self, step: usize, looked: &Looked, places: &[Place]) -> Result<Duration, StepError> {
        let prepared = &looked.prepared;
        let number = self.task.steps[step].callee as usize;
        let io = |source| Trouble::Outputs { entry: prepared.name.clone(), source };
        let outputs =
            Outputs::create(&prepared.leaves, SlotLayout::AgainstGuards).map_err(|e| io(e.into()))?;
        let callable = &self.callables[number];
        // What it maps of the captures lies in the pool, which this worker holds: as often as it is mapped, and no more, or
        // it could owe that much unseen.
        let inputs = pooled(looked, places);
        let of_worker: Bytes = inputs.iter().map(|it| Bytes::new(it.bytes)).sum();
        let mut spec = callable.spec(self.lease, &[prepared], outputs.memfd_bytes(), of_worker);
        spec.mapped = Bytes::ZERO;
        // Nothing is brought into place by pages of the runner's own.
        spec.limit = spec.limit - prepared.unmapped_bytes;
        let mut runner = Runner::start(self.link, &spec).map_err(|e| callable.trouble(e))?;
        let setup = EntrySetup {
            inputs,
            arguments: prepared.wire.clone(),
            outputs: outputs.wire(),
            page_by_page: false,
            resident: true,
            pooled: true,
        };
        runner
            .add_entry(&setup, &[outputs.descriptor(), self.arena.as_fd()])
            .map_err(|e| callable.trouble(e))?;
        outputs.poison(POISONS[0]).map_err(io)?;
        let called = self.drive(&mut runner, number, looked, &outputs);
        let callable = &self.callables[number];
        let death = runner.finish(self.link).map_err(|e| callable.trouble(e))?;
        self.peak_owed = self.peak_owed.max(death.peak_owed);
        self.output_truncated |= death.report.output_truncated;
        // One failure ends it all, so there is always time to ask whether the capture is damaged.
        let failed = |failure, end| {
            // A constant is loaded from the first capture that has it, which need not be the step's own.
            let elsewhere = || self.locations.check_crcs(&looked.needs, prepared.capture.path());
            match unless_damaged(failure, prepared, elsewhere) {
                Ok(failure) => StepError::Failed(Box::new(Failed { step, failure, end })),
                Err(trouble) => trouble.into(),
            }
        };
        match called? {
            Ended::Done(took) => Ok(took),
            Ended::Failed(failure) => Err(failed(*failure, None)),
            Ended::Died => {
                let Verdict { status, detail } = name_death(&death, prepared);
                let failure = failure(Some(prepared), &prepared.name, status, detail);
                Err(failed(failure, kept(&death.report)))
            }
        }
    }

    fn drive(
        &mut self,
        runner: &mut Runner,
        number: usize,
        looked: &Looked,
        outputs: &Outputs,
    ) -> Result<Ended, StepError> {
        let prepared = &looked.prepared;
        let callable = &self.callables[number];
        let verify = &self.task.callees[number].verify;
        let failed = |status, detail: String| {
            Ok(Ended::Failed(Box::new(failure(Some(prepared), &prepared.name, status, detail))))
        };
        let limit = load_timeout(verify.call_timeout);
        let has_plan = match runner.begin(self.link, limit).map_err(|e| callable.trouble(e))? {
            Answer::Done(Loaded::Ready { has_plan }) => has_plan,
            Answer::Done(Loaded::Refused { text }) => {
                return failed(Status::LoadError, callable.refusal(&text));
            }
            Answer::Died => return Ok(Ended::Died),
            Answer::TimedOut => return Ok(overdue(self.link, callable, runner, limit)?),
        };
        let flags = has_plan.then_some(FLAG_PLAN | FLAG_VERIFY).into_iter().chain([FLAG_VERIFY]);
        let mut took = Duration::ZERO;
        for flags in flags {
            let started = Instant::now();
            runner.command(0, 1, 0, flags, Duration::ZERO);
            let answer =
                runner.wait_done(Duration::ZERO, verify.call_timeout).map_err(|e| callable.trouble(e))?;
            took = started.elapsed();
            match answer {
                Answer::Done(called) if called.result == -2 => {
                    return failed(Status::Unsupported, "the candidate does not do this entry".to_owned());
                }
                Answer::Done(called) if called.result != 0 => {
                    let raised = called.raised.map_or(String::new(), |text| format!(": {text}"));
                    let code = called.result;
                    let detail = format!("the call returned {code} (0 means done){raised}");
                    return failed(Status::RuntimeError, detail);
                }
                Answer::Done(called) if called.returned_value || called.calls_done != 1 => {
                    return failed(Status::RuntimeError, "the call was not made as it is to be".to_owned());
                }
                Answer::Done(_) => {}
                Answer::Died => return Ok(Ended::Died),
                Answer::TimedOut => {
                    return Ok(overdue(self.link, callable, runner, verify.call_timeout)?);
                }
            }
        }
        // Outputs are read from a stopped runner only.
        if !runner.stop().map_err(|e| callable.trouble(e))? {
            return Ok(Ended::Died);
        }
        Ok(match self.compare(number, prepared, outputs)? {
            Some(failure) => Ended::Failed(Box::new(failure)),
            None => Ended::Done(took),
        })
    }

    /// Every output against its capture, and into the digest of all.
    fn compare(
        &mut self,
        number: usize,
        prepared: &Prepared,
        outputs: &Outputs,
    ) -> Result<Option<EntryFailure>, StepError> {
        let verify = &self.task.callees[number].verify;
        let entry = || prepared.name.clone();
        let tolerances = prepared.tolerances(verify).map_err(CapturesError::from)?;
        for (index, leaf) in prepared.leaves.iter().enumerate() {
            let check = OutputCheck {
                path: &leaf.path,
                tensor: &leaf.tensor,
                settings: verify,
                tolerance: tolerances[index],
                poison: POISONS[0],
            };
            let mut actual = outputs.source(index, 0);
            let compared = check.run(&mut prepared.expected(&leaf.tensor), &mut actual);
            let comparison = match compared {
                Ok(comparison) => comparison,
                Err(source) if is_the_captures(&source) => {
                    let detail = chain(&source);
                    return Ok(Some(failure(Some(prepared), &prepared.name, Status::CaptureError, detail)));
                }
                Err(source) => return Err(Trouble::Compare { entry: entry(), source }.into()),
            };
            if !comparison.passed {
                let detail = comparison.detail().unwrap_or_default();
                let mut failure = failure(Some(prepared), &prepared.name, Status::IncorrectNumerical, detail);
                failure.mismatch = comparison.mismatch;
                return Ok(Some(failure));
            }
            let mut chunk = [0; 64 * 1024];
            let (mut at, all) = (0, crate::executor::outputs::allocated_bytes(&leaf.tensor));
            while at < all {
                let length = Bytes::new(all - at).to_usize().min(chunk.len());
                actual
                    .read_at(at, &mut chunk[..length])
                    .map_err(|source| Trouble::Outputs { entry: entry(), source })?;
                self.outputs_digest.update(&chunk[..length]);
                at += length as u64;
            }
        }
        Ok(None)
    }
}

enum Ended {
    Done(Duration),
    Failed(Box<EntryFailure>),
    Died,
}

fn overdue(
    link: &mut Link,
    callable: &Callable<'_>,
    runner: &mut Runner,
    limit: Duration,
) -> Result<Ended, Trouble> {
    runner.end_for(link, KillReason::Timeout { limit }).map_err(|e| callable.trouble(e))?;
    Ok(Ended::Died)
}

/// The runner's inputs, in the slots of the pool that hold them: source 0 is the arena.
fn pooled(looked: &Looked, places: &[Place]) -> Vec<InputRange> {
    looked
        .need_of_range
        .iter()
        .map(|&need| {
            let place = places.get(need);
            InputRange {
                source: 0,
                file_offset: place.map_or(0, |place| place.address),
                bytes: place.map_or(0, |place| place.bytes.get()),
                address_phase: place.map_or(0, |place| place.phase),
            }
        })
        .collect()
}
