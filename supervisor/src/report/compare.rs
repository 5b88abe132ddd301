//! Compares two runs: which candidates are in both, which of them became faster or slower, and whose status changed.
//!
//! If a candidate has a speed-up in both runs, over a baseline of the same name, speed-ups are compared. This largely
//! cancels the machine's influence. Otherwise median times are compared, which is meaningful only on the same machine.
//! The interval of a ratio is computed as if the errors of the two runs were independent.

mod print;
mod replays;

use std::collections::BTreeMap;

use opt_shared::outcome::{Estimate, Status};
use serde::Serialize;

use super::marks::is_unvaried;
use crate::record::{CandidateRecord, HostRecord, JobRecord, ReplayRecord, RunInfo};

pub use self::replays::{ComparedReplay, EndedReplay};
pub use print::{markdown, text};

/// The version of the comparison's format. It is increased by every change that could break a reader.
const SCHEMA: u32 = 1;

/// One of the two runs, with only those facts that a comparison needs.
#[derive(Debug)]
pub struct ComparedRun {
    pub run: RunInfo,
    pub host: HostRecord,
    jobs: Vec<RunJob>,
    /// All replays of the run. They need no limit, because a plan has at most 16.
    pub replays: Vec<ReplayRecord>,
}

#[derive(Debug)]
struct RunJob {
    job: JobRecord<()>,
    candidates: BTreeMap<String, Ended>,
    order: Vec<String>,
}

/// How a candidate ended in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ended {
    pub status: Option<Status>,
    pub rank: Option<u32>,
    pub speedup: Option<Estimate>,
    pub median_time: Option<Estimate>,
    /// True if entries were timed in this run, but none of them counts as varying. The other run has no influence on
    /// this.
    pub same_inputs: bool,
}

impl ComparedRun {
    pub fn new(run: RunInfo, host: HostRecord) -> Self {
        Self { run, host, jobs: Vec::new(), replays: Vec::new() }
    }

    /// Starts a job. Candidates that are added later belong to this job.
    pub fn job(&mut self, job: JobRecord<()>) {
        self.jobs.push(RunJob { job, candidates: BTreeMap::new(), order: Vec::new() });
    }

    pub fn candidate(&mut self, candidate: &CandidateRecord) {
        let times = candidate.profile.as_ref().map(|profile| &profile.times);
        let median_time = times.and_then(|times| {
            Some(Estimate { value: times.median_time_ms?, ci_low: times.ci_low?, ci_high: times.ci_high? })
        });
        let ended = Ended {
            status: candidate.status,
            rank: candidate.rank,
            speedup: candidate.speedup,
            median_time: median_time.filter(|_| candidate.status == Some(Status::Passed)),
            same_inputs: is_unvaried(candidate),
        };
        if let Some(job) = self.jobs.last_mut() {
            job.order.push(candidate.name.clone());
            job.candidates.insert(candidate.name.clone(), ended);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Faster,
    Slower,
    /// There is a ratio, but its interval contains 1.
    WithinNoise,
    NewlyPassed,
    NoLongerPassed,
    /// The candidate passed in neither run, and its two statuses differ.
    OtherStatus,
    /// The status is the same in both runs, but there is no ratio, because a figure is missing, or is not positive and
    /// finite.
    None,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::WithinNoise => "within noise",
            Self::NewlyPassed => "passes now",
            Self::NoLongerPassed => "passed before",
            Self::OtherStatus => "other status",
            Self::None => "",
        }
    }
}

/// The figure of which the ratio is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RatioOf {
    Speedup,
    MedianTime,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedCandidate {
    pub name: String,
    pub change: Change,
    pub first: Ended,
    pub second: Ended,
    /// The ratio of the two runs. If it is above 1, the second run is faster.
    pub ratio: Option<Estimate>,
    pub ratio_of: Option<RatioOf>,
}

