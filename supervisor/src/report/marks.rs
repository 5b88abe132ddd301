//! Chooses the marks beside figures that mean less than others, and writes the lines that explain these marks.

use opt_shared::outcome::Status;

use super::figures::{counted, one_line};
use crate::record::{CandidateRecord, EntryTimingRecord, Stage};

const NOT_CONVERGED: &str = "! the noise was above max_noise when timing ended";
const BRIEF: &str = "~ timed briefly: another candidate is clearly faster";
pub(super) const UNVARIED: &str =
    "= inputs were the same in every call, so a kernel may have remembered results";

/// Returns the marks beside the candidate's noise: `~` if it was timed only briefly, `!` if its timing did not
/// converge, `=` if its inputs did not vary.
pub(super) fn marks(candidate: &CandidateRecord) -> String {
    let unvaried = is_unvaried(candidate).then_some('=');
    timing_mark(candidate).into_iter().chain(unvaried).collect()
}

/// Returns true if the candidate's figures mean less than they seem to: its interval is wide (unless it was only
/// screened), or its inputs did not vary. Such figures are never shown in green.
pub(super) fn is_doubtful(candidate: &CandidateRecord) -> bool {
    const WIDEST: f64 = 0.15;
    let times = candidate.profile.as_ref().map(|profile| &profile.times);
    let wide = times.and_then(|times| times.noise).is_some_and(|noise| WIDEST < noise);
    (wide && timing_mark(candidate) != Some('~')) || is_unvaried(candidate)
}

/// Returns true if no timed entry of the candidate had inputs that vary.
pub(super) fn is_unvaried(candidate: &CandidateRecord) -> bool {
    timed(candidate).is_some_and(|profile| profile.times.had_same_inputs())
}

/// Returns the end of a sentence that names a winner. It is empty unless the winner's inputs did not vary.
pub(super) fn same_inputs(winner: Option<&CandidateRecord>) -> &'static str {
    if winner.is_some_and(is_unvaried) { ", with inputs that were the same in every call" } else { "" }
}

/// Returns true if too few of the entry's inputs varied, or none.
pub(super) fn is_unvaried_entry(entry: &EntryTimingRecord) -> bool {
    entry.unvaried_because.is_some()
}

/// Returns a line for each mark that these candidates have, and a line about entries that count only against a
/// candidate.
pub(super) fn legend<'a>(candidates: impl Iterator<Item = &'a CandidateRecord> + Clone) -> Vec<String> {
    let has = |mark| candidates.clone().any(|candidate| marks(candidate).contains(mark));
    let mut lines = Vec::new();
    lines.extend(has('!').then(|| NOT_CONVERGED.to_owned()));
    lines.extend(has('~').then(|| BRIEF.to_owned()));
    if let Some(candidate) = candidates.clone().find(|candidate| is_unvaried(candidate)) {
        let why = unvaried_entries(candidate).find_map(|entry| entry.unvaried_because.as_deref());
        let why = why.map(|why| format!(" ({})", one_line(why))).unwrap_or_default();
        lines.push(format!("{UNVARIED}{why}"));
    }
    lines.extend(candidates.clone().find_map(unranked_entries));
    if candidates.clone().any(|candidate| candidate.rank.is_some()) {
        lines.extend(candidates.filter_map(without_rank));
    }
    lines
}

/// Names entries that were timed but count only against a candidate, because other entries had inputs that vary.
fn unranked_entries(candidate: &CandidateRecord) -> Option<String> {
    let times = &timed(candidate)?.times;
    let count = times.unvaried_entries.filter(|&count| 0 < count && times.varied_entries != Some(0))?;
    let first = unvaried_entries(candidate).next()?;
    let more = match count - 1 {
        0 => String::new(),
        more => format!(" and {} more", counted(more, "entry", "entries")),
    };
    let why = first.unvaried_because.as_deref().map(one_line).unwrap_or_default();
    Some(format!(
        "= counts only if slower, because a kernel could have remembered results: {}{more} ({why})",
        one_line(&first.entry)
    ))
}

