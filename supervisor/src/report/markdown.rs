//! Renders a run as markdown for a pull request: the winner and its speed-up, the table of candidates, details in
//! folded sections, and the command that reproduces the run.
//!
//! Foreign names and texts are either escaped or in code, where neither markup nor mentions work.

use std::fmt::Write as _;

use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::digest::{Digest, JobDigest, Limits};
use super::figures::{counted, median, one_line, percent, shorten, speedup, time, weaker_tiers};
use super::marks::{is_unvaried_entry, legend, marks, same_inputs};
use super::memory;
use super::replays::markdown as replays;
use super::text::headline_of;
use crate::record::{CandidateRecord, Ranking};

pub const LIMITS: Limits = Limits { shown: 40, failed: 40, entries: 40, workers: 0, decisions: 0 };
/// The largest size of the report, in bytes. It is below the 65,536 characters that a comment on a pull request may
/// have.
const MAX_SIZE: usize = 60_000;
const MAX_NAME: usize = 80;
const MAX_DETAIL: usize = 200;

pub fn render(digest: &Digest) -> String {
    let mut page = String::new();
    let mut left_out = 0;
    let replay_section = replays::section(digest);
    for job in &digest.jobs {
        let section = job_section(job);
        if page.len() + section.len() + replay_section.len() < MAX_SIZE - 4096 {
            page.push_str(&section);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        let jobs = counted(left_out, "job", "jobs");
        line(&mut page, &format!("{jobs} more are left out here; `report --format json` has them."));
        page.push('\n');
    }
    page.push_str(&replay_section);
    memory_line(&mut page, digest);
    if let Some(command) = &digest.run.command {
        let _ = write!(page, "Reproduce with\n\n```sh\n{}\n```\n\n", one_line(command).replace("```", "'''"));
    }
    let host = [
        digest.host.cpu.as_deref().map(one_line),
        digest.host.cores.map(|cores| counted(cores as usize, "core", "cores")),
        digest.host.kernel.as_deref().map(one_line),
    ];
    let host: Vec<String> = host.into_iter().flatten().collect();
    line(
        &mut page,
        &format!(
            "<sub>opt-supervisor {}, run {} ({}), {}, on {}: {}</sub>",
            html(&digest.run.version),
            html(&digest.run.name),
            digest.run.status,
            digest.run.started,
            html(&digest.run.device),
            html(&host.join(", "))
        ),
    );
    page
}

fn job_section(digest: &JobDigest) -> String {
    let mut page = String::new();
    let job = &digest.job;
    let verdict = match (digest.winner(), &job.baseline) {
        (Some(winner), Some(baseline)) if winner.speedup.is_some() => {
            let ratio = winner.speedup.as_ref().map(speedup).unwrap_or_default();
            let wins = match job.ranking {
                Some(Ranking::Unsettled) => "is ahead, but the ranking is not settled",
                _ => "wins",
            };
            let confirmed = if job.winner_confirmed { "confirmed" } else { "not confirmed" };
            format!(
                "{} {wins}, **{ratio}** against {}, {confirmed}{}",
                code(&winner.name),
                code(baseline),
                same_inputs(Some(winner))
            )
        }
        _ => {
            // The headline continues after the job's name, and this rest may contain foreign names.
            let headline = headline_of(job, |name| digest.named(name), digest.others);
            let rest =
                headline.strip_prefix(&format!("{}: ", one_line(&job.name))).unwrap_or(&headline).to_owned();
            html(&rest)
        }
    };
    line(&mut page, &format!("### {}: {verdict}", code(&job.name)));
    page.push('\n');
    if let Some(because) = &job.unsettled_because {
        line(&mut page, &format!("**UNSETTLED**: {}", html(&one_line(because))));
        page.push('\n');
    }
    let mut facts = Vec::new();
    if let Some(entries) = job.captures.entries {
        facts.push(counted(usize::try_from(entries).unwrap_or(usize::MAX), "entry", "entries"));
    }
    if let Some(bytes) = job.captures.bytes {
        facts.push(format!("{bytes} captured"));
    }
    let statuses: Vec<String> =
        digest.statuses.iter().map(|(status, count)| format!("{count} {status}")).collect();
    facts.push(format!("{}: {}", counted(digest.candidates, "candidate", "candidates"), statuses.join(", ")));
    line(&mut page, &facts.join("; "));
    page.push('\n');
    let ranked: Vec<&CandidateRecord> =
        digest.shown.iter().filter(|it| it.status == Some(Status::Passed)).collect();
    if !ranked.is_empty() {
        line(&mut page, "| rank | candidate | speed-up | median | noise | peak owed |");
        line(&mut page, "|--:|:--|--:|--:|--:|--:|");
        let baseline = job.baseline.as_deref().and_then(|name| digest.named(name));
        for candidate in &ranked {
            line(&mut page, &row(candidate, baseline));
        }
        page.push('\n');
        for explanation in legend(ranked.iter().copied()) {
            line(&mut page, &html(&explanation));
            page.push('\n');
        }
        let passed = digest.statuses.get(Status::Passed.name()).copied().unwrap_or(0);
        if let Some(more) = passed.checked_sub(ranked.len()).filter(|&more| more > 0) {
            line(&mut page, &format!("… and {more} more that passed."));
            page.push('\n');
        }
    }
    if let Some(weaker) = weaker_tiers(digest.shown.iter()) {
        line(&mut page, &html(&weaker));
        page.push('\n');
    }
    if let Some(winner) = digest.winner().or(ranked.first().copied()) {
        by_entry(&mut page, digest, winner);
    }
    failures(&mut page, digest);
    page
}

fn row(candidate: &CandidateRecord, baseline: Option<&CandidateRecord>) -> String {
    let unknown = || "–".to_owned();
    let times = candidate.profile.as_ref().map(|profile| &profile.times);
    let noise = times.and_then(|it| it.noise).map_or_else(unknown, percent);
    // One `~` is plain text, while two would strike the text out.
    let marks = marks(candidate);
    format!(
        "| {} | {} | {} | {} | {noise}{marks} | {} |",
        candidate.rank.map_or_else(unknown, |rank| rank.to_string()),
        cell(&candidate.name),
        candidate.speedup.as_ref().map_or_else(unknown, speedup),
        median(candidate, baseline).map_or_else(unknown, time),
        candidate.resources.runner_peak_owed_bytes.map_or_else(unknown, |peak| peak.to_string()),
    )
}

/// Writes a row for each timed entry. If only distinct entries were timed, each represents its signature class.
fn by_entry(page: &mut String, digest: &JobDigest, candidate: &CandidateRecord) {
    let Some(profile) = candidate.profile.as_ref().filter(|profile| !profile.entries.is_empty()) else {
        return;
    };
    let shown = profile.entries.len();
    let _ = write!(
        page,
        "<details><summary>By entry: {}</summary>\n\n",
        html(&shorten(&one_line(&candidate.name), MAX_NAME))
    );
    line(page, "| entry | alike | median | 95 % interval | baseline | speed-up |");
    line(page, "|:--|--:|--:|:-:|--:|--:|");
    for entry in &profile.entries {
        let unknown = || "–".to_owned();
        line(
            page,
            &format!(
                "| {} | {} | {} | {} – {} | {} | {}{} |",
                cell(&entry.entry),
                entry.weight,
                time(entry.times.median_time_ms),
                time(entry.times.ci_low),
                time(entry.times.ci_high),
                entry.baseline.as_ref().map_or_else(unknown, |times| time(times.median_time_ms)),
                entry.speedup.as_ref().map_or_else(unknown, speedup),
                if is_unvaried_entry(entry) { "=" } else { "" },
            ),
        );
    }
    if digest.entries_left_out > 0 {
        let _ = write!(page, "\nOnly the first {shown} are shown.\n");
    }
    page.push_str("\n</details>\n\n");
}

fn failures(page: &mut String, digest: &JobDigest) {
    if digest.failed.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<details><summary>{} did not pass</summary>\n\n",
        counted(digest.failures, "candidate", "candidates")
    );
    line(page, "| candidate | status | what happened |");
    line(page, "|:--|:--|:--|");
    for candidate in &digest.failed {
        let detail = candidate.detail.as_deref().map(one_line).unwrap_or_default();
        let blame = candidate.blame.map(|blame| format!(" ({})", blame.name())).unwrap_or_default();
        line(
            page,
            &format!(
                "| {} | {}{blame} | {} |",
                cell(&candidate.name),
                candidate.status.map_or("", Status::name),
                if detail.is_empty() { String::new() } else { cell(&detail) }
            ),
        );
    }
    if let Some(more) = digest.failures.checked_sub(digest.failed.len()).filter(|&more| more > 0) {
        let _ = write!(page, "\n… and {more} more.\n");
    }
    page.push_str("\n</details>\n\n");
}

