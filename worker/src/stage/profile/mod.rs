//! Profiles a candidate: measures how long its calls take, with a clock that the candidate cannot influence.
//!
//! This file times batches of entries. The two sides of a batch are the candidate and its baseline. Each side gets
//! several runners, one after another (in a screen, only one). Each runner calls the entries of the batch that are not
//! done yet, or all entries if the entries are called in turns.
//!
//! `entry` decides when an entry is done, `pair` makes and checks one block of each side, and `vary` decides which
//! inputs get new values. The session provides the clock, and the judge computes the figures.

mod dispute;
mod entry;
mod handoff;
mod idle;
mod late;
mod length;
mod looks;
mod narrow;
mod pair;
mod pairs;
mod plausible;
mod rotate;
mod samples;
mod shortest;
#[cfg(test)]
mod tests;
mod throttled;
mod undone;
mod vary;

use opt_shared::batch::{Share, batches};
use opt_shared::formula::{MAX_RUNNERS, load_timeout};
use opt_shared::message::{Depth, EntryRef, ProfileTask};
use opt_shared::outcome::{EntryFailure, Head, Mismatch, Profiled, Status};
use opt_shared::settings::{Priority, Vary};
use opt_shared::units::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;

use self::entry::{Timing, no_figures};
use self::idle::Draw;
use self::pair::{Context, Draws, Made};
use self::rotate::Rotation;
pub(crate) use self::vary::Decisions;
use self::vary::Variation;
use super::failure::{capture_failure, entry_failure, unless_tasks_were_refused, verdict_of_refusal};
use super::{Progress, informative_end, printed};
use crate::judge::Tolerance;
use crate::recorded::{Recorded, RecordedError};
use crate::session::{
    Answer, Backend, Candidate, Ending, Group, Loaded, Session, SessionError, Sharing, TimedSession,
    VariantMemory, Variants, Varied, Verdict, Wanted,
};

/// The indices of the two sides in lists of sides.
const CANDIDATE: usize = 0;
const BASELINE: usize = 1;

/// Profiles a candidate. Stops at the first entry that fails, and records the failure in `head`.
pub(crate) fn run<B: Backend>(
    backend: &B,
    progress: Progress<'_>,
    task: &ProfileTask,
    head: &mut Head,
    decisions: &mut Decisions,
) -> Result<Profiled, SessionError> {
    decisions.start(task);
    let candidate = backend.open(&task.callee)?;
    let baseline = task.baseline.as_ref().map(|callee| backend.open(callee)).transpose()?;
    let shares: Vec<Share<'_>> = task.entries.iter().map(EntryRef::share).collect();
    let batches = batches(&shares, task.profile.batch_bytes);
    let wanted = Wanted {
        callee: &task.callee,
        entries: &task.entries,
        sharing: Sharing::Batches { batches: &batches, inputs: task.profile.inputs },
        drop_cache: task.drop_cache,
    };
    let mut groups = backend.groups(&wanted)?;
    let room = task.varied();
    let memory = match room {
        Bytes::ZERO => None,
        _ if task.profile.vary == Vary::None => None,
        room => Some(backend.variants(room).map_err(|source| SessionError::Inputs {
            candidate: task.callee.candidate.clone(),
            source: source.into(),
        })?),
    };
    let candidates: Vec<&B::Candidate> = std::iter::once(&candidate).chain(baseline.as_ref()).collect();
    // If runners had real-time priority and occupied all CPUs, the supervisor could not enforce the memory limits
    // during a block.
    let leave_a_cpu = candidates.iter().all(|candidate| candidate.leaves_a_cpu());
    let mut profile = Profile {
        priority: if leave_a_cpu { task.profile.priority } else { Priority::None },
        memory: memory.as_ref(),
        backend,
        progress,
        task,
        head,
        report: Profiled { cpus: candidates[CANDIDATE].cpus().to_vec(), ..Profiled::default() },
        candidates,
        inconclusive: false,
        draws: StdRng::from_seed(task.seed),
        decisions,
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
                let failure = capture_failure(&task.entries[range.start + at].name, fault)?;
                profile.head.fail(failure);
            }
        }
    }
    let Profile { mut report, head, inconclusive, .. } = profile;
    head.context_lost = !backend.can_start_sessions();
    if inconclusive {
        report.entries.clear();
    }
    report.reads = groups.finish();
    Ok(report)
}

