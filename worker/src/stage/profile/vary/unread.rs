//! Finds inputs that a kernel does not read. An example is an input that contains the maxima of another input, if the
//! kernel computes the maxima itself. Such inputs keep their captured values, because another correct kernel may read
//! them and rely on these values.

use std::io;

use opt_shared::units::to_index;

use super::Variation;
use super::tried::{Trial, TrialEntry};
use crate::recorded::allocated_bytes;
use crate::session::{Session, SessionError, VariantMemory};

/// The number of times that an input must get new values without changing the outputs before it counts as unread.
const ROUNDS: usize = 2;
/// The same number for outputs with few elements (fewer than `FEW`), which may keep their values by chance.
const ROUNDS_OF_FEW: usize = 16;
const FEW: u64 = 64;
/// The number of bytes of an output that are read at a time.
const PIECE: u64 = 64 << 10;

/// Returns the inputs that the kernel does not read, by their numbers in the variation. An input counts as unread if
/// its new values change no byte of the outputs. If the kernel does not work, returns no inputs and how the trial
/// ended. `seed` is the first of the seeds for new values.
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
    if let Some(trial) = entry.block(session, 1, false)? {
        return Ok((Vec::new(), trial));
    }
    let elements: u64 = entry.recorded.outputs.iter().map(|output| output.tensor.elements()).sum();
    let rounds = if elements < FEW { ROUNDS_OF_FEW } else { ROUNDS };
    let mut last = digest(entry, session)?;
    let mut unread = Vec::new();
    let mut seeds = (seed..).skip(1);
    for number in 0..count {
        let mut is_read = false;
        for seed in seeds.by_ref().take(rounds) {
            let written = variation.renew_one(memory, number, seed);
            let name = || entry.recorded.name.clone();
            written.map_err(|source| SessionError::Variants { entry: name(), source })?;
            if let Some(trial) = entry.block(session, 1, false)? {
                return Ok((Vec::new(), trial));
            }
            let found = digest(entry, session)?;
            is_read = found != std::mem::replace(&mut last, found);
            if is_read {
                break;
            }
        }
        if !is_read {
            unread.push(number);
        }
    }
    Ok((unread, Trial::Works))
}

/// Returns a digest of all outputs of the last call.
fn digest(entry: &TrialEntry<'_>, session: &dyn Session) -> Result<blake3::Hash, SessionError> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |index: usize, bytes: u64| -> io::Result<()> {
        let mut source = session.output(entry.number, index, 0);
        let mut piece = Vec::new();
        for at in (0..bytes).step_by(to_index(PIECE)) {
            piece.resize(to_index((bytes - at).min(PIECE)), 0);
            source.read_at(at, &mut piece)?;
            hasher.update(&piece);
        }
        Ok(())
    };
    for (index, output) in entry.recorded.outputs.iter().enumerate() {
        add(index, allocated_bytes(&output.tensor))
            .map_err(|source| SessionError::Outputs { entry: entry.recorded.name.clone(), source })?;
    }
    Ok(hasher.finalize())
}