#[derive(Debug, Serialize)]
pub struct ComparedJob {
    pub name: String,
    pub winners: [Option<String>; 2],
    /// Whether both runs used the same captures. `None` if a run did not record its captures.
    pub same_captures: Option<bool>,
    pub same_signature: Option<bool>,
    pub same_baseline: bool,
    pub candidates: Vec<ComparedCandidate>,
    pub only_in_first: Vec<String>,
    pub only_in_second: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Comparison {
    pub schema: u32,
    pub runs: [RunInfo; 2],
    pub same_cpu: Option<bool>,
    pub jobs: Vec<ComparedJob>,
    pub jobs_only_in_first: Vec<String>,
    pub jobs_only_in_second: Vec<String>,
    pub replays: Vec<ComparedReplay>,
    pub replays_only_in_first: Vec<String>,
    pub replays_only_in_second: Vec<String>,
}

pub fn compare(first: ComparedRun, second: ComparedRun) -> Comparison {
    let mut later: BTreeMap<String, RunJob> =
        second.jobs.into_iter().map(|job| (job.job.name.clone(), job)).collect();
    let later_names: Vec<String> = later.keys().cloned().collect();
    let (mut jobs, mut only_in_first) = (Vec::new(), Vec::new());
    for job in first.jobs {
        match later.remove(&job.job.name) {
            Some(other) => jobs.push(compare_job(job, other)),
            None => only_in_first.push(job.job.name),
        }
    }
    let compared_replays = replays::compare(first.replays, second.replays);
    Comparison {
        schema: SCHEMA,
        same_cpu: same(first.host.cpu.as_ref(), second.host.cpu.as_ref()),
        runs: [first.run, second.run],
        jobs,
        jobs_only_in_first: only_in_first,
        jobs_only_in_second: later_names.into_iter().filter(|name| later.contains_key(name)).collect(),
        replays: compared_replays.both,
        replays_only_in_first: compared_replays.only_in_first,
        replays_only_in_second: compared_replays.only_in_second,
    }
}

fn compare_job(first: RunJob, mut second: RunJob) -> ComparedJob {
    let same_baseline = first.job.baseline.is_some() && first.job.baseline == second.job.baseline;
    let (mut candidates, mut only_in_first) = (Vec::new(), Vec::new());
    for name in first.order {
        let before = first.candidates.get(&name).copied().unwrap_or_default();
        match second.candidates.remove(&name) {
            Some(after) => candidates.push(compare_candidate(name, before, after, same_baseline)),
            None => only_in_first.push(name),
        }
    }
    ComparedJob {
        same_captures: same(first.job.captures.digest.as_ref(), second.job.captures.digest.as_ref()),
        same_signature: same(first.job.signature_digest.as_ref(), second.job.signature_digest.as_ref()),
        same_baseline,
        name: first.job.name,
        winners: [first.job.winner, second.job.winner],
        candidates,
        only_in_first,
        only_in_second: second
            .order
            .into_iter()
            .filter(|name| second.candidates.contains_key(name))
            .collect(),
    }
}

fn same<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> Option<bool> {
    Some(one? == other?)
}

fn compare_candidate(name: String, first: Ended, second: Ended, same_baseline: bool) -> ComparedCandidate {
    let by_speedup = first.speedup.zip(second.speedup).filter(|_| same_baseline);
    // For times, less is faster, so the time of the first run is the numerator.
    let by_time = first.median_time.zip(second.median_time);
    let (ratio, ratio_of) = match (by_speedup, by_time) {
        (Some((before, after)), _) => (ratio(after, before), RatioOf::Speedup),
        (None, Some((before, after))) => (ratio(before, after), RatioOf::MedianTime),
        (None, None) => (None, RatioOf::MedianTime),
    };
    let passed = |ended: Ended| ended.status == Some(Status::Passed);
    let change = match (passed(first), passed(second), ratio) {
        (true, true, Some(ratio)) if 1.0 < ratio.ci_low => Change::Faster,
        (true, true, Some(ratio)) if ratio.ci_high < 1.0 => Change::Slower,
        (true, true, Some(_)) => Change::WithinNoise,
        (false, true, _) => Change::NewlyPassed,
        (true, false, _) => Change::NoLongerPassed,
        (false, false, _) if first.status != second.status => Change::OtherStatus,
        _ => Change::None,
    };
    ComparedCandidate { name, change, first, second, ratio, ratio_of: ratio.map(|_| ratio_of) }
}

/// Returns the ratio of two independent estimates, whose squared logarithmic errors are added. `None` if any figure of
/// the two estimates is not positive and finite.
fn ratio(above: Estimate, below: Estimate) -> Option<Estimate> {
    let usable = |it: &Estimate| {
        [it.value, it.ci_low, it.ci_high].iter().all(|figure| figure.is_finite() && 0.0 < *figure)
    };
    if !usable(&above) || !usable(&below) {
        return None;
    }
    let value = above.value / below.value;
    let down = (above.value / above.ci_low).ln().hypot((below.ci_high / below.value).ln());
    let up = (above.ci_high / above.value).ln().hypot((below.value / below.ci_low).ln());
    Some(Estimate { value, ci_low: value * (-down).exp(), ci_high: value * up.exp() })
}

#[cfg(test)]
pub(in crate::report) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::RunRecord;
    use crate::record::sample::sample;

