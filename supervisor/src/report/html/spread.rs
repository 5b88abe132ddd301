//! How the blocks of the best candidate spread, beside its baseline's: a line for each entry, from the tenth to the ninetieth
//! percentile, with the median on it.

use maud::{Markup, html};

use super::super::digest::JobDigest;
use super::super::figures::{one_line, time};
use super::ranking::{Axis, two};
use crate::record::CandidateRecord;

/// Lines that a page shows.
const MOST_ENTRIES: usize = 16;

/// The tenth percentile, the median, the ninetieth.
type Spread = [f64; 3];

/// Of deciles.
fn spread(deciles: &[f64]) -> Option<Spread> {
    let at = |index: usize| deciles.get(index).copied().filter(|it| it.is_finite() && 0.0 < *it);
    Some([at(1)?, at(5)?, at(9)?])
}

/// The winner, or whoever is first.
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
        .take(MOST_ENTRIES)
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let baseline = digest.job.baseline.as_deref().filter(|name| *name != best.name);
    html! {
        h3 { "How its blocks spread" }
        p.note {
            (one_line(&best.name))
            @if let Some(baseline) = baseline { ", and below it " (one_line(baseline)) " in the blocks beside it" }
            ": from the tenth to the ninetieth percentile, each entry to its own scale"
        }
        div.scroll {
            table.spread {
                tbody {
                    @for (entry, own, beside) in &rows {
                        tr {
                            td { (one_line(entry)) }
                            td.number { (time(own[1])) }
                            td.plot { (lines(own, beside.as_ref())) }
                            td.number { @if let Some(beside) = beside { (time(beside[1])) } }
                        }
                    }
                }
            }
        }
    }
}

fn lines(own: &Spread, beside: Option<&Spread>) -> Markup {
    let all = || own.iter().chain(beside.into_iter().flatten()).copied();
    let axis = Axis::over(all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let line = |[low, middle, high]: &Spread, is_own: bool| {
        html! {
            div.range.winner[is_own] {
                i style={ "left:" (two(axis.place(*low))) "%;width:" (two(axis.place(*high) - axis.place(*low))) "%" } {}
                b style={ "left:" (two(axis.place(*middle))) "%" } {}
            }
        }
    };
    html! { (line(own, true)) @if let Some(beside) = beside { (line(beside, false)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_drawn_where_its_deciles_are_known() {
        let deciles: Vec<f64> = (1..=11).map(f64::from).collect();
        assert_eq!(spread(&deciles), Some([2.0, 6.0, 10.0]));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[0.0; 11]), None);
        let drawn = lines(&[1.0, 2.0, 4.0], Some(&[2.0, 4.0, 8.0])).into_string();
        assert_eq!(drawn.matches("class=\"range").count(), 2, "{drawn}");
        assert_eq!(drawn.matches("<b style").count(), 2, "{drawn}");
    }
}