fn memory_line(page: &mut String, digest: &Digest) {
    let totals = &digest.totals;
    let mut facts = Vec::new();
    let mut add = |name: &str, bytes: Option<Bytes>| {
        if let Some(bytes) = bytes {
            facts.push(format!("{name} {bytes}"));
        }
    };
    add("peak owed", totals.peak_owed_bytes);
    add("ceiling", totals.host_ceiling_bytes);
    add("predicted without candidates and compilers", totals.predicted_peak_owed_bytes);
    add("peak in swap", totals.swap_peak_bytes);
    add("least available", totals.min_available_bytes);
    add("peak on the device", totals.device_peak_bytes);
    add("device ceiling", totals.device_ceiling_bytes);
    if let (Some(peak), Some(ceiling)) = (totals.peak_owed_bytes, totals.host_ceiling_bytes) {
        facts.push(format!("{} of the ceiling used", memory::share(peak, ceiling)));
    }
    facts.extend(digest.decisions.iter().map(|(decision, count)| format!("{} {count}", one_line(decision))));
    if !facts.is_empty() {
        line(page, &format!("Memory: {}", html(&facts.join(", "))));
        page.push('\n');
    }
}

fn line(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

/// Formats a foreign text as a code span.
pub(super) fn code(text: &str) -> String {
    let line = shorten(&one_line(text), MAX_DETAIL).replace('`', "'");
    // Two backticks without anything between them would not be a code span.
    if line.trim().is_empty() { "` `".to_owned() } else { format!("`{}`", line.trim()) }
}

/// Formats a foreign text as a code span in a table.
pub(super) fn cell(text: &str) -> String {
    code(text).replace('|', "\\|")
}

/// Escapes a foreign text outside code spans, so that no character of it is HTML or markdown.
fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in one_line(text).chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' => {
                safe.push('\\');
                safe.push(character);
            }
            // A zero-width space after `@` prevents a mention.
            '@' => safe.push_str("@\u{200b}"),
            character => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::digest::tests::digest_of;
    use super::super::marks::tests::with_varied;
    use super::*;
    use crate::record::sample::sample;

    #[test]
    fn run_is_printed_for_a_pull_request() {
        let text = render(&digest_of(sample(), LIMITS));
        let wanted = "\
### `embedding`: `fast.c` wins, **2.31x [2.25–2.38]** against `naive.c`, confirmed

20 entries; 51.0 GiB captured; 3 candidates: 1 INCORRECT_NUMERICAL, 2 PASSED

| rank | candidate | speed-up | median | noise | peak owed |
|--:|:--|--:|--:|--:|--:|
| 1 | `fast.c` | 2.31x [2.25–2.38] | 541 µs | 0.8 % | 31.0 MiB |
| 2 | `naive.c` | 1.00x [0.990–1.01] | 1.25 ms | 0.8 % | 31.0 MiB |

<details><summary>By entry: fast.c</summary>
";
        assert!(text.starts_with(wanted), "{text}");
        let memory =
            "Memory: peak owed 111 MiB, ceiling 96.0 GiB, predicted without candidates and compilers 120 MiB";
        assert!(text.contains(memory), "{text}");
        assert!(text.contains("```sh\nopt-supervisor run demo.toml\n```"), "{text}");
        assert_eq!(text.matches("<details>").count(), text.matches("</details>").count());
    }

    #[test]
    fn foreign_text_cannot_become_markup() {
        let mut run = sample();
        let hostile = "`x` | <script>alert(1)</script> @everyone\n\n# heading \u{1b}[31m [a](http://b)";
        let job = &mut run.jobs[0];
        job.name = hostile.to_owned();
        for candidate in &mut job.candidates {
            candidate.name = hostile.to_owned();
            candidate.detail = Some(hostile.to_owned());
        }
        (job.winner, job.baseline) = (None, Some(hostile.to_owned()));
        job.detail = Some(hostile.to_owned());
        run.run.command = Some("x\n```\n<script>".to_owned());
        let text = render(&digest_of(run, LIMITS));
        let mut fenced = false;
        for line in text.lines() {
            if line.starts_with("```") {
                fenced = !fenced;
                continue;
            }
            // This is the text outside code spans, which start and end on the same line.
            let outside: String = line.split('`').step_by(2).collect();
            let backslashed = line.contains("\\`");
            assert!(fenced || backslashed || !outside.contains("<script"), "{line}");
            assert!(fenced || !outside.contains("@everyone"), "{line}");
            assert!(!line.starts_with("# "), "{line}");
        }
        assert!(!fenced);
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn figures_from_inputs_that_did_not_vary_are_marked() {
        let text = render(&digest_of(with_varied(0, 1), LIMITS));
        for part in [
            "confirmed, with inputs that were the same in every call\n",
            "| 541 µs | 0.8 %= | 31.0 MiB |\n",
            "\n= inputs were the same in every call, so a kernel may have remembered results (",
            "2.31x [2.25–2.38]= |\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn report_of_many_jobs_stays_within_its_limit() {
        let mut run = sample();
        let job = run.jobs[0].clone();
        run.jobs = vec![job; 300];
        let text = render(&digest_of(run, LIMITS));
        assert!(text.len() < MAX_SIZE, "{}", text.len());
        assert!(text.contains("more are left out here"), "{text}");
    }
}
