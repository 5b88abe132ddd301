//! Renders the ranking, with a drawing of each candidate's interval, and a table that shows how fast each entry is.

use maud::{Markup, html};
use opt_shared::outcome::{Blame, Estimate, Status};

use super::super::digest::JobDigest;
use super::super::figures::{counted, median, one_line, percent, three_digits, time};
use super::super::marks::{is_doubtful, is_unvaried_entry, legend, marks};
use crate::record::CandidateRecord;

/// The largest number of rows in the table of entries.
const MAX_ROWS: usize = 40;
/// The number of shades of colour for faster entries, and also for slower ones.
const SHADES: f64 = 4.0;

/// The figure that the ranking shows: the speed-up, or the time of a call if no candidate has a speed-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    Speedup,
    Time,
}

impl Measure {
    fn of(self, candidate: &CandidateRecord) -> Option<Estimate> {
        let estimate = match self {
            Self::Speedup => candidate.speedup?,
            Self::Time => {
                let times = &candidate.profile.as_ref()?.times;
                Estimate { value: times.median_time_ms?, ci_low: times.ci_low?, ci_high: times.ci_high? }
            }
        };
        let usable = |figure: f64| figure.is_finite() && 0.0 < figure;
        (usable(estimate.value) && usable(estimate.ci_low) && usable(estimate.ci_high)).then_some(estimate)
    }

    fn tick(self, value: f64) -> String {
        match self {
            Self::Speedup => format!("{}×", three_digits(value).trim_end_matches('0').trim_end_matches('.')),
            Self::Time => time(value),
        }
    }
}

/// Maps a value to a position on a logarithmic axis. On this axis, twice as fast is as far from 1 as half as fast.
pub(super) struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn around(estimates: impl Iterator<Item = Estimate>, measure: Measure) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for it in estimates {
            low = low.min(it.ci_low);
            high = high.max(it.ci_high);
        }
        if !low.is_finite() {
            return None;
        }
        if measure == Measure::Speedup {
            (low, high) = (low.min(1.0), high.max(1.0));
        }
        Some(Self::over(low, high))
    }

    /// Makes an axis for a range, with some margin on both sides. The axis is never empty.
    pub(super) fn over(low: f64, high: f64) -> Self {
        let margin = (high / low).powf(0.06).max(1.02);
        Self { low: low / margin, high: high * margin }
    }

    /// Returns the position of a value, in percent of the width.
    pub(super) fn position(&self, value: f64) -> f64 {
        ((value / self.low).ln() / (self.high / self.low).ln() * 100.0).clamp(0.0, 100.0)
    }

    /// Returns the tick values: 1, 2 and 5 times powers of ten, far enough apart to be readable.
    fn ticks(&self) -> Vec<f64> {
        let mut ticks: Vec<f64> = Vec::new();
        let mut power = 10f64.powf(self.low.log10().floor());
        while power <= self.high {
            for step in [1.0, 2.0, 5.0] {
                let value = power * step;
                let apart =
                    ticks.last().is_none_or(|last| self.position(*last) + 17.0 <= self.position(value));
                if (4.0..=96.0).contains(&self.position(value)) && apart {
                    ticks.push(value);
                }
            }
            power *= 10.0;
        }
        ticks
    }
}

pub(super) fn table(digest: &JobDigest) -> Markup {
    let paired = digest.shown.iter().any(|it| it.speedup.is_some());
    let measure = if paired { Measure::Speedup } else { Measure::Time };
    let axis = Axis::around(digest.shown.iter().filter_map(|it| measure.of(it)), measure);
    let more = digest.candidates - digest.shown.len();
    html! {
        @if !digest.shown.is_empty() {
            div.scroll {
                table.ranking {
                    thead {
                        tr {
                            th.number { "rank" }
                            th { "candidate" }
                            th.number { @if paired { "speed-up" } @else { "interval" } }
                            th.plot {
                                @if let Some(axis) = &axis {
                                    div.range {
                                        @for tick in axis.ticks() {
                                            span style={ "left:" (two_decimals(axis.position(tick))) "%" } { (measure.tick(tick)) }
                                        }
                                    }
                                }
                            }
                            th.number { "median" }
                            th.number { "noise" }
                            th.number { "peak owed" }
                        }
                    }
                    tbody {
                        @for candidate in &digest.shown {
                            (row(digest, candidate, measure, axis.as_ref()))
                        }
                    }
                }
            }
            @for explanation in legend(digest.shown.iter()) { p.note { (explanation) } }
            @if more > 0 { p.note { (more) " more candidates are not shown; " code { "report --format csv" } " has all of them." } }
        }
    }
}

