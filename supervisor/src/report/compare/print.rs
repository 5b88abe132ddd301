//! Prints a comparison of two runs, as text for a terminal or as markdown for a pull request.

use opt_shared::outcome::Status;

use super::super::figures::{counted, one_line, shorten, speedup, time};
use super::super::markdown::{cell, code};
use super::super::marks::UNVARIED;
use super::{Change, ComparedCandidate, ComparedJob, Comparison, Ended, RatioOf, replays};

/// The largest number of rows for each job in the markdown. It is limited because a comment on a pull request has a
/// maximum length.
const MAX_ROWS: usize = 60;
/// The largest number of jobs in the markdown, for the same reason.
const MAX_JOBS: usize = 20;
/// The largest number of names in a list of items that only one run has.
const MAX_NAMES: usize = 10;

/// Returns the facts about a job that the reader must know in order to judge a ratio.
fn caveats(comparison: &Comparison, job: &ComparedJob) -> Vec<String> {
    let mut caveats = Vec::new();
    if job.same_captures == Some(false) {
        caveats.push("the captures differ, so times and verdicts may be of different calls".to_owned());
    }
    if job.same_signature == Some(false) {
        caveats.push("the order, number or defaults of the arguments differ".to_owned());
    }
    let by_time = job.candidates.iter().any(|it| it.ratio_of == Some(RatioOf::MedianTime));
    if job.candidates.iter().any(|it| it.first.same_inputs || it.second.same_inputs) {
        caveats.push(UNVARIED.to_owned());
    }
    if by_time && comparison.same_cpu != Some(true) {
        caveats.push("times are compared, and the runs may be from different machines".to_owned());
    }
    caveats
}

fn headline(job: &ComparedJob) -> String {
    let count = |change: Change| job.candidates.iter().filter(|it| it.change == change).count();
    let mut parts = vec![format!("{} in both", counted(job.candidates.len(), "candidate", "candidates"))];
    let changes = [
        Change::Faster,
        Change::Slower,
        Change::WithinNoise,
        Change::NewlyPassed,
        Change::NoLongerPassed,
        Change::OtherStatus,
    ];
    for change in changes {
        let count = count(change);
        if count > 0 {
            parts.push(format!("{count} {}", change.name()));
        }
    }
    parts.join(", ")
}

/// Returns the figure of which the ratio is computed or, if there is no ratio, the median time. If the candidate did
/// not pass, or has no such figure, returns its status.
fn ended(ended: &Ended, of: Option<RatioOf>) -> String {
    if ended.status != Some(Status::Passed) {
        return ended.status.map_or("not finished", Status::name).to_owned();
    }
    let figure = match (of, ended.speedup, ended.median_time) {
        (Some(RatioOf::Speedup), Some(ratio), _) => speedup(&ratio),
        (_, _, Some(median)) => time(median.value),
        _ => return Status::Passed.name().to_owned(),
    };
    if ended.same_inputs { format!("{figure} =") } else { figure }
}

