//! Tests the policy with a simulated cache and a candidate that touches pages in a given order.

use super::*;

const PAGE: u64 = 4096;
/// The number of pages of an input of 128 MiB.
const PAGES: u64 = 32_768;
/// The number of pages of one MiB.
const MIB: u64 = 256;

/// A simulated cache and candidate. The policy checks after every `check_interval`th touch.
struct Bench {
    policy: ReadaheadPolicy,
    cached: Vec<bool>,
    misses: u64,
    /// The largest number of untouched pages that were in the cache at once.
    excess: u64,
}

/// The initial state of a policy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Unknown,
    /// The previous entry used the whole input, and touches are observed.
    Whole,
}

impl Bench {
    fn run(cached: Vec<bool>, check_interval: u64, touches: impl IntoIterator<Item = u64>) -> Self {
        Self::run_from(Start::Unknown, cached, check_interval, touches)
    }

    fn run_from(
        start: Start,
        cached: Vec<bool>,
        check_interval: u64,
        touches: impl IntoIterator<Item = u64>,
    ) -> Self {
        let pages = cached.len() as u64;
        let mut used = vec![false; cached.len()];
        let of = |cached: &[bool], pages: Range<u64>| {
            cached[to_index(pages.start)..to_index(pages.end)].iter().filter(|page| **page).count() as u64
        };
        let policy = ReadaheadPolicy::new(pages, PAGE, |pages| of(&cached, pages));
        let warm = of(&cached, 0..pages);
        let mut it = Self { policy, cached, misses: 0, excess: 0 };
        let mut used_pages = 0;
        if start == Start::Whole {
            it.policy
                .expect_all(LONG_STEPS_AHEAD)
                .into_iter()
                .flatten()
                .for_each(|page| it.cached[to_index(page)] = true);
        }
        for (number, page) in touches.into_iter().enumerate() {
            used_pages += u64::from(!std::mem::replace(&mut used[to_index(page)], true));
            it.misses += u64::from(!std::mem::replace(&mut it.cached[to_index(page)], true));
            if number as u64 % check_interval == check_interval - 1 {
                let mut due = it.policy.follow(|Tripwire { page, left_out }| {
                    used[to_index(page)] || (left_out && it.cached[to_index(page)])
                });
                for window in 0..it.policy.windows() {
                    if !it.policy.was_read(window) {
                        let resident = of(&it.cached, it.policy.pages_of(window..window + 1));
                        due.extend(it.policy.seen(window, resident, None));
                    }
                }
                for page in due.into_iter().flatten() {
                    it.cached[to_index(page)] = true;
                }
                let now = of(&it.cached, 0..pages);
                it.excess = it.excess.max(now.saturating_sub(warm + used_pages));
            }
        }
        it
    }

    fn resident(&self) -> u64 {
        self.cached.iter().filter(|page| **page).count() as u64
    }
}

fn cold() -> Vec<bool> {
    vec![false; to_index(PAGES)]
}

fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0..count).scan(7, |at, _| {
        *at = (*at * 5 + 12_345) % PAGES;
        Some(*at)
    })
}

#[test]
fn each_access_pattern_stays_within_its_read_limits() {
    struct Case {
        name: &'static str,
        touches: Vec<u64>,
        misses: u64,
        resident: u64,
        turned: bool,
    }
    let row = |start: u64| start..start + 2;
    let cases = [
        Case { name: "nothing", touches: vec![], misses: 0, resident: 0, turned: false },
        Case {
            name: "from front to back",
            touches: (0..PAGES).collect(),
            // The candidate misses half a window until that window is read whole, and one tripwire in each of fewer
            // than 30 steps. The bound allows 64 more.
            misses: 64 + 64 + 30,
            resident: PAGES,
            turned: true,
        },
        Case {
            name: "scattered rows, as many as an embedding looks up",
            touches: scattered(600).map(|page| page.min(PAGES - 2)).flat_map(row).collect(),
            misses: 1200,
            resident: 1200,
            turned: false,
        },
        Case {
            name: "one MiB in the middle",
            touches: (40 * MIB..41 * MIB).collect(),
            misses: 160,
            resident: MIB + 6 * MIB,
            turned: true,
        },
        Case {
            name: "from back to front, window by window",
            touches: (0..PAGES).rev().collect(),
            misses: PAGES / 2 + 64,
            resident: PAGES,
            turned: true,
        },
        Case {
            name: "every page in random order",
            touches: scattered(PAGES).collect(),
            // Once a sixteenth of the input was touched, a window is read as soon as a sixteenth of it was touched.
            misses: PAGES / 8,
            resident: PAGES,
            turned: true,
        },
        Case {
            name: "two threads that start at two offsets",
            touches: (0..PAGES / 2).flat_map(|page| [page, PAGES / 2 + page]).collect(),
            misses: 2 * (64 + 64 + 30),
            resident: PAGES,
            turned: true,
        },
    ];
    for Case { name, touches, misses, resident, turned } in cases {
        let bench = Bench::run(cold(), 16, touches);
        assert!(bench.misses <= misses, "{name}: {} misses, {misses} expected", bench.misses);
        assert!(bench.resident() <= resident, "{name}: {} pages read", bench.resident());
        assert_eq!(bench.policy.turned_after().is_some(), turned, "{name}");
    }
}

