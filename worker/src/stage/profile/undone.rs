//! Finds timed calls that left out too much of a small change to an argument. [`crate::judge::change`] measures the
//! change.

use std::io;

use opt_shared::outcome::Mismatch;

use super::vary::Variation;
use crate::judge::change::MadeChange;
use crate::judge::check::OutputCheck;
use crate::session::{Session, SessionError};
use crate::stage::calls::EntryCalls;

/// A block to check. `slots` are the output slots of the calls to check, in ascending order.
pub(super) struct Checked<'a> {
    pub(super) calls: u32,
    pub(super) seed: u64,
    pub(super) slots: &'a [u32],
}

/// Returns the first of the slots to check in which the candidate made too little of the change that the oracle made.
pub(super) fn too_little(
    entry: &EntryCalls<'_>,
    variation: &mut Variation,
    block: &Checked<'_>,
    candidate: &dyn Session,
    oracle: &dyn Session,
) -> Result<Option<(u32, Box<Mismatch>)>, SessionError> {
    let recorded = entry.recorded;
    let judged: Vec<usize> =
        (0..recorded.outputs.len()).filter(|&it| entry.tolerances[it].least_share.is_some()).collect();
    if judged.is_empty() {
        return Ok(None);
    }
    let compare_error = |source| SessionError::Compare { entry: recorded.name.clone(), source };
    let values = |output, slot| {
        (oracle.output(entry.number, output, slot), candidate.output(entry.number, output, slot))
    };
    let mut made = made_from_variants(entry, variation, block, candidate, oracle, &judged)
        .map_err(|source| SessionError::Outputs { entry: recorded.name.clone(), source })?;
    for &output in judged.iter().filter(|&&output| !variation.changes(output)) {
        let tensor = &recorded.outputs[output].tensor;
        let Some(before) = recorded.argument_before(&recorded.outputs[output]) else { continue };
        for &slot in block.slots {
            let (mut expected, mut actual) = values(output, slot);
            let read = MadeChange::read(tensor, &mut recorded.expected(before), &mut *expected, &mut *actual);
            made.push((output, slot, read.map_err(compare_error)?));
        }
    }
    for (output, slot, made) in made {
        let tolerance = entry.tolerances[output].doubled();
        if !made.is_too_little(tolerance) {
            continue;
        }
        let check = OutputCheck {
            path: &recorded.outputs[output].path,
            tensor: &recorded.outputs[output].tensor,
            settings: entry.settings,
            tolerance,
            poison: None,
            expected_written: true,
        };
        let (mut expected, mut actual) = values(output, slot);
        if let Some(mismatch) = check.describe(&mut *expected, &mut *actual).map_err(compare_error)? {
            return Ok(Some((slot, Box::new(mismatch))));
        }
    }
    Ok(None)
}

