//! Tests laws 3 and 5 (ARCHITECTURE.md) on real runs: `check` names the memory that a run needs, and measurements agree
//! with predictions.

use opt_tests::{Outcome, Scenario, Summary, data, summary::list};
use serde_json::Value;

use crate::report::browser::skipped;

const MIB: u64 = 1 << 20;
/// The tolerance for differences between measured and predicted figures, if ten percent of the prediction is less.
const SLACK: u64 = 8 * MIB;

fn bytes(outcome: &Outcome, row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_else(|| outcome.fail(format_args!("{row} has no {field}")))
}

/// A plan with a matmul job. Its memory limit of 1 MiB is enough for a kernel that allocates nothing.
fn plan(head: &str, candidates: &str) -> String {
    format!(
        "{head}\n[profile]\nentry_timeout = \"200ms\"\n[limits]\nmemory = \"1MiB\"\nthreads = 1
[build]\nmemory = \"192MiB\"\ninclude = ['{kernels}', '{kernels}/naive']\n
[[job]]\nname = \"matmul\"\ncaptures = '{captures}'\nentries = [\"entry_000000.pt\", \"entry_000005.pt\"]
baseline = \"naive\"\n
[[job.candidate]]\nname = \"naive\"\nsources = ['{kernels}/naive/matmul.c']\n{candidates}",
        kernels = data("kernels").display(),
        captures = data("captures/torch_matmul").display(),
    )
}

fn workspace() -> String {
    format!(
        "[[job.candidate]]\nname = \"workspace\"\nsources = ['{}']\nlimits = {{ memory = \"201MiB\" }}\n",
        data("kernels/takes_200_mib.c").display()
    )
}

/// The smallest ceiling, according to `check`.
fn smallest_ceiling(scenario: &Scenario) -> u64 {
    let outcome = scenario.run(&["check", "plan.toml", "--json"]).expect_exit(0);
    bytes(&outcome, &outcome.json(), "smallest_ceiling_bytes")
}

fn run_under(scenario: &Scenario, ceiling: u64, exit: i32) -> (Outcome, Summary) {
    let set = format!("memory.host_ceiling={ceiling}B");
    let dir = format!("run-{ceiling}");
    let _ = std::fs::remove_dir_all(scenario.path().join(&dir));
    let outcome = scenario.run(&["run", "plan.toml", "--dir", &dir, "--set", &set]).expect_exit(exit);
    let summary = Summary::read(&scenario.path().join(&dir), &outcome);
    (outcome, summary)
}

#[test]
fn run_stays_under_its_ceiling_and_refuses_a_candidate_that_does_not_fit() {
    let scenario = Scenario::with_plan(&plan("", &workspace()));
    let smallest = smallest_ceiling(&scenario);
    let mut peak = 0;
    for ceiling in [smallest * 2, smallest + smallest / 4, smallest + MIB, smallest] {
        let (outcome, summary) = run_under(&scenario, ceiling, 0);
        let memory = &summary.document["memory"];
        // The peak is the highest sample of the sum over all processes of the run.
        peak = bytes(&outcome, memory, "peak_owed_bytes");
        outcome.expect(peak <= ceiling, format_args!("{peak} owed under a ceiling of {ceiling}"));
        for phase in list(&memory["phases"]) {
            outcome.expect(bytes(&outcome, phase, "peak_owed_bytes") <= ceiling, format_args!("{phase}"));
        }
        outcome.expect_equal(summary.verdict("matmul", "workspace").0, Some("PASSED"), "its verdict");
        let kills = summary.policy("kill_runner").len() + summary.policy("kill_worker").len();
        outcome.expect_equal(kills, 0, "number of kills");
    }
    assert!(200 * MIB < peak, "the samples include the workspace: {peak}");
    let max = (peak + peak / 10).max(peak + SLACK);
    assert!(
        smallest <= max,
        "`check` names {smallest}, at most {max} is allowed for a measured peak of {peak}"
    );

    // With one MiB less, one candidate does not fit and is refused. The baseline still runs, and the exit code reports
    // the refusal.
    let (outcome, summary) = run_under(&scenario, smallest - MIB, 1);
    outcome.expect_equal(
        summary.verdict("matmul", "workspace"),
        (Some("DOES_NOT_FIT"), Some("plan")),
        "refused",
    );
    outcome.expect_equal(summary.verdict("matmul", "naive").0, Some("PASSED"), "the baseline still runs");
    let attempts = list(&summary.candidate("matmul", "workspace")["attempts"]).len();
    outcome.expect_equal(attempts, 0, "attempts of the refused candidate");
}

