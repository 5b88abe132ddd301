//! Tests that every field of the document is documented, and that values without a JSON representation can be read
//! back.

use std::collections::BTreeSet;

use opt_shared::outcome::{Blame, Pattern, Status};
use serde_json::Value;

use super::sample::sample;
use super::*;

const DOCS: &str = include_str!("../../../docs/reference/results.md");

/// Collects every field name together with its path. The keys of `numbers` are skipped, because they depend on the
/// decision.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<(String, String)>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.insert((name.clone(), path.to_owned()));
                if name != "numbers" {
                    fields(value, &format!("{path}.{name}"), found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, path, found)),
        _ => {}
    }
}

#[test]
fn every_field_is_documented() {
    let mut run = sample();
    // Two forms of a failure's pattern have a field. The sample contains one of these forms, so add the other.
    let failures = &mut run.jobs[0].candidates[0].failures;
    let mut other = failures[0].clone();
    other.mismatch.as_mut().expect("mismatch").pattern = Pattern::Tail { from: 3 };
    failures.push(other);
    let mut found = BTreeSet::new();
    fields(&serde_json::to_value(&run).expect("writes"), "", &mut found);
    assert!(found.len() > 100, "the sample fills too few fields: {}", found.len());
    for (name, path) in found {
        assert!(
            DOCS.contains(&format!("`{name}`")),
            "docs/reference/results.md does not name `{name}` of `{path}`"
        );
    }
}

#[test]
fn every_word_of_the_enums_is_documented() {
    let words = Status::ALL
        .iter()
        .map(|status| status.name())
        .chain(RunStatus::ALL.iter().map(|status| status.name()))
        .chain(JobStatus::ALL.iter().map(|status| status.name()))
        .chain(Stage::ALL.iter().map(|stage| stage.name()))
        .chain([Blame::Candidate, Blame::Capture, Blame::Worker, Blame::Host, Blame::Plan].map(Blame::name))
        .chain([Role::Verifier, Role::Profiler].map(Role::name));
    for word in words {
        assert!(DOCS.contains(&format!("`{word}`")), "docs/reference/results.md does not name `{word}`");
    }
}

#[test]
fn sample_fills_optional_objects_and_lists() {
    let run = serde_json::to_value(sample()).expect("writes");
    for path in [
        "/jobs/0/candidates/2/profile/entries/0/baseline",
        "/jobs/0/candidates/2/verify/worst",
        "/jobs/0/candidates/0/failures/0/mismatch",
        "/jobs/0/candidates/2/build",
        "/jobs/0/candidates/2/speedup",
        "/host/protections/0",
        "/memory/phases/0",
        "/workers/0",
        "/policy/0",
    ] {
        assert!(run.pointer(path).is_some_and(Value::is_object), "{path}");
    }
}

#[test]
fn record_of_an_earlier_version_lacks_the_standard_output() {
    let mut run = serde_json::to_value(sample()).expect("writes");
    let end = run.pointer_mut("/jobs/0/candidates/0").and_then(Value::as_object_mut).expect("an object");
    assert!(end.remove("stdout_tail").is_some_and(|text| text.is_string()));
    let read: RunRecord = serde_json::from_value(run).expect("reads");
    assert_eq!(read.jobs[0].candidates[0].stdout_tail, None);
}

#[test]
fn expected_field_names_exist() {
    let run = serde_json::to_value(sample()).expect("writes");
    let has = |path: &str, names: &str| {
        let object = run.pointer(path).and_then(Value::as_object).unwrap_or_else(|| panic!("{path}"));
        for name in names.split(',') {
            assert!(object.contains_key(name), "{path} has no `{name}`");
        }
    };
    has("", "schema,run,host,jobs,workers,memory,policy");
    has("/run", "name,status,started,finished,version,device,exit_code");
    has("/host", "cpu,cores,ram_bytes,kernel,protections,timing");
    has(
        "/jobs/0",
        "name,status,captures,winner,winner_confirmed,ranking,unsettled_because,signature_digest,candidates",
    );
    has("/jobs/0/captures", "entries,bytes,unique_bytes,digest,form");
    has(
        "/jobs/0/candidates/0",
        "name,status,blame,rank,artifact_digest,detail,failed_stage,feedback,source,build,signal,exit_code,\
         stderr_tail,stdout_tail,failures,verify,profile,speedup,resources,attempts",
    );
    has("/jobs/0/candidates/0/source", "path,digest");
    has("/jobs/0/candidates/2/build", "compiler,flags,log_head");
    has("/jobs/0/candidates/0/failures/0", "entry,args,mismatch");
    has(
        "/jobs/0/candidates/2/verify",
        "entries_run,entries_passed,max_absolute_error,max_relative_error,worst",
    );
    let times = "median_time_ms,mean_time_ms,std_time_ms,min_time_ms,max_time_ms,p5,p95,ci_low,ci_high,samples,\
                 noise,converged,cache_state,footprint_bytes,bytes_per_second,runners,wait_share";
    has("/jobs/0/candidates/2/profile", times);
    has("/jobs/0/candidates/2/profile", "stage,entries");
    has("/jobs/0/candidates/2/profile/entries/0", times);
    has("/jobs/0/candidates/2/speedup", "value,ci_low,ci_high");
    has("/jobs/0/candidates/2/resources", "runner_peak_owed_bytes");
    has("/jobs/0/candidates/2/attempts/0", "stage,number,worker,status,started,ms");
    has(
        "/workers/0",
        "id,role,pid,started,ready_ms,ended,end_class,recycled_because,leases,peak_owed_bytes,device_peak_bytes",
    );
    has(
        "/memory",
        "host_ceiling_bytes,predicted_peak_owed_bytes,peak_owed_bytes,peak_reclaimable_bytes,\
         min_available_bytes,swap_peak_bytes,device_ceiling_bytes,device_peak_bytes,phases",
    );
    has(
        "/memory/phases/0",
        "stage,job,candidate,worker,predicted_bytes,peak_owed_bytes,peak_reclaimable_bytes,device_predicted_bytes,device_peak_bytes,swap_delta_bytes,switch_us,started,ended",
    );
    has("/policy/0", "t,decision,reason,numbers");
}

#[test]
fn document_reads_back() {
    let run = sample();
    let text = serde_json::to_string(&run).expect("writes");
    assert!(text.contains(r#""max_relative_error":"Infinity""#), "{text}");
    assert!(text.contains(r#""started":"2026-05-01T12:00:00.000Z""#), "{text}");
    let back: RunRecord = serde_json::from_str(&text).expect("reads");
    assert_eq!(back, run);
}

#[test]
fn host_writes_protections_under_their_old_name_too() {
    let host = sample().host;
    assert!(!host.protections.is_empty(), "the sample has protections");
    let mut document = serde_json::to_value(&host).expect("writes");
    assert_eq!(document["rungs"], document["protections"]);
    document.as_object_mut().expect("an object").remove("protections");
    let read: HostRecord = serde_json::from_value(document).expect("reads what an earlier version wrote");
    assert_eq!(read, host);
}
