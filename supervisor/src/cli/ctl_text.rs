//! Formats the answers of a run as text. Fields that this version does not know are shown only with `--json`.

use std::fmt::Write as _;

use opt_shared::units::Bytes;
use serde_json::Value;

pub(super) fn answer(method: &str, answer: &Value) -> String {
    match method {
        "status" => status(answer),
        "workers" => workers(answer),
        "why" => format!("{}\n", text(&answer["why"])),
        "result" => result(answer),
        "submit" => format!("{}\n", text(&answer["candidate"])),
        _ => outcome(answer),
    }
}

fn outcome(answer: &Value) -> String {
    let message = text(&answer["message"]);
    match answer["outcome"].as_str() {
        Some("already") => format!("nothing to do: {message}\n"),
        _ => format!("done: {message}\n"),
    }
}

fn status(answer: &Value) -> String {
    let (run, memory) = (&answer["run"], &answer["memory"]);
    let mut out = String::new();
    let state = match (run["ending"].as_str(), run["paused"].as_bool(), run["open"].as_bool()) {
        (Some("drain"), _, _) => "ending after the running leases",
        (Some("now"), _, _) => "ending",
        (_, Some(true), _) => "paused",
        (_, _, Some(true)) => "running, stays open",
        _ => "running",
    };
    let _ = writeln!(
        out,
        "run {}: {state}, for {}, pid {}\n  {}",
        text(&run["name"]),
        seconds(&run["elapsed_s"]),
        run["pid"],
        text(&run["folder"])
    );
    let _ = writeln!(
        out,
        "memory: {} owed, {} charged of {}, {} reclaimable, {} available (floor {})",
        bytes(&memory["owed_bytes"]),
        bytes(&memory["charged_bytes"]),
        bytes(&memory["host_ceiling_bytes"]),
        bytes(&memory["reclaimable_bytes"]),
        bytes(&memory["available_bytes"]),
        bytes(&memory["host_floor_bytes"]),
    );
    if let Some(waiting) = answer["waiting"]["for"].as_str() {
        let _ = writeln!(out, "waiting for {waiting} (for {})", seconds(&answer["waiting"]["seconds"]));
    }
    let rows = list(&answer["jobs"]).iter().map(|job| {
        let number = |field: &str| job[field].to_string();
        vec![text(&job["name"]), number("waiting"), number("running"), number("passed"), number("not_passed")]
    });
    out.push_str(&table(&["job", "waiting", "running", "passed", "not passed"], rows.collect()));
    let replays = list(&answer["replays"]);
    if !replays.is_empty() {
        let rows = replays.iter().map(replay).collect();
        out.push_str(&table(&["replay", "state", "steps", "budget", "total", "stalled"], rows));
    }
    for held in list(&answer["leases"]) {
        let _ = writeln!(out, "{}", lease(held));
    }
    out
}

fn replay(replay: &Value) -> Vec<String> {
    let state = match replay["status"].as_str() {
        Some(_) => text(&replay["status"]),
        None if replay["running"] == true => "running".to_owned(),
        None => "waiting".to_owned(),
    };
    let time = |field: &str| match replay[field].as_f64() {
        Some(ms) => seconds(&(ms / 1e3).into()),
        None => String::new(),
    };
    let (steps, budget) = (replay["steps"].to_string(), bytes(&replay["budget_bytes"]));
    vec![text(&replay["name"]), state, steps, budget, time("total_ms"), time("stall_ms")]
}

fn lease(lease: &Value) -> String {
    let entries = match (lease["entries_done"].as_u64(), lease["entries"].as_u64()) {
        (Some(done), Some(all)) if 0 < all => format!(", entry {done} of {all}"),
        _ => String::new(),
    };
    format!(
        "{} {} (attempt {}{entries}) for {}",
        text(&lease["stage"]),
        text(&lease["candidate"]),
        lease["attempt"],
        seconds(&lease["seconds"])
    )
}

fn workers(answer: &Value) -> String {
    let all = list(&answer["workers"]);
    if all.is_empty() {
        return "there are no workers\n".to_owned();
    }
    let rows = all.iter().map(|it| {
        let ending = if it["asked_to_go"] == true { ", ending" } else { "" };
        vec![
            format!("worker-{}", it["id"]),
            text(&it["role"]),
            format!("{}{ending}", text(&it["state"])),
            it["pid"].to_string(),
            seconds(&it["age_s"]),
            it["leases"].to_string(),
            bytes(&it["owed_bytes"]),
            bytes(&it["charged_bytes"]),
            if it["lease"].is_null() { String::new() } else { lease(&it["lease"]) },
        ]
    });
    table(&["worker", "role", "state", "pid", "age", "leases", "owed", "charged", "lease"], rows.collect())
}

