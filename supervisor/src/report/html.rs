//! Renders a run as a single HTML page. The page uses no network and no script, is light or dark, and fits large and
//! small screens.
//!
//! maud escapes every text. Foreign texts also lose their control characters. Parts that do not fit are left out, which
//! the page mentions. It does not mention missing headlines, the spread of times, and the last rows of some long
//! tables.

mod failures;
mod memory;
mod plot;
mod ranking;
mod replays;
mod spread;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use opt_shared::outcome::Status;

use super::digest::{Digest, JobDigest, Limits};
use super::figures::{counted, elapsed, median, one_line, three_digits, time, weaker_tiers};
use super::marks::{is_doubtful, same_inputs};
use super::text::headline_of;
use crate::record::timeline::milliseconds;
use crate::record::{HostRecord, JobStatus, RunStatus, TimingConditions};

pub use plot::PlotError;

pub const LIMITS: Limits = Limits { shown: 200, failed: 200, entries: 32, workers: 200, decisions: 200 };

/// The size in bytes up to which jobs and replays are put on the page. A phone may load it over a slow connection, and
/// browsers must be able to search it. The sections about memory and the machine are never left out.
const MAX_SIZE: usize = 1_800 << 10;
const STYLE: &str = include_str!("html/style.css");

pub fn render(digest: &Digest) -> Result<String, PlotError> {
    let memory = memory::section(digest)?;
    let host = host(digest);
    let mut room = Room { left: MAX_SIZE - STYLE.len() };
    let _ = (room.take(&memory), room.take(&host));
    // The headlines of all jobs come before the details of any.
    let cards: Vec<Markup> = digest.jobs.iter().map_while(|job| room.admit(card(job))).collect();
    let replays = replays::section(digest, &mut room);
    let jobs: Vec<Markup> = digest.jobs.iter().map_while(|job| section(job, &mut room)).collect();
    let missing = digest.jobs.len() - jobs.len();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // Even if hostile text gets into the page, it can neither run code nor reach the network.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'";
                title { (one_line(&digest.run.name)) " – opt-supervisor" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header(digest))
                main {
                    div.cards { @for card in &cards { (card) } }
                    @for job in &jobs { (job) }
                    @if missing > 0 {
                        p.note { (counted(missing, "job", "jobs")) " more are left out here: the page would be too large. "
                            code { "report --format json" } " has them." }
                    }
                    (replays)
                    (memory)
                    (host)
                }
                footer { "Written by opt-supervisor " (one_line(&digest.run.version)) ". Times are of one call; intervals are at 95 %." }
            }
        }
    };
    Ok(page.into_string())
}

/// The number of bytes that are left on the page.
struct Room {
    left: usize,
}

impl Room {
    /// Subtracts the length of a part if the part fits. Returns whether it does.
    fn take(&mut self, markup: &Markup) -> bool {
        let length = markup.0.len();
        let fits = length <= self.left;
        if fits {
            self.left -= length;
        }
        fits
    }

    /// Returns the part and subtracts its length. Returns `None` if the part does not fit.
    fn admit(&mut self, markup: Markup) -> Option<Markup> {
        self.take(&markup).then_some(markup)
    }
}

fn header(digest: &Digest) -> Markup {
    let run = &digest.run;
    let took = run.finished.map(|end| elapsed(milliseconds(end).saturating_sub(milliseconds(run.started))));
    let tone = match run.status {
        RunStatus::Finished => "good",
        RunStatus::Running => "other",
        RunStatus::Interrupted | RunStatus::Failed => "bad",
    };
    html! {
        header {
            p.eyebrow { "opt-supervisor" }
            h1 { (one_line(&run.name)) }
            p.meta {
                span class={ "chip " (tone) } { (run.status) }
                @if let Some(took) = took { span { "took " (took) } }
                span { (run.started.to_string().replace('T', " ").split('.').next().unwrap_or_default()) " UTC" }
                span { "on " (one_line(&run.device)) }
                @if let Some(cpu) = &digest.host.cpu { span { (one_line(cpu)) } }
            }
        }
    }
}

