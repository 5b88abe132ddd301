//! Compares the metrics that a run serves with its summary, and checks the dashboard and the systemd unit.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use opt_supervisor::metrics::{GaugeValues, Metrics};
use opt_tests::python::python_with;
use opt_tests::summary::list;
use opt_tests::{Scenario, repository};
use serde_json::{Value, json};

use super::client::LiveRun;
use super::slow;
use crate::report::browser::skipped;

fn scrape(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("a connection");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("the request is sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Returns the samples of a page, by name and labels as the page spells them. `name{}` is the same sample as `name`.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} is not a sample"));
            let name = name.strip_suffix("{}").unwrap_or(name);
            (name.to_owned(), value.parse().unwrap_or_else(|error| panic!("{line:?}: {error}")))
        })
        .collect()
}

/// Like `samples`, but lets the Python package `prometheus_client` parse the page. Returns `None` if the package is not
/// installed.
fn samples_by_prometheus_client(scenario: &Scenario, page: &str) -> Option<BTreeMap<String, f64>> {
    const READ: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read
for family in read(sys.stdin.read()):
    for it in family.samples:
        print(json.dumps([it.name, sorted(it.labels.items()), it.value]))
";
    let python = python_with("prometheus_client.openmetrics.parser", "openmetrics")?;
    let file = scenario.write("page.txt", page);
    let output = Command::new(python)
        .args(["-c", READ])
        .stdin(std::fs::File::open(file).expect("the page"))
        .output()
        .expect("python3 starts");
    assert!(
        output.status.success(),
        "the official parser refuses the page: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let sample = |line: &str| -> (String, f64) {
        let (name, labels, value): (String, Vec<(String, String)>, f64) =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        (if labels.is_empty() { name } else { format!("{name}{{{}}}", labels.join(",")) }, value)
    };
    Some(text.lines().map(sample).collect())
}

#[test]
fn dashboard_uses_served_metrics_and_all_served_metrics_are_documented() {
    let text = std::fs::read_to_string(repository().join("configs/grafana.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("the dashboard is JSON");
    let mut queries = Vec::new();
    let mut open = vec![&dashboard];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                queries.extend(fields.get("expr").and_then(Value::as_str));
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    assert!(5 < queries.len(), "the dashboard has panels: {queries:?}");
    // Give each metric a sample, because a metric without samples is not served.
    let metrics = Metrics::default();
    metrics.granted("build");
    metrics.attempt_ended("build", "PASSED", std::time::Duration::from_secs(1));
    metrics.candidate_ended("PASSED");
    metrics.worker_ended("ended", Some("age"));
    let gauges =
        GaugeValues { workers: vec![("verifier", "idle")], leases: vec!["build"], ..GaugeValues::default() };
    let page = metrics.page(&gauges).expect("a page");
    // The sample of a counter has the suffix `_total`.
    let served: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
        .collect();
    let documented =
        std::fs::read_to_string(repository().join("docs/reference/control.md")).expect("a readable page");
    for name in &served {
        let short = name.trim_start_matches("opt_supervisor");
        assert!(
            documented.contains(&format!("`{name}`")) || documented.contains(&format!("`…{short}`")),
            "{name} has no row in docs/reference/control.md"
        );
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for expression in queries {
        let mut names =
            expression.split(|c| !is_part(c)).filter(|word| word.starts_with("opt_supervisor")).peekable();
        assert!(names.peek().is_some(), "{expression:?} uses none of the run's metrics");
        for name in names {
            assert!(served.iter().any(|it| it == name), "{name} is not among the served metrics {served:?}");
        }
    }
}

/// The unit file is tested as it is, except for the path of the program.
#[test]
fn systemd_accepts_the_unit_file() {
    let unit =
        std::fs::read_to_string(repository().join("configs/opt-supervisor@.service")).expect("the unit");
    for line in ["Type=notify", "Delegate=yes"] {
        assert!(unit.lines().any(|it| it == line), "{line}");
    }
    let scenario = Scenario::create();
    let placed =
        unit.replace("ExecStart=opt-supervisor ", &format!("ExecStart={} ", opt_tests::binary().display()));
    let file = scenario.write("opt-supervisor@.service", placed);
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(file).output();
    let Ok(output) = verified else {
        skipped("the unit was not verified: systemd-analyze is not installed");
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    // systemd may also report problems of other units on this machine.
    let ours: Vec<&str> = stderr.lines().filter(|line| line.contains("opt-supervisor")).collect();
    assert!(output.status.success() && ours.is_empty(), "{stderr}");
}

#[test]
fn counters_agree_with_the_summary() {
    let scenario = slow(&["fast", "bad/segfaults"]);
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open", "--metrics", "127.0.0.1:0"]);
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
    assert!(page.ends_with("# EOF\n"), "the page is complete");
    let text = page;
    let page = samples(text);
    match samples_by_prometheus_client(&scenario, text) {
        // The reference implementation must read the same samples from the page.
        Some(read) => {
            assert!(read.keys().eq(page.keys()), "{read:#?}\n{page:#?}");
            // The values were converted to JSON, which may change the last digit.
            let is_same = |(one, other): (&f64, &f64)| (one - other).abs() <= other.abs() * 1e-12;
            assert!(read.values().zip(page.values()).all(is_same), "{read:#?}\n{page:#?}");
        }
        None => skipped("the scrape was not read by the official parser: python3 has no prometheus_client"),
    }
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
    // Workers without a reason ended with the run. They were still alive when the metrics were read.
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
    outcome.expect(seconds.is_some_and(|seconds| 0.0 < *seconds), "the verifications took time");
}
