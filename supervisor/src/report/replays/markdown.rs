//! Renders replays as markdown for a pull request: a table with a row for each replay, and folded details.

use super::{Figures, Outcome, ReplayText, Step};
use crate::report::digest::Digest;
use crate::report::figures::{counted, shorten};
use crate::report::markdown::{cell, code};

/// The size in bytes above which details are left out of the section, because the length of a comment is limited. The
/// table of replays is never cut.
pub(in crate::report) const MAX_SIZE: usize = 12_000;
/// The maximum number of steps to list. The steps that waited longest are listed.
const MAX_STEPS: usize = 10;
const MAX_NAME: usize = 80;

/// Returns the section about replays. It is empty if the plan has none.
pub(in crate::report) fn section(digest: &Digest) -> String {
    if digest.replays.is_empty() {
        return String::new();
    }
    let replays: Vec<ReplayText<'_>> =
        digest.replays.iter().map(|it| ReplayText::of(it, |job| digest.winner_of(job))).collect();
    let mut page = format!(
        "### Replays under a budget\n\n| replay | status | {} |\n|:--|:--|{}\n",
        Figures::NAMES.join(" | "),
        "--:|".repeat(Figures::NAMES.len())
    );
    replays.iter().for_each(|replay| page.push_str(&row(replay)));
    page.push('\n');
    let mut left_out = 0;
    for replay in &replays {
        let details = details(replay);
        if page.len() + details.len() < MAX_SIZE {
            page.push_str(&details);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        page.push_str(&format!("… and the steps of {} more.\n\n", counted(left_out, "replay", "replays")));
    }
    page
}

fn row(replay: &ReplayText<'_>) -> String {
    let blame = replay.blame.map(|blame| format!(" ({})", blame.name())).unwrap_or_default();
    let figures = replay.figures.all().map(|figure| figure.unwrap_or("–"));
    let name = cell(&shorten(replay.name, MAX_NAME));
    format!("| {name} | {}{blame} | {} |\n", replay.status, figures.join(" | "))
}

fn details(replay: &ReplayText<'_>) -> String {
    let name = code(&shorten(replay.name, MAX_NAME));
    let passed = match &replay.outcome {
        Outcome::Passed(passed) => passed,
        Outcome::NoResult { detail, failure } => {
            let parts: Vec<String> = [*detail, failure.as_deref()].into_iter().flatten().map(code).collect();
            return if parts.is_empty() {
                String::new()
            } else {
                format!("{name}: {}\n\n", parts.join(", "))
            };
        }
    };
    let mut details = format!("{name}, {}. Calls by {}.\n\n", passed.against_all(), passed.called_by(code));
    let slowest = passed.slowest(MAX_STEPS);
    if !slowest.is_empty() {
        let steps = counted(passed.step_count, "step", "steps");
        details.push_str(&format!(
            "<details><summary>The steps that waited longest, of {steps}</summary>\n\n| {} |\n|--:|:--|:--|:--|--:|--:|--:|\n",
            Step::HEADS.join(" | ")
        ));
        for step in slowest {
            let [entry, job, candidate] =
                [step.entry, step.job, step.candidate].map(|name| cell(&shorten(name, MAX_NAME)));
            let Step { place, time, waiting, call, .. } = step;
            details.push_str(&format!(
                "| {place} | {entry} | {job} | {candidate} | {time} | {waiting} | {call} |\n"
            ));
        }
        details.push_str("\n</details>\n\n");
    }
    details
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::Status;

    use super::*;
    use crate::record::sample::sample;
    use crate::report::digest::tests::{LIMITS, digest_of};

    #[test]
    fn section_has_a_row_and_the_slowest_steps_of_each_replay() {
        let page = section(&digest_of(sample(), LIMITS));
        let row = "| `model` | PASSED | 18.0 s | 900 ms | 512 MiB | 300 MiB | 5.00 GiB | 510 MiB | 9.00 GiB | 600 | 100 | 90 |";
        assert!(page.contains(row), "{page}");
        assert!(
            page.contains("10 % of that pool") && page.contains("Calls by `fast.c` (`embedding`)."),
            "{page}"
        );
        assert!(
            page.contains("| 0 | `entry_000000` | `embedding` | `fast.c` | 20.0 ms | 12.0 ms |"),
            "{page}"
        );
        let mut run = sample();
        run.replays.clear();
        assert_eq!(section(&digest_of(run, LIMITS)), "");
    }

    #[test]
    fn section_limits_length_and_escapes_hostile_names() {
        let mut run = sample();
        let hostile = "`x` | <script> @all\n\n# a".repeat(200);
        let mut replay = run.replays.remove(0);
        replay.name.clone_from(&hostile);
        if let Some(result) = &mut replay.result {
            let mut step = result.steps[0].clone();
            (step.job, step.entry, step.candidate) = (hostile.clone(), hostile.clone(), hostile.clone());
            result.steps = vec![step; 1000];
        }
        let mut failed = replay.clone();
        (failed.status, failed.detail) = (Some(Status::InfraError), Some(hostile));
        run.replays = [vec![replay; 8], vec![failed; 8]].concat();
        let page = section(&digest_of(run, LIMITS));
        // Rows of the table are never left out.
        assert!(page.len() < MAX_SIZE + 8_000, "{}", page.len());
        assert!(page.contains("more."), "{page}");
        for line in page.lines() {
            let outside: String = line.split('`').step_by(2).collect();
            assert!(
                !outside.contains("<script") && !outside.contains("@all") && !line.starts_with("# "),
                "{line}"
            );
        }
    }
}
