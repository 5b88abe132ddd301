//! Profile: how long a call takes, by a clock that the candidate cannot reach.
//!
//! Owns batches and the runners of a batch: one of the candidate, one of the baseline, both with all entries of
//! the batch mapped, from the captures or from where they were copied to. One block is `block`'s work, when an entry is done is `entry`'s, the figures are the judge's.

mod block;
mod entry;
mod idle;
mod length;
mod plausible;

use opt_shared::batch::{Share, batches};
use opt_shared::causes::{chain, is_want_of_means};
use opt_shared::formula::load_timeout;
use opt_shared::ids::LeaseId;
use opt_shared::message::{EntryRef, FromWorker, KillReason, ProfileTask};
use opt_shared::outcome::{EntryFailure, EntryProfile, Head, Profiled, Status};
use opt_shared::settings::InputMemory;
use opt_shared::units::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use self::block::Side;
use crate::attempt::{Callable, Trouble, kept};
use crate::classify::Verdict;
use crate::executor::copied::{CopiedInputs, Uncopied, mapped_by_runner};
use crate::executor::outputs::{Outputs, SlotLayout};
use crate::executor::prepare::Prepared;
use crate::executor::process::{Answer, Loaded, Runner};
use crate::executor::residue::Residue;
use crate::judge::Tolerance;
use crate::link::Link;
use crate::residency::staging::PlaceError;
use crate::runner::frame::EntrySetup;
use crate::verify::name_death;

pub(crate) fn run(
    link: &mut Link,
    lease: LeaseId,
    task: &ProfileTask,
    head: &mut Head,
) -> Result<Profiled, Trouble> {
    let candidate = Callable::open(&task.callee)?;
    let baseline = task.baseline.as_ref().map(Callable::open).transpose()?;
    let mut report = Profiled { cpus: candidate.cpus.clone(), ..Profiled::default() };
    let batches = batches(&shares(task), task.profile.batch_bytes);
    let mut copied = match task.profile.inputs {
        InputMemory::Mapped => None,
        InputMemory::Copied => {
            let made = CopiedInputs::create(batches.iter().map(|range| &task.entries[range.clone()]));
            Some(made.map_err(|source| unplaced(task, source.into()))?)
        }
    };
    let total = u32::try_from(task.entries.len()).unwrap_or(u32::MAX);
    for range in batches {
        let first = range.start;
        let mut residue = Residue::watch(&task.entries[range.clone()], task.drop_cache);
        let mut batch = Batch {
            lease,
            task,
            entries: Vec::new(),
            tolerances: Vec::new(),
            sides: Vec::new(),
            weights: Vec::new(),
            of_worker: Bytes::ZERO,
        };
        if let Some(failure) = batch.open(range, &mut residue)? {
            head.fail(failure);
            break;
        }
        if let Some(copied) = &mut copied {
            match copied.load(link, &mut batch.entries) {
                Ok(()) => {}
                Err(Uncopied { entry: Some(entry), error }) if !is_want_of_means(&error) => {
                    let failure = batch.failure(entry, Status::CaptureError, chain(&error));
                    head.fail(failure);
                    break;
                }
                Err(Uncopied { error, .. }) => return Err(unplaced(task, error)),
            }
            batch.of_worker = mapped_by_runner(&batch.entries);
        }
        let callables = std::iter::once(&candidate).chain(baseline.as_ref());
        let mut stopped = None;
        for callable in callables {
            match batch.start(link, callable)? {
                Started::Ready(side) => batch.sides.push(side),
                Started::Stopped(stop) => {
                    stopped = Some((batch.sides.len(), stop));
                    break;
                }
            }
        }
        if stopped.is_none() {
            stopped = batch.time_all(link, first, total, &mut report)?;
        }
        batch.end(link, stopped, head, &mut report)?;
        drop(batch);
        report.reads.absorb(&residue.release());
        if head.status != Status::Passed {
            break;
        }
    }
    Ok(report)
}

fn shares(task: &ProfileTask) -> Vec<Share<'_>> {
    task.entries.iter().map(EntryRef::share).collect()
}

fn unplaced(task: &ProfileTask, source: PlaceError) -> Trouble {
    Trouble::Inputs { candidate: task.callee.candidate.clone(), source }
}

/// Why a side stopped.
pub(super) enum Stop {
    /// The runner is dead: its end says what it was.
    Died {
        entry: usize,
    },
    Failed(Box<EntryFailure>),
}

enum Started<'a> {
    Ready(Side<'a>),
    Stopped((Stop, Option<Side<'a>>)),
}

type Stopped<'a> = (usize, (Stop, Option<Side<'a>>));

struct Batch<'a> {
    lease: LeaseId,
    task: &'a ProfileTask,
    entries: Vec<Prepared>,
    /// Of each entry's outputs.
    tolerances: Vec<Vec<Tolerance>>,
    weights: Vec<u64>,
    sides: Vec<Side<'a>>,
    /// What a runner maps of its inputs where they are in memory of this worker.
    of_worker: Bytes,
}

impl<'a> Batch<'a> {
    fn open(
        &mut self,
        range: std::ops::Range<usize>,
        residue: &mut Residue,
    ) -> Result<Option<EntryFailure>, Trouble> {
        for entry in &self.task.entries[range] {
            let opened = Prepared::open(entry, &self.task.callee.signature).and_then(|prepared| {
                residue.watch_data_of(&prepared);
                Ok((prepared.tolerances(&self.task.verify)?, prepared))
            });
            match opened {
                // Entries without elements are verified, never scored.
                Ok((_, prepared)) if prepared.has_no_elements() => {}
                Ok((tolerances, prepared)) => {
                    self.entries.push(prepared);
                    self.tolerances.push(tolerances);
                    self.weights.push(entry.weight);
                }
                Err(error) => {
                    let error = error.of_the_capture(&entry.name)?;
                    return Ok(Some(EntryFailure {
                        entry: entry.name.clone(),
                        status: Status::CaptureError,
                        detail: chain(&error),
                        args: Vec::new(),
                        mismatch: None,
                    }));
                }
            }
        }
        Ok(None)
    }

