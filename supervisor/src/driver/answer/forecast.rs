//! Estimates how long the rest of a run will take, from the times of its attempts so far. The estimate is only shown;
//! no decision depends on it.
//!
//! For a candidate that has not ended, the estimate adds up two parts: what is left of the mean time of its current
//! stage, and the mean time of each later stage. Not every candidate reaches the later stages, so the time of each is
//! multiplied by the share of attempts that passed all stages from the current one up to it. If a job has no attempts
//! of a stage yet, the figures of the other jobs are used.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::JobId;

use crate::core::event::Stage;

/// The stages that are estimated. `Confirm` is left out, because the number of confirmations is known only at the end.
const STAGES: [Stage; 4] = [Stage::Build, Stage::Verify, Stage::Screen, Stage::Profile];

/// Counts and times of the attempts of one stage in one job that have ended.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    ended: u32,
    passed: u32,
    time: Duration,
}

/// A candidate that has not ended, and its current stage.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub job: JobId,
    pub stage: Stage,
    /// How long its current attempt has been running.
    pub held: Duration,
}

#[derive(Debug, Default)]
pub struct Forecast {
    tallies: BTreeMap<(Stage, JobId), Tally>,
    /// The number of candidates that have ended since the process began.
    ended: u32,
}

impl Forecast {
    pub fn attempt_ended(&mut self, job: JobId, stage: Stage, passed: bool, took: Duration) {
        let tally = self.tallies.entry((stage, job)).or_default();
        tally.ended += 1;
        tally.passed += u32::from(passed);
        tally.time += took;
    }

    pub fn candidate_ended(&mut self) {
        self.ended += 1;
    }

    pub fn ended(&self) -> u32 {
        self.ended
    }

    /// Returns the estimated time until all `open` candidates have ended, as if one attempt ran at a time. Returns
    /// `None` while a stage that they may still reach has never been run. Screening is exempt, because a job with few
    /// candidates does not have it.
    pub fn remaining(
        &self,
        open: impl Iterator<Item = Open>,
        is_run: impl Fn(Stage) -> bool,
    ) -> Option<Duration> {
        let mut all = Duration::ZERO;
        for it in open {
            let (mut seconds, mut chance) = (0.0, 1.0);
            for stage in STAGES.into_iter().filter(|stage| it.stage <= *stage && is_run(*stage)) {
                if chance == 0.0 {
                    break;
                }
                let Some(tally) = self.tally(stage, it.job) else {
                    if stage == Stage::Screen {
                        continue;
                    }
                    return None;
                };
                let mut mean = tally.time.as_secs_f64() / f64::from(tally.ended);
                if stage == it.stage {
                    mean = (mean - it.held.as_secs_f64()).max(0.0);
                }
                seconds += chance * mean;
                chance *= f64::from(tally.passed) / f64::from(tally.ended);
            }
            all = all.saturating_add(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        }
        Some(all)
    }

    /// Returns the figures of a stage in a job, or in all jobs together if this job has none.
    fn tally(&self, stage: Stage, job: JobId) -> Option<Tally> {
        let in_job = self.tallies.get(&(stage, job)).copied();
        in_job.or_else(|| {
            let in_all_jobs = self.tallies.iter().filter(|((other, _), _)| *other == stage);
            in_all_jobs.map(|(_, tally)| *tally).reduce(|sum, it| Tally {
                ended: sum.ended + it.ended,
                passed: sum.passed + it.passed,
                time: sum.time + it.time,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: JobId = JobId(0);
    const SECOND: JobId = JobId(1);

    fn open(job: JobId, stage: Stage, held: u64) -> Open {
        Open { job, stage, held: Duration::from_secs(held) }
    }

    fn after_some_attempts() -> Forecast {
        let mut forecast = Forecast::default();
        let mut ended = |stage, passed, seconds| {
            forecast.attempt_ended(FIRST, stage, passed, Duration::from_secs(seconds));
        };
        ended(Stage::Build, true, 1);
        ended(Stage::Build, true, 3);
        ended(Stage::Verify, true, 10);
        ended(Stage::Verify, false, 10);
        ended(Stage::Profile, true, 100);
        forecast
    }

    #[test]
    fn later_stages_count_by_the_share_of_candidates_that_reach_them() {
        let forecast = after_some_attempts();
        let seconds = |open: &[Open], profiled: bool| {
            let is_run = |stage| profiled || stage != Stage::Profile;
            forecast.remaining(open.iter().copied(), is_run).map(|it| it.as_secs_f64())
        };
        assert_eq!(seconds(&[], true), Some(0.0));
        assert_eq!(seconds(&[open(FIRST, Stage::Build, 0)], true), Some(2.0 + 10.0 + 50.0));
        assert_eq!(seconds(&[open(FIRST, Stage::Build, 0)], false), Some(12.0));
        assert_eq!(
            seconds(&[open(SECOND, Stage::Profile, 0)], true),
            Some(100.0),
            "assumed to be like the other job"
        );
        let running = [open(FIRST, Stage::Verify, 4), open(FIRST, Stage::Profile, 400)];
        assert_eq!(
            seconds(&running, true),
            Some(6.0 + 50.0),
            "an attempt that ran longer than the mean has no time left"
        );
    }

    #[test]
    fn remaining_is_unknown_while_a_stage_was_never_run() {
        let mut forecast = Forecast::default();
        let one = || std::iter::once(open(FIRST, Stage::Build, 0));
        assert_eq!(forecast.remaining(one(), |_| true), None);
        forecast.attempt_ended(FIRST, Stage::Build, false, Duration::from_secs(2));
        assert_eq!(
            forecast.remaining(one(), |_| true),
            Some(Duration::from_secs(2)),
            "no candidate gets beyond the build"
        );
        forecast.attempt_ended(FIRST, Stage::Build, true, Duration::from_secs(2));
        assert_eq!(forecast.remaining(one(), |_| true), None);
    }
}
