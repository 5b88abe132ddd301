//! Replays for a pull request: a row for each, what is behind it folded away.

use super::{Caller, against_all_resident, callers, count, failure, result, slowest};
use crate::record::ReplayRecord;
use crate::report::digest::Digest;
use crate::report::figures::{counted, shorten, time};
use crate::report::markdown::{cell, code};

/// Of the whole section: a comment is not to grow too long.
pub(in crate::report) const MOST: usize = 12_000;
/// Steps told one by one: those that waited longest.
const MOST_STEPS: usize = 10;
const MAX_NAME: usize = 80;

/// Nothing where the plan has none.
pub(in crate::report) fn section(digest: &Digest) -> String {
    if digest.replays.is_empty() {
        return String::new();
    }
    let mut page = "### Replays under a budget\n\n".to_owned();
    page.push_str("| replay | status | time | stalled | budget | floor | everything | peak pool | moved | hits | misses | evictions |\n");
    page.push_str("|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    digest.replays.iter().for_each(|replay| page.push_str(&row(replay)));
    page.push('\n');
    let mut left_out = 0;
    for replay in &digest.replays {
        let story = story(replay, digest);
        if page.len() + story.len() < MOST {
            page.push_str(&story);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        page.push_str(&format!("… and the steps of {} more.\n\n", counted(left_out, "replay", "replays")));
    }
    page
}

fn row(replay: &ReplayRecord) -> String {
    let unknown = || "–".to_owned();
    let size = |bytes: Option<opt_shared::units::Bytes>| bytes.map_or_else(unknown, |it| it.to_string());
    let result = result(replay);
    let number = |figure: Option<u64>| figure.map_or_else(unknown, |it| it.to_string());
    let blame = replay.blame.map(|blame| format!(" ({})", blame.name())).unwrap_or_default();
    let cells = [
        cell(&shorten(&replay.name, MAX_NAME)),
        format!("{}{blame}", replay.status.map_or("not finished", |status| status.name())),
        result.map_or_else(unknown, |it| time(it.total_ms)),
        result.map_or_else(unknown, |it| time(it.stall_ms)),
        size(replay.budget_bytes),
        size(replay.floor_bytes),
        size(replay.all_resident_bytes),
        size(result.map(|it| it.peak_pool_bytes)),
        size(result.map(|it| it.bytes_moved)),
        number(result.map(|it| it.hits)),
        number(result.map(|it| it.misses)),
        number(result.map(|it| it.evictions)),
    ];
    format!("| {} |\n", cells.join(" | "))
}

fn story(replay: &ReplayRecord, digest: &Digest) -> String {
    let name = code(&shorten(&replay.name, MAX_NAME));
    let Some(result) = result(replay) else {
        let told = [replay.detail.clone(), failure(replay)];
        let told: Vec<String> = told.iter().flatten().map(|it| code(it)).collect();
        return if told.is_empty() { String::new() } else { format!("{name}: {}\n\n", told.join(", ")) };
    };
    let callers: Vec<String> =
        callers(result, |job| digest.winner_of(job)).iter().map(|it| told(it)).collect();
    let mut story = format!("{name}, {}. Calls by {}.\n\n", against_all_resident(result), callers.join(", "));
    let slowest = slowest(result, MOST_STEPS);
    if !slowest.is_empty() {
        let steps = counted(count(result), "step", "steps");
        story.push_str(&format!("<details><summary>The steps that waited longest, of {steps}</summary>\n\n"));
        story
            .push_str("| step | entry | job | by | time | waiting | call |\n|--:|:--|:--|:--|--:|--:|--:|\n");
        for (place, step) in slowest {
            story.push_str(&format!(
                "| {place} | {} | {} | {} | {} | {} | {} |\n",
                cell(&shorten(&step.entry, MAX_NAME)),
                cell(&shorten(&step.job, MAX_NAME)),
                cell(&shorten(&step.candidate, MAX_NAME)),
                time(step.ms),
                time(step.stall_ms),
                time(step.call_ms)
            ));
        }
        story.push_str("\n</details>\n\n");
    }
    story
}

fn told(caller: &Caller<'_>) -> String {
    match caller.winner {
        Some(winner) => {
            format!("{} ({}, which {} won)", code(caller.candidate), code(caller.job), code(winner))
        }
        None => format!("{} ({})", code(caller.candidate), code(caller.job)),
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::outcome::Status;

    use super::*;
    use crate::record::sample::sample;
    use crate::report::digest::tests::{LIMITS, digest_of};

    #[test]
    fn a_replay_has_its_row_and_its_slowest_steps() {
        let page = section(&digest_of(sample(), LIMITS));
        let row = "| `model` | PASSED | 18.0 s | 900 ms | 512 MiB | 300 MiB | 5.00 GiB | 510 MiB | 9.00 GiB | 600 | 100 | 90 |";
        assert!(page.contains(row), "{page}");
        assert!(
            page.contains("10 % of its pool") && page.contains("Calls by `fast.c` (`embedding`)."),
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
    fn many_replays_of_strangers_names_stay_short_and_are_no_markup() {
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
        // The rows always stand there.
        assert!(page.len() < MOST + 8_000, "{}", page.len());
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