    fn start(&self, link: &mut Link, callable: &'a Callable<'a>) -> Result<Started<'a>, Trouble> {
        let trouble = |source| callable.trouble(source);
        let leaves: Vec<&[_]> = self.entries.iter().map(|entry| entry.leaves.as_slice()).collect();
        let outputs = Outputs::create_shared(&leaves, SlotLayout::Ring)
            .map_err(|source| Trouble::Outputs { entry: "a batch".to_owned(), source: source.into() })?;
        let ring = outputs.first().map_or(Bytes::ZERO, Outputs::memfd_bytes);
        let prepared: Vec<&Prepared> = self.entries.iter().collect();
        let spec = callable.spec(self.lease, &prepared, ring, self.of_worker);
        let mut runner = Runner::start(link, &spec).map_err(trouble)?;
        for (entry, outputs) in self.entries.iter().zip(&outputs) {
            let setup = EntrySetup {
                inputs: entry.inputs.clone(),
                arguments: entry.wire.clone(),
                outputs: outputs.wire(),
                // They are touched beforehand, at the disk's rate.
                page_by_page: false,
                resident: self.of_worker != Bytes::ZERO,
                pooled: false,
            };
            runner.add_entry(&setup, &entry.descriptors(outputs.descriptor())).map_err(trouble)?;
        }
        let limit = load_timeout(self.task.verify.call_timeout);
        let answer = runner.begin(link, limit).map_err(trouble)?;
        let side = Side::new(callable, runner, outputs);
        Ok(match answer {
            Answer::Done(Loaded::Ready { has_plan }) => Started::Ready(side.ready(has_plan)?),
            Answer::Done(Loaded::Refused { text }) => {
                let failure = self.failure(0, Status::LoadError, callable.refusal(&text));
                Started::Stopped((Stop::Failed(Box::new(failure)), Some(side)))
            }
            Answer::Died => Started::Stopped((Stop::Died { entry: 0 }, Some(side))),
            Answer::TimedOut => {
                let mut side = side;
                side.runner.end_for(link, KillReason::Timeout { limit }).map_err(trouble)?;
                Started::Stopped((Stop::Died { entry: 0 }, Some(side)))
            }
        })
    }

    fn failure(&self, entry: usize, status: Status, detail: String) -> EntryFailure {
        let prepared = self.entries.get(entry);
        EntryFailure {
            entry: prepared.map_or_else(String::new, |prepared| prepared.name.clone()),
            status,
            detail,
            args: prepared.map(Prepared::describe).unwrap_or_default(),
            mismatch: None,
        }
    }

    fn time_all(
        &mut self,
        link: &mut Link,
        first: usize,
        total: u32,
        report: &mut Profiled,
    ) -> Result<Option<Stopped<'a>>, Trouble> {
        for side in &mut self.sides {
            side.measure_handoff()?;
        }
        Side::limit_handoffs(&mut self.sides);
        let mut bytes = Bytes::ZERO;
        for index in 0..self.entries.len() {
            let mut random = SmallRng::seed_from_u64(self.task.seed ^ (first + index) as u64);
            let timed = entry::time(
                link,
                &entry::Context {
                    task: self.task,
                    prepared: &self.entries[index],
                    tolerances: &self.tolerances[index],
                    index,
                    weight: self.weights[index],
                },
                &mut self.sides,
                &mut random,
            )?;
            match timed {
                Ok(profile) => report.entries.push(EntryProfile { weight: self.weights[index], ..profile }),
                Err((side, stop)) => return Ok(Some((side, (stop, None)))),
            }
            bytes += self.entries[index].input_bytes;
            let done = u32::try_from(first + index + 1).unwrap_or(total);
            let _ = link.send(FromWorker::Progress { lease: self.lease, done, total, bytes });
        }
        Ok(None)
    }

    /// Ends both runners and settles the report.
    fn end(
        &mut self,
        link: &mut Link,
        stopped: Option<Stopped<'a>>,
        head: &mut Head,
        report: &mut Profiled,
    ) -> Result<(), Trouble> {
        let mut sides: Vec<Side<'a>> = self.sides.drain(..).collect();
        let mut stop = None;
        if let Some((number, (why, extra))) = stopped {
            sides.extend(extra);
            stop = Some((number, why));
        }
        for (number, side) in sides.into_iter().enumerate() {
            let callable = side.callable;
            let death = side.runner.finish(link).map_err(|source| callable.trouble(source))?;
            head.saw(death.peak_owed);
            if number == 0 {
                head.output_truncated |= death.report.output_truncated;
            }
            let Some((_, why)) = stop.take_if(|(stopped, _)| *stopped == number) else { continue };
            let failure = match why {
                Stop::Failed(failure) => *failure,
                Stop::Died { entry } => {
                    let Verdict { status, detail } = match self.entries.get(entry) {
                        Some(prepared) => name_death(&death, prepared),
                        None => Verdict { status: Status::InfraError, detail: "an empty batch".to_owned() },
                    };
                    head.end = kept(&death.report);
                    self.failure(entry, status, detail)
                }
            };
            report.baseline_failed = number == 1;
            head.fail(failure);
        }
        Ok(())
    }
}
