//! Who may know whom: between crates, between the rooms of the supervisor, and what the core may not know at all.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{none, root, texts};

/// Every edge there may be; one that is not here is a mistake, one that is not used is no mistake.
const CRATES: [(&str, &[&str]); 5] = [
    ("opt-shared", &[]),
    ("opt-worker", &["opt-shared"]),
    // To the worker by `main.rs` alone, see below.
    ("opt-supervisor", &["opt-shared", "opt-worker"]),
    ("opt-tests", &["opt-shared", "opt-supervisor", "opt-worker"]),
    ("opt-tools", &["opt-shared", "opt-supervisor", "opt-worker", "opt-tests"]),
];

/// The rooms of the supervisor that meet in `driver` and nowhere else, with the rooms that each may name.
const ROOMS: [(&str, &[&str]); 14] = [
    // Known by the command line alone; says how a command ends.
    ("captures", &["captures", "exit"]),
    ("control", &["control"]),
    ("metrics", &["metrics"]),
    ("notify", &[]),
    ("core", &["core"]),
    ("cgroup", &["cgroup"]),
    ("plan", &["plan"]),
    ("pool", &["pool"]),
    ("memory", &["memory"]),
    ("record", &["record"]),
    // Both speak of a run's document.
    ("store", &["store", "record"]),
    ("report", &["report", "record"]),
    ("signal", &[]),
    // A client of the socket, known by the command line alone.
    ("top", &["top", "control", "signal"]),
];

/// The rooms of the worker, with the rooms that each may name.
const ROOMS_OF_THE_WORKER: [(&str, &[&str]); 12] = [
    ("judge", &["judge"]),
    ("memfd", &[]),
    ("machine", &[]),
    ("recorded", &["judge"]),
    ("page_cache", &["recorded"]),
    ("residency", &["memfd", "residency"]),
    // Knows nothing of what runs in it.
    ("sandbox", &["memfd", "sandbox"]),
    // The untrusted side.
    ("runner", &["memfd", "runner", "sandbox"]),
    ("link", &["sandbox"]),
    ("toolchain", &["link", "runner", "sandbox"]),
    // The seam, and what runs kernels behind it.
    (
        "session",
        &[
            "judge",
            "link",
            "machine",
            "memfd",
            "page_cache",
            "recorded",
            "residency",
            "runner",
            "sandbox",
            "session",
        ],
    ),
    // Policy: what it may know of processes is how a compiler ended.
    (
        "stage",
        &["judge", "link", "page_cache", "recorded", "residency", "sandbox", "session", "stage", "toolchain"],
    ),
];

/// What policy may not name, whatever it is called: a call, a pid, a descriptor. A build runs a compiler, and is not held to it.
const NOT_IN_POLICY: [&str; 7] =
    ["session::host", "runner::", "libc::", "OwnedFd", "BorrowedFd", "pidfd", "std::process"];

/// The core is a function of its events: it sees no clock, starts nothing, reads and writes nothing.
const NOT_IN_THE_CORE: [&str; 16] = [
    "Instant",
    "SystemTime",
    "std::thread",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "std::net",
    "std::os",
    "tracing",
    "println!",
    "rand::",
    "libc::",
    "rustix",
    "nix::",
    "async ",
];

#[test]
fn crates_know_only_whom_they_may() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let answer = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata is started");
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let metadata: Value = serde_json::from_slice(&answer.stdout).expect("cargo metadata is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let allowed: BTreeMap<&str, &[&str]> = CRATES.into_iter().collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let Some(may) = allowed.get(name) else {
            wrong.push(format!("{name} is in no row of the table of crates"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let target = dependency["name"].as_str().expect("a name");
            if target.starts_with("opt-") && !may.contains(&target) {
                wrong.push(format!("{name} depends on {target}"));
            }
        }
    }
    none("crates that know whom they may not know", &wrong);
    assert_eq!(packages.len(), CRATES.len(), "a crate of the table is gone");
}

#[test]
fn the_supervisors_library_does_not_know_the_worker() {
    let wrong: Vec<String> = texts("supervisor/src", &[".rs"])
        .iter()
        .filter(|file| file.path != "supervisor/src/main.rs")
        .flat_map(|file| {
            file.code()
                .filter(|(_, line)| line.contains("opt_worker"))
                .map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    none("only main.rs hands over to the worker", &wrong);
}

#[test]
fn rooms_of_the_supervisor_meet_in_the_driver_alone() {
    none("rooms that know one another", &strangers("supervisor/src", &ROOMS));
}

#[test]
fn rooms_of_the_worker_know_only_whom_they_may() {
    none("rooms that know one another", &strangers("worker/src", &ROOMS_OF_THE_WORKER));
}

#[test]
fn policy_knows_no_process() {
    let mut wrong = Vec::new();
    for file in texts("worker/src/stage", &[".rs"]).iter().filter(|file| !file.path.ends_with("/build.rs")) {
        for (number, line) in file.code() {
            for word in NOT_IN_POLICY {
                if line.contains(word) {
                    wrong.push(format!("{}:{number}: {word}", file.path));
                }
            }
        }
    }
    none("a stage is policy over a session", &wrong);
}

/// Where a room of `source` names one that it may not.
fn strangers(source: &str, table: &[(&str, &[&str])]) -> Vec<String> {
    let files = texts(source, &[".rs"]);
    let below = |path: &str| path.strip_prefix(source).map_or_else(String::new, |path| path[1..].to_owned());
    let rooms: BTreeSet<String> = files
        .iter()
        .map(|file| below(&file.path).split(['/', '.']).next().unwrap_or_default().to_owned())
        .collect();
    let mut wrong = Vec::new();
    for (room, may) in table {
        assert!(rooms.contains(*room), "the room {room} is gone");
        for file in &files {
            let below = below(&file.path);
            if below != format!("{room}.rs") && !below.starts_with(&format!("{room}/")) {
                continue;
            }
            for (number, line) in file.code() {
                for named in line.split("crate::").skip(1) {
                    let named =
                        named.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                    if rooms.contains(named) && !may.contains(&named) {
                        wrong.push(format!("{}:{number}: {room} names {named}", file.path));
                    }
                }
                // `use crate::{a, b}` would hide a room from the search above.
                if line.contains("crate::{") {
                    wrong.push(format!("{}:{number}: name one room in a line", file.path));
                }
            }
        }
    }
    wrong
}

#[test]
fn the_core_knows_no_clock_thread_file_or_log() {
    let mut wrong = Vec::new();
    for file in texts("supervisor/src/core", &[".rs"]) {
        for (number, line) in file.code() {
            for word in NOT_IN_THE_CORE {
                if line.contains(word) {
                    wrong.push(format!("{}:{number}: {word}", file.path));
                }
            }
        }
    }
    none("the core decides, and does nothing", &wrong);
}
