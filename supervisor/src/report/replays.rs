//! Describes replays in text for people: what the pool contained, what was moved, and how long the replay took compared
//! with one that keeps everything in the pool.
//!
//! [`ReplayText`] contains the wording that all output formats share. This file also contains the text format. Foreign
//! names are left unescaped in [`ReplayText`], because each format escapes them in its own way.

pub(super) mod markdown;

use opt_shared::outcome::{Blame, ReplayResult, ReplayStep, Status};
use opt_shared::units::Bytes;

use super::figures::{counted, one_line, percent, time};
use crate::record::ReplayRecord;

/// The maximum number of steps to list. The steps that waited longest are listed.
const MAX_STEPS: usize = 3;
/// A step counts as not having waited if it accounts for less than this share of the total waiting time. Every step
/// waits a few hundred nanoseconds, because the pool's thread has to hand over the tensors even if they are ready.
const MIN_SHARE: f64 = 0.01;

/// A description of one replay.
pub(super) struct ReplayText<'r> {
    pub(super) name: &'r str,
    pub(super) status: &'static str,
    /// The party to blame, if the replay failed.
    pub(super) blame: Option<Blame>,
    pub(super) figures: Figures,
    pub(super) outcome: Outcome<'r>,
}

/// The figures of a replay. Unknown figures are `None`.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) time: Option<String>,
    pub(super) stalled: Option<String>,
    pub(super) budget: Option<String>,
    pub(super) floor: Option<String>,
    pub(super) everything: Option<String>,
    pub(super) peak: Option<String>,
    pub(super) moved: Option<String>,
    pub(super) hits: Option<String>,
    pub(super) misses: Option<String>,
    pub(super) evictions: Option<String>,
}

pub(super) enum Outcome<'r> {
    Passed(Box<Passed<'r>>),
    /// The replay did not pass, or has not ended. `detail` gives the reason, and `failure` the first difference.
    NoResult {
        detail: Option<&'r str>,
        failure: Option<String>,
    },
}

/// The result of a replay that passed.
pub(super) struct Passed<'r> {
    pub(super) callers: Vec<Caller<'r>>,
    pub(super) against: [BudgetComparison; 3],
    /// The first steps. The total number of steps is `step_count`.
    pub(super) steps: Vec<Step<'r>>,
    pub(super) step_count: usize,
    copying: String,
    calls: String,
    stall_ms: f64,
}

/// The kernel that makes the calls of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller<'r> {
    pub(super) job: &'r str,
    pub(super) candidate: &'r str,
    /// The job's winner, if another kernel makes the calls. This happens if the plan asks for baselines, or if the
    /// winner does not support an entry of the replay.
    pub(super) winner: Option<&'r str>,
}

/// One figure of the replay, compared with that of a replay whose budget is large enough to keep everything.
pub(super) struct BudgetComparison {
    pub(super) what: &'static str,
    pub(super) ours: String,
    pub(super) all: String,
    /// `ours` divided by `all`. `None` if there is nothing to compare with.
    pub(super) share: Option<f64>,
}

pub(super) struct Step<'r> {
    pub(super) place: usize,
    pub(super) entry: &'r str,
    pub(super) job: &'r str,
    pub(super) candidate: &'r str,
    pub(super) time: String,
    pub(super) waiting: String,
    pub(super) call: String,
    pub(super) ms: f64,
    pub(super) stall_ms: f64,
}

impl Step<'_> {
    pub(super) const HEADS: [&'static str; 7] = ["step", "entry", "job", "by", "time", "waiting", "call"];
}

impl Figures {
    pub(super) const NAMES: [&'static str; 10] = [
        "time",
        "stalled",
        "budget",
        "floor",
        "everything",
        "peak pool",
        "moved",
        "hits",
        "misses",
        "evictions",
    ];

    fn of(replay: &ReplayRecord) -> Self {
        let size = |bytes: Option<Bytes>| bytes.map(|it| it.to_string());
        let sizes = Self {
            budget: size(replay.budget_bytes),
            floor: size(replay.floor_bytes),
            everything: size(replay.all_resident_bytes),
            ..Self::default()
        };
        let Some(result) = result(replay) else { return sizes };
        Self {
            time: Some(time(result.total_ms)),
            stalled: Some(time(result.stall_ms)),
            budget: Some(result.budget_bytes.to_string()),
            floor: Some(result.floor_bytes.to_string()),
            everything: Some(result.all_resident_bytes.to_string()),
            peak: Some(result.peak_pool_bytes.to_string()),
            moved: Some(result.bytes_moved.to_string()),
            hits: Some(result.hits.to_string()),
            misses: Some(result.misses.to_string()),
            evictions: Some(result.evictions.to_string()),
        }
    }

