//! Describes the state of a run's replays to clients that watch the run. The full results are in the run's record.

use opt_shared::outcome::ReplayResult;
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use super::View;
use crate::core::control::UnitView;

/// Those figures of a replay's result that are shown while the run continues.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    total_ms: f64,
    stall_ms: f64,
    bytes_moved: Bytes,
    peak_pool: Bytes,
}

impl Figures {
    pub(crate) fn of(result: &ReplayResult) -> Self {
        Self {
            total_ms: result.total_ms,
            stall_ms: result.stall_ms,
            bytes_moved: result.bytes_moved,
            peak_pool: result.peak_pool_bytes,
        }
    }
}

impl View<'_> {
    /// Returns the state of every replay, in the plan's order.
    pub(crate) fn replay_states(&self) -> Vec<Value> {
        (0..self.agenda.plan.replays.len()).map(|replay| self.replay_state(replay)).collect()
    }

    pub(crate) fn replay_state(&self, replay: usize) -> Value {
        let plan = &self.agenda.plan.replays[replay];
        let view = self.agenda.units.of_replay(replay).and_then(|id| self.decisions.core.unit_view(id));
        let ended = self.agenda.replays.ends[replay];
        let figures = self.agenda.replays.figures[replay];
        json!({
            "name": plan.name,
            "status": ended,
            "running": ended.is_none() && matches!(view, Some(UnitView::Running { .. })),
            "steps": plan.steps.len(),
            "budget_bytes": plan.budget,
            "total_ms": figures.map(|it| it.total_ms),
            "stall_ms": figures.map(|it| it.stall_ms),
            "bytes_moved": figures.map(|it| it.bytes_moved),
            "peak_pool_bytes": figures.map(|it| it.peak_pool),
        })
    }
}
