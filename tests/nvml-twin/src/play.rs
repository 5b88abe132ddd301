//! Evaluates a script: finds the processes that the script describes, and computes the memory that each of them holds
//! now.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex};
use std::time::{Instant, SystemTime};

use super::script::{self, Device, Process, Script, Who};

/// The processes seen so far. The key is the device's index, the index of the script's entry, and the pid.
static SEEN: Mutex<BTreeMap<(usize, usize, u32), Seen>> = Mutex::new(BTreeMap::new());

/// The time of the first call. A process that died before it does not belong to this run.
static STARTED: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

#[derive(Clone, Copy)]
struct Seen {
    since: Instant,
    died: Option<Instant>,
}

/// The current state of a script's devices.
pub(crate) struct Scene {
    pub(crate) script: Script,
    pub(crate) devices: Vec<DeviceNow>,
}

#[derive(Default)]
pub(crate) struct DeviceNow {
    /// The pid of each process, and the MiB that it holds.
    pub(crate) listed: Vec<(u32, u64)>,
    pub(crate) used_mib: u64,
}

impl Scene {
    pub(crate) fn now() -> Option<Self> {
        LazyLock::force(&STARTED);
        let script = Script::read()?;
        let mut seen = SEEN.lock().ok()?;
        let devices = script
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| device_now(index, device, &mut seen))
            .collect();
        Some(Self { script, devices })
    }
}

fn device_now(index: usize, device: &Device, seen: &mut BTreeMap<(usize, usize, u32), Seen>) -> DeviceNow {
    let mut now = DeviceNow { listed: Vec::new(), used_mib: device.held_mib };
    for (number, process) in device.processes.iter().enumerate() {
        for pid in pids_of(&process.who) {
            let first = Seen { since: Instant::now(), died: None };
            seen.entry((index, number, pid)).or_insert(first);
        }
        for (&(_, _, pid), it) in seen.range_mut((index, number, 0)..=(index, number, u32::MAX)) {
            if it.died.is_none() && !is_alive(pid) {
                it.died = Some(Instant::now());
            }
            let held = held(process, it);
            if held.listed {
                now.listed.push((pid, held.mib));
            }
            now.used_mib += held.mib;
        }
    }
    now
}

struct Held {
    listed: bool,
    mib: u64,
}

fn held(process: &Process, seen: &Seen) -> Held {
    let until = seen.died.unwrap_or_else(Instant::now);
    let age = ms(seen.since, until);
    let mib = process.mib_from_ms.iter().take_while(|(from, _)| *from <= age).last().map(|(_, mib)| *mib);
    let nothing = Held { listed: false, mib: 0 };
    let Some(mib) = mib else { return nothing };
    let Some(died) = seen.died else { return Held { listed: true, mib } };
    let dead_for = ms(died, Instant::now());
    if dead_for < process.listed_after_death_ms {
        Held { listed: true, mib }
    } else if dead_for - process.listed_after_death_ms < process.held_after_death_ms {
        Held { listed: false, mib }
    } else {
        nothing
    }
}

fn ms(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_millis()).unwrap_or(u64::MAX)
}

fn pids_of(who: &Who) -> Vec<u32> {
    match who {
        Who::Pid(pid) => vec![*pid],
        Who::Context => {
            let alive = descendants(std::process::id());
            contexts()
                .filter(|(pid, since)| alive.contains(pid) || (*STARTED <= *since && !is_alive(*pid)))
                .map(|(pid, _)| pid)
                .collect()
        }
    }
}

/// Returns the pids of the processes that have or had a context, and the times at which they got the context. The twin
/// of libcuda writes a file for each such process, because a process may begin and end between two calls.
fn contexts() -> impl Iterator<Item = (u32, SystemTime)> {
    let folder = script::beside_the_library("").and_then(|folder| std::fs::read_dir(folder).ok());
    folder.into_iter().flatten().flatten().filter_map(|file| {
        let pid = file.file_name().to_str()?.strip_prefix("context-")?.parse().ok()?;
        Some((pid, file.metadata().ok()?.modified().ok()?))
    })
}

/// Returns whether a process is alive. A zombie is not alive, because it has released its memory.
fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|text| Some(text.rsplit_once(") ")?.1.starts_with('Z')))
        .is_some_and(|is_zombie| !is_zombie)
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let Ok(threads) = std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")) else {
        return all;
    };
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            all.push(child);
            all.extend(descendants(child));
        }
    }
    all
}
