//! Tests candidates that are submitted to an open run, and `eval`.

use opt_tests::{Scenario, repository, summary::list};
use serde_json::{Value, json};

use super::client::{Client, LiveRun};

fn kernel(name: &str) -> String {
    format!("{}/configs/demo/softmax/{name}.c", repository().display())
}

fn scenario() -> Scenario {
    let root = repository().display();
    Scenario::with_plan(&format!(
        "[profile]\nentry_timeout = \"200ms\"\n[build]\nlibraries = [\"m\"]\n
[[job]]\nname = \"softmax\"\ncaptures = '{root}/tests/data/demo/torch_nn_functional_softmax'\nbaseline = '{}'\n",
        kernel("naive")
    ))
}

/// Returns the path of a kernel that crashes and includes a header beside it.
fn crashing_kernel() -> String {
    kernel("bad/segfaults")
}

fn submit(client: &mut Client, params: Value) -> String {
    let answer = client.call("submit", &params).unwrap_or_else(|code| panic!("{params}: {code}"));
    answer["candidate"].as_str().expect("a name").to_owned()
}

#[test]
fn ten_simultaneous_submissions_are_all_evaluated() {
    let scenario = scenario();
    let run = LiveRun::start(&scenario, &["--jsonl", "--keep-open"]);
    let socket = run.socket();
    let source = std::fs::read_to_string(kernel("fast")).expect("a source");
    let bad = crashing_kernel();
    let results: Vec<(String, Value)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..10)
            .map(|number| {
                let (socket, source, bad) = (&socket, &source, &bad);
                scope.spawn(move || {
                    let mut client = Client::connect(socket);
                    let params = match number % 3 {
                        0 => json!({ "job": "softmax", "sources": [kernel("fast")] }),
                        1 => json!({ "text": format!("{source}\n// {number}\n"), "language": "c" }),
                        _ => json!({ "sources": [bad] }),
                    };
                    let name = submit(&mut client, params);
                    let result =
                        client.call("result", &json!({ "candidate": name, "wait": true })).expect("a result");
                    (name, result)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let mut names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 10, "all names differ: {names:?}");
    for (name, result) in &results {
        assert_eq!(result["done"], true, "{result}");
        let expected = if name.contains("segfaults") { "CRASHED" } else { "PASSED" };
        assert_eq!(result["status"], expected, "{name}: {result}");
        assert_eq!(result["speedup"].is_object(), expected == "PASSED", "{name}");
    }
    let mut client = run.client();
    for (params, code) in [
        (json!({ "sources": ["relative.c"] }), "invalid_params"),
        (json!({ "sources": ["/dev/zero"] }), "invalid_params"),
        (json!({ "sources": ["/nowhere/at/all.c"] }), "invalid_params"),
        (json!({ "sources": [format!("{}/README.md", repository().display())] }), "invalid_params"),
        (json!({ "text": "int x;" }), "invalid_params"),
        (json!({ "text": "int x;", "language": "c", "job": "nothing" }), "not_found"),
        (json!({ "text": "int x;", "language": "c", "name": "" }), "invalid_params"),
    ] {
        assert_eq!(client.call("submit", &params), Err(code.to_owned()), "{params}");
    }
    assert_eq!(client.call("result", &json!({ "candidate": "x" })), Err("not_found".to_owned()));
    // Authors of later candidates can read the summary and the log, so neither may contain the seed yet.
    let contains_the_seed = |summary: &str| summary.contains("verify.seed=");
    let so_far = std::fs::read_to_string(scenario.run_folder().join("summary.json")).expect("a summary");
    let log = std::fs::read_to_string(scenario.run_folder().join("log.jsonl")).expect("a log");
    assert!(
        !contains_the_seed(&so_far) && !contains_the_seed(&log),
        "the seed is revealed only when nothing is left to time"
    );
    run.ctl(&["shutdown"]).expect_exit(0);
    let (outcome, summary) = run.finish(0);
    outcome.expect_equal(summary.policy("seed").len(), 1, "the seed is revealed at the end");
    let candidates = list(&summary.job("softmax")["candidates"]);
    outcome.expect_equal(candidates.len(), 11, "the summary has all candidates, including the baseline");
    outcome.expect(
        candidates.iter().filter(|it| it["status"] == "PASSED").all(|it| it["rank"].is_number()),
        "every candidate that passed has a rank",
    );
    let lines: Vec<Value> = outcome
        .stdout
        .lines()
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| outcome.fail(format_args!("{line}: {error}")))
        })
        .collect();
    outcome.expect_equal(lines.len(), 11, "lines, one for each candidate");
    // The workers and the baseline's results are reused, so only one worker of each role was started.
    outcome.expect_equal(list(&summary.document["workers"]).len(), 2, "workers");
    outcome.expect_equal(summary.attempts_that_count("softmax", "naive"), 3, "attempts of the baseline");
}

