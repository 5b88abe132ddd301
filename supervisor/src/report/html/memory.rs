//! Renders the run's memory: figures, a plot, predictions beside measurements, workers and decisions.

use maud::{Markup, PreEscaped, html};
use opt_shared::units::Bytes;

use super::super::digest::Digest;
use super::super::figures::{counted, elapsed, one_line, time};
use super::super::memory::{percent, share};
use super::plot::{self, PlotError};
use crate::record::Stage;
use crate::record::timeline::{Group, Kind, MarkKind, Timeline, milliseconds};

/// The largest number of kills and recycles that are listed.
const MAX_MARKS: usize = 60;

pub(super) fn section(digest: &Digest) -> Result<Markup, PlotError> {
    let totals = &digest.totals;
    let timeline = &digest.timeline;
    let drawn = if timeline.is_empty() {
        html! { p.note { "This run has no memory samples." } }
    } else {
        drawing(timeline)?
    };
    Ok(html! {
        section #memory {
            h2 { "Memory" }
            div.tiles {
                (tile("peak owed", totals.peak_owed_bytes))
                (tile("predicted without candidates and compilers", totals.predicted_peak_owed_bytes))
                (tile("ceiling", totals.host_ceiling_bytes))
                (tile("least available", totals.min_available_bytes))
                (tile("peak in swap", totals.swap_peak_bytes))
                @if totals.device_ceiling_bytes.is_some() {
                    (tile("peak on the device", totals.device_peak_bytes))
                    (tile("device ceiling", totals.device_ceiling_bytes))
                }
            }
            (drawn)
            (predictions(digest))
            (workers(digest))
            (decisions(digest))
        }
    })
}

fn tile(name: &str, bytes: Option<Bytes>) -> Markup {
    html! { div { p.muted { (name) } p.figure { @match bytes { Some(bytes) => (bytes), None => "–" } } } }
}

fn drawing(timeline: &Timeline) -> Result<Markup, PlotError> {
    let peak = timeline.tree.peak();
    let above = timeline.ceiling.filter(|ceiling| !plot::is_drawn(*ceiling, peak));
    let kinds = [
        Group::Runners(Kind::Verifier),
        Group::Runners(Kind::Profiler),
        Group::Workers(Kind::Verifier),
        Group::Workers(Kind::Profiler),
        Group::Supervisor,
    ];
    Ok(html! {
        figure {
            figcaption {
                "Memory owed by the whole process tree, over " (elapsed(timeline.to - timeline.from)) ". "
                @if let Some(ceiling) = above {
                    "The ceiling of " (ceiling) " is far above: " (peak) " is " (share(peak, ceiling)) " of it."
                }
            }
            div.scroll.plot { (PreEscaped(plot::tree(timeline)?)) }
            ul.legend {
                @for kind in kinds {
                    @if timeline.groups.contains_key(&kind) {
                        li { span class={ "swatch " (plot::class(kind)) } {} (kind.name()) }
                    }
                }
            }
        }
        figure {
            figcaption { "Each worker with its runners and stages. All workers have the same scale." }
            div.scroll.plot { (PreEscaped(plot::lanes(timeline)?)) }
            ul.legend {
                li { span.swatch.build {} "build" }
                li { span.swatch.verify {} "verify" }
                li { span.swatch.profile {} "profile" }
                @if timeline.phases.iter().any(|phase| phase.stage == Stage::Replay) {
                    li { span.swatch.replay {} "replay" }
                }
                @if !timeline.marks.is_empty() {
                    li { span.mark.kill { "✕" } "killed" }
                    li { span.mark.recycle { "○" } "recycled" }
                }
            }
            @let more = timeline.lanes.len().saturating_sub(plot::MAX_LANES);
            @if more > 0 { p.note { (counted(more, "worker", "workers")) " that owed less are not drawn." } }
        }
        @if !timeline.marks.is_empty() { (marks(timeline)) }
    })
}

fn marks(timeline: &Timeline) -> Markup {
    html! {
        details {
            summary { (counted(timeline.marks.len(), "kill or recycle", "kills and recycles")) }
            div.scroll {
                table {
                    thead { tr { th.number { "after" } th { "what" } th { "worker" } th { "why" } } }
                    tbody {
                        @for mark in timeline.marks.iter().take(MAX_MARKS) {
                            tr {
                                td.number { (elapsed(mark.at.saturating_sub(timeline.from))) }
                                td { @match mark.kind {
                                    MarkKind::KilledRunner => "runner killed",
                                    MarkKind::KilledWorker => "worker killed",
                                    MarkKind::Recycled => "recycled",
                                } }
                                td { (mark.worker) }
                                td { (one_line(&mark.reason)) }
                            }
                        }
                    }
                }
            }
            @if timeline.marks.len() > MAX_MARKS { p.note { (timeline.marks.len() - MAX_MARKS) " more are not listed." } }
        }
    }
}