#[test]
fn plan_that_never_fits_starts_no_worker() {
    let scenario = Scenario::with_plan(&plan("", ""));
    let smallest = smallest_ceiling(&scenario);
    let (outcome, summary) = run_under(&scenario, smallest - MIB, 3);
    outcome.expect_equal(list(&summary.document["workers"]).len(), 0, "workers");
    outcome.expect_equal(summary.verdict("matmul", "naive").0, Some("DOES_NOT_FIT"), "its verdict");
    let detail = summary.candidate("matmul", "naive")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("host_ceiling"), detail);
}

/// A plan with a small candidate and a large one, for which gcc needs 230 MiB. `settings` contains the table
/// `[memory]`, if any, and the start of the table `[build]`.
fn with_a_large_source(settings: &str) -> Scenario {
    // A table of two million numbers.
    let large = "#define A 1,1,1,1,1,1,1,1,1,1,\n#define B A A A A A A A A A A\n#define C B B B B B B B B B B\n\
                 #define D C C C C C C C C C C\n#define E D D D D D D D D D D\n#define F E E E E E E E E E E\n\
                 int table[] = { F F };\n\
                 int run(void *s, const void *a, int n, void *r) { return table[n] - 1; }\n";
    let text = format!(
        "[run]\nstages = [\"build\", \"verify\"]\n[limits]\nmemory = \"16MiB\"\n{settings}\n\
         include = ['{kernels}', '{kernels}/naive']\n\
         [[job]]\nname = \"relu\"\ncaptures = '{captures}'\n\
         [[job.candidate]]\nname = \"small\"\nsources = ['{kernels}/naive/relu.c']\n\
         [[job.candidate]]\nname = \"large\"\nsources = ['large.c']\n",
        kernels = data("kernels").display(),
        captures = data("captures/torch_nn_functional_relu").display(),
    );
    let scenario = Scenario::with_plan(&text);
    std::fs::write(scenario.path().join("large.c"), large).expect("written");
    scenario
}

#[test]
fn compiler_that_needs_more_than_the_plan_allows_is_blamed_on_the_candidate() {
    let scenario = with_a_large_source("[build]\nmemory = \"128MiB\"");
    let (outcome, summary) = scenario.run_plan(0, &[]);
    outcome.expect_equal(summary.verdict("relu", "small").0, Some("PASSED"), "a compiler of 60 MiB fits");
    let large = summary.verdict("relu", "large");
    outcome.expect_equal(large, (Some("HOST_MEMORY_LIMIT"), Some("candidate")), "its verdict");
    let detail = summary.candidate("relu", "large")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("128 MiB ([build] memory)"), detail);
}

/// By default, `[build] memory` is 4 GiB.
#[test]
fn low_ceiling_reduces_the_memory_of_compilers() {
    let scenario = with_a_large_source("[memory]\nhost_ceiling = \"256MiB\"\n[build]");
    let (outcome, summary) = scenario.run_plan(0, &[]);
    outcome.expect_equal(summary.verdict("relu", "small").0, Some("PASSED"), "a compiler of 60 MiB fits");
    outcome.expect_equal(summary.policy("shrink_build").len(), 1, "policy rows");
    outcome.expect_equal(summary.verdict("relu", "large"), (Some("DOES_NOT_FIT"), Some("plan")), "refused");
    let detail = summary.candidate("relu", "large")["detail"].as_str().unwrap_or_default();
    outcome.expect(detail.contains("[memory] host_ceiling") && detail.contains("4.00 GiB"), detail);
    let peak = bytes(&outcome, &summary.document["memory"], "peak_owed_bytes");
    outcome.expect(peak <= 256 * MIB, format_args!("{peak} owed under a ceiling of 256 MiB"));
}

/// The kernel only reads its inputs and allocates nothing, so the owed memory must agree with the formula.
#[test]
fn measurements_agree_with_predictions() {
    let scenario = Scenario::with_plan(&plan("", &workspace()));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let mut seen = 0;
    for phase in list(&summary.document["memory"]["phases"]) {
        if phase["stage"] == "build" || phase["candidate"] != "naive" {
            continue;
        }
        seen += 1;
        let (predicted, measured) =
            (bytes(&outcome, phase, "predicted_bytes"), bytes(&outcome, phase, "peak_owed_bytes"));
        let slack = SLACK.max(predicted / 10);
        outcome.expect(
            measured.abs_diff(predicted) <= slack,
            format_args!("{}: {predicted} predicted, {measured} measured", phase["stage"]),
        );
    }
    outcome.expect_equal(seen, 2, "phases compared: one verified, one timed");
}

