//! Decides by a trial which inputs of an entry vary. In the trial, a kernel that is known to be right is called with
//! new values of one choice of inputs after another, until it still works and all outputs change.
//!
//! This kernel is the baseline, in a separate runner, or the candidate itself if there is no baseline. A choice of
//! inputs is dropped if the kernel fails with their new values, if it computes NaN or infinities that were not
//! recorded, if a part of an output hardly changes from call to call, or if the plan call prepares something from the
//! values.

use opt_shared::arguments::TOO_LARGE;
use opt_shared::formula::load_timeout;
use opt_shared::message::ProfileTask;
use opt_shared::settings::Vary;

use super::choices::{choices, without};
use super::decisions::Decision;
use super::tried::{Trial, TrialEntry};
use super::{Eligible, Variation, eligible, layout_of, unread, unvaried_because};
use crate::judge::Tolerance;
use crate::recorded::{Recorded, RecordedError};
use crate::session::{Answer, Backend, Loaded, SessionError, TimedSession, Variants, Varied};

/// The first of the seeds for the values that show which inputs a kernel reads. No timed call uses these seeds.
const UNREAD_SEEDS: u64 = 0x756e_7265_6164;

/// An entry whose varying inputs have not been decided yet.
pub(super) struct Undecided {
    pub(super) number: usize,
    pub(super) eligible: Vec<Eligible>,
    pub(super) kept: super::KeptInputs,
    pub(super) choices: std::vec::IntoIter<Vec<usize>>,
    /// The reason why the last choice was dropped.
    pub(super) dropped: Option<&'static str>,
    /// True if a choice was dropped because the process died. The decision is then uncertain, because the values need
    /// not be the cause.
    pub(super) uncertain: bool,
}

/// Decides which inputs vary in each entry of a batch. If a capture is unreadable, returns the index of its entry and
/// the error.
pub(in super::super) fn decide<B: Backend>(
    backend: &B,
    prober: &B::Candidate,
    placed: &[B::Placed],
    task: &ProfileTask,
    tolerances: &[Vec<Tolerance>],
    memory: Option<&B::Variants>,
) -> Result<Result<Vec<Variation>, (usize, RecordedError)>, SessionError> {
    let mut decided: Vec<Option<Variation>> = Vec::new();
    let mut open = Vec::new();
    for (number, entry) in placed.iter().enumerate() {
        let recorded: &Recorded = entry.as_ref();
        if let Some(why) = without_trial(recorded, task) {
            decided.push(Some(Variation::none(why)));
            continue;
        }
        decided.push(None);
        match eligible(recorded, task) {
            // No memory was reserved, because every input of every entry is too large or may not vary.
            Ok((_, kept)) if memory.is_none() => {
                decided[number] = Some(Variation::none(unvaried_because(&kept)));
            }
            Ok((eligible, kept)) => {
                let choices = choices(&eligible).into_iter();
                open.push(Undecided { number, eligible, kept, choices, dropped: None, uncertain: false });
            }
            Err(error) => return Ok(Err((number, error))),
        }
    }
    let Some(memory) = memory else { return Ok(Ok(decided.into_iter().flatten().collect())) };
    // A kernel that fails to load is loaded once more, because on a busy machine, loading may have taken too long.
    let mut may_load_again = true;
    // This loop ends, because each iteration tries a choice of at least one entry, unless the kernel does not load.
    // When the kernel does not load for the second time, no entry is left.
    while !open.is_empty() {
        let mut layouts: Vec<Variants> = vec![Variants::default(); placed.len()];
        let mut tried: Vec<(Undecided, Vec<usize>)> = Vec::new();
        for mut it in open.drain(..) {
            let recorded: &Recorded = placed[it.number].as_ref();
            let next = it.choices.find_map(|choice| {
                layout_of(recorded, task, &it.eligible, &choice).map(|variants| (choice, variants))
            });
            match next {
                Some((choice, variants)) => {
                    layouts[it.number] = variants;
                    tried.push((it, choice));
                }
                None if it.uncertain => decided[it.number] = Some(Variation::none_for_now(why_not(&it))),
                None => decided[it.number] = Some(Variation::none(why_not(&it))),
            }
        }
        if tried.is_empty() {
            break;
        }
        let varied = Varied { memory, entries: &layouts };
        let mut session = backend.start_timed(prober, placed, Some(varied), TimedSession::TRIAL)?;
        let loaded = session.load(load_timeout(task.verify.call_timeout))?;
        let has_plan = matches!(loaded, Answer::Done(Loaded::Ready { has_plan: true, .. }));
        let mut alive = matches!(loaded, Answer::Done(Loaded::Ready { .. }));
        if !alive && !std::mem::take(&mut may_load_again) {
            // The kernel does not load. When it is timed, the reason will be reported.
            for (it, _) in tried.drain(..) {
                let why = "the kernel that should try other values does not load";
                decided[it.number] = Some(Variation::none_for_now(why));
            }
        }
        for (mut it, choice) in tried {
            if !alive {
                // The kernel did not load, or another entry ended the session, so this entry's choice is tried again.
                let rest = std::iter::once(choice).chain(it.choices).collect::<Vec<_>>().into_iter();
                open.push(Undecided { choices: rest, ..it });
                continue;
            }
            let recorded: &Recorded = placed[it.number].as_ref();
            let variants = layouts[it.number].clone();
            let mut variation = chosen(&mut it, &choice, variants, (recorded, task));
            let tolerances = &tolerances[it.number];
            let entry = TrialEntry { recorded, number: it.number, task, tolerances, has_plan };
            match entry.test(&mut *session, &mut variation, memory)? {
                Trial::Works => {
                    let (unread, trial) =
                        unread::inputs(&entry, &mut *session, &mut variation, memory, UNREAD_SEEDS)?;
                    alive = !matches!(trial, Trial::Died);
                    let read = without(&choice, &unread);
                    let narrower =
                        layout_of(recorded, task, &it.eligible, &read).filter(|_| !unread.is_empty());
                    let (mut variation, choice) = match narrower {
                        Some(variants) => {
                            put_back(&mut it, &choice, variation);
                            (chosen(&mut it, &read, variants, (recorded, task)), read)
                        }
                        None => (variation, choice),
                    };
                    variation.decision = Some(Decision::Varies(choice)).filter(|_| !it.uncertain && alive);
                    decided[it.number] = Some(variation);
                }
                trial => {
                    alive = !matches!(trial, Trial::Died);
                    it.uncertain |= !alive;
                    it.dropped = Some(match trial {
                        Trial::Fails(why) => why,
                        _ => "the kernel that tries other values does not survive them",
                    });
                    put_back(&mut it, &choice, variation);
                    open.push(it);
                }
            }
        }
        session.finish()?;
    }
    Ok(Ok(decided.into_iter().flatten().collect()))
}