fn predictions(digest: &Digest) -> Markup {
    let rows = digest.phases.rows();
    let on_device = rows.iter().any(|(phase, _)| phase.device_predicted_bytes.is_some());
    html! {
        @if !rows.is_empty() {
            h3 { "Predicted and measured" }
            p.muted { "One phase of each stage of each job: the one that came closest to its prediction or exceeded it most. A prediction covers the memory that the stage itself owes. Additional memory of a candidate or a compiler has a separate limit, which is also reserved." }
            div.scroll {
                table {
                    thead { tr { th { "job" } th { "stage" } th.number { "phases" } th.number { "predicted" } th.number { "measured" } th.plot {} th.number { "reclaimable" } @if on_device { th.number { "predicted, device" } th.number { "measured, device" } } th { "worst of them" } } }
                    tbody {
                        @for (phase, count) in rows.iter().take(200) {
                            @let share = match (phase.predicted_bytes, phase.peak_owed_bytes) {
                                (Some(predicted), Some(measured)) if predicted != Bytes::ZERO => Some(percent(measured, predicted)),
                                _ => None,
                            };
                            tr {
                                td { (one_line(&phase.job)) }
                                td { span class={ "swatch " (phase.stage.name()) } {} (phase.stage) }
                                td.number { (count) }
                                td.number { (size(phase.predicted_bytes)) }
                                td.number { (size(phase.peak_owed_bytes)) }
                                td.plot { @if let Some(share) = share {
                                    div.meter title={ (share) " %" } { i.over[share > 100] style={ "width:" (share.min(100)) "%" } {} }
                                    span.muted { (share) " %" }
                                } }
                                td.number { (size(phase.peak_reclaimable_bytes)) }
                                @if on_device {
                                    td.number { (size(phase.device_predicted_bytes)) }
                                    td.number { (size(phase.device_peak_bytes)) }
                                }
                                td.name { (phase.candidate.as_deref().map(one_line).unwrap_or_default()) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn size(bytes: Option<Bytes>) -> String {
    bytes.map_or("–".to_owned(), |bytes| bytes.to_string())
}

fn workers(digest: &Digest) -> Markup {
    let more = digest.workers_in_all - digest.workers.len();
    html! {
        @if !digest.workers.is_empty() {
            details {
                summary { (counted(digest.workers_in_all, "worker", "workers")) }
                div.scroll {
                    table {
                        thead { tr { th.number { "id" } th { "role" } th.number { "ready in" } th.number { "lived" } th.number { "leases" } th.number { "peak owed" } th { "end" } } }
                        tbody {
                            @for it in &digest.workers {
                                tr {
                                    td.number { (it.id.0) }
                                    td { (it.role.name()) }
                                    td.number { @match it.ready_ms { Some(ms) => (time(ms)), None => "–" } }
                                    td.number { @match it.ended { Some(end) => (elapsed(milliseconds(end).saturating_sub(milliseconds(it.started)))), None => "–" } }
                                    td.number { (it.leases) }
                                    td.number { (size(it.peak_owed_bytes)) }
                                    td { (one_line(it.end_class.as_deref().unwrap_or("–")))
                                        @if let Some(why) = &it.recycled_because { ", recycled: " (one_line(why)) } }
                                }
                            }
                        }
                    }
                }
                @if more > 0 { p.note { (more) " more are not shown." } }
            }
        }
    }
}

fn decisions(digest: &Digest) -> Markup {
    let all: usize = digest.decisions.values().sum();
    html! {
        @if all > 0 {
            details {
                summary { (counted(all, "memory decision", "memory decisions")) ": "
                    @for (index, (decision, count)) in digest.decisions.iter().enumerate() {
                        @if index > 0 { ", " } (one_line(decision)) " " (count)
                    }
                }
                div.scroll {
                    table {
                        thead { tr { th { "time" } th { "decision" } th { "reason" } th { "numbers" } } }
                        tbody {
                            @for row in &digest.policy {
                                tr {
                                    td.number { (row.t.to_string().split('T').nth(1).unwrap_or_default().to_owned()) }
                                    td { (one_line(&row.decision)) }
                                    td.name { (one_line(&row.reason)) }
                                    td.name { @for (index, (name, value)) in row.numbers.iter().take(12).enumerate() {
                                        @if index > 0 { ", " } (one_line(name.trim_end_matches("_bytes"))) " " (number(name, value))
                                    } }
                                }
                            }
                        }
                    }
                }
                @if all > digest.policy.len() { p.note { (all - digest.policy.len()) " more are not shown." } }
            }
        }
    }
}

fn number(name: &str, value: &serde_json::Value) -> String {
    match value.as_u64() {
        Some(bytes) if name.ends_with("_bytes") => Bytes::new(bytes).to_string(),
        _ => one_line(&value.to_string()),
    }
}
