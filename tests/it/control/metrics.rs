//! What is scraped from a run, against what its store says.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use super::client::Going;
use super::slow;
use crate::support::summary::list;

fn scrape(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("a connection");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Name with labels in order, and value.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} is no sample"));
            (name.to_owned(), value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}")))
        })
        .collect()
}

#[test]
fn counters_agree_with_the_store() {
    let scenario = slow(&["fast", "bad/segfaults"]);
    let run = Going::start(&scenario, &["--quiet", "--keep-open", "--metrics", "127.0.0.1:0"]);
    let mut client = run.client();
    let status = client.call("status", &json!({})).expect("the status");
    let address = status["run"]["metrics"].as_str().expect("an address").to_owned();
    run.ctl(&["recycle", "verifier"]).expect_exit(0);
    for name in ["naive", "fast", "segfaults"] {
        client.call("result", &json!({ "candidate": name, "wait": true })).expect("a result");
    }
    assert!(scrape(&address, "/").starts_with("HTTP/1.1 404 "));
    let answer = scrape(&address, "/metrics");
    let (head, page) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("application/openmetrics-text"), "{head}");
    assert!(page.ends_with("# EOF\n"), "it is whole");
    let page = samples(page);
    run.ctl(&["shutdown"]).expect_exit(0);
    let (outcome, summary) = run.finish(0);

    let mut expected: BTreeMap<String, f64> = BTreeMap::new();
    let mut count = |name: String| *expected.entry(name).or_default() += 1.0;
    for candidate in list(&summary.job("softmax")["candidates"]) {
        count(format!("opt_supervisor_candidates_total{{status={}}}", candidate["status"]));
        for attempt in list(&candidate["attempts"]) {
            let (stage, status) = (&attempt["stage"], &attempt["status"]);
            count(format!("opt_supervisor_attempts_total{{stage={stage},status={status}}}"));
            count(format!("opt_supervisor_leases_granted_total{{stage={stage}}}"));
        }
    }
    // At the scrape, those that ended with the run still lived.
    let workers = list(&summary.document["workers"]);
    for reason in workers.iter().filter_map(|worker| worker["recycled_because"].as_str()) {
        count(format!("opt_supervisor_recycles_total{{reason=\"{reason}\"}}"));
    }
    for (name, value) in &expected {
        outcome.expect_equal(page.get(name).copied(), Some(*value), name);
    }
    let counted = |start: &str| page.keys().filter(|name| name.starts_with(start)).count();
    let wanted = |start: &str| expected.keys().filter(|name| name.starts_with(start)).count();
    for start in ["opt_supervisor_candidates_total", "opt_supervisor_attempts_total"] {
        outcome.expect_equal(counted(start), wanted(start), start);
    }
    for gauge in ["owed", "charged", "host_ceiling"] {
        let value = page.get(&format!("opt_supervisor_{gauge}_bytes")).copied();
        outcome.expect(value.is_some_and(|value| 0.0 < value), gauge);
    }
    let seconds = page.get("opt_supervisor_phase_seconds_total{stage=\"verify\"}");
    outcome.expect(seconds.is_some_and(|seconds| 0.0 < *seconds), "time was spent");
}