/// Returns the changes that were made to arguments with new values. To get the values before the call, the inputs of
/// all calls of the block are drawn again, because the memory of the variants may contain inputs of another entry by
/// now. This is needed only for small changes, so it is rare.
fn made_from_variants(
    entry: &EntryCalls<'_>,
    variation: &mut Variation,
    block: &Checked<'_>,
    candidate: &dyn Session,
    oracle: &dyn Session,
    judged: &[usize],
) -> io::Result<Vec<(usize, u32, MadeChange)>> {
    let mut made: Vec<(usize, u32, MadeChange)> = Vec::new();
    if !judged.iter().any(|&output| variation.changes(output)) {
        return Ok(made);
    }
    let (mut expected, mut actual) = (Vec::new(), Vec::new());
    variation.draw(block.calls, block.seed, |input, slot, offset, before| {
        let Some(output) = input.output.filter(|it| judged.contains(it)) else { return Ok(()) };
        if block.slots.binary_search(&slot).is_err() {
            return Ok(());
        }
        for (session, bytes) in [(oracle, &mut expected), (candidate, &mut actual)] {
            bytes.resize(before.len(), 0);
            session.output(entry.number, output, slot).read_at(offset, bytes)?;
        }
        if made.last().is_none_or(|&(last, at, _)| (last, at) != (output, slot)) {
            made.push((output, slot, MadeChange::new(entry.recorded.outputs[output].tensor.dtype)));
        }
        if let Some((_, _, made)) = made.last_mut() {
            made.add(before, &expected, &actual);
        }
        Ok(())
    })?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use opt_shared::outcome::ToleranceUsed;
    use opt_shared::units::Bytes;

    use super::super::tests::task;
    use super::super::vary::decide;
    use super::*;
    use crate::judge::Tolerance;
    use crate::recorded::Recorded;
    use crate::session::scripted::{
        BlockPlay, Play, Script, ScriptedBackend, ScriptedVariants, Shown, callee, entries_of,
    };
    use crate::session::{Backend, BlockOrder, TimedSession, Variants, Varied, nothing_new};

    /// The number of the call whose result differs from the others'.
    const ODD: u32 = 1;

    /// Adds 0.01 to the first input, in place.
    fn add(shown: &Shown<'_>, output: &mut [u8]) -> i32 {
        for (to, from) in output.chunks_exact_mut(4).zip(shown.inputs[0].1.chunks_exact(4)) {
            let value = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
            to.copy_from_slice(&(value + 0.01).to_le_bytes());
        }
        0
    }

    fn script(play: fn(u32) -> Play) -> Script {
        Script {
            kernel: add,
            ..Script::timed(&[BlockPlay { play, ..BlockPlay::honest(Duration::from_micros(100)) }])
        }
    }

    /// Makes a block of three calls of a candidate and of an oracle, and returns the slot that the check finds among
    /// `slots`. `least_share` is the share of the change that must be made. If `varies`, the call adds 0.01 to an input
    /// of 384 elements that has new values. Otherwise, the input has the values of the recorded output.
    fn found(
        varies: bool,
        [candidate, oracle]: [fn(u32) -> Play; 2],
        slots: &[u32],
        least_share: Option<f64>,
    ) -> Option<u32> {
        let (mut entries, signature) = entries_of("torch_nn_functional_layer_norm", &[0]);
        entries[0].numbers.varied = Bytes::mib(9);
        let mut recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        recorded.outputs[0].arguments = vec![0];
        if !varies {
            let tensor = Arc::clone(&recorded.outputs[0].tensor);
            recorded.arguments[0].value = opt_shared::arguments::ArgumentValue::Tensor(tensor);
        }
        let mut task = task(&[0], true);
        task.entries = entries;
        let used = ToleranceUsed { rtol: 0.0, atol: 1e-4, rel_l2: 0.0 };
        let tolerance = Tolerance { used, required_matched_ratio: 1.0, part_l2: None, least_share };
        let (placed, tolerances) = ([recorded], vec![vec![tolerance]]);
        let backend = ScriptedBackend::playing_each(&[
            ("trial", script(|_| Play::Right)),
            ("fast", script(candidate)),
            ("naive", script(oracle)),
        ]);
        let open = |name| backend.open(&callee(name, signature.clone())).expect("opened");
        let (trial, fast, naive) = (open("trial"), open("fast"), open("naive"));
        let memory = backend.variants(Bytes::mib(9)).expect("memory");
        let kept = Some(&memory).filter(|_| varies);
        let decided = decide(&backend, &trial, &placed, &task, &tolerances, kept);
        let mut variation = decided.expect("no error").expect("readable").remove(0);
        assert_eq!(variation.changes(0), varies, "{:?}", variation.unvaried);
        let layouts: [Variants; 1] = [variation.variants.clone()];
        let start = |candidate| {
            let varied: Option<Varied<'_, ScriptedVariants>> =
                kept.map(|memory| Varied { memory, entries: &layouts });
            let mut session =
                backend.start_timed(candidate, &placed, varied, TimedSession::TRIAL).expect("started");
            let order = BlockOrder {
                entry: 0,
                calls: 3,
                plan: false,
                varied: varies,
                cold: false,
                poison: Some(0),
                looks: &[],
                expected: Duration::ZERO,
                limit: Duration::from_secs(1),
            };
            session.clock().block(&order, &mut nothing_new).expect("no error");
            session
        };
        variation.write_for(&placed[0], &memory, 3, 5).expect("written");
        let (candidate, oracle) = (start(&fast), start(&naive));
        let entry = EntryCalls::new(&task.verify, &placed[0], &tolerances[0], 0);
        let block = Checked { calls: 3, seed: 5, slots };
        let found = too_little(&entry, &mut variation, &block, &*candidate, &*oracle).expect("no error");
        found.map(|(slot, _)| slot)
    }

    #[test]
    fn calls_that_leave_a_change_undone_are_found() {
        let right: fn(u32) -> Play = |_| Play::Right;
        let never: fn(u32) -> Play = |_| Play::OffBy(-0.01);
        let not_the_odd: fn(u32) -> Play = |call| if call == ODD { Play::OffBy(-0.01) } else { Play::Right };
        let four_fifths: fn(u32) -> Play = |_| Play::OffBy(-0.002);
        for (candidate, slots, least_share, slot) in [
            (right, &[0, 1, 2][..], Some(0.9), None),
            (never, &[0, 1, 2], Some(0.9), Some(0)),
            (never, &[1, 2], Some(0.9), Some(1)),
            (never, &[2], Some(0.9), Some(2)),
            (not_the_odd, &[0, 1, 2], Some(0.9), Some(ODD)),
            (not_the_odd, &[0, 2], Some(0.9), None),
            (four_fifths, &[0, 1, 2], Some(0.9), Some(0)),
            (four_fifths, &[0, 1, 2], Some(0.7), None),
            // The norms limit how much a call can leave undone.
            (never, &[0, 1, 2], None, None),
        ] {
            let found = found(true, [candidate, right], slots, least_share);
            assert_eq!(found, slot, "slots {slots:?}, {least_share:?}");
        }
        // If an input does not vary, its values before the call are the recorded ones.
        let changes: fn(u32) -> Play = |_| Play::OffBy(0.5);
        let changes_in_the_odd: fn(u32) -> Play =
            |call| if call == ODD { Play::OffBy(0.5) } else { Play::Right };
        for (candidate, oracle, slots, least_share, slot) in [
            (changes, changes, &[0, 1, 2][..], Some(0.9), None),
            (right, changes, &[0, 1, 2], Some(0.9), Some(0)),
            (right, changes_in_the_odd, &[0, 1, 2], Some(0.9), Some(ODD)),
            (right, changes_in_the_odd, &[0, 2], Some(0.9), None),
            (right, changes, &[0, 1, 2], None, None),
        ] {
            let found = found(false, [candidate, oracle], slots, least_share);
            assert_eq!(found, slot, "recorded, slots {slots:?}, {least_share:?}");
        }
    }
}
