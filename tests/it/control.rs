//! Tests the control socket and `ctl` during a real run: every command, hostile clients, and other users.

pub mod client;
mod foreign;
mod hostile;
mod metrics;
mod open;

use opt_tests::waiting::until;
use opt_tests::{Scenario, repository, summary::list};
use serde_json::{Value, json};

use self::client::{Client, LiveRun};

/// A plan over the many captures that `slow` makes.
fn slow_plan(candidates: &[&str]) -> String {
    let root = repository().display();
    let kernel = |name: &str| format!("'{root}/configs/demo/softmax/{name}.c'");
    let files: Vec<String> = candidates.iter().map(|name| kernel(name)).collect();
    format!(
        "[verify]\nrepeats = 2\n[profile]\nentry_timeout = \"200ms\"\n[build]\nlibraries = [\"m\"]\n
[[job]]\nname = \"softmax\"\ncaptures = 'many'\nbaseline = {}\ncandidates = [{}]\n",
        kernel("naive"),
        files.join(", ")
    )
}

/// A scenario whose verifications take a while, because it has 80 captures: copies of two of the demo's softmax
/// captures.
fn slow(candidates: &[&str]) -> Scenario {
    let scenario = Scenario::create();
    let from = opt_tests::data("demo/torch_nn_functional_softmax");
    let many = scenario.path().join("many");
    std::fs::create_dir(&many).expect("a folder");
    let files = ["entry_000000.pt", "entry_000001.pt"];
    for number in 0..80 {
        let to = many.join(format!("entry_{number:06}.pt"));
        std::fs::copy(from.join(files[number % 2]), to).expect("a capture");
    }
    scenario.write("plan.toml", slow_plan(candidates));
    scenario
}

fn outcome(answer: &Value) -> &str {
    answer["outcome"].as_str().unwrap_or_else(|| panic!("no outcome: {answer}"))
}

