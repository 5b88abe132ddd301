//! Compares the replays of two runs. Each replay was measured only once, so a change in its time has no interval.

use std::collections::BTreeMap;

use opt_shared::outcome::Status;
use opt_shared::units::Bytes;
use serde::Serialize;

use super::super::figures::{one_line, shorten, time};
use super::super::markdown::cell;
use super::super::replays::result;
use super::{Change, Comparison, same};
use crate::record::ReplayRecord;

/// A replay of one of the two runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EndedReplay {
    pub status: Option<Status>,
    pub budget_bytes: Option<Bytes>,
    pub peak_pool_bytes: Option<Bytes>,
    pub bytes_moved: Option<Bytes>,
    pub total_ms: Option<f64>,
    pub stall_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedReplay {
    pub name: String,
    /// How the replay changed. It is never `faster`, `slower` or `within_noise`, for which each replay would have to be
    /// measured several times.
    pub change: Change,
    pub first: EndedReplay,
    pub second: EndedReplay,
    /// The ratio of the total times. If it is above 1, the second run is faster.
    pub time_ratio: Option<f64>,
    /// True if both runs made the same calls on the same bytes. `None` if one of them has no result.
    pub same_recording: Option<bool>,
    /// True if every byte of every output is equal. `None` if one of the runs has no result.
    pub same_outputs: Option<bool>,
}

pub(super) struct Compared {
    pub(super) both: Vec<ComparedReplay>,
    pub(super) only_in_first: Vec<String>,
    pub(super) only_in_second: Vec<String>,
}

pub(super) fn compare(first: Vec<ReplayRecord>, second: Vec<ReplayRecord>) -> Compared {
    let order: Vec<String> = second.iter().map(|it| it.name.clone()).collect();
    let mut later: BTreeMap<String, ReplayRecord> =
        second.into_iter().map(|it| (it.name.clone(), it)).collect();
    let (mut both, mut only_in_first) = (Vec::new(), Vec::new());
    for before in first {
        match later.remove(&before.name) {
            Some(after) => both.push(compare_one(&before, &after)),
            None => only_in_first.push(before.name),
        }
    }
    let only_in_second = order.into_iter().filter(|name| later.contains_key(name)).collect();
    Compared { both, only_in_first, only_in_second }
}

fn compare_one(before: &ReplayRecord, after: &ReplayRecord) -> ComparedReplay {
    let (first, second) = (ended(before), ended(after));
    let passed = |it: &EndedReplay| it.status == Some(Status::Passed);
    let change = match (passed(&first), passed(&second)) {
        (false, true) => Change::NewlyPassed,
        (true, false) => Change::NoLongerPassed,
        (false, false) if first.status != second.status => Change::OtherStatus,
        _ => Change::None,
    };
    let ratio = first.total_ms.zip(second.total_ms).map(|(before, after)| before / after);
    let (one, other) = (result(before), result(after));
    ComparedReplay {
        name: before.name.clone(),
        change,
        time_ratio: ratio.filter(|ratio| ratio.is_finite() && 0.0 < *ratio),
        same_recording: same(one.map(|it| &it.recording_digest), other.map(|it| &it.recording_digest)),
        same_outputs: same(one.map(|it| &it.outputs_digest), other.map(|it| &it.outputs_digest)),
        first,
        second,
    }
}

fn ended(replay: &ReplayRecord) -> EndedReplay {
    let result = result(replay);
    EndedReplay {
        status: replay.status,
        budget_bytes: replay.budget_bytes,
        peak_pool_bytes: result.map(|it| it.peak_pool_bytes),
        bytes_moved: result.map(|it| it.bytes_moved),
        total_ms: result.map(|it| it.total_ms),
        stall_ms: result.map(|it| it.stall_ms),
    }
}

fn figures_or_status(it: &EndedReplay) -> String {
    match (it.total_ms, it.stall_ms) {
        (Some(total), Some(stall)) => format!("{}, {} stalled", time(total), time(stall)),
        _ => it.status.map_or("not finished", Status::name).to_owned(),
    }
}

fn change(it: &ComparedReplay) -> String {
    match (it.change, it.time_ratio) {
        (Change::None, Some(ratio)) => format!("{:+.1} % time", (1.0 / ratio - 1.0) * 100.0),
        (change, _) => change.name().to_owned(),
    }
}

