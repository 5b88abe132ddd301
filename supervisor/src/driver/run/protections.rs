//! Determines which protections a run has. Canaries (helper processes that try what the protections forbid) test them
//! before the first candidate runs. Later, the first runner of every worker reports which protections it has itself.
//!
//! This module tests the two protections that the supervisor itself enforces (`cgroup_leaf` and `poll_and_kill`), and
//! keeps the list of all protections. The worker library tests the others by what a confined process is able to do.

use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::protection::{CGROUP_LEAF, POLL_AND_KILL, PROTECTIONS, Protection};
use opt_shared::units::Bytes;

use super::leaves::Leaves;
use crate::memory::procfs::ProcessSampler;
use crate::pool::{Canary, Executable};

/// The timeout for a canary. A canary takes only milliseconds. Like the timeout for a worker's start, this one allows
/// for machines under heavy load.
const CANARY_TIMEOUT: Duration = Duration::from_secs(30);
/// The amount of memory, in MiB, that a canary tries to take when it tests a memory limit.
const FILL_MIB: &str = "64";
/// The memory limit at which such a canary must be ended.
const LIMIT: Bytes = Bytes::mib(8);
const SAMPLE_EVERY: Duration = Duration::from_micros(200);

/// Tests every protection. Returns the results in the order of `PROTECTIONS`.
pub fn try_all(executable: &Executable, leaves: &mut Leaves) -> Vec<Protection> {
    // This canary runs while the other protections are tested.
    let confined = Canary::start(executable, &["confine"]);
    let mut found = vec![cgroup_leaf(executable, leaves), poll_and_kill(executable)];
    let unreported_because = match confined.and_then(|mut canary| canary.output(CANARY_TIMEOUT)) {
        Ok(output) => {
            found.extend(output.lines().filter_map(Protection::from_line));
            "the canary did not report this protection".to_owned()
        }
        Err(error) => format!("the canary did not answer: {error}"),
    };
    PROTECTIONS
        .iter()
        .map(|kind| {
            let at = found.iter().position(|it| it.name == kind.name);
            at.map_or_else(
                || Protection::new(kind.name, false, unreported_because.as_str()),
                |at| found.swap_remove(at),
            )
        })
        .collect()
}

/// Merges a runner's report into `protections`. A protection counts as present until a runner reports that it is
/// missing. Returns the names of the protections that this report has shown to be missing.
pub fn confirm(protections: &mut Vec<Protection>, reported: Vec<Protection>) -> Vec<String> {
    let mut gone = Vec::new();
    for report in reported {
        match protections.iter_mut().find(|it| it.name == report.name) {
            Some(known) if known.present => {
                if !report.present {
                    gone.push(report.name.clone());
                }
                // The runner's detail replaces that of the canary, because the canary's sandbox has smaller limits.
                *known = report;
            }
            Some(_) => {}
            None => {
                if !report.present {
                    gone.push(report.name.clone());
                }
                protections.push(report);
            }
        }
    }
    gone
}

/// Records that a protection does not work after all, and why.
pub fn mark_lost(protections: &mut [Protection], name: &str, why: &str) {
    if let Some(known) = protections.iter_mut().find(|it| it.name == name) {
        *known = Protection::new(name, false, why);
    }
}

fn cgroup_leaf(executable: &Executable, leaves: &mut Leaves) -> Protection {
    if let Some(why) = leaves.absent_because() {
        return Protection::new(CGROUP_LEAF, false, why);
    }
    match fill_a_leaf(executable, leaves) {
        Ok(detail) => Protection::new(CGROUP_LEAF, true, detail),
        Err(why) => {
            leaves.give_up(why.clone());
            Protection::new(CGROUP_LEAF, false, why)
        }
    }
}

fn fill_a_leaf(executable: &Executable, leaves: &mut Leaves) -> Result<String, String> {
    let leaf = leaves.for_canary(LIMIT)?;
    let tried = (|| {
        let mut canary = Canary::start(executable, &["fill", FILL_MIB]).map_err(|error| error.to_string())?;
        leaf.enter(canary.pid()).map_err(|error| opt_shared::causes::chain(&error))?;
        canary.go().map_err(|error| error.to_string())?;
        let ended = canary.ends_within(CANARY_TIMEOUT);
        let events = leaf.events().map_err(|error| opt_shared::causes::chain(&error))?;
        if ended && canary.was_killed() == Some(true) && 0 < events.oom_kill && 0 < events.at_limit {
            let file = leaves.limit_file();
            Ok(format!("{file} {LIMIT}: ended by Linux, oom_kill {}", events.oom_kill))
        } else {
            Err(format!(
                "Linux did not end a canary that filled {FILL_MIB} MiB at the limit of its leaf, {LIMIT} (oom_kill {}, at its limit {} times)",
                events.oom_kill, events.at_limit
            ))
        }
    })();
    leaves.take_back(leaf);
    tried
}

fn poll_and_kill(executable: &Executable) -> Protection {
    match fill_under_watch(executable) {
        Ok(detail) => Protection::new(POLL_AND_KILL, true, detail),
        Err(why) => Protection::new(POLL_AND_KILL, false, why),
    }
}

fn fill_under_watch(executable: &Executable) -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut canary = Canary::start(executable, &["fill", FILL_MIB]).map_err(text)?;
    let mut sampler = ProcessSampler::open(Path::new("/proc"), canary.pid())
        .map_err(|error| opt_shared::causes::chain(&error))?
        .ok_or("the canary's memory cannot be seen in /proc")?;
    let mut measure = || -> Result<Option<Bytes>, String> {
        let seen = sampler.resident().map_err(|error| opt_shared::causes::chain(&error))?;
        Ok(seen.alive().map(|resident| resident.anonymous()))
    };
    let limit = measure()?.unwrap_or_default() + LIMIT;
    canary.go().map_err(text)?;
    let deadline = Instant::now() + CANARY_TIMEOUT;
    let owed = loop {
        match measure()? {
            Some(owed) if limit < owed => break owed,
            Some(_) if Instant::now() < deadline => std::thread::sleep(SAMPLE_EVERY),
            Some(_) => return Err("the canary filled memory, but no sample showed it".to_owned()),
            None => return Err("the canary ended before it exceeded the limit".to_owned()),
        }
    };
    canary.kill();
    if canary.ends_within(CANARY_TIMEOUT) && canary.was_killed() == Some(true) {
        Ok(format!("noticed {} above its limit", owed - limit))
    } else {
        Err("the canary did not end after SIGKILL".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirm_drops_a_protection_that_a_runner_reports_missing() {
        let mut protections = vec![
            Protection::new("files", true, "ABI 7"),
            Protection::new("session", true, ""),
            Protection::new("own_user", false, "not root"),
        ];
        let reported = vec![
            Protection::new("files", false, "no Landlock"),
            Protection::new("session", true, "already its own"),
            Protection::new("own_user", true, "1879048192"),
            Protection::new("new_one", false, "why"),
        ];
        assert_eq!(confirm(&mut protections, reported.clone()), ["files", "new_one"]);
        let present: Vec<bool> = protections.iter().map(|it| it.present).collect();
        assert_eq!(present, [false, true, false, false]);
        assert_eq!(protections[1].detail, "already its own");
        assert!(confirm(&mut protections, reported).is_empty(), "reported once");
        mark_lost(&mut protections, "session", "gone");
        assert!(!protections[1].present);
    }
}