/// Returns the variations that follow from decisions made for an earlier candidate of the job, or `None` if the
/// decisions do not fit the entries.
pub(in super::super) fn recall(
    placed: &[impl AsRef<Recorded>],
    task: &ProfileTask,
    decisions: &[Decision],
) -> Option<Vec<Variation>> {
    let recall = |(entry, decision): (&_, &Decision)| {
        let recorded: &Recorded = AsRef::as_ref(entry);
        let choice = match decision {
            Decision::Unvaried(why) => return Some(Variation::none(why)),
            Decision::Varies(choice) => choice,
        };
        let (eligible, kept) = eligible(recorded, task).ok()?;
        let fits = choice.iter().all(|&at| at < eligible.len());
        let variants = fits.then(|| layout_of(recorded, task, &eligible, choice)).flatten()?;
        let none = Vec::new().into_iter();
        let mut it = Undecided { number: 0, eligible, kept, choices: none, dropped: None, uncertain: false };
        let variation = chosen(&mut it, choice, variants, (recorded, task));
        Some(Variation { decision: Some(decision.clone()), ..variation })
    };
    (placed.len() == decisions.len()).then(|| placed.iter().zip(decisions).map(recall).collect())?
}

/// Returns the reason why no input of an entry varies, if this is known without a trial.
fn without_trial(recorded: &Recorded, task: &ProfileTask) -> Option<&'static str> {
    match task.profile.vary {
        Vary::None => Some("the plan says vary = \"none\""),
        _ if recorded.has_no_elements() => Some("its outputs have no elements"),
        _ => None,
    }
}

fn why_not(it: &Undecided) -> String {
    match it.dropped {
        Some(dropped) => dropped.to_owned(),
        None => unvaried_because(&it.kept),
    }
}

/// Moves the sources of the chosen inputs from the entry into a variation.
pub(super) fn chosen(
    it: &mut Undecided,
    choice: &[usize],
    variants: Variants,
    (recorded, task): (&Recorded, &ProfileTask),
) -> Variation {
    let unvaried = kept_for_lack_of_memory(recorded, task, it, choice);
    let mut take = |&at: &usize| std::mem::replace(&mut it.eligible[at].source, super::Keyed::nothing());
    let sources = choice.iter().map(&mut take).collect();
    let names = choice.iter().map(|&at| it.eligible[at].name.clone()).collect();
    Variation { variants, sources, names, unvaried, narrowed: false, decision: None }
}

