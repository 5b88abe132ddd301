//! Finds inputs that a kernel does not read, such as the maxima of another input that it computes itself. They keep their
//! captured values, because another correct kernel may read them, and rely on what they are.

use super::Variation;
use super::tried::{Trial, TrialEntry};
use crate::session::{Session, SessionError, VariantMemory};

/// The number of times that an input gets other values, if the outputs do not change.
const ROUNDS: u64 = 2;

/// The inputs, by their numbers in the variation, whose values no checked element of an output depends on. `seed` is the
/// first of the seeds. Returns none of them, and how the trial ended, if the kernel does not work.
pub(super) fn inputs(
    entry: &TrialEntry<'_>,
    session: &mut dyn Session,
    variation: &mut Variation,
    memory: &impl VariantMemory,
    seed: u64,
) -> Result<(Vec<usize>, Trial), SessionError> {
    let count = variation.variants.inputs.len();
    if count < 2 {
        return Ok((Vec::new(), Trial::Works));
    }
    variation.write_for(entry.recorded, memory, 1, seed)?;
    let mut last = None;
    let mut is_read = vec![false; count];
    for change in 0..=ROUNDS * count as u64 {
        // The first call only gives the outputs to compare with.
        let changed = change.checked_sub(1).map(|number| usize::try_from(number).unwrap_or(0) % count);
        if let Some(number) = changed {
            let written = variation.renew_one(memory, number, seed + change);
            let name = || entry.recorded.name.clone();
            written.map_err(|source| SessionError::Variants { entry: name(), source })?;
        }
        if let Some(trial) = entry.block(session, 1, false)? {
            return Ok((Vec::new(), trial));
        }
        let found = entry.elements(session, 0)?;
        if let Some(number) = changed {
            is_read[number] |= last.as_ref() != Some(&found);
        }
        last = Some(found);
    }
    Ok(((0..count).filter(|&number| !is_read[number]).collect(), Trial::Works))
}