/// Returns the headline of a job.
fn card(digest: &JobDigest) -> Markup {
    let job = &digest.job;
    let winner = digest.winner();
    let doubtful = job.unsettled_because.is_some() || winner.is_some_and(is_doubtful);
    let ratio = winner.and_then(|winner| winner.speedup);
    let passed = digest.statuses.get(Status::Passed.name()).copied().unwrap_or(0);
    let baseline = job.baseline.as_deref().and_then(|name| digest.named(name));
    let median = winner.and_then(|winner| median(winner, baseline));
    let passed =
        passed.saturating_sub(usize::from(baseline.is_some_and(|it| it.status == Some(Status::Passed))));
    html! {
        a.card href={ "#job-" (anchor(&job.name)) } {
            h2 { (one_line(&job.name)) }
            @if let (Some(winner), Some(ratio)) = (winner, ratio) {
                p.big.doubtful[doubtful] { (three_digits(ratio.value)) "×" }
                p { strong { (one_line(&winner.name)) } @if let Some(baseline) = &job.baseline { " against " (one_line(baseline)) } }
                p.muted { "between " (three_digits(ratio.ci_low)) "× and " (three_digits(ratio.ci_high)) "×"
                    @if let Some(median) = median { ", " (time(median)) " a call" }
                    @if job.winner_confirmed { "; confirmed" } @else { "; not confirmed" }
                    (same_inputs(Some(winner))) }
            } @else if let (Some(winner), Some(median)) = (winner, median) {
                @let failed = job.status == JobStatus::BaselineFailed;
                p.big.doubtful[failed || doubtful] { (time(median)) }
                p { strong { (one_line(&winner.name)) } " is the fastest" (same_inputs(Some(winner))) "; there is nothing to compare it with" }
                @if failed {
                    p { span.chip.bad { (job.status) } @if let Some(detail) = &job.detail { " " (one_line(detail)) } }
                }
            } @else {
                p.big.none { "no winner" }
                p { (reason(digest)) }
            }
            @if let Some(because) = &job.unsettled_because {
                p { span.chip.bad { "UNSETTLED" } " " (one_line(because)) }
            }
            p.muted { (passed) " of " (counted(digest.others, "candidate", "candidates")) " passed" }
        }
    }
}

/// Explains why there is no winner, without naming the job.
fn reason(digest: &JobDigest) -> String {
    let headline = headline_of(&digest.job, |name| digest.named(name), digest.others);
    let rest = headline.strip_prefix(&format!("{}: ", one_line(&digest.job.name))).unwrap_or(&headline);
    ["no winner, ", "no winner: "]
        .into_iter()
        .find_map(|known| rest.strip_prefix(known))
        .unwrap_or(rest)
        .to_owned()
}

/// Writes a name as part of a link. ASCII letters and digits stay, other bytes are replaced by their codes, and long
/// names are cut.
fn anchor(name: &str) -> String {
    name.bytes()
        .take(64)
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("-{byte:x}"),
        })
        .collect()
}

fn section(digest: &JobDigest, room: &mut Room) -> Option<Markup> {
    let job = &digest.job;
    let captures = &job.captures;
    let tone = match job.status {
        JobStatus::Passed => "good",
        JobStatus::Pending | JobStatus::Skipped => "other",
        _ => "bad",
    };
    let passed = Status::Passed.name();
    let mut statuses: Vec<_> = digest.statuses.iter().collect();
    // PASSED comes first, then the other statuses by frequency.
    statuses.sort_by_key(|(status, count)| (**status != passed, std::cmp::Reverse(**count)));
    let head = room.admit(html! {
        h2 { (one_line(&job.name)) " " span class={ "chip " (tone) } { (job.status) } }
        p.muted {
            @if let Some(entries) = captures.entries { (counted(usize::try_from(entries).unwrap_or(usize::MAX), "entry", "entries")) }
            @if let Some(bytes) = captures.bytes { ", " (bytes) " captured" }
            @if let Some(unique) = captures.unique_bytes { ", " (unique) " without repeats" }
            @for (status, count) in statuses { " · " (count) "\u{a0}" (status) }
        }
        @if let Some(detail) = &job.detail { p { (one_line(detail)) } }
        @if let Some(weaker) = weaker_tiers(digest.shown.iter()) { p.muted { (weaker) } }
    })?;
    let ranking = room.admit(ranking::table(digest));
    let heat = room.admit(ranking::heat(digest));
    let spreads = room.admit(spread::spreads(digest));
    let failures = failures::section(digest, room);
    Some(html! {
        section id={ "job-" (anchor(&job.name)) } {
            (head)
            @match ranking { Some(ranking) => (ranking), None => (too_large("The ranking")) }
            @match heat { Some(heat) => (heat), None => (too_large("The table of entries")) }
            @if let Some(spreads) = spreads { (spreads) }
            (failures)
        }
    })
}

