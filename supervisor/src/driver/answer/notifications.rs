//! Builds the JSON values that are sent to clients of the control socket which have called `events`.

use opt_shared::ids::WorkerId;
use opt_shared::message::Role;
use opt_shared::outcome::Status;
use serde_json::{Value, json};

use crate::core::event::{PolicyRow, Stage, WorkerEndClass};
use crate::core::recycle::RecycleReason;
use crate::record::{Numbers, UtcTime};
use crate::store::JobEnd;

pub(crate) fn policy(t: UtcTime, row: &PolicyRow, numbers: Numbers, names: Value) -> Value {
    json!({
        "kind": "policy", "t": t, "decision": row.decision, "reason": row.reason, "numbers": numbers, "names": names
    })
}

pub(crate) fn attempt_started(candidate: &str, stage: Stage, number: u32, worker: WorkerId) -> Value {
    json!({
        "kind": "attempt", "state": "started", "candidate": candidate, "stage": stage.name(), "number": number,
        "worker": worker
    })
}

pub(crate) fn attempt_ended(
    candidate: &str,
    stage: Stage,
    number: u32,
    status: Status,
    detail: Option<String>,
    ms: Option<f64>,
) -> Value {
    json!({
        "kind": "attempt", "state": "ended", "candidate": candidate, "stage": stage.name(), "number": number,
        "status": status, "detail": detail, "ms": ms
    })
}

/// Returns the event for a candidate's end. It has only the most important fields. A client that needs the other fields
/// calls `result`.
pub(crate) fn candidate(result: &Value) -> Value {
    let mut event = json!({ "kind": "candidate" });
    for field in ["candidate", "status", "blame", "detail", "failed_stage", "rank", "speedup"] {
        event[field] = result[field].clone();
    }
    event
}

/// Turns a replay's state, as `status` shows it, into an event.
pub(crate) fn replay(mut state: Value) -> Value {
    state["kind"] = json!("replay");
    state
}

pub(crate) fn job(name: &str, end: &JobEnd) -> Value {
    json!({
        "kind": "job", "job": name, "status": end.status, "winner": end.winner, "ranking": end.ranking, "detail": end.detail
    })
}

pub(crate) fn worker_started(worker: WorkerId, role: Role, pid: u32) -> Value {
    json!({ "kind": "worker", "state": "started", "worker": worker, "role": role, "pid": pid })
}

pub(crate) fn worker_ready(worker: WorkerId, ready_ms: f64) -> Value {
    json!({ "kind": "worker", "state": "ready", "worker": worker, "ready_ms": ready_ms })
}

pub(crate) fn worker_ended(
    worker: WorkerId,
    class: WorkerEndClass,
    recycled: Option<RecycleReason>,
) -> Value {
    json!({
        "kind": "worker", "state": "ended", "worker": worker, "class": class.name(),
        "recycled_because": recycled.map(RecycleReason::name)
    })
}

pub(crate) fn run_ended(exit_code: u8) -> Value {
    json!({ "kind": "run", "state": "ended", "exit_code": exit_code })
}
