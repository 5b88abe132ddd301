//! Renders the replays on the page: figures, a comparison with a replay that keeps everything in memory, and the time
//! of each step.

use maud::{Markup, html};
use opt_shared::outcome::{Blame, Status};

use super::super::digest::Digest;
use super::super::figures::{counted, one_line, percent};
use super::super::replays::{BudgetComparison, Figures, Outcome, Passed, ReplayText, Step};
use super::{Room, failures, too_large};
use crate::record::ReplayRecord;

/// The largest number of rows in the table of steps. The first steps are shown.
const MAX_STEPS: usize = 60;

/// Returns the section about replays. It is empty if the plan has none.
pub(super) fn section(digest: &Digest, room: &mut Room) -> Markup {
    if digest.replays.is_empty() {
        return html! {};
    }
    html! {
        section #replays {
            h2 { "Replays under a budget" }
            p.muted { "Recorded calls were repeated one after another. A pool of limited size held the tensors of the next steps. All other tensors stayed in the capture files." }
            @for replay in &digest.replays {
                @match room.admit(one(replay, digest)) { Some(one) => (one), None => (too_large("A replay")) }
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
    let text = ReplayText::of(replay, |job| digest.winner_of(job));
    html! {
        h3 { (one_line(text.name)) " " span class={ "chip " (tone) } { (text.status) }
            @if let Some(blame) = text.blame.filter(|it| *it != Blame::Candidate) { span.muted { " blame: " (blame.name()) } } }
        @if let Outcome::NoResult { detail: Some(detail), .. } = &text.outcome { p { (one_line(detail)) } }
        div.tiles {
            @for (name, figure) in Figures::NAMES.into_iter().zip(text.figures.all()) {
                @if let Some(figure) = figure { div { p.muted { (name) } p.figure { (figure) } } }
            }
        }
        @match &text.outcome {
            Outcome::Passed(passed) => (self::passed(passed)),
            Outcome::NoResult { .. } => @if let Some(failure) = &replay.failure { (failures::first_failure(failure)) },
        }
    }
}

fn passed(passed: &Passed<'_>) -> Markup {
    html! {
        (against(&passed.against))
        @if !passed.callers.is_empty() {
            p.muted { "Calls by "
                @for (index, it) in passed.callers.iter().enumerate() {
                    @if index > 0 { ", " }
                    strong { (one_line(it.candidate)) } " of " (one_line(it.job))
                    @if let Some(winner) = it.winner { " (which " (one_line(winner)) " won)" }
                } "." }
        }
        (steps(passed))
    }
}

fn against(rows: &[BudgetComparison]) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { th {} th.number { "this budget" } th.number { "keeping everything" } th.plot { "share" } } }
                tbody {
                    @for BudgetComparison { what, ours, all, share } in rows {
                        tr {
                            td { (what) }
                            td.number { (ours) }
                            td.number { (all) }
                            td.plot { @if let Some(share) = *share { (meter(share, 1.0 < share, &percent(share))) } }
                        }
                    }
                }
            }
        }
    }
}

fn meter(share: f64, is_over: bool, label: &str) -> Markup {
    let width = (share * 100.0).clamp(0.0, 100.0);
    html! { div.meter title=(label) { i.over[is_over] style={ "width:" (format!("{width:.1}")) "%" } {} } span.muted { (label) } }
}

fn steps(passed: &Passed<'_>) -> Markup {
    let longest = passed.steps.iter().map(|step| step.ms).fold(0.0, f64::max);
    let shown = passed.steps.len().min(MAX_STEPS);
    let more = passed.step_count.saturating_sub(shown);
    let [place, entry, job, by, time, waiting, call] = Step::HEADS;
    html! {
        details {
            summary { (counted(passed.step_count, "step", "steps")) ", one by one" }
            div.scroll {
                table.steps {
                    thead { tr { th.number { (place) } th { (entry) } th { (job) } th { (by) } th.number { (time) } th.plot { span.swatch.busy {} "at work " span.swatch.stalled {} "waiting" } th.number { (waiting) } th.number { (call) } } }
                    tbody {
                        @for step in &passed.steps[..shown] {
                            tr {
                                td.number { (step.place) }
                                td { (one_line(step.entry)) }
                                td { (one_line(step.job)) }
                                td { (one_line(step.candidate)) }
                                td.number { (step.time) }
                                td.plot { (bar(step, longest)) }
                                td.number { (step.waiting) }
                                td.number { (step.call) }
                            }
                        }
                    }
                }
            }
            @if more > 0 { p.note { (more) " more are not shown; " code { "report --format json" } " has the first thousand." } }
        }
    }
}

/// Draws the time of a step, and the part of it that was spent waiting.
fn bar(step: &Step<'_>, longest: f64) -> Markup {
    let share = |ms: f64| if 0.0 < longest { (ms / longest * 100.0).clamp(0.0, 100.0) } else { 0.0 };
    let (stalled, busy) = (share(step.stall_ms), share(step.ms - step.stall_ms));
    html! { div.meter { i.over style={ "width:" (format!("{stalled:.1}")) "%" } {} i style={ "width:" (format!("{busy:.1}")) "%" } {} } }
}