fn too_large(what: &str) -> Markup {
    html! { p.note { (what) " is left out here: the page would be too large. " code { "report --format json" } " has it." } }
}

/// Lists what may have disturbed the times.
fn disturbed_by(conditions: &TimingConditions) -> Option<String> {
    let mut reasons = Vec::new();
    if let Some((before, after)) = conditions.load_before.zip(conditions.load_after) {
        reasons.push(format!("load {before:.1} at the start, {after:.1} at the end"));
    }
    if let Some(steal) = conditions.steal_share {
        reasons.push(format!("{:.1} % of the CPU time went to other machines of the host", steal * 100.0));
    }
    if !conditions.governors.is_empty() {
        reasons.push(format!("governor {}", conditions.governors.join(", ")));
    }
    if conditions.smt == Some(true) {
        reasons.push("two threads per core".to_owned());
    }
    if let Some(throttled) = conditions.throttled.filter(|&count| count != 0) {
        reasons.push(format!("slowed down {throttled} times because of heat"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn host(digest: &Digest) -> Markup {
    let HostRecord { cpu, cores, ram_bytes, kernel, protections, timing } = &digest.host;
    let run = &digest.run;
    html! {
        section {
            h2 { "Machine and run" }
            div.columns {
                dl {
                    @if let Some(command) = &run.command { dt { "command" } dd { code { (one_line(command)) } } }
                    dt { "started" } dd { (run.started) }
                    @if let Some(finished) = run.finished { dt { "finished" } dd { (finished) } }
                    @if let Some(code) = run.exit_code { dt { "exit code" } dd { (code) } }
                    dt { "version" } dd { "opt-supervisor " (one_line(&run.version)) }
                    @if let Some(cpu) = cpu { dt { "processor" } dd { (one_line(cpu)) @if let Some(cores) = cores { ", " (counted(*cores as usize, "core", "cores")) } } }
                    @if let Some(ram) = ram_bytes { dt { "memory" } dd { (ram) } }
                    @if let Some(kernel) = kernel { dt { "kernel" } dd { (one_line(kernel)) } }
                    @if let Some(text) = timing.as_ref().and_then(disturbed_by) { dt { "while timing" } dd { (one_line(&text)) } }
                }
                dl {
                    @for job in &digest.jobs[..digest.jobs.len().min(32)] {
                        dt { (one_line(&job.job.name)) }
                        dd {
                            @for (index, (what, digest)) in digests(job).iter().enumerate() {
                                @if index > 0 { " · " }
                                span.whole { (what) " " code { (short(digest)) } }
                            }
                        }
                        @if let Some(build) = job.winner().and_then(|winner| winner.build.as_ref()) {
                            dt { "built with" } dd { code { (one_line(&flags_of(&build.flags).join(" "))) }
                                @if let Some(compiler) = &build.compiler { " (" (one_line(compiler)) ")" } }
                        }
                    }
                }
            }
            @if !protections.is_empty() {
                h3 { "What this machine enforces on candidates" }
                ul.protections {
                    @for protection in protections {
                        li title=(one_line(&protection.detail)) {
                            @if protection.present { span.good { "✓" } } @else { span.bad { "✗" } }
                            " " (one_line(&protection.name))
                            @if !protection.present { span.muted { " " (one_line(&protection.detail)) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the digests of a job's captures, of its arguments and of the winner's library, by name.
fn digests(job: &JobDigest) -> Vec<(&'static str, &String)> {
    let all = [
        ("captures", job.job.captures.digest.as_ref()),
        ("arguments", job.job.signature_digest.as_ref()),
        ("winner's library", job.winner().and_then(|winner| winner.artifact_digest.as_ref())),
    ];
    all.into_iter().filter_map(|(what, digest)| Some((what, digest?))).collect()
}

/// Returns the part of a compiler's command line that affects the code. The output and the run's scratch folders, which
/// no longer exist, are left out.
fn flags_of(flags: &[String]) -> Vec<&str> {
    let mut shown = Vec::new();
    let mut all = flags.iter().map(String::as_str);
    while let Some(flag) = all.next() {
        match flag {
            "-o" => drop(all.next()),
            "-I" => match all.next() {
                Some(folder) if folder.contains("/scratch/") => {}
                folder => shown.extend([Some(flag), folder].into_iter().flatten()),
            },
            _ => shown.push(flag),
        }
    }
    shown
}

/// Returns the beginning of a digest, which is long enough to identify it.
fn short(digest: &str) -> String {
    one_line(digest).chars().take(16).collect()
}

#[cfg(test)]
mod tests;
