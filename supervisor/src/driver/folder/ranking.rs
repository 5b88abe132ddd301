//! Scores and ranks a job's candidates from their latest profiles, and determines the winner.

use opt_shared::ids::CandidateId;
use opt_shared::outcome::{Estimate, Profiled};
use opt_shared::stage::Stage;

use super::score::ranks;
use super::times::{hash_of_compared, rate, times};
use crate::record::CandidateTimes;
use crate::store::ScoreRow;

/// A summary of one profile of a candidate. Its size does not depend on the number of entries.
#[derive(Clone, Debug)]
pub struct ScoreSummary {
    /// The stage that gave the profile: screen, profile or confirmation.
    stage: Stage,
    entries: usize,
    /// The number of entries in the capture set for which the timed entries stand.
    weight: u64,
    /// The number of entries whose inputs count as varying.
    varied: usize,
    /// Whether any input had new values in every call. Without a baseline, the outputs for new values were compared
    /// only with outputs of the candidate itself.
    had_new_values: bool,
    /// A hash of the entries that are used to compare candidates if there is no baseline.
    compared: u64,
    /// The speed-up over the baseline that was timed beside the candidate.
    speedup: Option<Estimate>,
    /// The calls per millisecond, as a geometric mean over entries. As for a speed-up, higher is better.
    rate: Option<Estimate>,
    /// The times per call, with the noise of the entries.
    times: CandidateTimes,
}

impl ScoreSummary {
    pub fn of(stage: Stage, profiled: &Profiled) -> Self {
        Self {
            stage,
            entries: profiled.entries.len(),
            weight: profiled.weight(),
            varied: profiled.entries.iter().filter(|entry| entry.is_varied()).count(),
            had_new_values: profiled.entries.iter().any(|entry| !entry.varied.is_empty()),
            compared: hash_of_compared(profiled),
            speedup: profiled.speedup(),
            rate: rate(profiled),
            times: times(profiled),
        }
    }

    pub const fn speedup(&self) -> Option<Estimate> {
        self.speedup
    }

    pub const fn has_entries(&self) -> bool {
        self.entries != 0
    }
}

pub struct Timed<'a> {
    pub id: CandidateId,
    pub is_baseline: bool,
    pub summary: &'a ScoreSummary,
    /// The weight of the entries that the candidate does not support. In these entries, its speed-up counts as 1,
    /// because the baseline has to be called instead.
    pub left_out: u64,
}

/// The result of a job's profiles.
pub struct Scores {
    pub rows: Vec<(CandidateId, ScoreRow)>,
    /// The best candidate other than the baseline, with its speed-up if it has one.
    best: Option<(CandidateId, Option<Estimate>)>,
    /// Whether the best candidate was confirmed. If so, its figures come from the confirmation.
    confirmed: bool,
    doubt: Option<Doubt>,
    min_improvement: f64,
}

/// A question that the measured times leave open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// Whether this candidate is faster than the baseline by `min_improvement`.
    Faster { candidate: CandidateId, speedup: Estimate },
    /// Whether this candidate did real work in its timed calls. Without a baseline, its outputs for new inputs are
    /// compared only with those of a second process of the same candidate.
    Unchecked { candidate: CandidateId },
    /// Whether this candidate is faster than the best one. It may be faster by as much as `share`.
    Best { candidate: CandidateId, figure: Estimate, share: f64 },
    /// How much faster this candidate, which is the best one, is than the baseline. The interval of its speed-up is too
    /// wide.
    SpeedupTooWide { candidate: CandidateId, speedup: Estimate },
}

/// The best speed-up counts as known if the half-width of its interval is at most this share of its value.
const MAX_HALF_WIDTH: f64 = 0.15;

/// The best candidate counts as known if no other candidate can be faster than it by more than this share.
const MAX_RIVAL_LEAD: f64 = 0.05;

/// The winner of a job, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Winner {
    /// There is none, because no candidate other than the baseline has times that count.
    Nobody,
    /// There is none, because the best candidate is not clearly faster than the baseline by `min_improvement`.
    Uncertain,
    Is(CandidateId),
}

