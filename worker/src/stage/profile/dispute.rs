//! Repeats blocks in a fresh runner, to find out which side is wrong if their outputs for new inputs differ or, without
//! a baseline, whether the candidate returned remembered results.

use opt_shared::outcome::{Mismatch, Status};
use rand::seq::SliceRandom;

use super::entry::Timing;
use super::idle::unforeseen;
use super::pair::{Context, stop, wrong_in_time};
use super::samples::KeptBlock;
use super::undone::{Checked, too_little};
use super::vary::Variation;
use super::{BASELINE, CANDIDATE, Profile, Side, Stop, start};
use crate::judge::element::differs;
use crate::session::{
    Answer, Backend, BlockOrder, Ending, Renew, SessionError, Variants, Varied, WIDEST_ELEMENT, nothing_new,
};
use crate::stage::failure::{CallKind, verdict_of_calls};

/// An output slot of a block in which the candidate's outputs differ from the baseline's.
pub(super) struct Disputed<'c> {
    pub(super) context: &'c Context<'c>,
    pub(super) slot: u32,
    pub(super) calls: u32,
    pub(super) seed: u64,
    pub(super) poison: u8,
    pub(super) mismatch: Box<Mismatch>,
}

impl<'a, B: Backend> Profile<'a, B> {
    /// Finds the side whose outputs are wrong. A fresh runner replaces the baseline's runner and repeats the block. The
    /// inputs are written again, because on a card the candidate could have changed them.
    pub(super) fn decide<'b>(
        &mut self,
        disputed: Disputed<'_>,
        placed: &'b [B::Placed],
        varied: Option<Varied<'b, B::Variants>>,
        variation: &mut Variation,
        sides: &mut Vec<Side<'b>>,
    ) -> Result<(usize, Stop), SessionError>
    where
        'a: 'b,
    {
        let Disputed { context, slot, calls, seed, poison, mismatch } = disputed;
        let memory = self.memory;
        let mut renew = || match memory {
            Some(memory) => variation.write_for(context.recorded, memory, calls, seed),
            None => Ok(()),
        };
        if let Some(former) = sides.pop() {
            let ending = former.session.finish()?;
            self.note_end(BASELINE, &ending);
        }
        let (fresh, stopped) =
            start(self.backend, self.candidates[BASELINE], placed, varied, self.task, self.priority)?;
        sides.push(fresh);
        if let Some(stop) = stopped {
            return Ok((BASELINE, stop));
        }
        let baseline = &mut sides[BASELINE];
        let made = repeat_block(context, baseline, calls, poison, &mut renew)?;
        if let Some(stop) = made {
            return Ok((BASELINE, stop));
        }
        let mut judge = context.judge();
        let (candidate, baseline) = (&*sides[CANDIDATE].session, &*sides[BASELINE].session);
        let mut found = judge.compare_sessions(candidate, slot, poison, baseline)?;
        if found.is_none() {
            let checked = Checked { calls, seed, slots: &[slot] };
            found = too_little(&judge, variation, &checked, candidate, baseline)?.map(|(_, it)| it);
        }
        Ok(match found {
            Some(_) => (CANDIDATE, wrong_in_time(context, mismatch, slot, calls)),
            None => {
                let detail =
                    "a timed call of the baseline gave other values than a fresh process of the baseline"
                        .to_owned();
                (BASELINE, stop(context, Status::Nondeterministic, detail))
            }
        })
    }

    /// Repeats each kept block once in a fresh runner of the candidate, in random order. This replaces the comparison
    /// with a baseline if there is none. A fresh runner cannot reuse earlier results. Different outputs therefore show
    /// that the candidate reused results, or that its results vary by themselves.
    pub(super) fn repeat_kept(
        &mut self,
        placed: &[B::Placed],
        contexts: &[Context<'_>],
        timings: &[Timing],
        variations: &mut [Variation],
    ) -> Result<Option<(Stop, Option<Ending>)>, SessionError> {
        if timings.iter().all(|timing| timing.samples[CANDIDATE].kept.is_empty()) {
            return Ok(None);
        }
        let layouts: Vec<Variants> = variations.iter().map(|it| it.variants.clone()).collect();
        let Some(memory) = self.memory else { return Ok(None) };
        let varied = Some(Varied { memory, entries: &layouts });
        let (mut side, mut stopped) =
            start(self.backend, self.candidates[CANDIDATE], placed, varied, self.task, self.priority)?;
        let mut all: Vec<(usize, &KeptBlock)> = timings
            .iter()
            .enumerate()
            .flat_map(|(at, timing)| timing.samples[CANDIDATE].kept.iter().map(move |block| (at, block)))
            .collect();
        all.shuffle(&mut unforeseen());
        let mut outliers: Vec<Outliers> = timings
            .iter()
            .zip(contexts)
            .map(|(timing, context)| Outliers::allowed(context, &timing.samples[CANDIDATE].kept))
            .collect();
        for (at, block) in all {
            if stopped.is_some() {
                break;
            }
            let context = &contexts[at];
            variations[at].write_for(context.recorded, memory, block.calls, block.seed)?;
            stopped = check_kept_block(context, &mut side, block, &mut outliers[at])?;
        }
        let ending = side.session.finish()?;
        self.note_end(CANDIDATE, &ending);
        Ok(stopped.map(|stop| (stop, Some(ending))))
    }
}

