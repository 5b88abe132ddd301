//! Runs the two example clients of `docs/reference/control.md` as printed on the page: a few lines of Python and a
//! socat command.

use std::process::Command;

use opt_tests::{Scenario, repository};
use serde_json::{Value, json};

use super::client::LiveRun;
use super::slow;
use crate::report::browser::skipped;

/// Returns the first code block of the page that is in this language and contains `mark`.
fn documented_block(language: &str, mark: &str) -> String {
    let page =
        std::fs::read_to_string(repository().join("docs/reference/control.md")).expect("a readable page");
    let fence = format!("```{language}\n");
    page.split(&fence)
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains(mark))
        .unwrap_or_else(|| panic!("docs/reference/control.md has no {language} block that contains {mark:?}"))
        .to_owned()
}

fn is_installed(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

/// Returns one request for every method, in an order in which all of them succeed.
fn requests() -> Vec<(&'static str, Value)> {
    let fast = format!("{}/configs/demo/softmax/fast.c", repository().display());
    vec![
        ("status", json!({})),
        ("workers", json!({})),
        ("candidates", json!({})),
        ("history", json!({})),
        ("decisions", json!({ "most": 3 })),
        ("pause", json!({})),
        ("submit", json!({ "sources": [fast], "name": "handed_in" })),
        ("why", json!({ "candidate": "handed_in" })),
        ("resume", json!({})),
        ("recycle", json!({ "role": "verifier", "mode": "now" })),
        ("restart", json!({ "role": "verifier" })),
        ("set", json!({ "host_ceiling": "6GiB" })),
        ("cancel", json!({ "job": "softmax", "candidate": "segfaults" })),
        ("result", json!({ "candidate": "handed_in", "wait": true })),
        ("events", json!({})),
        ("shutdown", json!({ "mode": "drain" })),
    ]
}

fn start(scenario: &Scenario) -> LiveRun<'_> {
    LiveRun::start(scenario, &["--quiet", "--keep-open"])
}

#[test]
fn documented_python_client_can_call_every_method() {
    if !is_installed("python3", "--version") {
        skipped("the Python client was not tried: python3 is not installed");
        return;
    }
    let scenario = slow(&["bad/segfaults"]);
    let client = documented_block("python", "AF_UNIX");
    assert!(client.lines().count() <= 10, "the client must have at most ten lines:\n{client}");
    let client = scenario.write("client.py", client);
    let run = start(&scenario);
    let mut command = Command::new("python3");
    command.arg(client).arg(run.socket());
    for (method, params) in requests() {
        command.arg(format!("{method} {params}"));
    }
    let output = command.output().expect("python3 starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    let answers: Vec<(&str, Value)> = stdout
        .lines()
        .map(|line| {
            let (method, answer) = line.split_once(' ').unwrap_or_else(|| panic!("no answer: {line}"));
            (method, serde_json::from_str(answer).unwrap_or_else(|error| panic!("{line}: {error}")))
        })
        .collect();
    let requests = requests();
    assert_eq!(answers.len(), requests.len(), "{stdout}");
    for ((method, answer), (wanted, _)) in answers.iter().zip(&requests) {
        assert_eq!(method, wanted);
        assert!(answer["data"]["code"].is_null(), "{method} was refused: {answer}");
    }
    let result = answers.iter().find(|(method, _)| *method == "result").expect("a result");
    assert_eq!(result.1["status"], "PASSED", "{}", result.1);
    run.finish(0);
}

#[test]
fn documented_socat_command_can_call_every_method() {
    if !is_installed("socat", "-V") {
        skipped("the socat command was not tried: socat is not installed");
        return;
    }
    let scenario = slow(&["bad/segfaults"]);
    let line = documented_block("sh", "socat");
    let shown = r#"{"jsonrpc":"2.0","id":1,"method":"status"}"#;
    assert!(line.contains(shown), "{line}");
    let run = start(&scenario);
    for (method, params) in requests() {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        assert!(
            !request.contains('\''),
            "the command line puts the request in single quotes, so it must contain none: {request}"
        );
        // The documented command waits at most two seconds for output (`-t 2`). This ends the stream of events as
        // intended, but is too short for a result.
        let line = match method {
            "result" => line.replace("-t 2", "-t 120"),
            _ => line.clone(),
        };
        let output = Command::new("sh")
            .arg("-c")
            .arg(line.replace(shown, &request))
            .current_dir(scenario.path())
            .output()
            .expect("sh starts");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let first = stdout.lines().next().unwrap_or_else(|| panic!("{method} has no answer: {output:?}"));
        let answer: Value = serde_json::from_str(first).unwrap_or_else(|error| panic!("{first}: {error}"));
        assert!(answer["result"].is_object() && answer["id"] == 1, "{method}: {answer}");
    }
    run.finish(0);
}
