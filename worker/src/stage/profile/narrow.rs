//! Seeks the inputs whose new values a candidate gets right, if it fails for new values of all of them.
//!
//! Such a candidate is right for the captured values. It may rely on a relation between inputs that new values break:
//! for example, one input holds the maxima of another. Or it may know the results, or those of an input, from the
//! captures. In both cases, the inputs that it gets wrong keep their captured values. At least one input must vary, and
//! change all outputs. The entry does not count as varying then, so the candidate cannot win by what it knows.

use opt_shared::outcome::Status;

use super::dispute::repeat_block;
use super::pair::Context;
use super::vary::{Inputs, Variation, works};
use super::{BASELINE, CANDIDATE, Profile, Side, start};
use crate::recorded::Recorded;
use crate::session::{Backend, SessionError, Variants, Varied};

/// The seeds of the values, one for each choice. No timed call uses them.
const SEED: u64 = 0x6e61_7272_6f77;
/// The largest number of inputs for which this is tried. Each needs two processes.
const MOST_INPUTS: usize = 12;

/// How the candidate's outputs for new values compare with the baseline's.
#[derive(PartialEq)]
enum Outputs {
    Agree,
    Differ,
    /// The baseline failed, so there is nothing to compare with.
    Unknown,
}

impl<B: Backend> Profile<'_, B> {
    /// Returns the batch's entry that the candidate has just failed, with a smaller variation with which it works. `None`
    /// if there is none, or if new values are not the reason. `narrowed` says which entries have one already.
    pub(super) fn narrower(
        &mut self,
        placed: &[B::Placed],
        contexts: &[Context<'_>],
        variations: &[Variation],
        narrowed: &[bool],
    ) -> Result<Option<(usize, Variation)>, SessionError> {
        let may_be_broken = matches!(
            self.head.status,
            Status::Nondeterministic
                | Status::IncorrectNumerical
                | Status::RuntimeError
                | Status::Crashed
                | Status::OutOfBounds
        );
        let failed = self.head.failures.first().map(|failure| &failure.entry);
        let found = contexts.iter().position(|context| Some(&context.recorded.name) == failed);
        let Some(entry) = found.filter(|&entry| {
            let is_alone = self.candidates.len() <= BASELINE || self.report.baseline_failed;
            may_be_broken && !is_alone && !narrowed[entry] && variations[entry].varies()
        }) else {
            return Ok(None);
        };
        if !self.backend.can_start_sessions() {
            return Ok(None);
        }
        let context = &contexts[entry];
        // An unreadable capture is noticed and reported when it is used the next time.
        let Ok(mut inputs) = Inputs::of(context.recorded, self.task, &variations[entry]) else {
            return Ok(None);
        };
        let all = inputs.all.clone();
        // If the first call of a fresh process is right, the candidate failed because it remembers earlier calls.
        if all.len() < 2
            || MOST_INPUTS < all.len()
            || self.with(&mut inputs, &all, placed, context)? != Outputs::Differ
        {
            return Ok(None);
        }
        let mut choice = Vec::new();
        for input in all {
            choice.push(input);
            if self.with(&mut inputs, &choice, placed, context)? != Outputs::Agree {
                choice.pop();
            }
        }
        if choice.is_empty() {
            return Ok(None);
        }
        let Some(mut variation) = inputs.take(&choice) else { return Ok(None) };
        if !self.changes_all_outputs(placed, context, &mut variation)? {
            return Ok(None);
        }
        variation.unvaried = Some(format!(
            "the candidate's outputs for new values of {} differ from the baseline's (if these inputs are related to \
             others, name them in `[job] constant`)",
            inputs.names_without(&choice).join(" and ")
        ));
        Ok(Some((entry, variation)))
    }

    /// Calls both sides once, each in a fresh process, with new values of the chosen inputs.
    fn with(
        &mut self,
        inputs: &mut Inputs<'_>,
        choice: &[usize],
        placed: &[B::Placed],
        context: &Context<'_>,
    ) -> Result<Outputs, SessionError> {
        let (Some(memory), Some(mut variation)) = (self.memory, inputs.take(choice)) else {
            return Ok(Outputs::Unknown);
        };
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
            if stopped.is_some() {
                outputs = failed;
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

    /// Returns true if the baseline works with a variation, and all of its outputs change. Otherwise, a candidate that
    /// knows the results would pass.
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

/// The variants of a session in which only this entry's inputs vary.
fn layouts<P: AsRef<Recorded>>(placed: &[P], context: &Context<'_>, variation: &Variation) -> Vec<Variants> {
    let mut layouts = vec![Variants::default(); placed.len()];
    layouts[context.index] = variation.variants.clone();
    layouts
}
