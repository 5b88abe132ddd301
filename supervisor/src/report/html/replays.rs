//! Replays on the page: figures, what they cost against keeping everything, the time of each step.

use maud::{Markup, html};
use opt_shared::outcome::{Blame, ReplayResult, ReplayStep, Status};
use opt_shared::units::Bytes;

use super::super::digest::Digest;
use super::super::figures::{counted, one_line, percent, time};
use super::super::replays::{callers, count, result};
use super::{Room, failures, too_large};
use crate::record::ReplayRecord;

/// Rows of the table of steps: the first ones.
const MOST_STEPS: usize = 60;

/// Nothing where the plan has none.
pub(super) fn section(digest: &Digest, room: &mut Room) -> Markup {
    if digest.replays.is_empty() {
        return html! {};
    }
    html! {
        section #replays {
            h2 { "Replays under a budget" }
            p.muted { "Recorded calls one after the other, their tensors outside, and a pool of limited size for those that the next steps use." }
            @for replay in &digest.replays {
                @match room.fits(one(replay, digest)) { Some(one) => (one), None => (too_large("A replay")) }
            }
        }
    }
}

fn one(replay: &ReplayRecord, digest: &Digest) -> Markup {
    let tone = match (replay.status, replay.blame) {
        (Some(Status::Passed), _) => "good",
        (Some(_), Some(Blame::Candidate)) => "bad",
        _ => "other",
    };
    let status = replay.status.map_or("not finished", |status| status.name());
    html! {
        h3 { (one_line(&replay.name)) " " span class={ "chip " (tone) } { (status) }
            @if let Some(blame) = replay.blame.filter(|it| *it != Blame::Candidate) { span.muted { " blame: " (blame.name()) } } }
        @match result(replay) {
            Some(result) => (passed(result, digest)),
            None => {
                @if let Some(detail) = &replay.detail { p { (one_line(detail)) } }
                div.tiles {
                    (tile("budget", &size(replay.budget_bytes)))
                    (tile("floor", &size(replay.floor_bytes)))
                    (tile("everything", &size(replay.all_resident_bytes)))
                }
                @if let Some(failure) = &replay.failure { (failures::first_failure(failure)) }
            }
        }
    }
}

fn size(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| "–".to_owned(), |bytes| bytes.to_string())
}

fn tile(name: &str, figure: &str) -> Markup {
    html! { div { p.muted { (name) } p.figure { (figure) } } }
}

fn passed(result: &ReplayResult, digest: &Digest) -> Markup {
    html! {
        div.tiles {
            (tile("time", &time(result.total_ms)))
            (tile("of it stalled", &time(result.stall_ms)))
            (tile("budget", &result.budget_bytes.to_string()))
            (tile("floor", &result.floor_bytes.to_string()))
            (tile("peak pool", &result.peak_pool_bytes.to_string()))
            (tile("moved", &result.bytes_moved.to_string()))
            (tile("hits", &result.hits.to_string()))
            (tile("misses", &result.misses.to_string()))
            (tile("evictions", &result.evictions.to_string()))
        }
        (against(result))
        @let callers = callers(result, |job| digest.winner_of(job));
        @if !callers.is_empty() {
            p.muted { "Calls by "
                @for (index, it) in callers.iter().enumerate() {
                    @if index > 0 { ", " }
                    strong { (one_line(it.candidate)) } " of " (one_line(it.job))
                    @if let Some(winner) = it.winner { " (which " (one_line(winner)) " won)" }
                } "." }
        }
        (steps(result))
    }
}

/// This budget beside one that keeps everything.
fn against(result: &ReplayResult) -> Markup {
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let share = |part: Bytes, whole: Bytes| part.get() as f64 / whole.get() as f64;
    let rows = [
        (
            "pool",
            result.peak_pool_bytes.to_string(),
            result.all_resident_bytes.to_string(),
            share(result.peak_pool_bytes, result.all_resident_bytes),
        ),
        (
            "moved",
            result.bytes_moved.to_string(),
            result.unique_bytes.to_string(),
            share(result.bytes_moved, result.unique_bytes),
        ),
        ("time", time(result.total_ms), time(result.compute_ms), result.total_ms / result.compute_ms),
    ];
    html! {
        div.scroll {
            table {
                thead { tr { th {} th.number { "this budget" } th.number { "keeping everything" } th.plot { "share" } } }
                tbody {
                    @for (what, ours, all, share) in &rows {
                        tr {
                            td { (what) }
                            td.number { (ours) }
                            td.number { (all) }
                            td.plot { @if share.is_finite() { (meter(*share, 1.0 < *share, &percent(*share))) } }
                        }
                    }
                }
            }
        }
    }
}

fn meter(share: f64, is_over: bool, told: &str) -> Markup {
    let width = (share * 100.0).clamp(0.0, 100.0);
    html! { div.meter title=(told) { i.over[is_over] style={ "width:" (format!("{width:.1}")) "%" } {} } span.muted { (told) } }
}

fn steps(result: &ReplayResult) -> Markup {
    let longest = result.steps.iter().map(|step| step.ms).fold(0.0, f64::max);
    let more = count(result) - result.steps.len().min(MOST_STEPS).min(count(result));
    html! {
        details {
            summary { (counted(count(result), "step", "steps")) ", one by one" }
            div.scroll {
                table.steps {
                    thead { tr { th.number { "step" } th { "entry" } th { "job" } th { "by" } th.number { "time" } th.plot { span.swatch.busy {} "at work " span.swatch.stalled {} "waiting" } th.number { "waiting" } th.number { "call" } } }
                    tbody {
                        @for (place, step) in result.steps.iter().take(MOST_STEPS).enumerate() {
                            tr {
                                td.number { (place) }
                                td { (one_line(&step.entry)) }
                                td { (one_line(&step.job)) }
                                td { (one_line(&step.candidate)) }
                                td.number { (time(step.ms)) }
                                td.plot { (bar(step, longest)) }
                                td.number { (time(step.stall_ms)) }
                                td.number { (time(step.call_ms)) }
                            }
                        }
                    }
                }
            }
            @if more > 0 { p.note { (more) " more are not shown; " code { "report --format json" } " has the first thousand." } }
        }
    }
}

/// What a step took, and of it what it waited.
fn bar(step: &ReplayStep, longest: f64) -> Markup {
    let share = |ms: f64| if 0.0 < longest { (ms / longest * 100.0).clamp(0.0, 100.0) } else { 0.0 };
    let (stalled, busy) = (share(step.stall_ms), share(step.ms - step.stall_ms));
    html! { div.meter { i.over style={ "width:" (format!("{stalled:.1}")) "%" } {} i style={ "width:" (format!("{busy:.1}")) "%" } {} } }
}
