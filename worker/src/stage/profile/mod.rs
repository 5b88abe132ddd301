//! Profile: how long a call takes, by a clock that the candidate cannot reach.
//!
//! Owns batches and the sides of each: the candidate and its baseline, one session each, over all entries of the batch. When
//! an entry is done is `entry`'s, the clock is the session's, the figures are the judge's.

mod entry;
mod handoff;
mod idle;
mod length;
mod plausible;
#[cfg(test)]
mod tests;

use opt_shared::batch::{Share, batches};
use opt_shared::formula::load_timeout;
use opt_shared::message::{EntryRef, ProfileTask};
use opt_shared::outcome::{EntryFailure, EntryProfile, Head, Profiled, Status};
use opt_shared::units::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::failure::{of, of_the_capture};
use super::{Progress, kept};
use crate::judge::Tolerance;
use crate::recorded::Recorded;
use crate::session::{
    Answer, Backend, Candidate, Group, Lifetime, Loaded, Session, SessionError, Slots, Verdict, Wanted,
};

/// Whose side fails, by its number.
const BASELINE: usize = 1;

pub(crate) fn run<B: Backend>(
    backend: &B,
    progress: Progress<'_>,
    task: &ProfileTask,
    head: &mut Head,
) -> Result<Profiled, SessionError> {
    let candidate = backend.open(&task.callee)?;
    let baseline = task.baseline.as_ref().map(|callee| backend.open(callee)).transpose()?;
    let shares: Vec<Share<'_>> = task.entries.iter().map(EntryRef::share).collect();
    let batches = batches(&shares, task.profile.batch_bytes);
    let wanted = Wanted {
        callee: &task.callee,
        entries: &task.entries,
        lifetime: Lifetime::Batch { batches: &batches, inputs: task.profile.inputs },
        drop_cache: task.drop_cache,
    };
    let mut groups = backend.groups(&wanted)?;
    let mut profile = Profile {
        backend,
        progress,
        task,
        candidates: std::iter::once(&candidate).chain(baseline.as_ref()).collect(),
        head,
        report: Profiled { cpus: candidate.cpus().to_vec(), ..Profiled::default() },
    };
    while profile.head.status == Status::Passed
        && let Some(Group { range, placed }) = groups.next()?
    {
        match placed {
            Ok(placed) => {
                profile.batch(&placed, range.start)?;
                groups.give_back(placed);
            }
            Err((at, fault)) => {
                let failure = of_the_capture(&task.entries[range.start + at].name, fault)?;
                profile.head.fail(failure);
            }
        }
    }
    let mut report = profile.report;
    report.reads = groups.finish();
    Ok(report)
}

/// Why a side stopped.
enum Stop {
    /// Its candidate is dead: the session's end says what it was.
    Died {
        entry: usize,
    },
    Failed(Box<EntryFailure>),
}

/// One candidate of a batch, loaded.
struct Side<'b> {
    session: Box<dyn Session + 'b>,
    has_plan: bool,
}

struct Profile<'a, B: Backend> {
    backend: &'a B,
    progress: Progress<'a>,
    task: &'a ProfileTask,
    /// The candidate, then its baseline if it has one.
    candidates: Vec<&'a B::Candidate>,
    head: &'a mut Head,
    report: Profiled,
}

impl<B: Backend> Profile<'_, B> {
    /// Entries that are timed together, the first of them the `first` of all.
    fn batch(&mut self, placed: &[B::Placed], first: usize) -> Result<(), SessionError> {
        let mut tolerances = Vec::with_capacity(placed.len());
        for entry in placed {
            let recorded: &Recorded = entry.as_ref();
            match recorded.tolerances(&self.task.verify) {
                Ok(of_entry) => tolerances.push(of_entry),
                Err(error) => {
                    let failure = of_the_capture(&recorded.name, error.into())?;
                    self.head.fail(failure);
                    return Ok(());
                }
            }
        }
        let backend = self.backend;
        let mut sides: Vec<Side<'_>> = Vec::new();
        let mut stopped = None;
        for candidate in self.candidates.clone() {
            let mut session = backend.start(candidate, placed, Slots::Ring)?;
            let loaded = session.load(load_timeout(self.task.verify.call_timeout))?;
            let number = sides.len();
            let has_plan = matches!(loaded, Answer::Done(Loaded::Ready { has_plan: true }));
            sides.push(Side { session, has_plan });
            let stop = match loaded {
                Answer::Done(Loaded::Ready { .. }) => continue,
                Answer::Done(Loaded::Refused { text }) => failed(placed, 0, Status::LoadError, text),
                Answer::Died => Stop::Died { entry: 0 },
            };
            stopped = Some((number, stop));
            break;
        }
        if stopped.is_none() {
            stopped = self.time_all(placed, &tolerances, first, &mut sides)?;
        }
        self.end(placed, sides, stopped)
    }

    /// None if every entry was timed; else the side that stopped.
    fn time_all(
        &mut self,
        placed: &[B::Placed],
        tolerances: &[Vec<Tolerance>],
        first: usize,
        sides: &mut [Side<'_>],
    ) -> Result<Option<(usize, Stop)>, SessionError> {
        handoff::settle(sides)?;
        let total = u32::try_from(self.task.entries.len()).unwrap_or(u32::MAX);
        let mut bytes = Bytes::ZERO;
        for (index, entry) in placed.iter().enumerate() {
            let recorded: &Recorded = entry.as_ref();
            let reference = &self.task.entries[first + index];
            // Entries without elements are verified, never scored.
            if recorded.has_no_elements() {
                continue;
            }
            let context = entry::Context {
                task: self.task,
                recorded,
                inputs: reference.numbers.inputs,
                tolerances: &tolerances[index],
                index,
                weight: reference.weight,
            };
            let mut random = SmallRng::seed_from_u64(self.task.seed ^ (first + index) as u64);
            match entry::time(&context, sides, &mut random)? {
                Ok(profile) => self.report.entries.push(EntryProfile { weight: reference.weight, ..profile }),
                Err(stop) => return Ok(Some(stop)),
            }
            bytes += reference.numbers.inputs;
            (self.progress)(u32::try_from(first + index + 1).unwrap_or(total), total, bytes);
        }
        Ok(None)
    }

    /// Ends both sessions and settles the report.
    fn end(
        &mut self,
        placed: &[B::Placed],
        sides: Vec<Side<'_>>,
        mut stopped: Option<(usize, Stop)>,
    ) -> Result<(), SessionError> {
        for (number, side) in sides.into_iter().enumerate() {
            let ending = side.session.finish()?;
            self.head.saw(ending.peak_owed);
            if number != BASELINE {
                self.head.output_truncated |= ending.end.output_truncated;
            }
            let Some((_, stop)) = stopped.take_if(|(stopped, _)| *stopped == number) else { continue };
            let failure = match stop {
                Stop::Failed(failure) => *failure,
                Stop::Died { entry } => {
                    let Verdict { status, detail } = ending.verdict;
                    self.head.end = kept(ending.end);
                    of(placed[entry].as_ref(), status, detail)
                }
            };
            self.report.baseline_failed = number == BASELINE;
            self.head.fail(failure);
        }
        Ok(())
    }
}

fn failed<P: AsRef<Recorded>>(placed: &[P], entry: usize, status: Status, detail: String) -> Stop {
    Stop::Failed(Box::new(of(placed[entry].as_ref(), status, detail)))
}
