//! Replays for people: what the pool held, what was moved, what that cost, against keeping everything.

use opt_shared::outcome::{ReplayResult, Status};

use super::figures::{counted, one_line, percent, time};
use crate::record::ReplayRecord;

/// Steps told one by one: those that waited longest.
const MOST_STEPS: usize = 3;

/// One line, what follows it, indented, and an empty one.
pub(super) fn lines(replay: &ReplayRecord) -> Vec<String> {
    let name = one_line(&replay.name);
    let Some(result) = replay.result.as_ref().filter(|_| replay.status == Some(Status::Passed)) else {
        let status = replay.status.map_or_else(|| "not finished".to_owned(), |status| status.to_string());
        let blame = replay.blame.map_or_else(String::new, |blame| format!(" ({})", blame.name()));
        let why =
            replay.detail.as_deref().map_or_else(String::new, |detail| format!(": {}", one_line(detail)));
        return vec![format!("replay {name}: {status}{blame}{why}"), String::new()];
    };
    let mut lines = vec![
        format!(
            "replay {name}: {} in {}, {} stalled, budget {}",
            counted(usize::try_from(result.step_count).unwrap_or(usize::MAX), "step", "steps"),
            time(result.total_ms),
            time(result.stall_ms),
            result.budget_bytes
        ),
        format!(
            "  pool: peak {} (floor {}, everything {})",
            result.peak_pool_bytes, result.floor_bytes, result.all_resident_bytes
        ),
        format!(
            "  moved {}: {} hits, {} misses, {} evictions; copying took {}, the calls {}",
            result.bytes_moved,
            result.hits,
            result.misses,
            result.evictions,
            time(result.copy_ms),
            time(result.compute_ms)
        ),
        against_all_resident(result),
    ];
    let mut slowest: Vec<_> = result.steps.iter().filter(|step| 0.0 < step.stall_ms).collect();
    slowest.sort_by(|one, other| other.stall_ms.total_cmp(&one.stall_ms));
    lines.extend(slowest.iter().take(MOST_STEPS).map(|step| {
        format!(
            "  {} of {}: {}, of it {} waiting",
            one_line(&step.entry),
            one_line(&step.job),
            time(step.ms),
            time(step.stall_ms)
        )
    }));
    lines.push(String::new());
    lines
}

fn against_all_resident(result: &ReplayResult) -> String {
    let share = |part: f64, whole: f64| if 0.0 < whole { percent(part / whole) } else { "-".to_owned() };
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let (pool, all) = (result.peak_pool_bytes.get() as f64, result.all_resident_bytes.get() as f64);
    format!(
        "  against keeping everything: {} of its pool, {} moved instead of {}, {} of its time once all is there",
        share(pool, all),
        result.bytes_moved,
        result.unique_bytes,
        share(result.total_ms, result.compute_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::sample;

    #[test]
    fn a_replay_is_told_in_a_few_lines() {
        let replay = &sample().replays[0];
        let wanted = [
            "replay model: 1 step in 18.0 s, 900 ms stalled, budget 512 MiB",
            "  pool: peak 510 MiB (floor 300 MiB, everything 5.00 GiB)",
            "  moved 9.00 GiB: 600 hits, 100 misses, 90 evictions; copying took 12.0 s, the calls 17.1 s",
            "  against keeping everything: 10 % of its pool, 9.00 GiB moved instead of 5.00 GiB, 105 % of its time once all is there",
            "  entry_000000 of embedding: 20.0 ms, of it 2.00 ms waiting",
            "",
        ];
        assert_eq!(lines(replay), wanted);
    }

    /// Whatever a row holds: what did not pass shows no figure.
    #[test]
    fn what_did_not_pass_has_no_figures() {
        let mut replay = sample().replays.remove(0);
        replay.status = Some(Status::InfraError);
        replay.detail = Some("part at use 7".to_owned());
        assert_eq!(lines(&replay), ["replay model: INFRA_ERROR: part at use 7", ""]);
    }
}
