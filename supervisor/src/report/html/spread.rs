//! Plots how much the block times of the best candidate spread, and below that the same for the baseline. Each entry
//! has a line from the tenth to the ninetieth percentile, with a mark at the median.

use maud::{Markup, html};

use super::super::digest::JobDigest;
use super::super::figures::{one_line, time};
use super::super::marks::is_doubtful;
use super::ranking::{Axis, two_decimals};
use crate::record::CandidateRecord;

/// The largest number of entries that are plotted for a job.
const MAX_ENTRIES: usize = 16;

/// The tenth percentile, the median and the ninetieth percentile.
type Spread = [f64; 3];

/// Returns the spread from eleven deciles (minimum to maximum). `None` if one of the three figures is missing, or is
/// not a positive finite number.
fn spread(deciles: &[f64]) -> Option<Spread> {
    let at = |index: usize| deciles.get(index).copied().filter(|it| it.is_finite() && 0.0 < *it);
    Some([at(1)?, at(5)?, at(9)?])
}

/// Returns the section about the winner. If no winner was timed, the section is about the first candidate that was.
pub(super) fn spreads(digest: &JobDigest) -> Markup {
    let timed =
        |it: &&CandidateRecord| it.profile.as_ref().is_some_and(|profile| !profile.entries.is_empty());
    let best = digest.winner().filter(timed).or_else(|| digest.shown.iter().find(timed));
    let Some((best, profile)) = best.and_then(|best| Some((best, best.profile.as_ref()?))) else {
        return html! {};
    };
    let rows: Vec<(&str, Spread, Option<Spread>)> = profile
        .entries
        .iter()
        .filter_map(|it| Some((it.entry.as_str(), spread(&it.deciles)?, spread(&it.baseline_deciles))))
        .take(MAX_ENTRIES)
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let baseline = digest.job.baseline.as_deref().filter(|name| *name != best.name);
    html! {
        h3 { "Spread of block times" }
        p.note {
            (one_line(&best.name))
            @if let Some(baseline) = baseline { ", and below it " (one_line(baseline)) ", which was timed beside it" }
            ": from the tenth to the ninetieth percentile, with a separate scale for each entry"
        }
        div.scroll {
            table.spread {
                tbody {
                    @for (entry, own, beside) in &rows {
                        tr {
                            td { (one_line(entry)) }
                            td.number { (time(own[1])) }
                            td.plot { (lines(own, beside.as_ref(), !is_doubtful(best))) }
                            td.number { @if let Some(beside) = beside { (time(beside[1])) } }
                        }
                    }
                }
            }
        }
    }
}

/// Draws the spread of the candidate, and below it that of its baseline. If `certain` is false, the candidate's figures
/// are doubtful and are not drawn in green.
fn lines(own: &Spread, beside: Option<&Spread>, certain: bool) -> Markup {
    let all = || own.iter().chain(beside.into_iter().flatten()).copied();
    let axis = Axis::over(all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let line = |[low, middle, high]: &Spread, is_own: bool| {
        html! {
            div.range.winner[is_own] {
                i style={ "left:" (two_decimals(axis.position(*low))) "%;width:" (two_decimals(axis.position(*high) - axis.position(*low))) "%" } {}
                b style={ "left:" (two_decimals(axis.position(*middle))) "%" } {}
            }
        }
    };
    html! { (line(own, certain)) @if let Some(beside) = beside { (line(beside, false)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_drawn_only_for_known_deciles() {
        let deciles: Vec<f64> = (1..=11).map(f64::from).collect();
        assert_eq!(spread(&deciles), Some([2.0, 6.0, 10.0]));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[0.0; 11]), None);
        let drawn = lines(&[1.0, 2.0, 4.0], Some(&[2.0, 4.0, 8.0]), true).into_string();
        assert_eq!(drawn.matches("class=\"range").count(), 2, "{drawn}");
        assert_eq!(drawn.matches("<b style").count(), 2, "{drawn}");
    }
}
