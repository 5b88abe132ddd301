//! Checks that dependencies between crates and between modules are allowed ones, and that the core avoids certain
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{assert_none, root, texts};

/// All allowed dependencies between crates. A dependency that is not listed is an error, but a listed one may be
/// unused.
const CRATES: [(&str, &[&str]); 8] = [
    // A simulated device, which does not depend on the crates that use it.
    ("opt-emulator", &[]),
    // This crate is for tests only.
    ("opt-cuda-twin", &["opt-emulator"]),
    ("opt-shared", &[]),
    ("opt-worker", &["opt-cuda-twin", "opt-emulator", "opt-shared"]),
    // Only `main.rs` uses the worker. A test below checks this.
    ("opt-supervisor", &["opt-nvml-twin", "opt-shared", "opt-worker"]),
    // Tests use this crate, and tests of the supervisor load it as a library.
    ("opt-nvml-twin", &[]),
    (
        "opt-tests",
        &["opt-cuda-twin", "opt-emulator", "opt-nvml-twin", "opt-shared", "opt-supervisor", "opt-worker"],
    ),
    ("opt-tools", &["opt-emulator", "opt-shared", "opt-supervisor", "opt-worker", "opt-tests"]),
];

/// The modules of the supervisor that only `driver` connects, each with the modules that it may use.
const SUPERVISOR_MODULES: [(&str, &[&str]); 14] = [
    // Only the command line uses this module, which determines how a command ends.
    ("captures", &["captures", "exit"]),
    ("control", &["control"]),
    ("metrics", &["metrics"]),
    ("notify", &[]),
    ("core", &["core"]),
    ("cgroup", &["cgroup"]),
    // Its tests use `snapshot`.
    ("plan", &["plan", "snapshot"]),
    ("pool", &["pool"]),
    ("memory", &["memory"]),
    ("record", &["record"]),
    // Both modules use the run's document.
    ("store", &["store", "record"]),
    ("report", &["report", "record", "snapshot"]),
    ("signal", &[]),
    // A client of the socket. Only the command line uses it.
    ("top", &["top", "control", "signal", "snapshot"]),
];

/// Modules of the worker, with the modules that each may use. Modules that are not listed may use all.
const WORKER_MODULES: [(&str, &[&str]); 17] = [
    ("judge", &["judge"]),
    ("memfd", &[]),
    ("oom", &[]),
    ("machine", &[]),
    // This module finds and starts the user's programs. It does not depend on what these programs run.
    ("interpreter", &["interpreter"]),
    ("recorded", &["judge"]),
    ("page_cache", &["recorded"]),
    ("residency", &["memfd", "residency"]),
    // The sandbox does not depend on the programs that run in it.
    ("sandbox", &["memfd", "oom", "sandbox"]),
    // The program that loads and calls the untrusted kernels.
    ("runner", &["memfd", "runner", "sandbox"]),
    ("link", &["sandbox"]),
    ("wire", &["runner"]),
    ("graphs", &["recorded", "runner"]),
    ("launches", &["recorded", "runner", "wire"]),
    ("toolchain", &["graphs", "interpreter", "launches", "link", "runner", "sandbox"]),
    // These are the interface between policy and devices, and the code that runs kernels.
    (
        "session",
        &[
            "graphs",
            "interpreter",
            "judge",
            "launches",
            "link",
            "machine",
            "memfd",
            "page_cache",
            "recorded",
            "residency",
            "runner",
            "sandbox",
            "session",
            "wire",
        ],
    ),
    // These modules are policy. The only fact about processes that they may use is how a compiler ended.
    (
        "stage",
        &["judge", "link", "page_cache", "recorded", "residency", "sandbox", "session", "stage", "toolchain"],
    ),
];

/// Names that policy must not use: system calls, pids and descriptors. The build stage is exempt, because it runs a
/// compiler.
const NOT_IN_POLICY: [&str; 7] =
    ["session::host", "runner::", "libc::", "OwnedFd", "BorrowedFd", "pidfd", "std::process"];

/// Names that the core must not use. The core is a function of its events: it reads no clock, starts nothing, and does
/// no I/O.
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
fn crates_depend_on_allowed_crates_only() {
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
    assert_none("crates with a dependency that is not allowed", &wrong);
    assert_eq!(packages.len(), CRATES.len(), "the table has a crate that does not exist");
}

#[test]
fn supervisor_library_does_not_use_the_worker() {
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
    assert_none("only main.rs may use the worker", &wrong);
}

#[test]
fn supervisor_modules_meet_in_the_driver_only() {
    assert_none(
        "modules with a dependency that is not allowed",
        &forbidden_uses("supervisor/src", &SUPERVISOR_MODULES),
    );
}

#[test]
fn worker_modules_use_allowed_modules_only() {
    assert_none(
        "modules with a dependency that is not allowed",
        &forbidden_uses("worker/src", &WORKER_MODULES),
    );
}

#[test]
fn stage_policy_names_no_process_api() {
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
    assert_none("stages that use processes", &wrong);
}

/// Returns the lines in which a module of `source` uses another module, and `table` does not allow this.
fn forbidden_uses(source: &str, table: &[(&str, &[&str])]) -> Vec<String> {
    let files = texts(source, &[".rs"]);
    let below = |path: &str| path.strip_prefix(source).map_or_else(String::new, |path| path[1..].to_owned());
    let modules: BTreeSet<String> = files
        .iter()
        .map(|file| below(&file.path).split(['/', '.']).next().unwrap_or_default().to_owned())
        .collect();
    let mut wrong = Vec::new();
    for (module, may) in table {
        assert!(modules.contains(*module), "the module {module} does not exist");
        for file in &files {
            let below = below(&file.path);
            // Tests may use all modules. For example, tests of the backends in `session` run the policy in `stage`.
            if below.contains("/tests/") {
                continue;
            }
            if below != format!("{module}.rs") && !below.starts_with(&format!("{module}/")) {
                continue;
            }
            for (number, line) in file.code() {
                for named in line.split("crate::").skip(1) {
                    let named =
                        named.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                    if modules.contains(named) && !may.contains(&named) {
                        wrong.push(format!("{}:{number}: {module} uses {named}", file.path));
                    }
                }
                // The search above does not find the modules in `use crate::{a, b}`.
                if line.contains("crate::{") {
                    wrong.push(format!("{}:{number}: import one module per line", file.path));
                }
            }
        }
    }
    wrong
}

#[test]
fn core_uses_no_clock_thread_file_or_log() {
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
    assert_none("files of the core that use a clock, thread, file or log", &wrong);
}