/// The reason why a side stopped.
enum Stop {
    /// The side's runner died. The verdict is found when its session ends.
    Died {
        entry: usize,
    },
    Failed(Box<EntryFailure>),
    /// The candidate's outputs differ from the baseline's. A fresh runner of the baseline decides which side is wrong.
    Disputed {
        entry: usize,
        slot: u32,
        calls: u32,
        /// The seed of the block's inputs.
        seed: u64,
        poison: u8,
        mismatch: Box<Mismatch>,
    },
}

struct Side<'b> {
    session: Box<dyn Session + 'b>,
    /// True if the candidate has a plan function, which is called once for each entry, before the entry's other calls.
    has_plan: bool,
}

struct Profile<'a, B: Backend> {
    backend: &'a B,
    progress: Progress<'a>,
    task: &'a ProfileTask,
    /// The candidate, followed by its baseline if there is one.
    candidates: Vec<&'a B::Candidate>,
    head: &'a mut Head,
    report: Profiled,
    memory: Option<&'a B::Variants>,
    priority: Priority,
    /// True if a screen has no reliable figures for some entry. In this case the figures of the other entries are not
    /// representative.
    inconclusive: bool,
    /// A random number generator with the candidate's seed. From this one, each pair of runners derives its own
    /// generator.
    draws: StdRng,
    /// The decisions so far about which inputs vary in the entries of this job.
    decisions: &'a mut Decisions,
}