    pub(in crate::report) fn compared_run(run: RunRecord) -> ComparedRun {
        let mut compared_run = ComparedRun::new(run.run, run.host);
        compared_run.replays = run.replays;
        for mut job in run.jobs {
            let candidates = std::mem::take(&mut job.candidates);
            compared_run.job(job.with_candidates(()));
            candidates.iter().for_each(|candidate| compared_run.candidate(candidate));
        }
        compared_run
    }

    pub(in crate::report) fn later() -> RunRecord {
        let mut run = sample();
        let candidates = &mut run.jobs[0].candidates;
        candidates[2].speedup = Some(Estimate { value: 4.62, ci_low: 4.5, ci_high: 4.7 });
        candidates[0].status = Some(Status::Passed);
        let mut new = candidates[2].clone();
        new.name = "new.c".to_owned();
        candidates.push(new);
        run
    }

    #[test]
    fn changes_are_distinguished_from_noise() {
        let result = compare(compared_run(sample()), compared_run(later()));
        let job = &result.jobs[0];
        let changes: Vec<(&str, Change)> =
            job.candidates.iter().map(|it| (it.name.as_str(), it.change)).collect();
        assert_eq!(
            changes,
            [("bad.c", Change::NewlyPassed), ("naive.c", Change::WithinNoise), ("fast.c", Change::Faster)]
        );
        let fast = &job.candidates[2];
        let ratio = fast.ratio.expect("timed in both");
        assert!((ratio.value - 2.0).abs() < 1e-12 && 1.9 < ratio.ci_low && ratio.ci_high < 2.1, "{ratio:?}");
        assert_eq!(fast.ratio_of, Some(RatioOf::Speedup));
        assert_eq!(job.only_in_second, ["new.c"]);
        assert_eq!(
            (job.same_captures, job.same_signature, result.same_cpu),
            (Some(true), Some(true), Some(true))
        );

        let mut other = later();
        other.jobs[0].baseline = None;
        let back = compare(compared_run(other), compared_run(sample()));
        assert_eq!(back.jobs[0].candidates[2].ratio_of, Some(RatioOf::MedianTime));
        assert_eq!(back.jobs[0].candidates[0].change, Change::NoLongerPassed);
        assert_eq!(back.jobs[0].only_in_first, ["new.c"]);
    }

    #[test]
    fn jobs_in_only_one_run_are_named() {
        let mut other = sample();
        other.jobs[0].name = "softmax".to_owned();
        let result = compare(compared_run(sample()), compared_run(other));
        assert_eq!(
            (result.jobs_only_in_first, result.jobs_only_in_second),
            (vec!["embedding".to_owned()], vec!["softmax".to_owned()])
        );
    }

    proptest! {
        #[test]
        fn ratio_inverts_and_contains_its_value(
            figures in proptest::array::uniform2((1e-6f64..1e6, 0.0f64..0.5, 0.0f64..0.5)),
        ) {
            let [one, other] = figures.map(|(value, down, up)| Estimate {
                value,
                ci_low: value * (1.0 - down),
                ci_high: value * (1.0 + up),
            });
            let forward = ratio(one, other).expect("usable");
            let back = ratio(other, one).expect("usable");
            prop_assert!(forward.ci_low <= forward.value * 1.000_001 && forward.value <= forward.ci_high * 1.000_001);
            prop_assert!((forward.ci_low * back.ci_high - 1.0).abs() < 1e-9);
            // The interval must not be wider than if both errors had their worst values at the same time.
            prop_assert!(one.ci_low / other.ci_high <= forward.ci_low * 1.000_001);
        }

        #[test]
        fn ratio_of_an_invalid_estimate_is_none(value in prop_oneof![Just(0.0), Just(-1.0), Just(f64::NAN), Just(f64::INFINITY)]) {
            let valid = Estimate { value: 1.0, ci_low: 1.0, ci_high: 1.0 };
            prop_assert_eq!(ratio(Estimate { value, ..valid }, valid), None);
            prop_assert_eq!(ratio(valid, Estimate { value, ..valid }), None);
        }
    }
}
