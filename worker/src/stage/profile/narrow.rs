//! Finds out which inputs of an entry can get new values, for a candidate that is wrong if all varying inputs get new
//! values.
//!
//! Such a candidate is right for the captured values. There are two possible reasons. The candidate may rely on a
//! relation between inputs that new values break, for example because one input contains the maxima of another. Or it
//! may contain results that were computed in advance from the captures or from one input.
//!
//! In both cases, the inputs whose new values make the candidate wrong keep their captured values. The remaining inputs
//! must be such that their new values change all outputs. A speed-up in such an entry brings no advantage, so a
//! candidate cannot win with results that it knows in advance.

use opt_shared::outcome::Status;

use super::dispute::repeat_block;
use super::pair::Context;
use super::vary::{Inputs, Variation, works};
use super::{BASELINE, CANDIDATE, Profile, Side, Stop, start};
use crate::recorded::Recorded;
use crate::session::{Backend, SessionError, VariantMemory, Variants, Varied};

/// The base of the seeds: the new values for a choice of n inputs have the seed `SEED + n`. No timed call uses these
/// seeds.
const SEED: u64 = 0x6e61_7272_6f77;
/// The maximum number of varying inputs. If there are more, no smaller choice is sought, because trying each input
/// takes two processes.
const MOST_INPUTS: usize = 12;

/// The result of comparing the candidate's outputs for new values with the baseline's.
#[derive(PartialEq)]
enum Outputs {
    Agree,
    Differ,
    /// The baseline failed, the candidate took too long, or no more sessions can be started.
    Unknown,
}

