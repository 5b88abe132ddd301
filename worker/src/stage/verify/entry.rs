//! Decides the status of an entry whose differently poisoned calls may disagree.
//!
//! Leaves single calls to `calls`, and the session's start and end, and other entries, to `verify`.

use opt_shared::outcome::{Mismatch, Pattern, Status};

use crate::session::{Session, SessionError};
use crate::stage::POISONS;
use crate::stage::calls::{CallEnd, EntryCalls, Over};

/// Calls an entry as often as the settings say. Returns `None` if every call was right.
pub(super) fn drive(
    entry: &mut EntryCalls<'_>,
    session: &mut dyn Session,
    has_plan: bool,
) -> Result<Option<Over>, SessionError> {
    if has_plan && let Some(over) = entry.plan(session)? {
        return Ok(Some(over));
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
                // Wrong in the same way twice is enough.
                Some(first) => return Ok(Some(wrong_twice(entry, first, &mismatch))),
                None => first_wrong = Some(mismatch),
            },
            CallEnd::Over(over) => return Ok(Some(over)),
        }
    }
    Ok(None)
}

/// Makes one call; slots alternate, and poisons rotate.
fn call(entry: &mut EntryCalls<'_>, session: &mut dyn Session, number: u32) -> Result<CallEnd, SessionError> {
    let slot = number % session.slots(entry.number);
    entry.call(session, slot, POISONS[number as usize % POISONS.len()])
}

fn wrong_twice(entry: &EntryCalls<'_>, first: Box<Mismatch>, second: &Mismatch) -> Over {
    let poisoned = |mismatch: &Mismatch| mismatch.pattern == Pattern::StillPoisoned;
    if poisoned(&first) && poisoned(second) && first.bad_indices == second.bad_indices {
        return never_written(entry, first);
    }
    entry.incorrect(first)
}

/// The entry was right before and is wrong now. If the wrong values are poison, and the first poison would have
/// passed by itself (it is NaN, and NaN was recorded there), the elements were never written. Two more calls into
/// the first slot tell: if the first poison gives a right result and another one a wrong result. A call that is
/// right with both depends on its slot.
fn right_then_wrong(
    entry: &mut EntryCalls<'_>,
    session: &mut dyn Session,
    number: u32,
    mismatch: Box<Mismatch>,
) -> Result<Over, SessionError> {
    if mismatch.pattern != Pattern::StillPoisoned {
        let detail = format!("right at first, wrong in call {}", number + 1);
        return Ok(entry.mismatched(Status::Nondeterministic, detail, mismatch));
    }
    // The first call's poison and slot again, then its slot with another poison.
    let again = u32::try_from(POISONS.len()).unwrap_or(4) * 2;
    if matches!(call(entry, session, again)?, CallEnd::Right(_))
        && matches!(call(entry, session, again + 2)?, CallEnd::Wrong(_))
    {
        return Ok(never_written(entry, mismatch));
    }
    let detail = format!("right at first, then call {} left `{}` unwritten", number + 1, mismatch.output);
    Ok(entry.mismatched(Status::Nondeterministic, detail, mismatch))
}

fn never_written(entry: &EntryCalls<'_>, mismatch: Box<Mismatch>) -> Over {
    let Mismatch { failed, elements, output, .. } = &*mismatch;
    let detail = format!("{failed} of {elements} elements of `{output}` were never written");
    entry.mismatched(Status::UnwrittenOutput, detail, mismatch)
}
