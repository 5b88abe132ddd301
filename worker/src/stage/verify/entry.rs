//! Decides the status of an entry from several calls. Before each call, the outputs are filled with a poison, which
//! differs between successive calls.
//!
//! `calls` makes the single calls. `verify` starts and ends the session, and goes from entry to entry.

use opt_shared::outcome::{Mismatch, Pattern, Status};

use crate::session::{Session, SessionError};
use crate::stage::POISONS;
use crate::stage::calls::{CallEnd, EntryCalls, EntryEnd};

/// Calls an entry as often as the settings require, but at least twice, and stops as soon as the status is known.
/// Returns `None` if every call was right.
pub(super) fn drive(
    entry: &mut EntryCalls<'_>,
    session: &mut dyn Session,
    has_plan: bool,
) -> Result<Option<EntryEnd>, SessionError> {
    if has_plan && let Some(end) = entry.plan(session)? {
        return Ok(Some(end));
    }
    let repeats = entry.settings.repeats.max(2);
    let mut first_wrong: Option<Box<Mismatch>> = None;
    let mut right = 0;
    for number in 0..repeats {
        match call(entry, session, number)? {
            CallEnd::Right(_) => {
                right += 1;
                if let Some(mismatch) = first_wrong {
                    let detail = format!("wrong in its first call, right in call {}", number + 1);
                    return Ok(Some(entry.mismatched(Status::Nondeterministic, detail, mismatch)));
                }
            }
            CallEnd::Wrong(mismatch) if 0 < right => {
                return right_then_wrong(entry, session, number, mismatch).map(Some);
            }
            CallEnd::Wrong(mismatch) => match first_wrong {
                // Two wrong calls in a row are enough.
                Some(first) => return Ok(Some(wrong_twice(entry, first, &mismatch))),
                None => first_wrong = Some(mismatch),
            },
            CallEnd::Ended(end) => return Ok(Some(end)),
        }
    }
    Ok(None)
}

/// Makes the call with this number. Successive calls use the session's output slots and the poisons in turn.
fn call(entry: &mut EntryCalls<'_>, session: &mut dyn Session, number: u32) -> Result<CallEnd, SessionError> {
    let slot = number % session.slots(entry.number);
    entry.call(session, slot, POISONS[number as usize % POISONS.len()])
}

fn wrong_twice(entry: &EntryCalls<'_>, first: Box<Mismatch>, second: &Mismatch) -> EntryEnd {
    let poisoned = |mismatch: &Mismatch| mismatch.pattern == Pattern::StillPoisoned;
    if poisoned(&first) && poisoned(second) && first.bad_indices == second.bad_indices {
        return never_written(entry, first);
    }
    entry.incorrect(first)
}

/// Decides the status of an entry whose first calls were right and whose last call was wrong.
///
/// If the wrong values are poison, the candidate may never write these elements. The first call would then look right
/// if the recorded values (such as NaN) equal the first poison. Two more calls into the first slot show whether this is
/// the case. If the result is right with the first poison and wrong with another poison, the elements were never
/// written. Otherwise, the candidate is not deterministic.
fn right_then_wrong(
    entry: &mut EntryCalls<'_>,
    session: &mut dyn Session,
    number: u32,
    mismatch: Box<Mismatch>,
) -> Result<EntryEnd, SessionError> {
    if mismatch.pattern != Pattern::StillPoisoned {
        let detail = format!("right at first, wrong in call {}", number + 1);
        return Ok(entry.mismatched(Status::Nondeterministic, detail, mismatch));
    }
    // The first of these two calls uses the same slot and the same poison as the entry's first call. The second uses
    // the same slot and another poison.
    let same_as_first = u32::try_from(POISONS.len()).unwrap_or(4) * 2;
    if matches!(call(entry, session, same_as_first)?, CallEnd::Right(_))
        && matches!(call(entry, session, same_as_first + 2)?, CallEnd::Wrong(_))
    {
        return Ok(never_written(entry, mismatch));
    }
    let detail = format!("right at first, then call {} left `{}` unwritten", number + 1, mismatch.output);
    Ok(entry.mismatched(Status::Nondeterministic, detail, mismatch))
}

fn never_written(entry: &EntryCalls<'_>, mismatch: Box<Mismatch>) -> EntryEnd {
    let Mismatch { failed, elements, output, .. } = &*mismatch;
    let detail = format!("{failed} of {elements} elements of `{output}` were never written");
    entry.mismatched(Status::UnwrittenOutput, detail, mismatch)
}
