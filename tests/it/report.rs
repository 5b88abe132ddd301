//! Tests `report` in its formats: figures agree with `summary.json`, and a browser shows the HTML page without errors.

pub mod browser;

use browser::Browser;
use opt_tests::users::{User, set_mode};
use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary, summary::list};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::results::plans::{Plan, SOFTMAX};

const HOSTILE: &str = "</title><script>alert('1')</script>\\\" onload=\\\"x()\\\" &amp;";

/// A fast candidate, one that crashes, one with wrong values, and one whose name and compiler output try to inject
/// markup.
fn mixed() -> Scenario {
    let mut plan = Plan::softmax(&["fast", "bad/segfaults", "bad/wrong_by_nine_percent"]);
    plan.extra = format!("[[job.candidate]]\nname = \"{HOSTILE}\"\nsources = [\"hostile.c\"]\n");
    let scenario = Scenario::with_plan(&plan.text());
    scenario.write("hostile.c", "#error </pre></style><script>alert('2')</script>\n");
    scenario
}

fn reported(scenario: &Scenario, format: &str) -> Outcome {
    scenario.run(&["report", "runs/plan", "--format", format]).expect_exit(0)
}

/// A wrong folder is a usage error, and a damaged database is a host error.
#[test]
fn folder_without_a_run_is_a_usage_error() {
    let scenario = Scenario::create();
    scenario.write("empty/file", "mine");
    scenario.write(
        "damaged/run.sqlite",
        "this is not a database, but it is long enough to be opened like a database",
    );
    for folder in ["nowhere", "empty"] {
        for command in [
            &["report", folder][..],
            &["report", folder, "--format", "json"],
            &["repro", folder, "x", "--entry", "e"],
        ] {
            scenario.run(command).expect_exit(2).expect_stderr(&["there is no run database"]);
        }
        scenario.run(&["ctl", "--run", folder, "status"]).expect_exit(2);
    }
    scenario.run(&["report", "damaged"]).expect_exit(3);
}

/// SQLite cannot create its shared memory in a folder that its user cannot write.
#[test]
fn report_reads_a_run_in_a_folder_that_its_user_cannot_write() {
    let Some(user) = User::ordinary() else { return };
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    // SQLite opens files by URI, in which a question mark begins the options.
    scenario.run(&["run", "plan.toml", "--dir", "of what?"]).expect_exit(0);
    set_mode(scenario.path(), 0o755);
    let arguments = ["report", "of what?"];
    let mut command = scenario.command_of(&user.program(&scenario), &arguments);
    user.apply_to(&mut command);
    let child = command.spawn().expect("the program starts");
    let outcome = scenario.finish(child, &arguments).expect_exit(0);
    outcome.expect_stdout(&["fast", "FINISHED"]);
}