fn row(digest: &JobDigest, candidate: &CandidateRecord, measure: Measure, axis: Option<&Axis>) -> Markup {
    let baseline = digest.job.baseline.as_ref() == Some(&candidate.name);
    let winner = digest.job.winner.as_ref() == Some(&candidate.name);
    let owed = candidate.resources.runner_peak_owed_bytes;
    let is_timed = candidate.status == Some(Status::Passed) && candidate.profile.is_some();
    let times = candidate.profile.as_ref().map(|profile| &profile.times);
    let certain = digest.job.unsettled_because.is_none() && !is_doubtful(candidate);
    let of_baseline = digest.job.baseline.as_deref().and_then(|name| digest.named(name));
    html! {
        tr.winner[winner && certain] {
            td.number { @match candidate.rank { Some(rank) => (rank), None => "–" } }
            td.name {
                (one_line(&candidate.name))
                @if baseline { " " span.tag { "baseline" } }
                @if winner && digest.job.unsettled_because.is_some() { " " span.tag { "ahead" } }
                @else if winner { " " span.tag.good[certain] { "winner" } }
            }
            @if is_timed {
                td.number { @match (measure, candidate.speedup) {
                    (Measure::Speedup, Some(ratio)) => (times_of(&ratio)),
                    (Measure::Time, _) => @if let Some(it) = measure.of(candidate) { (time(it.ci_low)) " – " (time(it.ci_high)) },
                    _ => span.muted { "1×" },
                } }
                td.plot { @if let Some(axis) = axis { (range(measure.of(candidate), axis, measure, winner && certain)) } }
                td.number data-label="median" { @match median(candidate, of_baseline) { Some(ms) => (time(ms)), None => "–" } }
                td.number data-label="noise" {
                    @match times.and_then(|it| it.noise) { Some(noise) => (percent(noise)), None => "–" }
                    abbr { (marks(candidate)) }
                }
            } @else {
                td.ended colspan="4" { (chip(candidate)) }
            }
            td.number data-label="peak" { @match owed { Some(owed) => (owed), None => "–" } }
        }
    }
}

/// Draws the interval of an estimate, and the estimate in it. If speed-ups are drawn, a line through all rows marks the
/// baseline.
fn range(estimate: Option<Estimate>, axis: &Axis, measure: Measure, winner: bool) -> Markup {
    html! {
        div.range.winner[winner] {
            @if measure == Measure::Speedup { u style={ "left:" (two_decimals(axis.position(1.0))) "%" } {} }
            @if let Some(it) = estimate {
                i style={ "left:" (two_decimals(axis.position(it.ci_low))) "%;width:" (two_decimals(axis.position(it.ci_high) - axis.position(it.ci_low))) "%" } {}
                b style={ "left:" (two_decimals(axis.position(it.value))) "%" } {}
            } @else if measure == Measure::Speedup {
                b.baseline style={ "left:" (two_decimals(axis.position(1.0))) "%" } {}
            }
        }
    }
}

pub(super) fn chip(candidate: &CandidateRecord) -> Markup {
    let (tone, word) = match (candidate.status, candidate.blame) {
        (None, _) => ("other", "not finished"),
        (Some(Status::Passed), _) => ("good", Status::Passed.name()),
        (Some(status), Some(Blame::Candidate)) => ("bad", status.name()),
        (Some(status), _) => ("other", status.name()),
    };
    let others = candidate.blame.filter(|blame| *blame != Blame::Candidate);
    html! { span class={ "chip " (tone) } { (word) } @if let Some(blame) = others { span.muted { " blame: " (blame.name()) } } }
}

fn times_of(ratio: &Estimate) -> Markup {
    html! {
        (three_digits(ratio.value)) "× "
        span.muted { "[" (three_digits(ratio.ci_low)) "–" (three_digits(ratio.ci_high)) "]" }
    }
}

pub(super) fn two_decimals(percent: f64) -> String {
    format!("{percent:.2}")
}

/// The ratios of a row with their labels. A cell is `None` if the entry was not timed.
type Cells = Vec<Option<Cell>>;

struct Cell {
    ratio: f64,
    text: String,
    /// Whether the inputs of the entry did not vary. The cell is then marked, and has no colour.
    unvaried: bool,
}