/// Returns the reason why an entry does not count as varying although the chosen inputs vary, if there is one. The
/// reason is that some inputs keep their values for lack of memory, so a kernel could remember what it computes from
/// them and from others that do not vary. There is one exception: if an index varies, a single table may keep its
/// values, because each call then reads different rows of the table.
fn kept_for_lack_of_memory(
    recorded: &Recorded,
    task: &ProfileTask,
    it: &Undecided,
    choice: &[usize],
) -> Option<String> {
    let all: Vec<usize> = (0..it.eligible.len()).collect();
    let fit = layout_of(recorded, task, &it.eligible, &all).is_some();
    let unchosen = all.iter().filter(|&at| !fit && !choice.contains(at)).map(|&at| &it.eligible[at].name);
    let large = it.kept.iter().filter(|(_, why)| *why == TOO_LARGE).map(|(name, _)| name);
    let names: Vec<String> = large.chain(unchosen).map(|name| format!("`{name}`")).collect();
    let varies_index = choice.iter().any(|&at| it.eligible[at].is_index);
    (usize::from(varies_index) < names.len()).then(|| {
        format!(
            "there is no memory for new values of {} in each call, so a kernel could remember what it computes from \
             them (name weights in `[job] constant`)",
            names.join(" and ")
        )
    })
}

pub(super) fn put_back(it: &mut Undecided, choice: &[usize], variation: Variation) {
    for (&at, source) in choice.iter().zip(variation.sources) {
        it.eligible[at].source = source;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_recalled_if_they_fit_the_entries() {
        let (entries, signature) = crate::session::scripted::entries_of("torch_nn_functional_linear", &[2]);
        let placed: Vec<std::sync::Arc<Recorded>> =
            vec![std::sync::Arc::new(Recorded::open(&entries[0], &signature).expect("a capture"))];
        let task = crate::stage::profile::tests::task(&[0], false);
        let varies = |choice: &[usize]| vec![Decision::Varies(choice.to_vec())];
        let unvaried = || Decision::Unvaried("it is sorted".to_owned());
        for (decisions, names) in [
            (varies(&[0, 2]), Some(vec!["input", "bias"])),
            // There are only three inputs, so this choice does not fit.
            (varies(&[0, 3]), None),
            (varies(&[4]), None),
            (vec![unvaried()], Some(vec![])),
            (vec![unvaried(), unvaried()], None),
            (vec![], None),
        ] {
            let found = recall(&placed, &task, &decisions);
            if let Some([variation]) = found.as_deref() {
                assert_eq!(variation.decision.as_ref(), decisions.first());
            }
            let found = found.map(|it| it.into_iter().flat_map(|it| it.names).collect::<Vec<_>>());
            let names = names.map(|it| it.into_iter().map(str::to_owned).collect());
            assert_eq!(found, names, "{decisions:?}");
        }
    }

    /// The entry has three inputs: `input`, `weight` and `bias`.
    #[test]
    fn entry_does_not_count_as_varying_if_inputs_keep_their_values_for_lack_of_memory() {
        let (entries, signature) = crate::session::scripted::entries_of("torch_nn_functional_linear", &[0]);
        let recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        let task = crate::stage::profile::tests::task(&[0], false);
        let (none, one, two): (&[_], &[_], &[_]) =
            (&[("a", "it is sorted")], &[("a", TOO_LARGE)], &[("a", TOO_LARGE), ("b", TOO_LARGE)]);
        let (mib, kib) = (1 << 20, 1 << 10);
        let (small, large) = ([mib, mib, kib], [5 * mib, 5 * mib, kib]);
        for (sizes, kept, choice, index, expected) in [
            // All inputs fit into the memory, but a trial dropped two of them.
            (small, none, vec![2], false, None),
            (small, one, vec![0, 1, 2], false, Some("of `a` in")),
            (small, one, vec![0, 1, 2], true, None),
            (small, two, vec![0, 1, 2], true, Some("of `a` and `b` in")),
            (large, none, vec![2], true, Some("of `input` and `weight` in")),
            (large, none, vec![1, 2], false, Some("of `input` in")),
            (large, none, vec![1, 2], true, None),
            (large, one, vec![1, 2], true, Some("of `a` and `input` in")),
        ] {
            let (mut eligible, _) = eligible(&recorded, &task).expect("readable");
            assert!(eligible.iter().all(|it| !it.is_index), "floats");
            eligible.iter_mut().zip(sizes).for_each(|(it, bytes)| it.extent.bytes = bytes);
            eligible[2].is_index = index;
            let kept = kept.iter().map(|&(name, why): &(&str, _)| (name.to_owned(), why)).collect();
            let choices = Vec::new().into_iter();
            let it = Undecided { number: 0, eligible, kept, choices, dropped: None, uncertain: false };
            let found = kept_for_lack_of_memory(&recorded, &task, &it, &choice);
            let agrees = match (&found, expected) {
                (Some(found), Some(part)) => found.contains(part),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(agrees, "{sizes:?} {choice:?}: {found:?}");
        }
    }
}
