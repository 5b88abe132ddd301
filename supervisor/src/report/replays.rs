//! Replays for people: what the pool held, what was moved, what that cost, against keeping everything.

use opt_shared::outcome::{ReplayResult, Status};

use super::figures::{counted, one_line, percent, time};
use crate::record::ReplayRecord;

/// Steps told one by one: those that waited longest.
const MOST_STEPS: usize = 3;

/// One line, and what follows it, indented.
pub(super) fn lines(replay: &ReplayRecord) -> Vec<String> {
    let name = one_line(&replay.name);
    let Some(result) = replay.result.as_ref().filter(|_| replay.status == Some(Status::Passed)) else {
        let status = replay.status.map_or_else(|| "not finished".to_owned(), |status| status.to_string());
        let blame = replay.blame.map_or_else(String::new, |blame| format!(" ({})", blame.name()));
        let why =
            replay.detail.as_deref().map_or_else(String::new, |detail| format!(": {}", one_line(detail)));
        return vec![format!("replay {name}: {status}{blame}{why}")];
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