#[test]
fn commands_work_on_a_live_run() {
    let scenario = slow(&["fast", "bad/segfaults"]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let ctl = |arguments: &[&str]| run.ctl(arguments);

    ctl(&["pause"]).expect_exit(0).expect_stdout(&["done: no further leases are granted"]);
    ctl(&["pause"]).expect_exit(0).expect_stdout(&["nothing to do"]);
    let status = ctl(&["status", "--json"]).expect_exit(0).json();
    assert_eq!(status["run"]["paused"], true);
    assert_eq!(status["run"]["folder"], json!(run.folder()));
    ctl(&["status"]).expect_exit(0).expect_stdout(&["paused", "memory:", "softmax"]);
    ctl(&["why", "softmax/segfaults"]).expect_exit(0).expect_stdout(&[
        "waits for stage `",
        "the run is paused",
        "iB are charged",
    ]);
    ctl(&["why", "segfaults"]).expect_exit(0);
    ctl(&["resume"]).expect_exit(0).expect_stdout(&["done"]);
    ctl(&["resume"]).expect_exit(0).expect_stdout(&["nothing to do"]);

    ctl(&["workers"]).expect_exit(0).expect_stdout(&["verifier", "owed"]);
    // The candidate that is cancelled below must still be waiting or running.
    ctl(&["pause"]).expect_exit(0).expect_stdout(&["done"]);
    let workers = ctl(&["workers", "--json"]).expect_exit(0).json();
    let worker = &list(&workers["workers"])[0];
    assert!(worker["pid"].as_u64().is_some_and(|pid| 0 < pid), "{worker}");
    ctl(&["why", &format!("worker-{}", worker["id"])])
        .expect_exit(0)
        .expect_stdout(&["charged for it", " lease"]);
    ctl(&["why", "worker-4000"]).expect_exit(2).expect_stderr(&["not_found"]);

    let mut client = run.client();
    let all = client.call("candidates", &json!({})).expect("an answer");
    let names: Vec<&str> =
        list(&all["candidates"]).iter().filter_map(|it| it["candidate"].as_str()).collect();
    assert_eq!(names, ["softmax/fast", "softmax/segfaults", "softmax/naive"]);
    assert_eq!((&all["total"], &all["candidates"][2]["baseline"]), (&json!(3), &json!(true)));
    assert!(
        list(&all["candidates"]).iter().all(|it| it["stage"].is_string() || it["status"].is_string()),
        "{all}"
    );
    let rest = client.call("candidates", &json!({ "from": 2 })).expect("an answer");
    assert_eq!(list(&rest["candidates"]).len(), 1);
    let beyond = client.call("candidates", &json!({ "from": 4_000_000_000_u32 })).expect("an answer");
    assert_eq!(list(&beyond["candidates"]).len(), 0);
    let memory = client.call("history", &json!({})).expect("an answer");
    let slots = list(&memory["slots"]);
    assert!(slots.iter().all(|slot| slot[1].is_u64()) && !slots.is_empty(), "{memory}");
    let since = slots.last().map_or(0.0, |slot| slot[0].as_f64().expect("a time"));
    let later = client.call("history", &json!({ "since_s": since })).expect("an answer");
    let is_later = |slot: &Value| slot[0].as_f64().is_some_and(|at| since <= at);
    assert!(list(&later["slots"]).iter().all(is_later), "earlier samples are not sent again: {later}");
    assert_eq!(client.call("history", &json!({ "since_s": -1 })), Err("invalid_params".to_owned()));
    let decisions = client.call("decisions", &json!({ "most": 1 })).expect("an answer");
    assert_eq!(list(&decisions["decisions"]).len(), 1);
    assert_eq!(client.call("decisions", &json!({})), Err("invalid_params".to_owned()));

    let doctor = scenario.run(&["doctor", "--json"]).expect_exit(0).json();
    let live = list(&doctor["runs"]).iter().find(|it| it["run_dir"].as_str() == run.folder().to_str());
    let live = live.unwrap_or_else(|| panic!("doctor lists the run: {}", doctor["runs"]));
    assert!(
        live["owed_bytes"].as_u64() <= live["peak_owed_bytes"].as_u64()
            && live["device_peak_bytes"].is_null()
    );

    ctl(&["set", "host_ceiling=6GiB"]).expect_exit(0).expect_stdout(&["6.00 GiB"]);
    ctl(&["set", "host_ceiling=6GiB"]).expect_exit(0).expect_stdout(&["nothing to do"]);
    ctl(&["set", "host_ceiling=1MiB"]).expect_exit(1).expect_stderr(&["refused"]);
    ctl(&["set", "host_ceiling=900TiB"]).expect_exit(1).expect_stderr(&["refused"]);
    ctl(&["set", "host_ceiling=much"]).expect_exit(2).expect_stderr(&["neither a size"]);

    ctl(&["recycle", "verifier"]).expect_exit(0);
    ctl(&["restart", "worker-4000"]).expect_exit(2).expect_stderr(&["is not alive"]);
    ctl(&["cancel", "softmax/segfaults"]).expect_exit(0).expect_stdout(&["done"]);
    ctl(&["cancel", "softmax/segfaults"]).expect_exit(0).expect_stdout(&["nothing to do"]);
    ctl(&["cancel", "nothing"]).expect_exit(2).expect_stderr(&["not_found"]);
    ctl(&["resume"]).expect_exit(0).expect_stdout(&["done"]);
    ctl(&["result", "softmax/segfaults", "--wait"]).expect_exit(0).expect_stdout(&["SKIPPED"]);
    ctl(&["events"]).expect_exit(0).expect_stdout(&["pause", "set_ceiling", "cancel"]);
    ctl(&["--run", "nowhere", "status"]).expect_exit(2).expect_stderr(&["there is no live run"]);

    let (outcome, summary) = run.finish(0);
    outcome.expect_equal(
        summary.verdict("softmax", "segfaults"),
        (Some("SKIPPED"), Some("plan")),
        "cancelled",
    );
    let detail = summary.candidate("softmax", "segfaults")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("cancelled by the user"), detail);
    outcome.expect_equal(summary.verdict("softmax", "fast"), (Some("PASSED"), None), "fast");
    outcome.expect_equal(
        summary.document["memory"]["host_ceiling_bytes"].as_u64(),
        Some(6 << 30),
        "the ceiling",
    );
}

#[test]
fn verifier_recycled_during_a_lease_changes_no_verdict() {
    let candidates = ["fast", "bad/wrong_by_nine_percent"];
    let verdicts = |scenario: &Scenario, disturb: bool| {
        let run = LiveRun::start(scenario, &["--quiet"]);
        if disturb {
            let mut client = run.client();
            until("an entry is verified", || {
                let status = client.call("status", &json!({})).expect("the status");
                list(&status["leases"]).iter().any(|lease| {
                    lease["stage"] == "verify" && lease["entries_done"].as_u64().is_some_and(|done| 0 < done)
                })
            });
            let params = json!({ "role": "verifier", "mode": "now" });
            let answer = client.call("recycle", &params).expect("an answer");
            assert_eq!(outcome(&answer), "done", "{answer}");
            assert!(answer["message"].as_str().is_some_and(|it| it.contains("will be repeated")), "{answer}");
        }
        let (_, summary) = run.finish(0);
        let all = ["naive", "fast", "wrong_by_nine_percent"]
            .map(|name| summary.candidate("softmax", name)["status"].clone());
        (all, summary)
    };
    let (undisturbed, _) = verdicts(&slow(&candidates), false);
    let scenario = slow(&candidates);
    let (disturbed, summary) = verdicts(&scenario, true);
    assert_eq!(disturbed, undisturbed);
    let workers = list(&summary.document["workers"]);
    let recycled: Vec<&Value> = workers.iter().filter(|it| it["recycled_because"] == "requested").collect();
    assert_eq!(recycled.len(), 1, "{workers:#?}");
    let kills = summary.policy("kill_worker");
    assert!(kills.iter().any(|row| row["reason"] == "requested"), "the reason is recorded: {kills:?}");
    let again = list(&summary.document["jobs"][0]["candidates"])
        .iter()
        .flat_map(|it| list(&it["attempts"]))
        .filter(|attempt| attempt["stage"] == "verify" && attempt["number"] == 2)
        .count();
    assert_eq!(again, 1, "one verification was repeated");
}