#[test]
fn text_formats_agree_with_the_summary() {
    let scenario = mixed();
    let (_, summary) = scenario.run_plan(0, &[]);
    let candidates = list(&summary.job(SOFTMAX)["candidates"]);
    assert_eq!(candidates.len(), 5);

    let text = reported(&scenario, "text");
    text.expect_stdout(&[
        "predicted",
        "measured",
        "phases, worst",
        "memory owed over",
        "all processes",
        "stage",
    ]);
    let wide: Vec<&str> = text.stdout.lines().filter(|line| 80 < line.chars().count()).collect();
    text.expect(wide.is_empty(), format_args!("no line is wider than eighty columns: {wide:#?}"));

    let markdown = reported(&scenario, "md");
    // On a busy machine, the job may have no winner, or both candidates may have the same rank.
    let job = summary.job(SOFTMAX);
    let headline = job["winner"].as_str().map_or("no winner".to_owned(), |winner| format!("`{winner}` "));
    let fast = summary.candidate(SOFTMAX, "fast");
    let rank = fast["rank"].as_u64().expect("a candidate that passed has a rank");
    markdown.expect_stdout(&[
        &format!("### `softmax`: {headline}"),
        &format!("| {rank} | `fast` |"),
        "<details>",
        "Reproduce with",
        "run plan.toml",
    ]);
    markdown.expect(
        !markdown.stdout.lines().any(|line| line.starts_with("<script")),
        "names and compiler output are escaped",
    );

    let csv = reported(&scenario, "csv");
    let speedup = fast["speedup"]["value"].as_f64().expect("a timed candidate has a speed-up");
    csv.expect(csv.stdout.contains(&format!("softmax,fast,PASSED,,,{rank},{speedup}")), "its row");
    csv.expect(csv.stdout.lines().count() >= 6, "rows for all candidates");

    let lines = reported(&scenario, "jsonl");
    let traces: Vec<Value> =
        lines.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is a document")).collect();
    for candidate in candidates {
        let of: Vec<&Value> = traces.iter().filter(|trace| trace["solution"] == candidate["name"]).collect();
        let expected_lines =
            list(&candidate["profile"]["entries"]).len() + list(&candidate["failures"]).len();
        lines.expect_equal(of.len(), expected_lines.max(1), format_args!("lines of {}", candidate["name"]));
        lines.expect(of.iter().all(|it| it["evaluation"]["status"].is_string()), "every line has a verdict");
    }

    let file = scenario.path().join("out/report.md");
    std::fs::create_dir(scenario.path().join("out")).expect("folder");
    scenario.run(&["report", "runs/plan", "--format", "md", "-o", "out/report.md"]).expect_exit(0);
    markdown.expect_equal(
        std::fs::read_to_string(file).expect("written"),
        markdown.stdout.clone(),
        "the file",
    );
    let beside = std::fs::read_dir(scenario.path().join("out")).expect("a readable folder").count();
    markdown.expect_equal(beside, 1, "files beside it");
}

#[test]
fn page_is_complete_in_a_browser() {
    let scenario = mixed();
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let written = reported(&scenario, "html");
    written.expect(written.stdout.trim_end().ends_with("</html>"), "the page is written to standard output");
    scenario.run(&["report", "runs/latest", "--format", "html", "-o", "page.html"]).expect_exit(0);
    let page = scenario.path().join("page.html");
    let bytes = std::fs::metadata(&page).expect("the page").len();
    outcome.expect(bytes < 2 << 20, format_args!("the page has less than 2 MiB: {bytes} bytes"));
    let Some(browser) = Browser::find() else {
        browser::skipped("the HTML report was not opened: neither chromium nor google-chrome is installed");
        return;
    };
    let shown = browser.open(&scenario, &page);
    shown.expect(shown.console().is_empty(), format_args!("the console is empty: {:#?}", shown.console()));
    let dom = &shown.dom;
    for candidate in list(&summary.job(SOFTMAX)["candidates"]) {
        let name = candidate["name"].as_str().expect("a name");
        shown.expect(dom.contains(&as_markup(name)), format_args!("{name} is in the page"));
        shown.expect(dom.contains(candidate["status"].as_str().expect("ended")), "the status is in the page");
    }
    let winner = summary.candidate(SOFTMAX, "fast");
    let mut figures = vec![three_digits(&winner["speedup"]["value"]) + "×"];
    figures.extend(["ci_low", "ci_high"].map(|name| three_digits(&winner["speedup"][name])));
    for name in ["peak_owed_bytes", "predicted_peak_owed_bytes", "host_ceiling_bytes", "min_available_bytes"]
    {
        let bytes = summary.document["memory"][name].as_u64().expect("the figure was measured");
        figures.push(opt_shared::units::Bytes::new(bytes).to_string());
    }
    for figure in figures {
        shown.expect(dom.contains(&figure), format_args!("{figure} is in the page"));
    }
    shown.expect(!dom.contains("<script"), "no script is in the page");
    shown.expect(dom.matches("<svg").count() == 2, "both plots are in the page");
}

