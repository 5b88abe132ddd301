//! Calls a kernel that is known to be right with new values of an entry's inputs, and checks whether the calls work and
//! whether all parts of the outputs change.

use opt_shared::message::ProfileTask;

use super::super::looks::offset_of;
use super::Variation;
use super::parts::{Changed, Part};
use crate::judge::element::{differs, is_not_finite};
use crate::judge::{BytesSource, Tolerance};
use crate::recorded::Recorded;
use crate::session::{Answer, BlockOrder, Session, SessionError, VariantMemory, WIDEST_ELEMENT, nothing_new};
use crate::stage::POISONS;
use crate::stage::failure::{CallKind, verdict_of_calls};

/// The first of the seeds for the values in a trial. `PLAN_SEED` is the seed for the values of the plan call. All
/// trials use the same seeds, so that all candidates of a job get the same decision. No timed call uses them.
const SEEDS: u64 = 0x7261_6d69_7665;
const PLAN_SEED: u64 = 0x706c_616e;
/// The maximum number of parts into which an output is divided. Each part must change.
const PARTS: u64 = 64;
/// The number of elements that are checked in each part.
const ELEMENTS_OF_A_PART: u64 = 16;
/// The maximum number of rounds, each of which has at most two calls. Rounds are repeated while some part has not
/// changed. For example, if few indices are shuffled, one may keep its position, and then a part of the output stays
/// the same.
const ROUNDS: usize = 4;

pub(super) enum Trial {
    Works,
    Fails(&'static str),
    /// The kernel has died, so the session has ended.
    Died,
}

pub(super) struct TrialEntry<'a> {
    pub(super) recorded: &'a Recorded,
    pub(super) number: usize,
    pub(super) task: &'a ProfileTask,
    pub(super) tolerances: &'a [Tolerance],
    pub(super) has_plan: bool,
}