fn names(names: &[String], show: impl Fn(&str) -> String) -> String {
    let shown: Vec<String> = names.iter().take(MAX_NAMES).map(|name| show(name)).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns the jobs and replays that only one run has.
fn only_in_one_run(comparison: &Comparison) -> [(&'static str, &'static str, &[String]); 4] {
    [
        ("jobs", "first", &comparison.jobs_only_in_first),
        ("jobs", "second", &comparison.jobs_only_in_second),
        ("replays", "first", &comparison.replays_only_in_first),
        ("replays", "second", &comparison.replays_only_in_second),
    ]
}

/// Prints the comparison in columns. Long names are shortened to fit a terminal.
pub fn text(comparison: &Comparison) -> String {
    const NAME: usize = 18;
    const SIDE: usize = 20;
    let mut lines = Vec::new();
    for (place, run) in ["first", "second"].iter().zip(&comparison.runs) {
        lines.push(format!("{place}: {} ({}, {})", one_line(&run.name), run.status, run.started));
    }
    for job in &comparison.jobs {
        lines.push(String::new());
        lines.push(format!("{}: {}", one_line(&job.name), headline(job)));
        if job.winners[0] != job.winners[1] {
            let [before, after] =
                job.winners.each_ref().map(|it| it.as_deref().map_or("none".to_owned(), one_line));
            lines.push(format!("  the winner changed from {before} to {after}"));
        }
        lines.extend(caveats(comparison, job).into_iter().map(|caveat| format!("  note: {caveat}")));
        if !job.candidates.is_empty() {
            lines.push(String::new());
            lines.push(format!(
                "{:<NAME$}  {:>SIDE$}  {:>SIDE$}  {:>16}",
                "candidate", "first", "second", "change"
            ));
        }
        for it in &job.candidates {
            let name = shorten(&one_line(&it.name), NAME);
            let (first, second) = (ended(&it.first, it.ratio_of), ended(&it.second, it.ratio_of));
            lines.push(format!("{name:<NAME$}  {first:>SIDE$}  {second:>SIDE$}  {:>16}", change(it)));
            if let Some(ratio) = it.ratio.filter(|_| matches!(it.change, Change::Faster | Change::Slower)) {
                let of = if it.ratio_of == Some(RatioOf::Speedup) { "speed-ups" } else { "median times" };
                let ratio_text = format!("ratio of {of}: {}", speedup(&ratio));
                lines.push(format!("{ratio_text:>width$}", width = NAME + 2 * SIDE + 16 + 6));
            }
        }
        for (which, only) in [("first", &job.only_in_first), ("second", &job.only_in_second)] {
            if !only.is_empty() {
                lines.push(format!("only in the {which}: {}", names(only, one_line)));
            }
        }
    }
    lines.extend(replays::text(comparison));
    for (what, which, only) in only_in_one_run(comparison) {
        if !only.is_empty() {
            lines.push(String::new());
            lines.push(format!("{what} only in the {which}: {}", names(only, one_line)));
        }
    }
    lines.push(String::new());
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn change(it: &ComparedCandidate) -> String {
    match (it.change, it.ratio) {
        (Change::Faster | Change::Slower, Some(ratio)) => {
            format!("{:+.1} % {}", (ratio.value - 1.0) * 100.0, it.change.name())
        }
        (change, _) => change.name().to_owned(),
    }
}

/// Prints the comparison as markdown, for a pull request.
pub fn markdown(comparison: &Comparison) -> String {
    let mut lines = Vec::new();
    let [first, second] = &comparison.runs;
    lines.push(format!(
        "Comparing {} ({}) with {} ({}).",
        code(&first.name),
        first.started,
        code(&second.name),
        second.started
    ));
    for job in comparison.jobs.iter().take(MAX_JOBS) {
        lines.extend([String::new(), format!("### {}: {}", code(&job.name), headline(job)), String::new()]);
        if job.winners[0] != job.winners[1] {
            let [before, after] =
                job.winners.each_ref().map(|it| it.as_deref().map_or("none".to_owned(), code));
            lines.extend([format!("The winner changed from {before} to {after}."), String::new()]);
        }
        for caveat in caveats(comparison, job) {
            lines.extend([format!("> Note: {caveat}."), String::new()]);
        }
        if !job.candidates.is_empty() {
            lines.push("| candidate | first | second | ratio | change |".to_owned());
            lines.push("|:--|--:|--:|--:|:--|".to_owned());
        }
        for it in job.candidates.iter().take(MAX_ROWS) {
            let ratio = it.ratio.as_ref().map_or_else(|| "–".to_owned(), speedup);
            let bold = if matches!(it.change, Change::Slower | Change::NoLongerPassed) { "**" } else { "" };
            let change = it.change.name();
            let change = if change.is_empty() { String::new() } else { format!("{bold}{change}{bold}") };
            lines.push(format!(
                "| {} | {} | {} | {ratio} | {change} |",
                cell(&it.name),
                ended(&it.first, it.ratio_of),
                ended(&it.second, it.ratio_of),
            ));
        }
        if let Some(more) = job.candidates.len().checked_sub(MAX_ROWS).filter(|&more| more > 0) {
            lines.extend([String::new(), format!("… and {more} more.")]);
        }
        for (which, only) in [("first", &job.only_in_first), ("second", &job.only_in_second)] {
            if !only.is_empty() {
                lines.extend([
                    String::new(),
                    format!("Only the {which} run has these: {}.", names(only, code)),
                ]);
            }
        }
    }
    if let Some(more) = comparison.jobs.len().checked_sub(MAX_JOBS).filter(|&more| more > 0) {
        lines.extend([String::new(), format!("… and {} more.", counted(more, "job", "jobs"))]);
    }
    lines.extend(replays::markdown(comparison));
    for (what, which, only) in only_in_one_run(comparison) {
        if !only.is_empty() {
            lines.extend([
                String::new(),
                format!("Only the {which} run has these {what}: {}.", names(only, code)),
            ]);
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::super::marks::tests::with_varied;
    use super::super::compare;
    use super::super::tests::{compared_run, later};
    use super::*;
    use crate::record::sample::sample;

    #[test]
    fn text_of_a_comparison_matches_its_snapshot_and_fits_eighty_columns() {
        let text = text(&compare(compared_run(sample()), compared_run(later())));
        let wanted = "\
first: demo (FINISHED, 2026-05-01T12:00:00.000Z)
second: demo (FINISHED, 2026-05-01T12:00:00.000Z)

embedding: 3 candidates in both, 1 faster, 1 within noise, 1 passes now

candidate                          first                second            change
bad.c                INCORRECT_NUMERICAL                PASSED        passes now
naive.c               1.00x [0.990–1.01]    1.00x [0.990–1.01]      within noise
fast.c                 2.31x [2.25–2.38]     4.62x [4.50–4.70]  +100.0 % faster
                                          ratio of speed-ups: 2.00x [1.92–2.06]
only in the second: new.c

replay                           first                    second     difference
model           18.0 s, 900 ms stalled    18.0 s, 900 ms stalled     +0.0 % time
";
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(flat(&text), flat(wanted), "\n{text}");
    }

    #[test]
    fn figures_of_calls_with_the_same_inputs_are_marked() {
        let text = text(&compare(compared_run(with_varied(0, 1)), compared_run(later())));
        let fast = text.lines().find(|line| line.starts_with("fast.c")).expect("its row");
        let words: Vec<&str> = fast.split_whitespace().take(6).collect();
        assert_eq!(words, ["fast.c", "2.31x", "[2.25–2.38]", "=", "4.62x", "[4.50–4.70]"]);
        assert!(text.contains(UNVARIED), "{text}");
    }

    #[test]
    fn markdown_of_a_comparison_has_a_table_and_its_caveats() {
        let mut other = later();
        other.jobs[0].captures.digest = Some("another".to_owned());
        let text = markdown(&compare(compared_run(sample()), compared_run(other)));
        assert!(text.contains("| `fast.c` | 2.31x [2.25–2.38] | 4.62x [4.50–4.70] | 2.00x"), "{text}");
        assert!(text.contains("> Note: the captures differ"), "{text}");
    }
}
