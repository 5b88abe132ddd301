//! Finds timed calls that made too little of a small change to an argument ([`crate::judge::change`]).

use std::io;

use opt_shared::outcome::Mismatch;

use super::vary::Variation;
use crate::judge::change::MadeChange;
use crate::judge::check::OutputCheck;
use crate::session::{Session, SessionError};
use crate::stage::calls::EntryCalls;

/// The block to check: `slots` are the calls to check, in ascending order.
pub(super) struct Checked<'a> {
    pub(super) calls: u32,
    pub(super) seed: u64,
    pub(super) slots: &'a [u32],
}

/// Returns the first of these slots in which the candidate made too little of the change that the oracle made.
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

/// The changes to arguments that vary. The inputs of all calls of the block are drawn again, because the memory of the
/// variants may contain those of another entry. Only small changes need this, so it is rare.
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