impl<B: Backend> Profile<'_, B> {
    /// Times a batch of entries. `first` is the index of its first entry among all entries.
    fn batch(&mut self, placed: &[B::Placed], first: usize) -> Result<(), SessionError> {
        let mut tolerances = Vec::with_capacity(placed.len());
        for entry in placed {
            let recorded: &Recorded = entry.as_ref();
            match recorded.tolerances(&self.task.verify) {
                Ok(of_entry) => tolerances.push(of_entry),
                Err(error) => {
                    let failure = capture_failure(&recorded.name, error.into())?;
                    self.head.fail(failure);
                    return Ok(());
                }
            }
        }
        // Whole inputs must be read to decide which of them vary. To make room for them, the variants of the previous
        // batch are freed first.
        if let Some(memory) = self.memory {
            memory.clear().map_err(|source| SessionError::Inputs {
                candidate: self.task.callee.candidate.clone(),
                source: source.into(),
            })?;
        }
        let mut variations = match self.variations(placed, first, &tolerances)? {
            Ok(variations) => variations,
            Err((at, error)) => {
                let recorded: &Recorded = placed[at].as_ref();
                self.head.fail(capture_failure(&recorded.name, error.into())?);
                return Ok(());
            }
        };
        let rotates = rotates(self.task, placed);
        let contexts: Vec<Context<'_>> = placed
            .iter()
            .zip(&tolerances)
            .enumerate()
            .map(|(index, (entry, tolerances))| {
                let reference = &self.task.entries[first + index];
                Context {
                    task: self.task,
                    recorded: entry.as_ref(),
                    inputs: reference.numbers.inputs,
                    tolerances,
                    index,
                    weight: reference.weight,
                    rotates,
                    priority: self.priority,
                    on_device: self.backend.is_device(),
                }
            })
            .collect();
        let mut timings: Vec<Timing> = contexts.iter().map(|_| Timing::of(self.candidates.len())).collect();
        for (timing, context) in timings.iter_mut().zip(&contexts) {
            // Entries without output elements are verified but not timed.
            timing.done = context.recorded.has_no_elements();
        }
        let mut may_be_narrowed: Vec<bool> = variations.iter().map(Variation::varies).collect();
        let mut runners = 0;
        while runners < MAX_RUNNERS && timings.iter().any(|timing| !timing.done) {
            let before = self.head.clone();
            if !self.with_runners(placed, &contexts, &mut timings, &mut variations)? {
                may_be_narrowed.iter_mut().zip(&timings).for_each(|(may, timing)| *may &= !timing.done);
                let narrower = self.narrower(placed, &contexts, &variations, &may_be_narrowed)?;
                if narrower.is_empty() {
                    return Ok(());
                }
                for (entry, variation) in narrower {
                    variations[entry] = variation;
                    may_be_narrowed[entry] = false;
                }
                // The measurements of an entry that is not done are incomplete, so they are discarded.
                for timing in timings.iter_mut().filter(|timing| !timing.done) {
                    *timing = Timing::of(self.candidates.len());
                }
                runners = 0;
                let failed = std::mem::replace(self.head, before);
                failed.peak_owed.into_iter().for_each(|peak| self.head.record_peak(peak));
                self.head.output_truncated |= failed.output_truncated;
                continue;
            }
            runners += 1;
            timings.iter_mut().zip(&contexts).filter(|(timing, _)| !timing.done).for_each(
                |(timing, context)| {
                    timing.settle(context);
                },
            );
        }
        self.conclude(placed, &contexts, &timings, &mut variations, first)
    }

    /// Returns which inputs vary in each entry of a batch, as decided now or for an earlier candidate of the job. If a
    /// capture is unreadable, returns the index of its entry and the error.
    fn variations(
        &mut self,
        placed: &[B::Placed],
        first: usize,
        tolerances: &[Vec<Tolerance>],
    ) -> Result<Result<Vec<Variation>, (usize, RecordedError)>, SessionError> {
        let known = self.decisions.of(first).and_then(|known| vary::recall(placed, self.task, known));
        if let Some(variations) = known {
            return Ok(Ok(variations));
        }
        let prober = self.candidates[self.candidates.len() - 1];
        let decided = vary::decide(self.backend, prober, placed, self.task, tolerances, self.memory)?;
        if let Ok(variations) = &decided {
            self.decisions.keep(first, variations);
        }
        Ok(decided)
    }

    /// Times one runner of each side with the unfinished entries of the batch, or with all entries if they are called
    /// in turns. Returns false if a side stopped.
    fn with_runners(
        &mut self,
        placed: &[B::Placed],
        contexts: &[Context<'_>],
        timings: &mut [Timing],
        variations: &mut [Variation],
    ) -> Result<bool, SessionError> {
        let backend = self.backend;
        let layouts: Vec<Variants> = variations.iter().map(|it| it.variants.clone()).collect();
        let memory = self.memory;
        let varied = memory.map(|memory| Varied { memory, entries: &layouts });
        let mut sides: Vec<Side<'_>> = Vec::new();
        let mut stopped = None;
        for candidate in self.candidates.clone() {
            let number = sides.len();
            let (side, stop) = start(backend, candidate, placed, varied, self.task, self.priority)?;
            sides.push(side);
            if let Some(stop) = stop {
                stopped = Some((number, stop));
                break;
            }
        }
        if stopped.is_none() {
            let mut draws = Draws { random: StdRng::from_rng(&mut self.draws), rounds: Draw::new() };
            timings.iter_mut().flat_map(|timing| &mut timing.samples).for_each(|side| side.called = false);
            let sides = &mut sides;
            let made = if contexts.iter().any(|context| context.rotates) {
                Rotation { contexts, timings, variations, sides, memory, draws: &mut draws }.run()?
            } else {
                one_after_another(contexts, timings, variations, sides, memory, &mut draws)?
            };
            stopped = made.err();
        }
        if let Some((CANDIDATE, Stop::Disputed { .. })) = &stopped
            && let Some((_, Stop::Disputed { entry, slot, calls, seed, poison, mismatch })) = stopped.take()
        {
            let context = &contexts[entry];
            let disputed = dispute::Disputed { context, slot, calls, seed, poison, mismatch };
            stopped = Some(self.decide(disputed, placed, varied, &mut variations[entry], &mut sides)?);
        }
        let completed = stopped.is_none();
        self.end(placed, sides, stopped)?;
        Ok(completed)
    }

    /// Checks that the times are plausible, repeats kept blocks in a fresh runner, and reports the figures.
    fn conclude(
        &mut self,
        placed: &[B::Placed],
        contexts: &[Context<'_>],
        timings: &[Timing],
        variations: &mut [Variation],
        first: usize,
    ) -> Result<(), SessionError> {
        let screened = self.task.depth == Depth::Screen;
        for (timing, context) in
            timings.iter().zip(contexts).filter(|(timing, _)| !timing.samples[CANDIDATE].most_ms.is_empty())
        {
            match timing.doubt(context) {
                Ok(None) => self.inconclusive |= screened && timing.is_vague(),
                // The few blocks of a screen prove nothing, so a candidate with implausible figures is profiled in
                // full.
                Ok(Some(_)) | Err(_) if screened => self.inconclusive = true,
                Ok(Some((number, stop))) => {
                    self.fail(placed, number, stop, None);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        if let Some((stop, ending)) = self.repeat_kept(placed, contexts, timings, variations)? {
            self.fail(placed, CANDIDATE, stop, ending);
            return Ok(());
        }
        let total = u32::try_from(self.task.entries.len()).unwrap_or(u32::MAX);
        let mut bytes = Bytes::ZERO;
        for (index, (timing, context)) in timings.iter().zip(contexts).enumerate() {
            if context.recorded.has_no_elements() {
                continue;
            }
            match timing.figures(context, &variations[index]) {
                Some(figures) => self.report.entries.push(figures),
                // A full profile will report the reason.
                None if screened => self.inconclusive = true,
                None => return Err(no_figures(context)),
            }
            bytes += context.inputs;
            (self.progress)(u32::try_from(first + index + 1).unwrap_or(total), total, bytes);
        }
        Ok(())
    }

    fn end(
        &mut self,
        placed: &[B::Placed],
        sides: Vec<Side<'_>>,
        mut stopped: Option<(usize, Stop)>,
    ) -> Result<(), SessionError> {
        for (number, side) in sides.into_iter().enumerate() {
            let ending = side.session.finish()?;
            self.note_end(number, &ending);
            if let Some((_, stop)) = stopped.take_if(|(stopped, _)| *stopped == number) {
                self.fail(placed, number, stop, Some(ending));
            }
        }
        Ok(())
    }

    /// If this side is not the baseline, records in `head` its peak memory, and whether its output was cut off.
    fn note_end(&mut self, number: usize, ending: &Ending) {
        if number != BASELINE {
            self.head.record_peak(ending.peak_owed);
            self.head.output_truncated |= ending.end.output_truncated;
        }
    }

    /// Reports the failure of a side. `ending` describes how the side's session ended, if it has ended.
    fn fail(&mut self, placed: &[B::Placed], number: usize, stop: Stop, ending: Option<Ending>) {
        let tasks_refused = ending.as_ref().is_some_and(|ending| ending.tasks_refused);
        let informative = if matches!(stop, Stop::Died { .. }) { informative_end } else { printed };
        self.head.end = ending.as_ref().and_then(|ending| informative(ending.end.clone()));
        let failure = match (stop, ending) {
            (Stop::Failed(failure), _) => *failure,
            (Stop::Died { entry }, Some(ending)) => {
                let Verdict { status, detail } = ending.verdict;
                entry_failure(placed[entry].as_ref(), status, detail)
            }
            (Stop::Died { entry }, None) => {
                entry_failure(placed[entry].as_ref(), Status::Crashed, "the runner ended".to_owned())
            }
            (Stop::Disputed { entry, .. }, _) => {
                entry_failure(placed[entry].as_ref(), Status::Nondeterministic, "the outputs vary".to_owned())
            }
        };
        self.report.baseline_failed = number == BASELINE;
        self.head.fail(unless_tasks_were_refused(failure, tasks_refused));
    }
}

fn one_after_another<M: VariantMemory>(
    contexts: &[Context<'_>],
    timings: &mut [Timing],
    variations: &mut [Variation],
    sides: &mut [Side<'_>],
    memory: Option<&M>,
    draws: &mut Draws,
) -> Result<Made<()>, SessionError> {
    for ((context, timing), variation) in contexts.iter().zip(timings).zip(variations) {
        if !timing.done
            && let Err(stop) = timing.time(context, sides, variation, memory, draws)?
        {
            return Ok(Err(stop));
        }
    }
    Ok(Ok(()))
}

/// Returns true if the entries of a batch take turns. Only entries with output elements matter here, because the others
/// are not timed.
fn rotates<P: AsRef<Recorded>>(task: &ProfileTask, placed: &[P]) -> bool {
    task.profile.rotates(placed.iter().filter(|entry| !entry.as_ref().has_no_elements()).count())
}

/// Starts a session and loads the candidate. Returns the session, and the reason if loading failed.
fn start<'b, B: Backend>(
    backend: &'b B,
    candidate: &'b B::Candidate,
    placed: &'b [B::Placed],
    varied: Option<Varied<'b, B::Variants>>,
    task: &ProfileTask,
    priority: Priority,
) -> Result<(Side<'b>, Option<Stop>), SessionError> {
    let brief = task.depth == Depth::Screen;
    let how = TimedSession { in_turns: rotates(task, placed), priority, brief };
    let mut session = backend.start_timed(candidate, placed, varied, how)?;
    let loaded = session.load(load_timeout(task.verify.call_timeout))?;
    let has_plan = matches!(loaded, Answer::Done(Loaded::Ready { has_plan: true, .. }));
    let stop = match loaded {
        Answer::Done(Loaded::Ready { .. }) => None,
        Answer::Done(Loaded::Refused { text }) => {
            let Verdict { status, detail } = verdict_of_refusal(text);
            Some(failed(placed, 0, status, detail))
        }
        Answer::Died => Some(Stop::Died { entry: 0 }),
    };
    Ok((Side { session, has_plan }, stop))
}

fn failed<P: AsRef<Recorded>>(placed: &[P], entry: usize, status: Status, detail: String) -> Stop {
    Stop::Failed(Box::new(entry_failure(placed[entry].as_ref(), status, detail)))
}