impl Scores {
    /// Returns the undecided question, or `None` if the ranking is settled.
    pub fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Returns whether there is a winner whose figures come from its confirmation.
    pub fn winner_is_confirmed(&self) -> bool {
        self.confirmed && matches!(self.winner(), Winner::Is(_))
    }

    /// Returns the best candidate, if it is clearly faster than the baseline by `min_improvement`, or was timed without
    /// a baseline.
    pub fn winner(&self) -> Winner {
        match self.best {
            None => Winner::Nobody,
            Some((_, Some(speedup))) if speedup.ci_low < 1.0 + self.min_improvement => Winner::Uncertain,
            Some((id, _)) => Winner::Is(id),
        }
    }
}

/// Scores the candidates. If no baseline was timed, they are ranked by time.
pub fn scores(timed: &[Timed<'_>], min_improvement: f64) -> Scores {
    let paired = timed.iter().any(|it| it.is_baseline);
    let most_varied = timed.iter().map(|it| it.summary.varied).max().unwrap_or_default();
    // Without a baseline, candidates are compared over the entries of one candidate. It is the one with the most varied
    // entries. If several have equally many, it is the one with the highest weight, and after that the first.
    let most_entries = timed.iter().rev().max_by_key(|it| (it.summary.varied, it.summary.weight));
    let entries_to_compare = most_entries.map(|it| it.summary.compared);
    let mut scored: Vec<(&Timed<'_>, Option<Estimate>, Estimate)> = Vec::new();
    for it in timed {
        let speedup = if it.is_baseline {
            Some(Estimate { value: 1.0, ci_low: 1.0, ci_high: 1.0 })
        } else {
            it.summary.speedup.map(|speedup| with_left_out(speedup, it.summary.weight, it.left_out))
        };
        // A candidate that gets the same input in every call may store the result, so its times cannot be compared with
        // those of other candidates. If there is a baseline, the same inputs vary for all candidates. But a candidate
        // may support only entries whose inputs do not vary, or it may be wrong for new values in all other entries.
        let comparable = if paired {
            it.is_baseline || 0 < it.summary.varied || most_varied == 0
        } else {
            entries_to_compare == Some(it.summary.compared)
        };
        let figure = if paired { speedup } else { it.summary.rate }.filter(|_| comparable);
        if let Some(figure) = figure {
            scored.push((it, speedup.filter(|_| !it.is_baseline), figure));
        }
    }
    let figures: Vec<Estimate> = scored.iter().map(|(_, _, figure)| *figure).collect();
    let job_ranks = ranks(&figures, min_improvement);
    let rows = scored
        .iter()
        .zip(&job_ranks)
        .map(|((it, speedup, _), &rank)| {
            let mut times = it.summary.times.clone();
            if let Some(speedup) = speedup {
                times.noise = Some((speedup.ci_high - speedup.ci_low) / 2.0 / speedup.value);
            }
            (it.id, ScoreRow { rank: Some(rank), speedup: *speedup, times })
        })
        .collect();
    let best = scored
        .iter()
        .zip(&job_ranks)
        .filter(|((it, _, _), _)| !it.is_baseline)
        .min_by(|((_, _, one), one_rank), ((_, _, other), other_rank)| {
            one_rank.cmp(other_rank).then(other.ci_low.total_cmp(&one.ci_low))
        })
        .map(|((it, speedup, _), _)| (*it, *speedup));
    let confirmed = best.is_some_and(|(it, _)| it.summary.stage == Stage::Confirm);
    let best = best.map(|(it, speedup)| (it.id, speedup));
    let figures: Vec<(CandidateId, Estimate)> =
        scored.iter().filter(|(it, _, _)| !it.is_baseline).map(|(it, _, figure)| (it.id, *figure)).collect();
    let doubt = best.and_then(|(id, speedup)| match paired {
        false if timed.iter().any(|it| it.summary.had_new_values) => Some(Doubt::Unchecked { candidate: id }),
        _ => doubt(id, speedup, &figures, 1.0 + min_improvement),
    });
    Scores { rows, best, confirmed, doubt, min_improvement }
}

/// Returns the geometric mean over all entries: `speedup` for entries of this weight, and 1 for the entries that were
/// left out.
fn with_left_out(speedup: Estimate, weight: u64, left_out: u64) -> Estimate {
    #[expect(clippy::cast_precision_loss, reason = "counts of entries")]
    let share = weight as f64 / (weight + left_out).max(1) as f64;
    Estimate {
        value: speedup.value.powf(share),
        ci_low: speedup.ci_low.powf(share),
        ci_high: speedup.ci_high.powf(share),
    }
}

/// Returns the question that the times leave open, if any. It asks whether some candidate is faster than the baseline
/// by `min_improvement`, which candidate is fastest, or by how much the fastest one is faster.
fn doubt(
    best: CandidateId,
    speedup: Option<Estimate>,
    figures: &[(CandidateId, Estimate)],
    min_speedup: f64,
) -> Option<Doubt> {
    let paired = speedup.is_some();
    let clearly_faster = !paired || speedup.is_some_and(|it| min_speedup <= it.ci_low);
    if !clearly_faster {
        // No candidate is clearly faster by `min_improvement`. The ranking is settled only if it is certain that none
        // of them is.
        return figures
            .iter()
            .filter(|(_, figure)| min_speedup < figure.ci_high)
            .max_by(|(_, one), (_, other)| one.value.total_cmp(&other.value))
            .map(|&(candidate, speedup)| Doubt::Faster { candidate, speedup });
    }
    let (_, leader) = figures.iter().find(|(id, _)| *id == best)?;
    let is_wide = |it: &Estimate| MAX_HALF_WIDTH * it.value < (it.ci_high - it.ci_low) / 2.0;
    let wide = speedup.filter(is_wide).map(|speedup| Doubt::SpeedupTooWide { candidate: best, speedup });
    figures
        .iter()
        .filter(|(id, figure)| *id != best && leader.value * (1.0 + MAX_RIVAL_LEAD) < figure.ci_high)
        .max_by(|(_, one), (_, other)| one.ci_high.total_cmp(&other.ci_high))
        .map(|&(candidate, figure)| Doubt::Best {
            candidate,
            figure,
            share: figure.ci_high / leader.value - 1.0,
        })
        .or(wide)
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::Body;

    use super::*;
    use crate::core::testkit::reports::timed;

    const BASELINE: CandidateId = CandidateId(0);
    const SLOW: CandidateId = CandidateId(1);
    const FAST: CandidateId = CandidateId(2);

    fn estimate(value: f64) -> Estimate {
        Estimate { value, ci_low: value * 0.99, ci_high: value * 1.01 }
    }

    fn summary(speedup: Option<f64>, rate: f64) -> ScoreSummary {
        ScoreSummary {
            stage: Stage::Profile,
            entries: 1,
            weight: 1,
            varied: 1,
            had_new_values: true,
            compared: 1,
            speedup: speedup.map(estimate),
            rate: Some(estimate(rate)),
            times: CandidateTimes::default(),
        }
    }

    fn scored(
        timed: &[(CandidateId, ScoreSummary)],
        min_improvement: f64,
    ) -> (Vec<(u32, Option<u32>)>, Winner) {
        let timed: Vec<Timed<'_>> = timed
            .iter()
            .map(|(id, summary)| Timed { id: *id, is_baseline: *id == BASELINE, summary, left_out: 0 })
            .collect();
        let scores = scores(&timed, min_improvement);
        (scores.rows.iter().map(|(id, row)| (id.0, row.rank)).collect(), scores.winner())
    }

    #[test]
    fn winner_is_clearly_faster_than_the_baseline() {
        let baseline = || (BASELINE, summary(None, 1.0));
        for (timed, min_improvement, ranks, winner) in [
            (vec![baseline()], 0.0, vec![(0, Some(1))], Winner::Nobody),
            (
                vec![baseline(), (SLOW, summary(Some(0.5), 0.5)), (FAST, summary(Some(2.0), 2.0))],
                0.0,
                vec![(0, Some(2)), (1, Some(3)), (2, Some(1))],
                Winner::Is(FAST),
            ),
            // The interval of the speed-up reaches below 1.
            (
                vec![baseline(), (FAST, summary(Some(1.005), 1.0))],
                0.0,
                vec![(0, Some(1)), (2, Some(1))],
                Winner::Uncertain,
            ),
            (
                vec![baseline(), (FAST, summary(Some(1.5), 1.5))],
                0.6,
                vec![(0, Some(1)), (2, Some(1))],
                Winner::Uncertain,
            ),
            // A candidate that was not timed beside the baseline is not ranked with the others.
            (
                vec![baseline(), (SLOW, summary(Some(1.2), 1.2)), (FAST, summary(None, 9.0))],
                0.0,
                vec![(0, Some(2)), (1, Some(1))],
                Winner::Is(SLOW),
            ),
            // Without a baseline, candidates are ranked by time, and the best one wins.
            (
                vec![(SLOW, summary(None, 1.0)), (FAST, summary(None, 3.0))],
                0.5,
                vec![(1, Some(2)), (2, Some(1))],
                Winner::Is(FAST),
            ),
        ] {
            let found = scored(&timed, min_improvement);
            assert_eq!(found, (ranks, winner));
        }
    }

    #[test]
    fn speedup_counts_as_one_for_unsupported_entries() {
        // Eight times as fast in one entry out of three.
        let part = summary(Some(8.0), 8.0);
        let all_entries = summary(Some(3.0), 3.0);
        let timed = [
            Timed { id: BASELINE, is_baseline: true, summary: &summary(None, 1.0), left_out: 0 },
            Timed { id: SLOW, is_baseline: false, summary: &part, left_out: 2 },
            Timed { id: FAST, is_baseline: false, summary: &all_entries, left_out: 0 },
        ];
        let scores = scores(&timed, 0.02);
        assert_eq!(scores.winner(), Winner::Is(FAST));
        let part = scores.rows.iter().find(|(id, _)| *id == SLOW).and_then(|(_, row)| row.speedup);
        assert!((part.expect("ranked").value - 2.0).abs() < 1e-9);
    }

    #[test]
    fn unvaried_times_without_a_baseline_are_not_ranked_with_varied_ones() {
        let varied = summary(None, 1.0);
        let remembered = ScoreSummary { varied: 0, had_new_values: false, compared: 2, ..summary(None, 9.0) };
        let timed = [
            Timed { id: SLOW, is_baseline: false, summary: &varied, left_out: 0 },
            Timed { id: FAST, is_baseline: false, summary: &remembered, left_out: 0 },
        ];
        let found = scores(&timed, 0.02);
        assert_eq!(found.winner(), Winner::Is(SLOW));
        assert_eq!(found.rows.len(), 1);
        // If no candidate's inputs vary, all times are comparable, and all outputs were compared with recorded ones.
        let found = scores(&timed[1..], 0.02);
        assert_eq!((found.winner(), found.doubt), (Winner::Is(FAST), None));
        // Here, a few inputs had new values, but the entry does not count as varying.
        let partly = ScoreSummary { had_new_values: true, ..remembered.clone() };
        let timed = [Timed { id: FAST, is_baseline: false, summary: &partly, left_out: 0 }];
        assert!(matches!(scores(&timed, 0.02).doubt, Some(Doubt::Unchecked { candidate: FAST })));
    }

    #[test]
    fn times_without_a_baseline_are_ranked_only_over_the_same_entries() {
        let both = ScoreSummary { weight: 2, varied: 2, ..summary(None, 1.0) };
        // This candidate supports only the entry with the shorter calls.
        let one = ScoreSummary { compared: 2, ..summary(None, 9.0) };
        let other_two = ScoreSummary { compared: 3, ..both.clone() };
        let candidate = |id, summary| Timed { id, is_baseline: false, summary, left_out: 0 };
        let ranked =
            |timed: &[Timed<'_>]| scores(timed, 0.02).rows.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ranked(&[candidate(FAST, &one), candidate(SLOW, &both)]), [SLOW]);
        // Of several sets with equally many entries, that of the first candidate counts.
        assert_eq!(ranked(&[candidate(SLOW, &both), candidate(FAST, &other_two)]), [SLOW]);
        assert_eq!(ranked(&[candidate(FAST, &other_two), candidate(SLOW, &both)]), [FAST]);
    }

    #[test]
    fn unvaried_times_beside_a_baseline_are_not_ranked_with_varied_ones() {
        let (baseline, varied) = (summary(None, 1.0), summary(Some(2.0), 2.0));
        // This candidate supports only entries whose inputs do not vary.
        let remembered = ScoreSummary { varied: 0, ..summary(Some(9.0), 9.0) };
        let timed = [(BASELINE, baseline.clone()), (SLOW, varied), (FAST, remembered.clone())];
        assert_eq!(scored(&timed, 0.02), (vec![(0, Some(2)), (1, Some(1))], Winner::Is(SLOW)));
        // If nothing varies for any candidate, they are ranked.
        let baseline = ScoreSummary { varied: 0, ..baseline };
        let timed = [(BASELINE, baseline), (FAST, remembered)];
        assert_eq!(scored(&timed, 0.02), (vec![(0, Some(2)), (2, Some(1))], Winner::Is(FAST)));
    }

    #[test]
    fn speedup_counts_as_1_in_entries_whose_new_values_the_candidate_gets_wrong() {
        let mut report = timed(Stage::Profile, &[(4.0, 0.01), (50.0, 0.01)]);
        let Body::Profile(profiled) = &mut report.body else { unreachable!("a profile") };
        profiled.entries.iter_mut().for_each(|entry| entry.varied = vec!["input".to_owned()]);
        let baseline = ScoreSummary::of(Stage::Profile, profiled);
        let narrow = |profiled: &mut Profiled, number: usize| {
            profiled.entries[number].narrowed = true;
            profiled.entries[number].unvaried_because = Some("wrong".to_owned());
            ScoreSummary::of(Stage::Profile, profiled)
        };
        let one = narrow(profiled, 1);
        let timed = [(BASELINE, &baseline), (FAST, &one)].map(|(id, summary)| Timed {
            id,
            is_baseline: id == BASELINE,
            summary,
            left_out: 0,
        });
        let row = scores(&timed, 0.02).rows.into_iter().find(|(id, _)| *id == FAST).expect("ranked").1;
        assert!((row.speedup.expect("paired").value - 2.0).abs() < 1e-9, "the mean of 4 and 1");
        let all = narrow(profiled, 0);
        assert_eq!(all.speedup, None, "no rank, even if nothing varies for others");
        profiled.entries[1].speedup = Some(Estimate { value: 0.25, ci_low: 0.24, ci_high: 0.26 });
        let slower = ScoreSummary::of(Stage::Profile, profiled).speedup.expect("clearly slower");
        assert!((slower.value - 0.5).abs() < 1e-9, "the mean of 0.25 and 1: {slower:?}");
    }

    #[test]
    fn unvaried_entries_count_if_no_entry_is_varied_or_if_they_are_clearly_slower() {
        let mut report = timed(Stage::Profile, &[(2.0, 0.01), (50.0, 0.01)]);
        let Body::Profile(profiled) = &mut report.body else { unreachable!("a profile") };
        let all = ScoreSummary::of(Stage::Profile, profiled);
        let numbers = |it: &ScoreSummary| (it.weight, it.times.varied_entries, it.times.unvaried_entries);
        assert_eq!(numbers(&all), (2, Some(0), Some(2)));
        assert!((all.speedup.expect("paired").value - 10.0).abs() < 1e-9);
        profiled.entries[0].varied = vec!["input".to_owned()];
        let varied = ScoreSummary::of(Stage::Profile, profiled);
        assert_eq!(numbers(&varied), (1, Some(1), Some(1)));
        profiled.entries[0].unvaried_because =
            Some("there is no memory for new values of `weight`".to_owned());
        let partly = ScoreSummary::of(Stage::Profile, profiled);
        assert_eq!(
            (numbers(&partly), partly.varied, partly.had_new_values),
            ((2, Some(0), Some(2)), 0, true)
        );
        profiled.entries[0].unvaried_because = None;
        assert_ne!(all.compared, varied.compared);
        // Without a baseline, times of the same entries do not compare if the inputs of only one candidate varied.
        profiled.entries[1].varied = vec!["input".to_owned()];
        assert_ne!(all.compared, ScoreSummary::of(Stage::Profile, profiled).compared);
        profiled.entries[1].varied.clear();
        assert!((varied.speedup.expect("paired").value - 2.0).abs() < 1e-9);
        assert!((varied.rate.expect("timed").value - 2.0).abs() < 1e-9);
        // An entry in which the candidate is clearly slower than the baseline counts, whether its inputs vary or not.
        let mut report = timed(Stage::Profile, &[(2.0, 0.01), (0.02, 0.01)]);
        let Body::Profile(profiled) = &mut report.body else { unreachable!("a profile") };
        profiled.entries[0].varied = vec!["input".to_owned()];
        let slower = ScoreSummary::of(Stage::Profile, profiled);
        assert!((slower.speedup.expect("paired").value - 0.2).abs() < 1e-9);
        // If the baseline is lost later, the candidate is compared with the others by the entries that varied.
        assert_eq!(slower.compared, varied.compared);
    }

    #[test]
    fn ranking_is_settled_if_its_times_show_who_is_faster() {
        let wide = |value: f64, low, high| ScoreSummary {
            speedup: Some(Estimate { value, ci_low: low, ci_high: high }),
            ..summary(None, value)
        };
        let faster = |candidate| move |doubt: Doubt| matches!(doubt, Doubt::Faster { candidate: it, .. } if it == candidate);
        let best = |candidate| move |doubt: Doubt| matches!(doubt, Doubt::Best { candidate: it, .. } if it == candidate);
        let too_wide = |candidate| move |doubt: Doubt| matches!(doubt, Doubt::SpeedupTooWide { candidate: it, .. } if it == candidate);
        type ExpectedDoubt<'t> = Option<&'t dyn Fn(Doubt) -> bool>;
        let table: [(&str, Vec<ScoreSummary>, ExpectedDoubt<'_>); 8] = [
            ("copies of the baseline", vec![wide(1.0, 0.99, 1.01), wide(0.995, 0.985, 1.005)], None),
            ("a clear winner", vec![wide(2.0, 1.9, 2.1), wide(1.0, 0.9, 1.1)], None),
            ("copies of a winner", vec![wide(2.0, 1.95, 2.05), wide(1.99, 1.94, 2.04)], None),
            ("a wide figure that may be a winner", vec![wide(1.1, 0.9, 1.3)], Some(&faster(SLOW))),
            (
                "one within the smallest difference that counts",
                vec![wide(1.01, 0.99, 1.03)],
                Some(&faster(SLOW)),
            ),
            (
                "a second that may be better",
                vec![wide(2.0, 1.9, 2.1), wide(1.9, 1.2, 2.6)],
                Some(&best(FAST)),
            ),
            (
                "a winner by an unknown margin",
                vec![wide(5.0, 2.0, 12.0), wide(1.0, 0.99, 1.01)],
                Some(&too_wide(SLOW)),
            ),
            ("no candidate", vec![], None),
        ];
        for (name, summaries, doubt) in table {
            let baseline = summary(None, 1.0);
            let mut timed = vec![Timed { id: BASELINE, is_baseline: true, summary: &baseline, left_out: 0 }];
            timed.extend(summaries.iter().zip([SLOW, FAST]).map(|(summary, id)| Timed {
                id,
                is_baseline: false,
                summary,
                left_out: 0,
            }));
            let found = scores(&timed, 0.02).doubt();
            match (found, doubt) {
                (None, None) => {}
                (Some(found), Some(expected)) => assert!(expected(found), "{name}: {found:?}"),
                _ => panic!("{name}: {found:?}"),
            }
        }
    }
}
