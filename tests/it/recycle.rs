//! Tests when workers are recycled, according to the summary. By law 4 (ARCHITECTURE.md), a verifier ends after a large
//! verification, before a profiler gets a lease. A worker also ends after a number of leases that the plan sets.

use opt_tests::{Outcome, Scenario, Summary, repository, summary::list};
use serde_json::Value;

fn plan(recycle: &str) -> String {
    let root = repository().display();
    format!(
        "[recycle]\n{recycle}\n[profile]\nentry_timeout = \"200ms\"\n[build]\nlibraries = [\"m\"]\n
[[job]]
name = \"softmax\"
captures = '{root}/tests/data/demo/torch_nn_functional_softmax'
baseline = '{root}/configs/demo/softmax/naive.c'
candidates = ['{root}/configs/demo/softmax/fast.c']
"
    )
}

fn phases<'s>(summary: &'s Summary, stage: &str) -> Vec<&'s Value> {
    list(&summary.document["memory"]["phases"]).iter().filter(|phase| phase["stage"] == stage).collect()
}

fn workers<'s>(summary: &'s Summary, role: &str) -> Vec<&'s Value> {
    list(&summary.document["workers"]).iter().filter(|worker| worker["role"] == role).collect()
}

/// Returns a time as text. All times have the same format, so the texts sort like the times.
fn time<'v>(outcome: &Outcome, row: &'v Value, field: &str) -> &'v str {
    row[field].as_str().unwrap_or_else(|| outcome.fail(format_args!("{row} has no {field}")))
}

#[test]
fn large_job_ends_the_verifier_before_profiling() {
    // Do not allow a spare, because it would start at the same time and owe the memory that the old worker frees.
    let scenario = Scenario::with_plan(&plan("large_job = \"1KiB\"\n[memory]\nspare = false"));
    let (outcome, summary) = scenario.run_plan(0, &[]);

    let first_lease = phases(&summary, "profile")
        .into_iter()
        .map(|phase| time(&outcome, phase, "started"))
        .min()
        .unwrap_or_else(|| outcome.fail("nothing was profiled"));
    let validated: Vec<&Value> = workers(&summary, "verifier")
        .into_iter()
        .filter(|worker| phases(&summary, "verify").iter().any(|phase| phase["worker"] == worker["id"]))
        .collect();
    outcome.expect(!validated.is_empty(), "a verifier has verified");
    for verifier in validated {
        outcome.expect_equal(verifier["recycled_because"].as_str(), Some("before_profile"), "its reason");
        outcome.expect_equal(verifier["end_class"].as_str(), Some("ended"), "it ended by itself");
        let ended = time(&outcome, verifier, "ended");
        outcome.expect(
            ended <= first_lease,
            format_args!("the verifier ended ({ended}) before the first lease of a profiler ({first_lease})"),
        );
        let rows = summary.policy("recycled");
        let row = rows
            .iter()
            .find(|row| row["numbers"]["worker"] == verifier["id"])
            .unwrap_or_else(|| outcome.fail(format_args!("no row of the policy log among {rows:?}")));
        let number = |name: &str| {
            let number = row["numbers"][name].as_u64();
            number.unwrap_or_else(|| outcome.fail(format_args!("{row} has no {name}")))
        };
        let (before, after) = (number("owed_before_bytes"), number("owed_after_bytes"));
        outcome.expect(
            0 < after && after < before,
            format_args!(
                "the run owes less without the verifier, but still more than nothing: {before}, {after}"
            ),
        );
        number("took_ms");
        outcome.expect(row["reason"].as_str().is_some_and(|it| it.contains("before_profile")), "why");
        let decided = summary.policy("recycle");
        let decided = decided
            .iter()
            .find(|row| row["numbers"]["worker"] == verifier["id"])
            .unwrap_or_else(|| outcome.fail("the policy log has no decision to recycle"));
        let bytes = decided["numbers"]["validated_bytes"].as_u64();
        outcome.expect(
            bytes.is_some_and(|bytes| 1024 <= bytes),
            format_args!("the row has the size of the validation: {bytes:?}"),
        );
        outcome.expect(
            time(&outcome, decided, "t") <= time(&outcome, row, "t"),
            "the decision precedes the end of the verifier",
        );
    }
}

#[test]
fn small_job_keeps_its_verifier() {
    let scenario = Scenario::with_plan(&plan("large_job = \"1GiB\""));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    outcome.expect_equal(workers(&summary, "verifier").len(), 1, "one verifier for all");
    outcome.expect_equal(summary.policy("recycled").len(), 0, "workers recycled");
    outcome.expect(workers(&summary, "verifier")[0]["recycled_because"].is_null(), "it ended with the run");
}

#[test]
fn worker_is_replaced_after_its_leases() {
    let scenario = Scenario::with_plan(&plan("after_leases = 1\nbefore_profile = \"never\""));
    let (outcome, summary) = scenario.run_plan(0, &[]);
    let mut verifiers = workers(&summary, "verifier");
    // Ignore spares that got no lease. They end if the machine is short of memory.
    verifiers.retain(|worker| worker["leases"] != 0);
    // Two candidates, each built and verified.
    outcome.expect_equal(verifiers.len(), 4, "a verifier for every lease");
    outcome.expect(verifiers.iter().all(|worker| worker["leases"] == 1), "each verifier had one lease");
    let reasons = verifiers.iter().filter(|it| it["recycled_because"] == "after_leases").count();
    outcome.expect(
        3 <= reasons,
        format_args!("all but the last were recycled because of their leases: {reasons}"),
    );
}