impl TrialEntry<'_> {
    pub(super) fn test(
        &self,
        session: &mut dyn Session,
        variation: &mut Variation,
        memory: &impl VariantMemory,
    ) -> Result<Trial, SessionError> {
        let write = |variation: &mut Variation, seed| variation.write_for(self.recorded, memory, 2, seed);
        if self.has_plan {
            // The plan call gets different values than the calls do. This detects kernels that keep some of the values
            // in the plan call.
            write(variation, PLAN_SEED)?;
            if let Some(trial) = self.block(session, 1, true)? {
                return Ok(trial);
            }
        }
        let calls = variation.most_calls(session.slots(self.number)).min(2);
        let (mut changed, mut last) = (Changed(self.all_parts()?), None::<Vec<Vec<Element>>>);
        for seed in (SEEDS..).take(ROUNDS) {
            write(variation, seed)?;
            if let Some(trial) = self.block(session, calls, false)? {
                return Ok(trial);
            }
            for slot in 0..calls {
                let found = self.elements(session, slot)?;
                if self.has_more_nonfinite(&found)? {
                    return Ok(Trial::Fails("other values make NaN or infinities that were not recorded"));
                }
                if let Some(last) = &last {
                    changed.add(self.parts(&found, last));
                }
                last = Some(found);
            }
            if changed.is_everywhere() {
                break;
            }
        }
        if !changed.is_almost_everywhere() {
            return Ok(Trial::Fails("an output, or a part of one, hardly depends on the inputs' values"));
        }
        if self.has_plan {
            let first = self.elements(session, 0)?;
            if let Some(trial) = self.block(session, 1, true)? {
                return Ok(trial);
            }
            if let Some(trial) = self.block(session, 1, false)? {
                return Ok(trial);
            }
            if !self.same(&self.elements(session, 0)?, &first) {
                return Ok(Trial::Fails("the plan call prepares something from the inputs' values"));
            }
        }
        Ok(Trial::Works)
    }

    /// Makes a block. If the block does not succeed, returns the result of the trial.
    pub(super) fn block(
        &self,
        session: &mut dyn Session,
        calls: u32,
        plan: bool,
    ) -> Result<Option<Trial>, SessionError> {
        let order = BlockOrder {
            entry: self.number,
            calls,
            plan,
            varied: true,
            cold: false,
            poison: (!plan).then_some(POISONS[0]),
            looks: &[],
            expected: std::time::Duration::ZERO,
            limit: self.task.verify.call_timeout * calls,
        };
        let what = if plan { CallKind::TimedPlan } else { CallKind::Timed };
        Ok(match session.clock().block(&order, &mut nothing_new)? {
            Answer::Died => Some(Trial::Died),
            Answer::Done(block) if verdict_of_calls(&block.called, calls, what).is_some() => {
                Some(Trial::Fails("the kernel that tries other values refuses them"))
            }
            Answer::Done(_) => None,
        })
    }

    /// Reads some elements of each part of each output.
    pub(super) fn elements(
        &self,
        session: &dyn Session,
        slot: u32,
    ) -> Result<Vec<Vec<Element>>, SessionError> {
        let read = |(index, output): (usize, &opt_shared::arguments::OutputTensor)| {
            sample(&mut *session.output(self.number, index, slot), &output.tensor)
        };
        let all: std::io::Result<_> = self.recorded.outputs.iter().enumerate().map(read).collect();
        all.map_err(|source| SessionError::Outputs { entry: self.recorded.name.clone(), source })
    }

    /// Returns true if the sampled elements of an output contain more NaN and infinities than the same elements of the
    /// recorded output.
    fn has_more_nonfinite(&self, found: &[Vec<Element>]) -> Result<bool, SessionError> {
        for (output, found) in self.recorded.outputs.iter().zip(found) {
            let expected = sample(&mut self.recorded.expected(&output.tensor), &output.tensor)
                .map_err(|source| SessionError::Outputs { entry: self.recorded.name.clone(), source })?;
            let count = |elements: &[Element]| {
                elements.iter().filter(|it| is_not_finite(output.tensor.dtype, &it[..])).count()
            };
            if count(&expected) < count(found) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the parts of all outputs, marked as unchanged.
    fn all_parts(&self) -> Result<Vec<Part>, SessionError> {
        let mut parts = Vec::new();
        for output in &self.recorded.outputs {
            let elements = output.tensor.elements();
            let read = |tensor| {
                sample(&mut self.recorded.expected(tensor), tensor)
                    .map_err(|source| SessionError::Outputs { entry: self.recorded.name.clone(), source })
            };
            let after = read(&output.tensor)?;
            let before = self.recorded.argument_before(output).map(read).transpose()?;
            let of_a_part = usize::try_from(elements_of_a_part(elements)).unwrap_or(1).max(1);
            let count = after.len().div_ceil(of_a_part) as u64;
            for (number, after) in after.chunks(of_a_part).enumerate() {
                let start = number * of_a_part;
                let is_kept =
                    before.as_ref().is_some_and(|it| it.get(start..start + after.len()) == Some(after));
                parts.push(Part {
                    changed: false,
                    is_returned: before.is_none(),
                    computed: if is_kept { 0 } else { elements.div_ceil(count) },
                });
            }
        }
        Ok(parts)
    }

    /// Returns true if no checked element changed by more than its tolerance.
    fn same(&self, found: &[Vec<Element>], before: &[Vec<Element>]) -> bool {
        self.parts(found, before).all(|(changed, _)| changed == 0)
    }

    /// For each part of each output, returns the number of elements that changed by more than the tolerance, and the
    /// number of elements that were checked.
    fn parts<'e>(
        &'e self,
        found: &'e [Vec<Element>],
        before: &'e [Vec<Element>],
    ) -> impl Iterator<Item = (u64, u64)> + 'e {
        let outputs = self.recorded.outputs.iter().zip(self.tolerances);
        outputs.zip(found.iter().zip(before)).flat_map(|((output, tolerance), (found, before))| {
            let dtype = output.tensor.dtype;
            let of_a_part = usize::try_from(elements_of_a_part(output.tensor.elements())).unwrap_or(1);
            found.chunks(of_a_part.max(1)).zip(before.chunks(of_a_part.max(1))).map(move |(found, before)| {
                let changed = found
                    .iter()
                    .zip(before)
                    .filter(|(now, then)| differs(dtype, &then[..], &now[..], *tolerance));
                (changed.count() as u64, found.len() as u64)
            })
        })
    }
}

/// The bytes of an element. A narrow element takes only the first of them.
pub(super) type Element = [u8; WIDEST_ELEMENT];

fn elements_of_a_part(elements: u64) -> u64 {
    ELEMENTS_OF_A_PART.min(elements)
}

/// Reads elements that are spaced evenly over each part of an output.
fn sample(
    source: &mut dyn BytesSource,
    tensor: &opt_shared::capture::Tensor,
) -> std::io::Result<Vec<Element>> {
    let elements = tensor.elements();
    let parts = (elements / ELEMENTS_OF_A_PART).clamp(1, PARTS);
    let count = parts * elements_of_a_part(elements);
    (0..count)
        .map(|number| {
            let mut element = Element::default();
            let at =
                u64::try_from(u128::from(elements) * u128::from(number) / u128::from(count)).unwrap_or(0);
            source.read_at(offset_of(tensor, at), &mut element[..tensor.dtype.element_len()])?;
            Ok(element)
        })
        .collect()
}