/// One decision grants the last verification and starts the spare worker, so the order of their times does not depend
/// on how busy the machine is.
#[test]
fn spare_is_started_while_the_last_verification_runs() {
    let scenario = Scenario::with_plan(&plan("[recycle]\nbefore_profile = \"always\"\n", ""));
    let ceiling = 2 * smallest_ceiling(&scenario);
    // If the machine is short of memory, no spare is started.
    let quiet =
        (0..3).map(|_| run_under(&scenario, ceiling, 0)).find(|(_, it)| it.policy("pressure").is_empty());
    let Some((outcome, summary)) = quiet else {
        skipped("a spare was not tried: this machine is short of memory");
        return;
    };
    let workers = list(&summary.document["workers"]);
    let of = |role: &str| {
        let mut found = workers.iter().filter(|worker| worker["role"] == role);
        let first = found.next().unwrap_or_else(|| outcome.fail(format_args!("no {role} among the workers")));
        outcome.expect(found.next().is_none(), format_args!("only one {role}"));
        first
    };
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let phases = list(&summary.document["memory"]["phases"]).iter();
    let verified = phases.filter(|phase| phase["stage"] == "verify").map(|phase| text(phase, "ended")).max();
    let (started, verified) = (text(of("profiler"), "started"), verified.unwrap_or_default());
    outcome.expect(started < verified, format_args!("started {started}, the verification ended {verified}"));
    outcome.expect_equal(of("verifier")["recycled_because"].as_str(), Some("before_profile"), "law 4 holds");
    outcome.expect_equal(summary.policy("no_spare").len(), 0, "it fitted");
}

#[test]
fn missing_room_for_a_spare_is_reported() {
    let head = "[recycle]\nbefore_profile = \"always\"\n";
    // With an output of eight bytes, a profile needs hardly more memory than a verification. A ceiling that fits the
    // profile therefore leaves no room for a spare.
    let plan = plan(head, "").replace("\"1MiB\"", "\"256MiB\"").replace("\"entry_000000.pt\", ", "");
    let plan = plan.replace("[profile]\n", "[profile]\nvary = \"none\"\n");
    let scenario = Scenario::with_plan(&plan);
    let ceiling = smallest_ceiling(&scenario);
    // If the machine is short of memory, no spare is started, regardless of the ceiling.
    let quiet =
        (0..3).map(|_| run_under(&scenario, ceiling, 0)).find(|(_, it)| it.policy("pressure").is_empty());
    let Some((outcome, summary)) = quiet else {
        skipped("a run without room for a spare was not tried: this machine is short of memory");
        return;
    };
    let rows = summary.policy("no_spare");
    outcome.expect_equal(rows.len(), 1, "one row");
    let numbers = &rows[0]["numbers"];
    let sum = bytes(&outcome, numbers, "charged_bytes") + bytes(&outcome, numbers, "wanted_bytes");
    outcome.expect(bytes(&outcome, numbers, "ceiling_bytes") < sum, "the numbers show why");
    let workers = list(&summary.document["workers"]);
    let at = |role: &str, field: &str| {
        let found = workers.iter().find(|worker| worker["role"] == role);
        found.and_then(|worker| worker[field].as_str()).unwrap_or_default().to_owned()
    };
    outcome.expect(
        at("verifier", "ended") <= at("profiler", "started"),
        "the profiler started after the verifier had ended",
    );
    outcome.expect_equal(summary.verdict("matmul", "naive").0, Some("PASSED"), "the candidate still passes");
}

#[test]
fn verifiers_work_side_by_side_and_a_profile_runs_alone() {
    let many: String = (0..6)
        .map(|number| {
            let path = data("kernels/naive/matmul.c");
            format!("[[job.candidate]]\nname = \"copy{number}\"\nsources = ['{}']\n", path.display())
        })
        .collect();
    let scenario = Scenario::with_plan(&plan("[run]\nverifiers = 4\n", &many));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let phases = list(&summary.document["memory"]["phases"]);
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let overlaps = |one: &Value, other: &Value| {
        text(one, "started") < text(other, "ended") && text(other, "started") < text(one, "ended")
    };
    let mut side_by_side = 0;
    for (index, one) in phases.iter().enumerate() {
        for other in &phases[index + 1..] {
            // The phases of one worker follow each other, but the wall clock may step back by a millisecond between
            // them.
            if one["worker"] != other["worker"] && overlaps(one, other) {
                side_by_side += 1;
                let is_timed = |phase: &Value| {
                    ["screen", "profile", "confirm"].iter().any(|stage| phase["stage"] == *stage)
                };
                outcome.expect(!is_timed(one) && !is_timed(other), format_args!("not alone: {one} {other}"));
            }
        }
    }
    outcome.expect(0 < side_by_side, "some phases overlap");
    for number in 0..6 {
        outcome.expect_equal(
            summary.verdict("matmul", &format!("copy{number}")).0,
            Some("PASSED"),
            "verdict",
        );
    }
}