pub(super) fn result(answer: &Value) -> String {
    let name = text(&answer["candidate"]);
    if answer["done"] != true {
        // If the run was interrupted, its answer does not say what the candidate is waiting for.
        if answer["stage"].is_null() {
            return format!("{name} has no result yet\n");
        }
        let state = if answer["running"] == true { "is in" } else { "waits for" };
        return format!("{name} {state} stage `{}`\n", text(&answer["stage"]));
    }
    let mut out = format!("{name}: {}", text(&answer["status"]));
    let speedup = &answer["speedup"];
    if let (Some(value), Some(low), Some(high)) =
        (speedup["value"].as_f64(), speedup["ci_low"].as_f64(), speedup["ci_high"].as_f64())
    {
        let _ = write!(out, ", {value:.2}x [{low:.2}-{high:.2}] against the baseline");
    }
    if let Some(rank) = answer["rank"].as_u64() {
        let _ = write!(out, ", rank {rank} so far");
    }
    out.push('\n');
    if let Some(feedback) = answer["feedback"].as_str() {
        let _ = writeln!(out, "{}", feedback.trim_end());
    }
    out
}

/// Formats a line of `events`.
pub(super) fn event(event: &Value) -> String {
    let t = text(&event["t"]);
    let rest = match event["kind"].as_str() {
        Some("policy") => {
            format!("{:<12} {}  {}", text(&event["decision"]), text(&event["reason"]), figures(event))
        }
        Some("attempt") => {
            let end = event["status"].as_str().map(|status| format!(" {status}")).unwrap_or_default();
            let (stage, candidate) = (text(&event["stage"]), text(&event["candidate"]));
            format!("{stage:<12} {candidate} #{} {}{end}", event["number"], text(&event["state"]))
        }
        Some("candidate") => {
            format!("candidate    {} {}", text(&event["candidate"]), text(&event["status"]))
        }
        Some("worker") => {
            let why = event["recycled_because"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("worker       worker-{} {}{why}", event["worker"], text(&event["state"]))
        }
        Some("job") => format!("job          {} {}", text(&event["job"]), text(&event["status"])),
        Some(kind) => format!("{kind:<12} {}", text(&event["state"])),
        None => return String::new(),
    };
    format!("{t}  {}\n", rest.trim_end())
}

fn figures(decision: &Value) -> String {
    let Some(numbers) = decision["numbers"].as_object() else { return String::new() };
    let shown = numbers.iter().map(|(name, value)| match name.strip_suffix("_bytes") {
        Some(name) => format!("{name} {}", bytes(value)),
        None if decision["names"][name].is_string() => format!("{name} {}", text(&decision["names"][name])),
        None => format!("{name} {value}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&head).chain(&rows) {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// Returns a text without control characters, because names and details are untrusted.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "?".to_owned(), |bytes| Bytes::new(bytes).to_string())
}

fn seconds(value: &Value) -> String {
    match value.as_f64() {
        Some(seconds) if seconds < 100.0 => format!("{seconds:.1} s"),
        Some(seconds) => format!("{:.0} min", seconds / 60.0),
        None => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_and_events_are_formatted_as_text() {
        let done = json!({ "outcome": "done", "message": "x" });
        assert_eq!(answer("pause", &done), "done: x\n");
        let already = json!({ "outcome": "already", "message": "it is paused" });
        assert_eq!(answer("pause", &already), "nothing to do: it is paused\n");
        assert_eq!(answer("workers", &json!({ "workers": [] })), "there are no workers\n");
        let ended = json!({
            "candidate": "softmax/fast", "done": true, "status": "PASSED", "rank": 1, "feedback": null,
            "speedup": { "value": 2.0, "ci_low": 1.9, "ci_high": 2.1 }
        });
        assert_eq!(
            answer("result", &ended),
            "softmax/fast: PASSED, 2.00x [1.90-2.10] against the baseline, rank 1 so far\n"
        );
        let waits = json!({ "candidate": "a/b", "done": false, "stage": "verify", "running": false });
        assert_eq!(answer("result", &waits), "a/b waits for stage `verify`\n");
        let interrupted = json!({ "candidate": "a/b", "done": false });
        assert_eq!(answer("result", &interrupted), "a/b has no result yet\n");
        let replay = |name: &str, status: Value, running: bool, ms: Value| {
            json!({
                "name": name, "status": status, "running": running, "steps": 12, "budget_bytes": 1 << 20,
                "total_ms": ms, "stall_ms": ms
            })
        };
        let replays = json!({ "replays": [
            replay("one", json!("PASSED"), false, json!(1500.0)),
            replay("two", Value::Null, true, Value::Null),
            replay("three", Value::Null, false, Value::Null),
        ] });
        let table = "replay  state    steps  budget    total  stalled\n\
                     one     PASSED   12     1.00 MiB  1.5 s  1.5 s\n\
                     two     running  12     1.00 MiB\n\
                     three   waiting  12     1.00 MiB\n";
        assert!(answer("status", &replays).ends_with(table), "{}", answer("status", &replays));
        assert!(!answer("status", &json!({})).contains("replay"), "there must be no table of replays");
        let decision = json!({
            "kind": "policy", "t": "T", "decision": "recycle", "reason": "why\u{1b}[0m",
            "numbers": { "worker": 3, "candidate": 7, "owed_bytes": 1048576 }, "names": { "candidate": "a/b" }
        });
        assert_eq!(event(&decision), "T  recycle      why [0m  worker 3, candidate a/b, owed 1.00 MiB\n");
    }
}