#[test]
fn resumed_run_keeps_its_submissions() {
    let scenario = scenario();
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let mut client = run.client();
    let first = submit(&mut client, json!({ "sources": [kernel("fast")] }));
    let result = client.call("result", &json!({ "candidate": first, "wait": true })).expect("a result");
    assert_eq!(result["status"], "PASSED");
    client.call("pause", &json!({})).expect("an answer");
    let second = submit(&mut client, json!({ "sources": [crashing_kernel()], "name": "later" }));
    assert_eq!(second, "softmax/later");
    run.kill();
    let (outcome, summary) = {
        let outcome = scenario.run(&["run", "plan.toml", "--resume", "--quiet"]).expect_exit(0);
        let summary = opt_tests::Summary::read(&scenario.run_folder(), &outcome);
        (outcome, summary)
    };
    outcome.expect_equal(
        summary.verdict("softmax", "fast"),
        (Some("PASSED"), None),
        "a finished candidate keeps its result",
    );
    let confirmed = summary.candidate("softmax", "fast")["profile"]["stage"] == "confirm";
    outcome.expect_equal(
        summary.attempts_that_count("softmax", "fast"),
        3 + usize::from(confirmed),
        "attempts, including the confirmation",
    );
    outcome.expect_equal(
        summary.verdict("softmax", "later"),
        (Some("CRASHED"), Some("candidate")),
        "a candidate that was still waiting is evaluated",
    );
    outcome.expect_clean(&scenario.run_folder(), &scenario.runtime());
    let again = scenario.run(&["repro", "runs/plan", "later", "--entry", "entry_000001"]).expect_exit(1);
    again.expect_stdout(&["CRASHED"]);
}

#[test]
fn eval_uses_an_open_run_or_makes_a_short_one() {
    let scenario = scenario();
    let fast = kernel("fast");
    let pipe = scenario.path().join("pipe.c");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).expect("a pipe");
    for odd in ["pipe.c", "."] {
        let refused = scenario.run(&["eval", "plan.toml", odd]).expect_exit(2);
        refused.expect_stderr(&["it is not a regular file"]);
    }
    let separate_run = scenario.run(&["eval", "plan.toml", &fast, "--json"]).expect_exit(0);
    assert_eq!(separate_run.json()["candidate"], "softmax/fast");
    assert_eq!(separate_run.json()["status"], "PASSED");
    separate_run
        .expect(scenario.path().join("runs/plan-eval/summary.json").is_file(), "`eval` made its own run");

    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let joined = scenario.run(&["eval", "plan.toml", &fast, "--json"]).expect_exit(0);
    assert_eq!(joined.json()["status"], "PASSED");
    assert!(joined.json()["speedup"]["value"].is_number(), "{}", joined.json());
    let bad = scenario.run(&["eval", "plan.toml", &crashing_kernel()]).expect_exit(1);
    bad.expect_stdout(&["CRASHED", "SIGSEGV"]);
    scenario
        .run(&["eval", "plan.toml", "nowhere.c"])
        .expect_exit(2)
        .expect_stderr(&["cannot resolve the path nowhere.c"]);
    let by_ctl = run.ctl(&["submit", &fast, "--wait"]).expect_exit(0);
    by_ctl.expect_stdout(&["softmax/fast-2: PASSED"]);
    run.ctl(&["shutdown"]).expect_exit(0);
    let (outcome, summary) = run.finish(0);
    outcome.expect_equal(list(&summary.job("softmax")["candidates"]).len(), 4, "candidates");
    outcome.expect(!scenario.path().join("runs/plan-eval-2").exists(), "the open run was used");
}

/// The language and the symbol of a candidate can be given to `eval` and to `ctl submit`.
#[test]
fn language_and_symbol_are_given_on_the_command_line() {
    let scenario = scenario();
    let source = "int other(void) { *(volatile int *)8 = 1; return 0; }\n";
    let other = scenario.write("other.c", source).display().to_string();
    let eval = |more: &[&str], exit| {
        scenario.run(&[&["eval", "plan.toml", &other, "--json"], more].concat()).expect_exit(exit).json()
    };
    let expect = |result: &Value, status: &str, compiler: &str| {
        assert_eq!(result["status"], status, "{result}");
        assert_eq!(result["build"]["flags"][0], compiler, "{result}");
    };
    expect(&eval(&["--symbol", "other"], 1), "CRASHED", "cc");
    expect(&eval(&[], 1), "LOAD_ERROR", "cc");
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    expect(&eval(&["--language", "cpp", "--symbol", "other"], 1), "LOAD_ERROR", "c++");
    let by_ctl =
        run.ctl(&["submit", &other, "--language", "c", "--symbol", "other", "--wait"]).expect_exit(0);
    by_ctl.expect_stdout(&["CRASHED"]);
    let unknown = scenario.run(&["eval", "plan.toml", &other, "--language", "cobol"]).expect_exit(2);
    unknown.expect_stderr(&["unknown language `cobol`", "`torch-extension`"]);
    run.ctl(&["shutdown"]).expect_exit(0);
    // No candidate passed, apart from the baseline.
    run.finish(1);
}

#[test]
fn service_manager_is_notified_when_the_run_is_ready_and_when_it_stops() {
    let scenario = scenario();
    let path = scenario.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(std::time::Duration::from_secs(120))).expect("a time limit");
    let arguments = ["run", "plan.toml", "--quiet"];
    let child = scenario.command(&arguments).env("NOTIFY_SOCKET", &path).spawn().expect("the program starts");
    let mut message = [0u8; 1024];
    let mut receive = || {
        let count = manager.recv(&mut message).expect("a notification");
        String::from_utf8_lossy(&message[..count]).into_owned()
    };
    let ready = receive();
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready}");
    assert!(ready.lines().any(|line| line == format!("MAINPID={}", child.id())), "{ready}");
    assert_eq!(receive(), "STOPPING=1\n");
    scenario.finish(child, &arguments).expect_exit(0);
}

#[test]
fn completions_and_manual_name_commands() {
    let scenario = Scenario::create();
    for shell in ["bash", "zsh", "fish"] {
        scenario.run(&["completions", shell]).expect_exit(0).expect_stdout(&["opt-supervisor", "recycle"]);
    }
    scenario.run(&["man"]).expect_exit(0).expect_stdout(&[
        ".TH opt-supervisor",
        "OPT-SUPERVISOR EVAL",
        "keep\\-open",
    ]);
}