#[test]
fn running_job_is_cancelled_before_its_call_ends() {
    let scenario = slow(&["bad/loops_forever"]);
    // The default of `verify.call_timeout` allows the call up to a minute.
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let mut client = run.client();
    until("the loop is verified", || {
        let status = client.call("status", &json!({})).expect("the status");
        list(&status["leases"])
            .iter()
            .any(|lease| lease["stage"] == "verify" && lease["candidate"] == "softmax/loops_forever")
    });
    client.call("cancel", &json!({ "job": "softmax" })).expect("an answer");
    let result =
        client.call("result", &json!({ "candidate": "loops_forever", "wait": true })).expect("a result");
    assert_eq!(result["status"], "SKIPPED", "{result}");
    assert_eq!(result["blame"], "plan");
    // If cancelling waited for the call, the candidate would end as TIMEOUT and not as SKIPPED.
    let (outcome, summary) = run.finish(1);
    let kills = summary.policy("kill_worker");
    outcome.expect(kills.iter().any(|row| row["reason"] == "cancelled"), format_args!("{kills:?}"));
    outcome.expect(
        list(&summary.candidate("softmax", "loops_forever")["failures"]).is_empty(),
        "a cancelled candidate is not blamed",
    );
}

#[test]
fn ctl_finds_a_run_by_folder_socket_or_default() {
    let scenario = slow(&[]);
    let none = scenario.run(&["ctl", "status"]).expect_exit(2);
    none.expect_stderr(&["you have no live run on this machine"]);
    let first = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    first.ctl(&["status"]).expect_exit(0);
    scenario.run(&["ctl", "status"]).expect_exit(0);
    // In another runtime folder, `ctl` does not find the run by itself, but a user can name the run's folder.
    let elsewhere = |arguments: &[&str]| {
        let mut command = scenario.command(arguments);
        command.env("OPT_SUPERVISOR_RUNTIME_DIR", scenario.path().join("elsewhere"));
        scenario.finish(command.spawn().expect("the program starts"), arguments)
    };
    elsewhere(&["ctl", "status"]).expect_exit(2).expect_stderr(&["you have no live run on this machine"]);
    elsewhere(&["ctl", "--run", "runs/plan", "status"]).expect_exit(0);
    let second = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let both = scenario.run(&["ctl", "status"]).expect_exit(2);
    both.expect_stderr(&["there are 2 live runs", "runs/plan", "runs/plan-2"]);
    let one = scenario.run(&["ctl", "--run", "runs/plan-2", "status", "--json"]).expect_exit(0).json();
    assert_eq!(one["run"]["pid"], second.pid());
    let socket = std::fs::read_link(first.folder().join("control.sock")).expect("a link");
    let socket = socket.to_str().expect("UTF-8");
    let one = scenario.run(&["ctl", "status", "--json", "--socket", socket]).expect_exit(0).json();
    assert_eq!(one["run"]["pid"], first.pid());
    // A killed supervisor leaves its socket behind. `ctl` recognises the socket as stale, and the next run removes it.
    first.kill();
    scenario.run(&["ctl", "status"]).expect_exit(0);
    scenario
        .run(&["ctl", "--run", "runs/plan", "status"])
        .expect_exit(2)
        .expect_stderr(&["there is no live run"]);
    second.ctl(&["shutdown"]).expect_exit(0);
    second.finish_any();
    assert!(
        std::path::Path::new(socket).symlink_metadata().is_ok(),
        "the socket of the killed supervisor is still there"
    );
    let third = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    assert!(std::path::Path::new(socket).symlink_metadata().is_err(), "the stale socket was removed");
    third.ctl(&["shutdown", "--mode", "now"]).expect_exit(0);
    third.finish_any();
}

#[test]
fn events_are_streamed_until_the_run_ends() {
    let scenario = slow(&["fast"]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let mut client = Client::connect(&run.socket());
    assert_eq!(outcome(&client.call("events", &json!({})).expect("an answer")), "done");
    let events = client.events_to_the_end();
    let of = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
    for kind in ["attempt", "candidate", "worker", "job", "run"] {
        assert!(0 < of(kind), "no event of the kind {kind} among {events:#?}");
    }
    assert_eq!(events.last().map(|event| &event["exit_code"]), Some(&json!(0)));
    assert!(events.iter().all(|event| event["t"].is_string()), "every event has a time");
    run.finish(0);
}
