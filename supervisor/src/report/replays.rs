//! Replays for people: what the pool held, what was moved, what that cost, against keeping everything.
//!
//! Owns what every format says of a replay, and its text; a pull request's is `markdown`'s.

pub(super) mod markdown;

use opt_shared::outcome::{ReplayResult, ReplayStep, Status};

use super::figures::{counted, one_line, percent, time};
use crate::record::ReplayRecord;

/// Steps told one by one: those that waited longest.
const MOST_STEPS: usize = 3;

/// One line, what follows it, indented, and an empty one. `winner` knows who won a job.
pub(super) fn lines<'r>(replay: &'r ReplayRecord, winner: impl Fn(&str) -> Option<&'r str>) -> Vec<String> {
    let name = one_line(&replay.name);
    let Some(result) = result(replay) else {
        let status = replay.status.map_or_else(|| "not finished".to_owned(), |status| status.to_string());
        let blame = replay.blame.map_or_else(String::new, |blame| format!(" ({})", blame.name()));
        let why =
            replay.detail.as_deref().map_or_else(String::new, |detail| format!(": {}", one_line(detail)));
        let mut lines = vec![format!("replay {name}: {status}{blame}{why}")];
        lines.extend(failure(replay).map(|told| format!("  {told}")));
        lines.push(String::new());
        return lines;
    };
    let mut lines = vec![
        format!(
            "replay {name}: {} in {}, {} stalled, budget {}",
            counted(count(result), "step", "steps"),
            time(result.total_ms),
            time(result.stall_ms),
            result.budget_bytes
        ),
        format!(
            "  pool: peak {} (floor {}, everything {})",
            result.peak_pool_bytes, result.floor_bytes, result.all_resident_bytes
        ),
        format!(
            "  moved {}: {} hits, {} misses, {} evictions; copying took {}, the calls {}",
            result.bytes_moved,
            result.hits,
            result.misses,
            result.evictions,
            time(result.copy_ms),
            time(result.compute_ms)
        ),
        format!("  {}", against_all_resident(result)),
    ];
    let callers: Vec<String> = callers(result, winner).iter().map(Caller::told).collect();
    if !callers.is_empty() {
        lines.push(format!("  calls by {}", callers.join(", ")));
    }
    lines.extend(slowest(result, MOST_STEPS).iter().map(|(_, step)| {
        format!(
            "  {} of {}: {}, of it {} waiting",
            one_line(&step.entry),
            one_line(&step.job),
            time(step.ms),
            time(step.stall_ms)
        )
    }));
    lines.push(String::new());
    lines
}

/// Of one that passed: whatever a row holds, what did not has no figure.
pub(super) fn result(replay: &ReplayRecord) -> Option<&ReplayResult> {
    replay.result.as_ref().filter(|_| replay.status == Some(Status::Passed))
}

pub(super) fn count(result: &ReplayResult) -> usize {
    usize::try_from(result.step_count).unwrap_or(usize::MAX)
}

/// Where the first difference is: index, expected, actual.
pub(super) fn failure(replay: &ReplayRecord) -> Option<String> {
    let failure = replay.failure.as_ref()?;
    let it = failure.mismatch.as_ref()?;
    let index: Vec<String> = it.index.iter().map(u64::to_string).collect();
    Some(format!(
        "{}: {}[{}] expected {}, actual {}; {} of {} elements differ",
        one_line(&failure.entry),
        one_line(&it.output),
        index.join(", "),
        one_line(&it.expected),
        one_line(&it.actual),
        it.failed,
        it.elements
    ))
}

/// Who makes the calls of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller<'r> {
    pub(super) job: &'r str,
    pub(super) candidate: &'r str,
    /// Who won it, where that is somebody else: one that leaves out an entry of the replay makes none of its calls.
    pub(super) winner: Option<&'r str>,
}

impl Caller<'_> {
    fn told(&self) -> String {
        let (candidate, job) = (one_line(self.candidate), one_line(self.job));
        match self.winner {
            Some(winner) => format!("{candidate} ({job}, which {} won)", one_line(winner)),
            None => format!("{candidate} ({job})"),
        }
    }
}