/// Explains why a timed candidate has no rank, if the reason is that none of its entries counts.
fn without_rank(candidate: &CandidateRecord) -> Option<String> {
    let profile =
        timed(candidate).filter(|profile| candidate.rank.is_none() && !profile.entries.is_empty())?;
    if !profile.entries.iter().all(is_unvaried_entry) {
        return None;
    }
    let why = profile.entries.iter().find_map(|entry| entry.unvaried_because.as_deref()).map(one_line)?;
    Some(format!(
        "{} has no rank, because it could have remembered results: {why}",
        one_line(&candidate.name)
    ))
}

fn unvaried_entries(candidate: &CandidateRecord) -> impl Iterator<Item = &EntryTimingRecord> {
    let profile = candidate.profile.as_ref();
    profile.into_iter().flat_map(|it| &it.entries).filter(|entry| is_unvaried_entry(entry))
}

/// Returns the mark of a candidate that was only screened, or whose timing did not converge.
fn timing_mark(candidate: &CandidateRecord) -> Option<char> {
    let profile = timed(candidate)?;
    match profile.stage {
        Some(Stage::Screen) => Some('~'),
        _ => (profile.times.converged == Some(false)).then_some('!'),
    }
}

fn timed(candidate: &CandidateRecord) -> Option<&crate::record::ProfileRecord> {
    candidate.profile.as_ref().filter(|_| candidate.status == Some(Status::Passed))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::record::RunRecord;
    use crate::record::sample::sample;

    /// Returns a run whose timed candidates have `varied` entries with inputs that varied, and `unvaried` entries
    /// without.
    pub(crate) fn with_varied(varied: u64, unvaried: u64) -> RunRecord {
        let mut run = RunRecord { replays: Vec::new(), ..sample() };
        for profile in run.jobs[0].candidates.iter_mut().filter_map(|it| it.profile.as_mut()) {
            profile.times.varied_entries = Some(varied);
            profile.times.unvaried_entries = Some(unvaried);
            for entry in profile.entries.iter_mut().filter(|_| 0 < unvaried) {
                entry.varied.clear();
                entry.unvaried_because = Some("`input`: it is sorted".to_owned());
            }
        }
        run
    }

    #[test]
    fn figures_from_inputs_that_did_not_vary_are_marked_and_explained() {
        for (varied, unvaried, mark, expected) in [
            (1, 0, "", vec![]),
            (
                0,
                1,
                "=",
                vec![
                    "= inputs were the same in every call, so a kernel may have remembered results (`input`: it is sorted)",
                ],
            ),
            (
                2,
                3,
                "",
                vec![
                    "= counts only if slower, because a kernel could have remembered results: entry_000000 and 2 entries more (`input`: it is sorted)",
                ],
            ),
        ] {
            let run = with_varied(varied, unvaried);
            let candidates = &run.jobs[0].candidates;
            assert_eq!(legend(candidates.iter()), expected);
            assert_eq!(marks(&candidates[2]), mark);
            assert_eq!(is_doubtful(&candidates[2]), mark == "=");
        }
        let mut run = with_varied(0, 1);
        let candidates = &mut run.jobs[0].candidates;
        candidates[2].rank = None;
        let why = format!(
            "{} has no rank, because it could have remembered results: `input`: it is sorted",
            candidates[2].name
        );
        assert_eq!(legend(candidates.iter()).last(), Some(&why));
        candidates.iter_mut().for_each(|candidate| candidate.rank = None);
        assert!(!legend(candidates.iter()).contains(&why), "the job is not ranked yet");
        let mut both = with_varied(0, 1).jobs.remove(0).candidates.remove(2);
        if let Some(profile) = &mut both.profile {
            profile.times.converged = Some(false);
        }
        assert_eq!(marks(&both), "!=");
    }
}