    /// Returns the figures in the order of `NAMES`.
    pub(super) fn all(&self) -> [Option<&str>; 10] {
        [
            &self.time,
            &self.stalled,
            &self.budget,
            &self.floor,
            &self.everything,
            &self.peak,
            &self.moved,
            &self.hits,
            &self.misses,
            &self.evictions,
        ]
        .map(Option::as_deref)
    }
}

impl<'r> ReplayText<'r> {
    /// Describes a replay. `winner` returns the winner of a job.
    pub(super) fn of(replay: &'r ReplayRecord, winner: impl Fn(&str) -> Option<&'r str>) -> Self {
        let outcome = match result(replay) {
            Some(result) => Outcome::Passed(Box::new(Passed::of(result, winner))),
            None => Outcome::NoResult { detail: replay.detail.as_deref(), failure: failure(replay) },
        };
        Self {
            name: &replay.name,
            status: replay.status.map_or("not finished", Status::name),
            blame: replay.blame,
            figures: Figures::of(replay),
            outcome,
        }
    }

    /// Returns the description as one line, followed by indented lines and an empty one.
    pub(super) fn lines(&self) -> Vec<String> {
        let (name, status) = (one_line(self.name), self.status);
        let passed = match &self.outcome {
            Outcome::Passed(passed) => passed,
            Outcome::NoResult { detail, failure } => {
                let blame = self.blame.map_or_else(String::new, |blame| format!(" ({})", blame.name()));
                let why = detail.map_or_else(String::new, |detail| format!(": {}", one_line(detail)));
                let mut lines = vec![format!("replay {name}: {status}{blame}{why}")];
                lines.extend(failure.as_ref().map(|text| format!("  {}", one_line(text))));
                lines.push(String::new());
                return lines;
            }
        };
        let [time, stalled, budget, floor, everything, peak, moved, hits, misses, evictions] =
            self.figures.all().map(|figure| figure.unwrap_or("-"));
        let steps = counted(passed.step_count, "step", "steps");
        let mut lines = vec![
            format!("replay {name}: {steps} in {time}, {stalled} stalled, budget {budget}"),
            format!("  pool: peak {peak} (floor {floor}, everything {everything})"),
            format!(
                "  moved {moved}: {hits} hits, {misses} misses, {evictions} evictions; copying took {}, the calls {}",
                passed.copying, passed.calls
            ),
            format!("  {}", passed.against_all()),
        ];
        if !passed.callers.is_empty() {
            lines.push(format!("  calls by {}", passed.called_by(one_line)));
        }
        lines.extend(passed.slowest(MAX_STEPS).iter().map(|step| {
            let (entry, job) = (one_line(step.entry), one_line(step.job));
            format!("  {entry} of {job}: {}, {} of it waiting", step.time, step.waiting)
        }));
        lines.push(String::new());
        lines
    }
}

impl<'r> Passed<'r> {
    fn of(result: &'r ReplayResult, winner: impl Fn(&str) -> Option<&'r str>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
        let sizes = |what, ours: Bytes, all: Bytes| BudgetComparison {
            what,
            ours: ours.to_string(),
            all: all.to_string(),
            share: share(ours.get() as f64, all.get() as f64),
        };
        Self {
            callers: callers(result, winner),
            against: [
                sizes("pool", result.peak_pool_bytes, result.all_resident_bytes),
                sizes("moved", result.bytes_moved, result.unique_bytes),
                BudgetComparison {
                    what: "time",
                    ours: time(result.total_ms),
                    all: time(result.compute_ms),
                    share: share(result.total_ms, result.compute_ms),
                },
            ],
            steps: result.steps.iter().enumerate().map(|(place, it)| step(place, it)).collect(),
            step_count: usize::try_from(result.step_count).unwrap_or(usize::MAX),
            copying: time(result.copy_ms),
            calls: time(result.compute_ms),
            stall_ms: result.stall_ms,
        }
    }

    /// Names the kernels that make the calls. `name` formats the names.
    pub(super) fn called_by(&self, name: impl Fn(&str) -> String) -> String {
        let caller = |it: &Caller<'_>| {
            let won = it.winner.map_or_else(String::new, |winner| format!(", which {} won", name(winner)));
            format!("{} ({}{won})", name(it.candidate), name(it.job))
        };
        self.callers.iter().map(caller).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn against_all(&self) -> String {
        let [pool, moved, spent] = &self.against;
        let share = |it: &BudgetComparison| it.share.map_or_else(|| "-".to_owned(), percent);
        format!(
            "compared with keeping everything: {} of that pool, {} moved instead of {}, {} of the time of the calls alone",
            share(pool),
            moved.ours,
            moved.all,
            share(spent)
        )
    }