/// Returns the text in the form in which it appears in the page's markup.
fn as_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn three_digits(value: &Value) -> String {
    let value = value.as_f64().expect("a figure");
    let decimals = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        value if value >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[test]
fn two_runs_can_be_compared() {
    let scenario = Scenario::with_plan(&Plan::softmax(&["fast"]).text());
    let (outcome, first) = scenario.run_plan(0, &[]);
    let drawn = first.policy("seed");
    outcome.expect_equal(drawn.len(), 1, "seeds drawn for the first run");
    outcome.expect(
        drawn[0]["numbers"]["seed"].as_u64().is_some_and(|seed| seed != 0),
        "the drawn seed is reported",
    );
    let second = Plan::softmax(&["fast", "bad/segfaults"]).text();
    scenario.write("plan.toml", &second);
    let run = ["run", "plan.toml", "--dir", "runs/second", "--quiet", "--set", "verify.seed=7"];
    let outcome = scenario.run(&run).expect_exit(0);
    let second = Summary::read(&scenario.path().join("runs/second"), &outcome);
    outcome.expect_equal(
        second.policy("seed").len(),
        0,
        "seeds drawn for the second run, whose plan has a seed",
    );
    let both = ["report", "runs/plan", "runs/second", "--format"];
    let compared = |format: &str| scenario.run(&[&both[..], &[format]].concat());

    let document = compared("json").expect_exit(0).json();
    let job = &document["jobs"][0];
    assert_eq!(job["same_captures"], true);
    assert_eq!(job["only_in_second"], serde_json::json!(["segfaults"]));
    let fast = list(&job["candidates"]).iter().find(|it| it["name"] == "fast").expect("in both");
    assert_eq!(fast["ratio_of"], "speedup");
    assert!(fast["ratio"]["ci_low"].as_f64() <= fast["ratio"]["value"].as_f64(), "{fast}");
    compared("text").expect_exit(0).expect_stdout(&["2 candidates in both", "only in the second: segfaults"]);
    compared("md").expect_exit(0).expect_stdout(&["| candidate | first | second | ratio | change |"]);
    compared("html").expect_exit(2).expect_stderr(&["text, md or json"]);
}

/// Returns the key and the start of each block of samples in the run's database. The list is empty if the database
/// cannot be read.
fn blocks(scenario: &Scenario) -> Vec<(i64, i64)> {
    let Ok(store) = Connection::open(scenario.run_folder().join("run.sqlite")) else { return Vec::new() };
    let Ok(mut blocks) = store.prepare("SELECT key, started FROM sample ORDER BY key") else {
        return Vec::new();
    };
    let Ok(rows) = blocks.query_map([], |row| Ok((row.get(0)?, row.get(1)?))) else { return Vec::new() };
    rows.filter_map(Result::ok).collect()
}

#[test]
fn samples_survive_a_killed_supervisor_and_continue_with_the_run() {
    let mut plan = Plan::softmax(&["bad/loops_forever"]);
    plan.extra = "verify.call_timeout = \"8s\"\n".to_owned();
    let scenario = Scenario::with_plan(&plan.text());
    let arguments = ["run", "plan.toml"];
    let child = scenario.command(&arguments).spawn().expect("the program starts");
    until("a block of samples", || !blocks(&scenario).is_empty());
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::KILL).expect("the run is alive");
    let killed = scenario.finish(child, &arguments);
    killed.expect_equal(killed.signal, Some(Signal::KILL.as_raw()), "its end");
    let before = blocks(&scenario);
    killed.expect(!before.is_empty(), "samples were written during the run");

    let resumed = scenario.run(&["run", "plan.toml", "--resume", "--verbose"]).expect_exit(1);
    let after = blocks(&scenario);
    resumed.expect(after.starts_with(&before), format_args!("{before:?} are still there: {after:?}"));
    resumed.expect(before.len() < after.len(), "the resumed run added blocks");
    resumed.expect_stdout(&["memory owed over", "kill x"]);
    let summary = Summary::read(&scenario.run_folder(), &resumed);
    let phases = list(&summary.document["memory"]["phases"]);
    resumed.expect(
        phases.iter().all(|it| it["peak_reclaimable_bytes"].is_u64() && it["swap_delta_bytes"].is_i64()),
        "phases have their reclaimable memory and their change of swap",
    );
}