/// As far as steps are told one by one.
pub(super) fn callers<'r>(
    result: &'r ReplayResult,
    winner: impl Fn(&str) -> Option<&'r str>,
) -> Vec<Caller<'r>> {
    let mut callers: Vec<Caller<'r>> = Vec::new();
    for step in &result.steps {
        if !callers.iter().any(|it| it.job == step.job) {
            let winner = winner(&step.job).filter(|name| *name != step.candidate);
            callers.push(Caller { job: &step.job, candidate: &step.candidate, winner });
        }
    }
    callers
}

/// A share of all waiting below which a step did not wait: the hand-over alone takes some hundred nanoseconds.
const LEAST_SHARE: f64 = 0.01;

/// Those that waited longest, with their places.
pub(super) fn slowest(result: &ReplayResult, most: usize) -> Vec<(usize, &ReplayStep)> {
    let waited = |step: &&ReplayStep| 0.0 < step.stall_ms && LEAST_SHARE * result.stall_ms <= step.stall_ms;
    let mut steps: Vec<_> = result.steps.iter().enumerate().filter(|(_, step)| waited(step)).collect();
    steps.sort_by(|(_, one), (_, other)| other.stall_ms.total_cmp(&one.stall_ms));
    steps.truncate(most);
    steps
}

pub(super) fn against_all_resident(result: &ReplayResult) -> String {
    let share = |part: f64, whole: f64| if 0.0 < whole { percent(part / whole) } else { "-".to_owned() };
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let (pool, all) = (result.peak_pool_bytes.get() as f64, result.all_resident_bytes.get() as f64);
    format!(
        "against keeping everything: {} of its pool, {} moved instead of {}, {} of its time once all is there",
        share(pool, all),
        result.bytes_moved,
        result.unique_bytes,
        share(result.total_ms, result.compute_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::sample;

    #[test]
    fn a_replay_is_told_in_a_few_lines() {
        let replay = &sample().replays[0];
        let wanted = [
            "replay model: 1 step in 18.0 s, 900 ms stalled, budget 512 MiB",
            "  pool: peak 510 MiB (floor 300 MiB, everything 5.00 GiB)",
            "  moved 9.00 GiB: 600 hits, 100 misses, 90 evictions; copying took 12.0 s, the calls 17.1 s",
            "  against keeping everything: 10 % of its pool, 9.00 GiB moved instead of 5.00 GiB, 105 % of its time once all is there",
            "  calls by fast.c (embedding)",
            "  entry_000000 of embedding: 20.0 ms, of it 12.0 ms waiting",
            "",
        ];
        assert_eq!(lines(replay, |_| Some("fast.c")), wanted);
    }

    /// Whatever a row holds: what did not pass shows no figure.
    #[test]
    fn what_did_not_pass_has_no_figures() {
        let mut replay = sample().replays.remove(0);
        replay.status = Some(Status::InfraError);
        replay.detail = Some("part at use 7".to_owned());
        assert_eq!(lines(&replay, |_| None), ["replay model: INFRA_ERROR: part at use 7", ""]);
    }

    #[test]
    fn a_step_that_hardly_waited_is_not_among_those_that_waited_longest() {
        let mut result = sample().replays.remove(0).result.expect("it passed");
        let step = |stall_ms: f64| ReplayStep { stall_ms, ..result.steps[0].clone() };
        result.steps = [500.0, 0.001, 8.9, 9.0, 391.0].map(step).to_vec();
        let places: Vec<usize> = slowest(&result, 10).iter().map(|(place, _)| *place).collect();
        assert_eq!((places, slowest(&result, 1).len()), (vec![0, 4, 3], 1));
    }

    #[test]
    fn who_calls_in_a_winners_place_is_said() {
        let replay = &sample().replays[0];
        let told = lines(replay, |_| Some("part.c"));
        assert!(told.contains(&"  calls by fast.c (embedding, which part.c won)".to_owned()), "{told:?}");
    }

    #[test]
    fn a_wrong_output_is_told_with_its_place() {
        let mut run = sample();
        let mut replay = run.replays.remove(0);
        (replay.status, replay.result) = (Some(Status::IncorrectNumerical), None);
        replay.failure = run.jobs[0].candidates[0].failures.first().cloned();
        let told = lines(&replay, |_| None);
        assert!(told[1].starts_with("  entry_000003: ") && told[1].contains("expected"), "{told:?}");
    }
}