    /// Returns the steps that waited longest, at most `most` of them, from those in the list.
    pub(super) fn slowest(&self, most: usize) -> Vec<&Step<'r>> {
        let waited = |step: &&Step<'_>| 0.0 < step.stall_ms && MIN_SHARE * self.stall_ms <= step.stall_ms;
        let mut steps: Vec<_> = self.steps.iter().filter(waited).collect();
        steps.sort_by(|one, other| other.stall_ms.total_cmp(&one.stall_ms));
        steps.truncate(most);
        steps
    }
}

/// Returns the figures of a replay. A replay that did not pass has none, even if its row contains some.
pub(super) fn result(replay: &ReplayRecord) -> Option<&ReplayResult> {
    replay.result.as_ref().filter(|_| replay.status == Some(Status::Passed))
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (0.0 < whole).then(|| part / whole).filter(|share| share.is_finite())
}

fn step(place: usize, it: &ReplayStep) -> Step<'_> {
    Step {
        place,
        entry: &it.entry,
        job: &it.job,
        candidate: &it.candidate,
        time: time(it.ms),
        waiting: time(it.stall_ms),
        call: time(it.call_ms),
        ms: it.ms,
        stall_ms: it.stall_ms,
    }
}

/// Describes the first difference: its index, the expected value and the actual one.
fn failure(replay: &ReplayRecord) -> Option<String> {
    let failure = replay.failure.as_ref()?;
    let it = failure.mismatch.as_ref()?;
    let index: Vec<String> = it.index.iter().map(u64::to_string).collect();
    Some(format!(
        "{}: {}[{}] expected {}, actual {}; {} of {} elements differ",
        failure.entry,
        it.output,
        index.join(", "),
        it.expected,
        it.actual,
        it.failed,
        it.elements
    ))
}

/// Returns the kernels that make the calls of the listed steps.
fn callers<'r>(result: &'r ReplayResult, winner: impl Fn(&str) -> Option<&'r str>) -> Vec<Caller<'r>> {
    let mut callers: Vec<Caller<'r>> = Vec::new();
    for step in &result.steps {
        if !callers.iter().any(|it| it.job == step.job) {
            let winner = winner(&step.job).filter(|name| *name != step.candidate);
            callers.push(Caller { job: &step.job, candidate: &step.candidate, winner });
        }
    }
    callers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::sample;

    #[test]
    fn replay_takes_a_few_lines() {
        let replay = &sample().replays[0];
        let wanted = [
            "replay model: 1 step in 18.0 s, 900 ms stalled, budget 512 MiB",
            "  pool: peak 510 MiB (floor 300 MiB, everything 5.00 GiB)",
            "  moved 9.00 GiB: 600 hits, 100 misses, 90 evictions; copying took 12.0 s, the calls 17.1 s",
            "  compared with keeping everything: 10 % of that pool, 9.00 GiB moved instead of 5.00 GiB, 105 % of the time of the calls alone",
            "  calls by fast.c (embedding)",
            "  entry_000000 of embedding: 20.0 ms, 12.0 ms of it waiting",
            "",
        ];
        assert_eq!(ReplayText::of(replay, |_| Some("fast.c")).lines(), wanted);
    }

    /// A failed replay shows no figures, even if its row contains some.
    #[test]
    fn failed_replay_has_no_figures() {
        let mut replay = sample().replays.remove(0);
        replay.status = Some(Status::InfraError);
        replay.detail = Some("differs at use 7".to_owned());
        assert_eq!(
            ReplayText::of(&replay, |_| None).lines(),
            ["replay model: INFRA_ERROR: differs at use 7", ""]
        );
    }

    #[test]
    fn step_that_hardly_waited_is_not_listed() {
        let mut result = sample().replays.remove(0).result.expect("it passed");
        let step = |stall_ms: f64| ReplayStep { stall_ms, ..result.steps[0].clone() };
        result.steps = [500.0, 0.001, 8.9, 9.0, 391.0].map(step).to_vec();
        let passed = Passed::of(&result, |_| None);
        let places: Vec<usize> = passed.slowest(10).iter().map(|step| step.place).collect();
        assert_eq!((places, passed.slowest(1).len()), (vec![0, 4, 3], 1));
    }

    #[test]
    fn caller_that_replaces_the_winner_is_named() {
        let replay = &sample().replays[0];
        let lines = ReplayText::of(replay, |_| Some("part.c")).lines();
        assert!(lines.contains(&"  calls by fast.c (embedding, which part.c won)".to_owned()), "{lines:?}");
    }

    #[test]
    fn wrong_output_has_its_location() {
        let mut run = sample();
        let mut replay = run.replays.remove(0);
        (replay.status, replay.result) = (Some(Status::IncorrectNumerical), None);
        replay.failure = run.jobs[0].candidates[0].failures.first().cloned();
        let lines = ReplayText::of(&replay, |_| None).lines();
        assert!(lines[1].starts_with("  entry_000003: ") && lines[1].contains("expected"), "{lines:?}");
    }
}