/// Makes the plan call (if the candidate has one) and repeats a block. The times are not used. `renew` writes the
/// block's inputs, unless they are already in place. If the side stopped, returns the reason.
pub(super) fn repeat_block(
    context: &Context<'_>,
    side: &mut Side<'_>,
    calls: u32,
    poison: u8,
    renew: Renew<'_>,
) -> Result<Option<Stop>, SessionError> {
    let order = |plan, calls| BlockOrder {
        entry: context.index,
        calls,
        plan,
        varied: true,
        cold: false,
        poison: (!plan).then_some(poison),
        looks: &[],
        expected: std::time::Duration::ZERO,
        limit: context.task.verify.call_timeout.saturating_mul(calls),
    };
    let steps = [(true, 1, CallKind::TimedPlan), (false, calls, CallKind::Timed)];
    for (plan, calls, what) in steps.into_iter().filter(|(plan, ..)| side.has_plan || !plan) {
        match side.session.clock().block(&order(plan, calls), &mut *renew)? {
            Answer::Died => return Ok(Some(Stop::Died { entry: context.index })),
            Answer::Done(block) => {
                if let Some(verdict) = verdict_of_calls(&block.called, calls, what) {
                    return Ok(Some(stop(context, verdict.status, verdict.detail)));
                }
            }
        }
    }
    Ok(None)
}

/// For each output, the number of further elements that may differ between two processes.
struct Outliers(Vec<f64>);

impl Outliers {
    fn allowed(context: &Context<'_>, blocks: &[KeptBlock]) -> Self {
        let mut looks = vec![0.0; context.recorded.outputs.len()];
        for look in blocks.iter().flat_map(|block| &block.looks) {
            looks[look.output] += 1.0;
        }
        let ratios = context.tolerances.iter().map(|tolerance| tolerance.required_matched_ratio);
        Self(looks.into_iter().zip(ratios).map(|(looks, ratio)| most_outliers(looks, ratio)).collect())
    }

    /// Counts one differing element of an output. Returns false if this element is one too many.
    fn allow(&mut self, output: usize) -> bool {
        self.0[output] -= 1.0;
        0.0 <= self.0[output]
    }
}

/// Returns the largest plausible number of differing elements among `looks` elements, if a share of `matched_ratio` of
/// each process's elements is right. It is the expected number plus three standard deviations of a Poisson
/// distribution.
fn most_outliers(looks: f64, matched_ratio: f64) -> f64 {
    let expected = 2.0 * (1.0 - matched_ratio) * looks;
    (expected + 3.0 * expected.sqrt()).floor()
}

/// Repeats a kept block in a fresh runner, and checks whether its elements have the kept values.
fn check_kept_block(
    context: &Context<'_>,
    side: &mut Side<'_>,
    block: &KeptBlock,
    outliers: &mut Outliers,
) -> Result<Option<Stop>, SessionError> {
    let poison = crate::stage::POISONS[0];
    let stopped = repeat_block(context, side, block.calls, poison, &mut nothing_new)?;
    if stopped.is_some() {
        return Ok(stopped);
    }
    for (look, kept) in block.looks.iter().zip(&block.elements) {
        let mut element = [0; WIDEST_ELEMENT];
        side.session
            .output(context.index, look.output, look.slot)
            .read_at(look.offset, &mut element[..look.width])
            .map_err(|source| SessionError::Outputs { entry: context.recorded.name.clone(), source })?;
        let output = &context.recorded.outputs[look.output];
        if differs(output.tensor.dtype, &element, kept, context.tolerances[look.output].doubled())
            && !outliers.allow(look.output)
        {
            let detail = format!(
                "timed call {} of a block of {} gave other values of `{}` than a fresh process does for the same inputs (byte {})",
                look.slot + 1,
                block.calls,
                output.path,
                look.offset
            );
            return Ok(Some(stop(context, Status::Nondeterministic, detail)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_are_allowed_only_if_the_plan_allows_some() {
        for (looks, ratio, most) in
            [(48.0, 1.0, 0.0), (48.0, 0.99, 3.0), (200.0, 0.95, 33.0), (0.0, 0.9, 0.0)]
        {
            assert_eq!(most_outliers(looks, ratio), most, "{looks} {ratio}");
        }
        let mut outliers = Outliers(vec![0.0, 1.0]);
        assert_eq!([outliers.allow(1), outliers.allow(1), outliers.allow(0)], [true, false, false]);
    }
}
