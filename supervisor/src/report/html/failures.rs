//! Renders the failed candidates for which there is room: what each did, where it first failed, and how it ended.

use maud::{Markup, html};
use opt_shared::outcome::{EntryFailure, Mismatch};

use super::super::digest::JobDigest;
use super::super::figures::{counted, one_line, printable, small};
use super::Room;
use super::ranking::chip;
use crate::record::CandidateRecord;

/// The largest number of arguments that are shown for a call.
const MAX_ARGUMENTS: usize = 16;

pub(super) fn section(digest: &JobDigest, room: &mut Room) -> Markup {
    if digest.failures == 0 {
        return html! {};
    }
    let cards: Vec<Markup> =
        digest.failed.iter().map_while(|candidate| room.admit(card(digest, candidate))).collect();
    let missing = digest.failures - cards.len();
    html! {
        h3 { (counted(digest.failures, "candidate", "candidates")) " did not pass" }
        div.failures { @for it in &cards { (it) } }
        @if missing > 0 {
            p.note { (missing) " more are left out here; " code { "report --format json" } " has all of them." }
        }
    }
}

fn card(digest: &JobDigest, candidate: &CandidateRecord) -> Markup {
    let detail = candidate.detail.as_deref().map(one_line).unwrap_or_default();
    let failure = candidate.failures.first();
    let log = candidate.build.as_ref().map(|build| build.log_head.trim()).filter(|log| !log.is_empty());
    let outputs = [("error", &candidate.stderr_tail), ("output", &candidate.stdout_tail)];
    html! {
        details {
            summary {
                (chip(candidate))
                strong { (one_line(&candidate.name)) }
                span.detail { (detail) }
            }
            div.story {
                @if let Some(stage) = candidate.failed_stage {
                    p.muted {
                        "in " (stage)
                        @if let Some(signal) = &candidate.signal { ", ended by " (one_line(signal)) }
                        @if let Some(code) = candidate.exit_code { ", exit code " (code) }
                        @if let Some(path) = &candidate.source.path { ", " code { (one_line(path)) } }
                    }
                }
                @if let Some(feedback) = &candidate.feedback { pre.prose { (printable(feedback).trim_end()) } }
                @if let Some(failure) = failure { (first_failure(failure)) }
                @if candidate.build.is_some() && candidate.failures.is_empty() && candidate.verify.is_none() {
                    @if let Some(log) = log { p.label { "compiler output" } pre { (printable(log)) } }
                }
                @for (name, tail) in outputs {
                    @if let Some(tail) = tail.as_deref().map(str::trim).filter(|tail| !tail.is_empty()) {
                        p.label { "the end of its standard " (name) }
                        pre { (printable(tail)) }
                    }
                }
                @if let Some(failure) = failure {
                    p.label { "run this entry again" }
                    pre { "opt-supervisor repro RUN_DIR " (quoted(&format!("{}/{}", digest.job.name, candidate.name))) " --entry " (quoted(&failure.entry)) }
                }
            }
        }
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let word = one_line(word);
    let plain = |it: char| it.is_ascii_alphanumeric() || "_-./".contains(it);
    if word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

pub(super) fn first_failure(failure: &EntryFailure) -> Markup {
    html! {
        p.label { "first failing entry" }
        p { code { (one_line(&failure.entry)) } "(" (one_line(&failure.args[..failure.args.len().min(MAX_ARGUMENTS)].join(", ")))
            @if failure.args.len() > MAX_ARGUMENTS { ", …" } ")" }
        @if let Some(mismatch) = &failure.mismatch { (numbers(mismatch)) }
    }
}

fn numbers(it: &Mismatch) -> Markup {
    let place = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    html! {
        div.scroll {
            table.mismatch {
                tr { th { "where" } td { (one_line(&it.output)) "[" (place(&it.index)) "] of " (it.dtype) "[" (place(&it.shape)) "]" } }
                tr { th { "expected" } td.number { (one_line(&it.expected)) } }
                tr { th { "actual" } td.number.bad { (one_line(&it.actual)) } }
                tr { th { "error" } td { "absolute " (small(it.absolute_error)) ", relative " (small(it.relative_error)) ", L2 of all " (small(it.relative_l2)) } }
                tr { th { "elements" } td { (it.failed) " of " (it.elements) " differ"
                    @if it.actual_nan > 0 { ", " (it.actual_nan) " are NaN" }
                    @if it.actual_inf > 0 { ", " (it.actual_inf) " are infinite" } } }
                tr { th { "allowed" } td { "rtol " (small(it.tolerance.rtol)) ", atol " (small(it.tolerance.atol)) ", L2 " (small(it.tolerance.rel_l2)) } }
            }
        }
    }
}
