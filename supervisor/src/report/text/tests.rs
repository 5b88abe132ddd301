//! Tests the whole text of a result, and details that are easy to get wrong: widths, marks and reasons.

use opt_shared::outcome::Estimate;
use opt_shared::stage::Stage;
use proptest::prelude::*;

use super::super::marks::tests::with_varied;
use super::*;
use crate::record::sample::sample;

fn rendered(run: &RunRecord, style: Style) -> String {
    render(run, &Timeline::default(), Path::new("runs/demo"), style)
}

#[test]
fn full_text_matches_its_snapshot() {
    let wanted = "\
embedding: fast.c wins, 2.31x [2.25–2.38] against naive.c, confirmed
  20 entries, 51.0 GiB captured, 5.00 GiB without repeats, from a store

rank  candidate  status              speed-up    median   noise  peak owed
   1  fast.c     PASSED     2.31x [2.25–2.38]    541 µs   0.8 %   31.0 MiB
   2  naive.c    PASSED    1.00x [0.990–1.01]   1.25 ms   0.8 %   31.0 MiB
   -  bad.c      INCORRECT_NUMERICAL                              12.0 MiB

bad.c:
    INCORRECT_NUMERICAL in verify: entry_000003: output differs
    Rows before 1 are right\u{fffd}[31m.

job        stage    predicted   measured   share  phases, worst
embedding  verify    40.0 MiB   31.0 MiB    77 %  1, fast.c

memory owed: peak 111 MiB, ceiling 96.0 GiB, predicted without candidates and
compilers 120 MiB, swap peak 0 B, least available 110 GiB, peak on the device
350 MiB, device ceiling 7.00 GiB
1 memory decision: recycle 1
run demo: FINISHED, runs/demo/summary.json
";
    let run = RunRecord { replays: Vec::new(), ..sample() };
    let text = rendered(&run, Style::default());
    assert_eq!(text, wanted, "\n{text}");
}

#[test]
fn short_text_matches_its_snapshot() {
    let wanted = "\
embedding: fast.c wins, 2.31x [2.25–2.38] against naive.c, confirmed
  20 entries, 51.0 GiB captured, 5.00 GiB without repeats, from a store

rank  candidate  status              speed-up    median   noise  peak owed
   1  fast.c     PASSED     2.31x [2.25–2.38]    541 µs   0.8 %   31.0 MiB
   2  naive.c    PASSED    1.00x [0.990–1.01]   1.25 ms   0.8 %   31.0 MiB

  bad.c: INCORRECT_NUMERICAL: entry_000003: output differs

memory owed: peak 111 MiB, ceiling 96.0 GiB
run demo: FINISHED, runs/demo/summary.json
`opt-supervisor report runs/demo` shows everything
";
    let run = RunRecord { replays: Vec::new(), ..sample() };
    let text = rendered(&run, Style { detail: Detail::Answer, ..Style::default() });
    assert_eq!(text, wanted, "\n{text}");
}

#[test]
fn unsettled_ranking_is_stated_below_the_headline() {
    let mut run = RunRecord { replays: Vec::new(), ..sample() };
    run.jobs[0].ranking = Some(Ranking::Unsettled);
    run.jobs[0].unsettled_because = Some("the times do not settle it".to_owned());
    let text = rendered(&run, Style::default());
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("embedding: fast.c is ahead, but the ranking is not settled, 2.31x [2.25–2.38]")
    );
    assert_eq!(lines.next(), Some("against naive.c"));
    assert_eq!(lines.next(), Some("UNSETTLED: the times do not settle it"));
}

#[test]
fn tied_candidates_are_sorted_by_speed_up_and_brief_ones_marked() {
    let mut run = RunRecord { replays: Vec::new(), ..sample() };
    let job = &mut run.jobs[0];
    job.winner_confirmed = false;
    let mut brief = job.candidates[2].clone();
    brief.name = "brief.c".to_owned();
    brief.speedup = Some(Estimate { value: 1.5, ci_low: 1.3, ci_high: 1.7 });
    brief.rank = Some(2);
    if let Some(profile) = &mut brief.profile {
        profile.stage = Some(Stage::Screen);
        profile.times.converged = Some(false);
        profile.times.noise = Some(0.3);
    }
    job.candidates.push(brief);
    let text = rendered(&run, Style::default());
    assert!(
        text.starts_with("embedding: fast.c wins, 2.31x [2.25–2.38] against naive.c, not confirmed\n"),
        "{text}"
    );
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at("\n   1  fast.c") < at("\n   2  brief.c") && at("\n   2  brief.c") < at("\n   2  naive.c"));
    at("30 %~   31.0 MiB");
    at("~ timed briefly: another candidate is clearly faster");
    assert!(!text.contains("! timing ended"), "{text}");
}

