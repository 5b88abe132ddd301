//! Tests that a page has its figures, escapes foreign text, loads nothing and stays small.

use super::super::digest::tests::digest_of;
use super::super::marks::tests::with_varied;
use super::super::sketch;
use super::*;
use crate::record::RunRecord;
use crate::record::sample::sample;

fn page(run: RunRecord) -> String {
    let mut digest = digest_of(run, LIMITS);
    digest.timeline = sketch::timeline();
    render(&digest).expect("draws")
}

#[test]
fn page_contains_the_results_of_the_run() {
    let page = page(sample());
    for figure in [
        "2.31×",
        "between 2.25× and 2.38×",
        "fast.c",
        "INCORRECT_NUMERICAL",
        "peak owed",
        "111 MiB",
        "96.0 GiB",
        "entry_000003",
        "expected",
        "a cpu",
        "opt-supervisor run demo.toml",
        "landlock",
        "ceiling 1000 MiB",
    ] {
        assert!(page.contains(figure), "{figure}");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("name=\"viewport\""));
}

#[test]
fn figures_from_inputs_that_did_not_vary_are_marked_and_not_green() {
    let green = ["<p class=\"big\">", "<tr class=\"winner\">", "tag good", "range winner"];
    let settled = page(sample());
    let unvaried = page(with_varied(0, 1));
    for class in green {
        assert!(settled.contains(class) && !unvaried.contains(class), "{class}");
    }
    for part in [
        "<abbr>=</abbr>",
        "confirmed, with inputs that were the same in every call",
        "= inputs were the same in every call, so a kernel may have remembered results (`input`: it is sorted)",
    ] {
        assert!(unvaried.contains(part) && !settled.contains(part), "{part}");
    }
}

#[test]
fn page_has_no_script_and_loads_nothing() {
    let page = page(sample());
    for never in ["<script", "<link", "<img", "@import", "url(", "javascript:"] {
        assert!(!page.contains(never), "{never}");
    }
    // This is the name of an XML namespace, not an address that is loaded.
    let addresses = page.matches("http").count() - page.matches("http-equiv").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count());
    assert!(page.contains("default-src 'none'"));
    // If a tag has two class attributes, a browser silently uses only the first.
    for tag in page.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        assert!(tag.matches(" class=\"").count() < 2, "{tag}");
    }
}

#[test]
fn foreign_text_cannot_become_markup() {
    let hostile = "</style></pre></title><script>alert('1')</script>\" onload=\"x()\" &amp; \u{0}\u{1b}[31m\u{202e}\n<b>";
    let mut run = sample();
    run.run.name = hostile.to_owned();
    run.run.command = Some(hostile.to_owned());
    run.host.cpu = Some(hostile.to_owned());
    run.host.protections[0].detail = hostile.to_owned();
    run.policy[0].reason = hostile.to_owned();
    run.workers[0].recycled_because = Some(hostile.to_owned());
    run.memory.phases[0].candidate = Some(hostile.to_owned());
    let job = &mut run.jobs[0];
    job.name = hostile.to_owned();
    (job.winner, job.baseline, job.detail) = (Some(hostile.to_owned()), None, Some(hostile.to_owned()));
    for candidate in &mut job.candidates {
        let texts = [&mut candidate.name];
        texts.into_iter().for_each(|text| *text = hostile.to_owned());
        candidate.detail = Some(hostile.to_owned());
        candidate.feedback = Some(hostile.to_owned());
        candidate.signal = Some(hostile.to_owned());
        candidate.stderr_tail = Some(hostile.to_owned());
        candidate.stdout_tail = Some(hostile.to_owned());
        candidate.source.path = Some(hostile.to_owned());
        for failure in &mut candidate.failures {
            failure.entry = hostile.to_owned();
            failure.args = vec![hostile.to_owned()];
            if let Some(mismatch) = &mut failure.mismatch {
                mismatch.output = hostile.to_owned();
                mismatch.expected = hostile.to_owned();
                mismatch.actual = hostile.to_owned();
            }
        }
        for entry in candidate.profile.iter_mut().flat_map(|profile| &mut profile.entries) {
            entry.entry = hostile.to_owned();
        }
        if let Some(build) = &mut candidate.build {
            build.flags = vec![hostile.to_owned()];
            build.log_head = hostile.to_owned();
        }
    }
    let page = page(run);
    assert!(!page.contains("<script") && !page.contains("<b>&"), "markup");
    // A quotation mark would end the attribute.
    assert!(!page.contains("\" onload=\""), "an attribute");
    for title in page.split("title=\"").skip(1) {
        let value = title.split('"').next().expect("it ends");
        assert!(!value.contains('<'), "{value}");
    }
    assert_eq!(page.matches("</style>").count(), 1);
    assert!(!page.contains(['\u{0}', '\u{1b}', '\u{202e}']), "control characters");
}

#[test]
fn page_of_many_candidates_says_how_many_it_left_out() {
    let mut run = sample();
    let log = "x".repeat(6_000);
    let job = &mut run.jobs[0];
    let (failed, passed) = (job.candidates[0].clone(), job.candidates[1].clone());
    for number in 0..500 {
        let mut one = failed.clone();
        one.name = format!("bad-{number}");
        (one.stderr_tail, one.stdout_tail) = (Some(log.clone()), Some(log.clone()));
        job.candidates.push(one);
        let mut other = passed.clone();
        other.name = format!("good-{number}");
        other.rank = Some(number + 3);
        job.candidates.push(other);
    }
    let other = run.jobs[0].clone();
    run.jobs = vec![other; 20];
    let page = page(run);
    assert!(page.len() < 2 << 20, "{}", page.len());
    assert!(page.contains("501 candidates did not pass") && page.contains("more are left out here"));
    assert!(page.contains("more candidates are not shown"));
}
