//! Tests, with the twin of NVML, what `doctor` reports about devices and about a machine without devices.

use opt_nvml_twin::{Device, Process, Script, Who};
use opt_tests::devices::{UUID, device, twin, with_twin};
use opt_tests::{Outcome, Scenario};
use serde_json::Value;

fn doctor(script: &Script) -> (Outcome, Value) {
    let scenario = Scenario::create();
    let arguments = ["doctor", "--json"];
    let twin = twin(&scenario, script);
    let child = with_twin(&twin, &mut scenario.command(&arguments)).spawn().expect("the program starts");
    let outcome = scenario.finish(child, &arguments).expect_exit(0);
    let nvml = outcome.json()["gpu"]["nvml"].clone();
    (outcome, nvml)
}

fn holds(pid: u32, mib: u64) -> Process {
    Process {
        who: Who::Pid(pid),
        mib_from_ms: vec![(0, mib)],
        listed_after_death_ms: 0,
        held_after_death_ms: 0,
    }
}

#[test]
fn doctor_shows_what_each_device_and_its_processes_hold() {
    let own = std::process::id();
    let unified = Device { total_mib: None, utilisation: None, uuid: "GPU-2".to_owned(), ..device() };
    let script = Script {
        devices: vec![Device { held_mib: 100, processes: vec![holds(own, 924)], ..device() }, unified],
        ..Script::default()
    };
    let (outcome, nvml) = doctor(&script);
    let first = &nvml["devices"][0];
    outcome.expect_equal(first["uuid"].as_str(), Some(UUID), "UUID");
    outcome.expect_equal(first["device_total_bytes"].as_u64(), Some(8 << 30), "total");
    outcome.expect_equal(first["device_used_bytes"].as_u64(), Some(1 << 30), "in use");
    outcome.expect_equal(first["processes"][0]["pid"].as_u64(), Some(u64::from(own)), "pid");
    outcome.expect_equal(first["processes"][0]["device_bytes"].as_u64(), Some(924 << 20), "held");
    let second = &nvml["devices"][1];
    outcome.expect(second["device_total_bytes"].is_null(), "a value that NVML does not report is null");
    outcome.expect(second["utilisation"].is_null(), "a value that NVML does not report is null");
    outcome.expect_equal(second["unified"].as_bool(), Some(true), "no totals: one memory");
}

#[test]
fn doctor_names_a_lost_device_and_the_reason_for_having_none() {
    const LOST: u32 = 15;
    const UNKNOWN: u32 = 999;
    let lost = ("nvmlDeviceGetMemoryInfo_v2".to_owned(), LOST);
    let script = Script { devices: vec![device()], fails: [lost].into() };
    let (outcome, nvml) = doctor(&script);
    let problem = nvml["devices"][0]["trouble"].as_str().unwrap_or_default();
    outcome.expect(problem.contains("the device is lost"), problem);
    let script = Script { fails: [("*".to_owned(), UNKNOWN)].into(), ..script };
    let (outcome, nvml) = doctor(&script);
    outcome.expect(nvml["devices"].as_array().is_some_and(Vec::is_empty), &nvml);
    let why = nvml["no_devices_because"].as_str().unwrap_or_default();
    outcome.expect(why.contains("counting devices"), why);
}

/// This machine may have a driver, so the test names a library that does not exist.
#[test]
fn doctor_names_the_library_that_is_missing() {
    let scenario = Scenario::create();
    let arguments = ["doctor", "--json"];
    let child = scenario.command(&arguments).env("OPT_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so").spawn();
    let outcome = scenario.finish(child.expect("the program starts"), &arguments).expect_exit(0);
    let nvml = outcome.json()["gpu"]["nvml"].clone();
    let why = nvml["no_devices_because"].as_str().unwrap_or_default();
    outcome.expect(why.contains("/nonexistent/libnvidia-ml.so"), why);
}