#[test]
fn figures_from_inputs_that_did_not_vary_are_marked_and_not_green() {
    let run = with_varied(0, 1);
    let text = rendered(&run, Style { width: 120, ..Style::default() });
    let headline = "embedding: fast.c wins, 2.31x [2.25–2.38] against naive.c, confirmed, with inputs that were the same in every call\n";
    assert!(text.starts_with(headline), "{text}");
    assert!(text.contains("0.8 %=  31.0 MiB\n"), "{text}");
    let legend = "= inputs were the same in every call, so a kernel may have remembered results (`input`: it is sorted)\n";
    assert!(text.contains(legend), "{text}");
    let colored = |run: &RunRecord| rendered(run, Style { color: true, ..Style::default() });
    assert!(colored(&sample()).contains("\x1b[32mPASSED"));
    assert!(!colored(&run).contains("\x1b[32m") && colored(&run).contains("\x1b[33mPASSED"));
}

#[test]
fn entries_that_count_only_if_slower_are_named() {
    let text = rendered(&with_varied(2, 1), Style { width: 120, ..Style::default() });
    assert!(text.contains("0.8 %   31.0 MiB\n"), "{text}");
    assert!(
        text.contains(
            "= counts only if slower, because a kernel could have remembered results: entry_000000 ("
        ),
        "{text}"
    );
}

#[test]
fn lines_keep_their_width_with_and_without_colour() {
    let mut run = sample();
    for candidate in &mut run.jobs[0].candidates {
        candidate.name = format!("generated/deeply/nested/folders/of/a/proposer/{}", candidate.name);
        candidate.feedback = None;
    }
    run.jobs[0].winner = None;
    run.jobs[0].status = JobStatus::Pending;
    for width in [MIN_WIDTH, 80, 120] {
        let plain = rendered(&run, Style { width, ..Style::default() });
        for line in plain.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        assert!(plain.contains("fast.c") && plain.contains("at [1, 0]: expected 1, got 2"), "{plain}");
        let mut colored = rendered(&run, Style { width, color: true, ..Style::default() });
        assert!(colored.contains("\x1b[32m"));
        for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m"] {
            colored = colored.replace(code, "");
        }
        assert_eq!(colored, plain);
    }
}

proptest! {
    #[test]
    fn wrapping_keeps_every_character_and_the_width(text in "[a-zé ]{0,120}", width in 1usize..30) {
        let lines = wrap(&text, width);
        prop_assert!(lines.iter().all(|line| line.chars().count() <= width));
        let solid = |text: &str| text.replace(' ', "");
        prop_assert_eq!(solid(&lines.concat()), solid(&text));
    }
}

#[test]
fn wrapping_keeps_the_alignment_of_compiler_marks() {
    assert_eq!(wrap("  3 |   int x", 20), ["  3 |   int x"]);
    assert_eq!(wrap("one two three", 7), ["one two", "three"]);
    assert_eq!(wrap("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
}

#[test]
fn headline_says_why_there_is_no_winner_or_that_the_baseline_failed() {
    for &status in JobStatus::ALL {
        let mut run = sample();
        let job = &mut run.jobs[0];
        job.winner = None;
        job.status = status;
        job.detail = Some("the reason".to_owned());
        let headline = headline(job);
        assert!(headline.starts_with("embedding: no winner"), "{headline}");
        assert!(headline.ends_with("the reason"), "{headline}");
    }
    let mut run = sample();
    run.jobs[0].baseline = None;
    assert_eq!(headline(&run.jobs[0]), "embedding: fast.c wins with 1.25 ms");
    run.jobs[0].status = JobStatus::BaselineFailed;
    run.jobs[0].detail = Some("the baseline ended with status CRASHED".to_owned());
    assert_eq!(
        headline(&run.jobs[0]),
        "embedding: fast.c wins with 1.25 ms, BASELINE_FAILED (the baseline ended with status CRASHED)"
    );
}

#[test]
fn unknown_figure_is_a_dash_and_unconverged_one_is_marked() {
    let mut run = sample();
    let job = &mut run.jobs[0];
    job.candidates.truncate(2);
    job.candidates[0].status = None;
    job.candidates[0].resources.runner_peak_owed_bytes = None;
    let profile = job.candidates[1].profile.as_mut().expect("timed");
    profile.times.converged = Some(false);
    profile.times.median_time_ms = None;
    let text = rendered(&run, Style::default());
    let row = |name: &str| text.lines().find(|line| line.contains(name)).expect("a row").to_owned();
    assert!(row("not finished").ends_with(" -"), "{text}");
    assert!(row("  naive.c ").contains("  -  0.8 %!"), "{text}");
}