impl<B: Backend> Profile<'_, B> {
    /// Returns the entries of a batch that must be timed again, each with a smaller variation (fewer inputs that get
    /// new values). These are the entry that the candidate has just failed, and others that it would fail for the same
    /// reason. Returns no entries if the candidate does not work with a smaller variation of the failed entry, or if
    /// new values are not the reason for the failure. `may_be_narrowed` is true for entries that have not been tried
    /// before and still have to be timed.
    pub(super) fn narrower(
        &mut self,
        placed: &[B::Placed],
        contexts: &[Context<'_>],
        variations: &[Variation],
        may_be_narrowed: &[bool],
    ) -> Result<Vec<(usize, Variation)>, SessionError> {
        let may_be_due_to_new_values = matches!(
            self.head.status,
            Status::Nondeterministic
                | Status::IncorrectNumerical
                | Status::RuntimeError
                | Status::Crashed
                | Status::OutOfBounds
        );
        let is_alone = self.candidates.len() <= BASELINE || self.report.baseline_failed;
        let failed = self.head.failed_entry().map(str::to_owned);
        let failed = contexts.iter().position(|context| Some(&*context.recorded.name) == failed.as_deref());
        let is_possible = may_be_due_to_new_values && !is_alone && self.backend.can_start_sessions();
        let failed = failed.filter(|&entry| is_possible && may_be_narrowed[entry]);
        let Some(failed) = failed else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let others = (0..contexts.len()).filter(|&entry| entry != failed);
        for entry in std::iter::once(failed).chain(others).filter(|&entry| may_be_narrowed[entry]) {
            match self.narrowed(placed, &contexts[entry], &variations[entry])? {
                Some(variation) => found.push((entry, variation)),
                None if entry == failed => break,
                None => {}
            }
        }
        Ok(found)
    }

    /// Returns a smaller variation with which the candidate works. Inputs are added one by one, the largest first, and
    /// an input with which the candidate becomes wrong is removed again. Returns `None` if no such variation is found,
    /// or if the candidate works with the given variation.
    fn narrowed(
        &mut self,
        placed: &[B::Placed],
        context: &Context<'_>,
        variation: &Variation,
    ) -> Result<Option<Variation>, SessionError> {
        let Some(memory) = self.memory.filter(|_| variation.varies()) else { return Ok(None) };
        // Whole inputs are read below. To make room for them, the memory of the variants is freed first.
        memory
            .clear()
            .map_err(|source| SessionError::Variants { entry: context.recorded.name.clone(), source })?;
        // An unreadable capture is reported when it is used the next time.
        let Ok(mut inputs) = Inputs::of(context.recorded, self.task, variation) else { return Ok(None) };
        let all = inputs.all.clone();
        // If the first call in a fresh process is right, the candidate failed because it remembers earlier calls, and
        // not because of the new values.
        if !(2..=MOST_INPUTS).contains(&all.len())
            || self.with(&mut inputs, &all, placed, context)? != Outputs::Differ
        {
            return Ok(None);
        }
        let mut choice = Vec::new();
        for &input in &all {
            choice.push(input);
            match self.with(&mut inputs, &choice, placed, context)? {
                Outputs::Agree => {}
                Outputs::Differ => drop(choice.pop()),
                Outputs::Unknown => return Ok(None),
            }
        }
        choice.sort_unstable();
        // If the candidate now works with all inputs, its outputs vary by themselves, so no smaller choice helps.
        if choice.is_empty() || choice.len() == all.len() || !self.backend.can_start_sessions() {
            return Ok(None);
        }
        let Some(mut narrower) = inputs.take(&choice) else { return Ok(None) };
        if !self.changes_all_outputs(placed, context, &mut narrower)? {
            return Ok(None);
        }
        narrower.narrowed = true;
        narrower.unvaried = Some(format!(
            "the candidate is wrong for new values of {} (if they are related to other inputs, name all of these in \
             `[job] constant`)",
            inputs.names_without(&choice).join(" and ")
        ));
        Ok(Some(narrower))
    }

    /// Calls each side once in a fresh process, with new values of the chosen inputs, and compares the outputs.
    fn with(
        &mut self,
        inputs: &mut Inputs<'_>,
        choice: &[usize],
        placed: &[B::Placed],
        context: &Context<'_>,
    ) -> Result<Outputs, SessionError> {
        let may_start = self.backend.can_start_sessions();
        let Some(memory) = self.memory.filter(|_| may_start) else { return Ok(Outputs::Unknown) };
        let Some(mut variation) = inputs.take(choice) else { return Ok(Outputs::Unknown) };
        let layouts = layouts(placed, context, &variation);
        let varied = Some(Varied { memory, entries: &layouts });
        let poison = crate::stage::POISONS[0];
        let seed = SEED + choice.len() as u64;
        let mut sides: [Option<Side<'_>>; 2] = [None, None];
        let mut outputs = Outputs::Agree;
        for (number, failed) in [(BASELINE, Outputs::Unknown), (CANDIDATE, Outputs::Differ)] {
            let (mut side, mut stopped) =
                start(self.backend, self.candidates[number], placed, varied, self.task, self.priority)?;
            if stopped.is_none() {
                let mut renew = || variation.write_for(context.recorded, memory, 1, seed);
                renew()?;
                stopped = repeat_block(context, &mut side, 1, poison, &mut renew)?;
            }
            sides[number] = Some(side);
            if let Some(stopped) = stopped {
                let took_too_long =
                    matches!(&stopped, Stop::Failed(failure) if failure.status == Status::Timeout);
                outputs = if took_too_long { Outputs::Unknown } else { failed };
                break;
            }
        }
        if let [Some(candidate), Some(baseline)] = &sides
            && outputs == Outputs::Agree
            && context.judge().compare_sessions(&*candidate.session, 0, poison, &*baseline.session)?.is_some()
        {
            outputs = Outputs::Differ;
        }
        for (number, side) in sides.into_iter().enumerate() {
            if let Some(side) = side {
                let ending = side.session.finish()?;
                self.note_end(number, &ending);
            }
        }
        inputs.give_back(choice, variation);
        Ok(outputs)
    }

    /// Returns true if the baseline works with a variation and all of its outputs change. If some outputs did not
    /// change, a candidate that knows them in advance would pass.
    fn changes_all_outputs(
        &mut self,
        placed: &[B::Placed],
        context: &Context<'_>,
        variation: &mut Variation,
    ) -> Result<bool, SessionError> {
        let Some(memory) = self.memory else { return Ok(false) };
        let layouts = layouts(placed, context, variation);
        let varied = Some(Varied { memory, entries: &layouts });
        let (mut side, stopped) =
            start(self.backend, self.candidates[BASELINE], placed, varied, self.task, self.priority)?;
        let entry = (context.index, side.has_plan);
        let works = stopped.is_none()
            && works(
                &mut *side.session,
                (context.recorded, self.task),
                entry,
                context.tolerances,
                variation,
                memory,
            )?;
        side.session.finish()?;
        Ok(works)
    }
}

/// Returns the variants for a session in which only this entry's inputs vary.
fn layouts<P: AsRef<Recorded>>(placed: &[P], context: &Context<'_>, variation: &Variation) -> Vec<Variants> {
    let mut layouts = vec![Variants::default(); placed.len()];
    layouts[context.index] = variation.variants.clone();
    layouts
}