/// Shows how fast each entry is. The colour says how much faster or slower than the baseline it is, on a scale that is
/// chosen for the job. The baseline itself has no colour. Any other time without a speed-up is compared with the
/// shortest time in its column.
pub(super) fn heat(digest: &JobDigest) -> Markup {
    let timed: Vec<&CandidateRecord> = digest
        .shown
        .iter()
        .filter(|it| it.profile.as_ref().is_some_and(|profile| !profile.entries.is_empty()))
        .take(MAX_ROWS)
        .collect();
    let Some(first) = timed.first().and_then(|it| it.profile.as_ref()) else { return html! {} };
    let names: Vec<(&str, u64)> = first.entries.iter().map(|it| (it.entry.as_str(), it.weight)).collect();
    let best: Vec<f64> = names
        .iter()
        .map(|(name, _)| {
            let times = timed.iter().filter_map(|it| entry_time(it, name));
            times.fold(f64::INFINITY, f64::min)
        })
        .collect();
    let cell = |candidate: &CandidateRecord, name: &str, best: f64| -> Option<Cell> {
        let entry = candidate.profile.as_ref()?.entries.iter().find(|it| it.entry == name)?;
        let (ratio, text) = match entry.speedup {
            Some(ratio) => (ratio.value, format!("{}×", three_digits(ratio.value))),
            None if candidate.speedup.is_none() && digest.job.baseline.as_ref() == Some(&candidate.name) => {
                (1.0, time(entry.times.median_time_ms))
            }
            None => (best / entry.times.median_time_ms, time(entry.times.median_time_ms)),
        };
        Some(Cell { ratio, text, unvaried: is_unvaried_entry(entry) })
    };
    let rows: Vec<(&CandidateRecord, Cells)> = timed
        .iter()
        .map(|it| (*it, names.iter().zip(&best).map(|((name, _), best)| cell(it, name, *best)).collect()))
        .collect();
    let ratios = || rows.iter().flat_map(|(_, cells)| cells.iter().flatten().map(|cell| cell.ratio));
    // The scale is never narrower than this, because small differences would otherwise get strong colours.
    let largest = ratios().fold(1.25, f64::max);
    let smallest = ratios().filter(|ratio| 0.0 < *ratio).fold(0.8, f64::min);
    html! {
        h3 { "By entry" }
        div.scroll {
            table.heat {
                thead {
                    tr {
                        th { "candidate" }
                        @for (name, weight) in &names {
                            th.number
                                title={ (one_line(name)) ", represents " (counted(*weight, "entry", "entries")) } {
                                (one_line(name).trim_start_matches("entry_").to_owned())
                                @if *weight > 1 { span.muted { " ×" (weight) } }
                            }
                        }
                    }
                }
                tbody {
                    @for (candidate, cells) in &rows {
                        tr {
                            td.name { (one_line(&candidate.name)) }
                            @for cell in cells {
                                @match cell {
                                    Some(Cell { text, unvaried: true, .. }) => td.number { (text) abbr { "=" } },
                                    Some(Cell { ratio, text, .. }) => td class={ "number" (shade(*ratio, smallest, largest)) } { (text) },
                                    None => td.number { "–" },
                                }
                            }
                        }
                    }
                }
            }
        }
        @if digest.entries_left_out > 0 {
            p.note { (digest.entries_left_out) " more entries are not shown; " code { "report --format jsonl" } " has all of them." }
        }
    }
}

fn entry_time(candidate: &CandidateRecord, name: &str) -> Option<f64> {
    let entries = &candidate.profile.as_ref()?.entries;
    entries.iter().find(|it| it.entry == name).map(|it| it.times.median_time_ms)
}

/// Returns the CSS class to add: ` up1` … ` up4` or ` down1` … ` down4`. It is empty if `ratio` is near 1.
fn shade(ratio: f64, least: f64, most: f64) -> String {
    let (word, share) =
        if 1.0 < ratio { ("up", ratio.ln() / most.ln()) } else { ("down", ratio.ln() / least.ln()) };
    let step = (share * SHADES).ceil().clamp(0.0, SHADES);
    // Differences of up to two percent are not shown.
    if !share.is_finite() || ratio.ln().abs() < 0.02 || step < 1.0 {
        String::new()
    } else {
        format!(" {word}{step}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_covers_all_values_with_few_ticks() {
        let estimate = |low, value, high| Estimate { value, ci_low: low, ci_high: high };
        for estimates in [
            vec![estimate(61.5, 64.9, 66.0), estimate(0.97, 1.0, 1.02)],
            vec![estimate(1.0, 1.0, 1.0)],
            vec![estimate(1e-6, 1e-6, 1e6)],
        ] {
            let axis = Axis::around(estimates.iter().copied(), Measure::Speedup).expect("an axis");
            for it in &estimates {
                let places = [it.ci_low, it.value, it.ci_high].map(|value| axis.position(value));
                assert!(0.0 < places[0] && places.is_sorted() && places[2] < 100.0, "{places:?}");
            }
            let ticks = axis.ticks();
            assert!((1..=6).contains(&ticks.len()), "{ticks:?}");
        }
        assert!(Axis::around(std::iter::empty(), Measure::Speedup).is_none());
    }

    #[test]
    fn shade_has_four_levels_and_is_absent_near_one() {
        assert_eq!(shade(1.01, 0.5, 65.0), "");
        assert_eq!(shade(65.0, 0.5, 65.0), " up4");
        assert_eq!(shade(1.2, 0.5, 65.0), " up1");
        assert_eq!(shade(0.5, 0.5, 65.0), " down4");
        assert_eq!(shade(0.0, 0.5, 65.0), "");
        assert_eq!(shade(f64::NAN, 0.5, 65.0), "");
    }
}