#[test]
fn reading_ahead_stays_within_its_bound() {
    for start in [0, 1, 77 * MIB] {
        let bench = Bench::run(cold(), 16, start..PAGES);
        let bound = (LONG_STEPS_AHEAD as u64 + 1) * MAX_STEP * WINDOW_BYTES / PAGE;
        assert!(bench.excess <= bound, "{} pages ahead", bench.excess);
    }
    // Sixteen streams that each read for a while and stop.
    let touches = (0..16).flat_map(|start| start * 8 * MIB..start * 8 * MIB + 3 * MIB);
    let bench = Bench::run(cold(), 16, touches);
    assert!(bench.excess <= 16 * 5 * MIB, "{}", bench.excess);
}

#[test]
fn expected_inputs_are_read_before_they_are_touched() {
    let bench = Bench::run_from(Start::Whole, cold(), 16, 0..PAGES);
    assert_eq!(bench.misses, 0);
    assert_eq!(bench.resident(), PAGES);
    assert!(bench.policy.is_read());
    assert!(bench.policy.was_used_whole());
    // The candidate touches nothing: nothing more is read, and the next entry does not expect a whole read.
    let ahead = LONG_STEPS_AHEAD as u64 * MAX_STEP * WINDOW_BYTES / PAGE;
    for touched in [0..0, PAGES - 3..PAGES] {
        let bench = Bench::run_from(Start::Whole, cold(), 1, touched);
        assert!(bench.resident() <= ahead + 3, "{}", bench.resident());
        assert!(!bench.policy.was_used_whole());
    }
    // A candidate that uses a tenth of the pages does not use the input as a whole.
    for (part, whole) in [(PAGES / 2 + 4 * MIB, true), (PAGES / 10, false)] {
        assert_eq!(Bench::run(cold(), 16, 0..part).policy.was_used_whole(), whole, "{part}");
    }
}

#[test]
fn pages_that_linux_read_ahead_count_only_if_touches_are_unknown() {
    for (touched, turned) in [(Some(3), false), (None, true)] {
        let mut policy = ReadaheadPolicy::new(PAGES, PAGE, |_| 0);
        let due = policy.seen(5, MIB / 2, touched);
        assert_eq!(due.is_empty(), !turned, "{touched:?}");
        assert_eq!(policy.touched(), touched.unwrap_or(MIB / 2));
        // A process that has ended has no page tables, but its earlier touches still count.
        let _ = policy.seen(5, MIB / 2, touched.map(|_| 0));
        assert_eq!(policy.touched(), touched.unwrap_or(MIB / 2));
    }
}

#[test]
fn policy_continues_after_touches_become_unobservable() {
    let mut policy = ReadaheadPolicy::new(2 * PAGES, PAGE, |_| 0);
    let first = policy.expect_all(LONG_STEPS_AHEAD);
    let end = first.last().expect("it is read").end;
    assert!(policy.follow(|_| true).first().is_some_and(|due| due.start == end), "touches are seen");
    policy.stop_observing_touches();
    assert!(policy.follow(|tripwire| tripwire.left_out).is_empty());
    let window = (0..policy.windows()).find(|window| !policy.was_read(*window)).expect("not all is read");
    assert!(!policy.seen(window, MIB / 2, None).is_empty(), "half of a window");
}

#[test]
fn pages_evicted_meanwhile_count_when_touched() {
    let mut policy = ReadaheadPolicy::new(PAGES, PAGE, |pages| pages.end - pages.start);
    assert!(policy.seen(3, 0, None).is_empty());
    assert!(!policy.seen(3, MIB / 2, None).is_empty());
    assert_eq!(policy.touched(), MIB / 2);
}

#[test]
fn policy_reads_nothing_after_end() {
    let mut policy = ReadaheadPolicy::new(PAGES, PAGE, |_| 0);
    policy.expect_all(1);
    let ahead = policy.ahead();
    policy.end();
    assert!(policy.follow(|_| true).is_empty());
    let last = policy.windows() - 1;
    assert!(policy.seen(last, MIB / 2, None).is_empty());
    assert_eq!((policy.ahead(), policy.touched()), (ahead, MIB / 2));
}

#[test]
fn pages_cached_before_do_not_count_as_touches() {
    let warm = vec![true; to_index(PAGES)];
    let bench = Bench::run(warm, 1, 0..PAGES);
    assert_eq!((bench.policy.touched(), bench.policy.ahead()), (0, 0));
    let half: Vec<bool> = (0..PAGES).map(|page| page % 2 == 0).collect();
    let bench = Bench::run(half, 1, scattered(200));
    assert!(bench.policy.turned_after().is_none(), "half of every window was there before");
}

#[test]
fn read_and_touched_pages_add_up_to_the_cached_pages() {
    for touches in [0..PAGES, 5..6 * MIB, 3..9] {
        let mut bench = Bench::run(cold(), 1, touches);
        // Counts pages that were touched after the last check.
        let _ = bench.policy.follow(|tripwire| bench.cached[to_index(tripwire.page)]);
        let counted = bench.policy.touched() + bench.policy.ahead();
        assert!(counted <= bench.resident() && bench.resident() <= counted + 64, "{counted}");
    }
}