/// Returns the facts that the reader must know before comparing the times.
fn caveats(it: &ComparedReplay) -> Vec<String> {
    let mut caveats = Vec::new();
    if it.same_recording == Some(false) {
        caveats.push("the steps, or their tensors, differ".to_owned());
    }
    if it.same_outputs == Some(false) {
        caveats.push("the outputs differ, within what is allowed".to_owned());
    }
    let size = |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
    if it.first.budget_bytes != it.second.budget_bytes {
        let (before, after) = (size(it.first.budget_bytes), size(it.second.budget_bytes));
        caveats.push(format!("the budget changed from {before} to {after}"));
    }
    if it.first.bytes_moved.is_some()
        && it.second.bytes_moved.is_some()
        && it.first.bytes_moved != it.second.bytes_moved
    {
        let (before, after) = (size(it.first.bytes_moved), size(it.second.bytes_moved));
        caveats.push(format!("{before} were moved before, and {after} are moved now"));
    }
    caveats
}

pub(super) fn text(comparison: &Comparison) -> Vec<String> {
    const NAME: usize = 12;
    const SIDE: usize = 24;
    let mut lines = Vec::new();
    if !comparison.replays.is_empty() {
        lines.push(String::new());
        lines.push(format!(
            "{:<NAME$}  {:>SIDE$}  {:>SIDE$}  {:>13}",
            "replay", "first", "second", "difference"
        ));
    }
    for it in &comparison.replays {
        let (name, first, second) =
            (shorten(&one_line(&it.name), NAME), figures_or_status(&it.first), figures_or_status(&it.second));
        lines.push(format!("{name:<NAME$}  {first:>SIDE$}  {second:>SIDE$}  {:>13}", change(it)));
        lines.extend(caveats(it).into_iter().map(|caveat| format!("  note: {caveat}")));
    }
    lines
}

pub(super) fn markdown(comparison: &Comparison) -> Vec<String> {
    let mut lines = Vec::new();
    if !comparison.replays.is_empty() {
        lines.extend([String::new(), "### Replays under a budget".to_owned(), String::new()]);
        lines.push("| replay | first | second | difference (single measurements) | notes |".to_owned());
        lines.push("|:--|--:|--:|--:|:--|".to_owned());
    }
    for it in &comparison.replays {
        let bold = if it.change == Change::NoLongerPassed { "**" } else { "" };
        let change = change(it);
        let change = if change.is_empty() { change } else { format!("{bold}{change}{bold}") };
        lines.push(format!(
            "| {} | {} | {} | {change} | {} |",
            cell(&it.name),
            figures_or_status(&it.first),
            figures_or_status(&it.second),
            caveats(it).join("; ")
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RunRecord;
    use crate::record::sample::sample;
    use crate::report::compare::tests::compared_run;
    use crate::report::compare::{self as all};

    fn later() -> RunRecord {
        let mut run = sample();
        let replay = &mut run.replays[0];
        replay.budget_bytes = Some(Bytes::mib(600));
        if let Some(result) = &mut replay.result {
            (result.total_ms, result.stall_ms, result.bytes_moved) = (9_000.0, 20.0, Bytes::gib(8));
            result.outputs_digest = "00".repeat(32);
        }
        run
    }

    #[test]
    fn replays_of_two_runs_are_compared() {
        let comparison = all::compare(compared_run(sample()), compared_run(later()));
        let it = &comparison.replays[0];
        assert_eq!((it.change, it.time_ratio), (Change::None, Some(2.0)));
        assert_eq!((it.same_recording, it.same_outputs), (Some(true), Some(false)));
        let lines = text(&comparison);
        let wanted = "model           18.0 s, 900 ms stalled   9.00 s, 20.0 ms stalled   -50.0 % time";
        assert_eq!(lines[2], wanted);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        for note in [
            "the budget changed from 512 MiB to 600 MiB",
            "9.00 GiB were moved before, and 8.00 GiB are moved now",
            "outputs differ",
        ] {
            assert!(lines.iter().any(|line| line.contains(note)), "{note}: {lines:?}");
        }
        let row = markdown(&comparison).pop().unwrap_or_default();
        assert!(
            row.starts_with("| `model` | 18.0 s, 900 ms stalled | 9.00 s, 20.0 ms stalled | -50.0 % time |"),
            "{row}"
        );
    }

    #[test]
    fn failed_replay_has_a_status_and_no_figures() {
        let mut run = later();
        run.replays[0].status = Some(Status::CaptureError);
        let comparison = all::compare(compared_run(sample()), compared_run(run));
        let it = &comparison.replays[0];
        assert_eq!((it.change, it.time_ratio, it.second.total_ms), (Change::NoLongerPassed, None, None));
        assert!(text(&comparison)[2].ends_with("CAPTURE_ERROR  passed before"), "{:?}", text(&comparison));
        let mut renamed = sample();
        renamed.replays[0].name = "other".to_owned();
        let comparison = all::compare(compared_run(sample()), compared_run(renamed));
        assert_eq!(comparison.replays_only_in_first, ["model"]);
        assert_eq!(comparison.replays_only_in_second, ["other"]);
    }
}
