//! Compares the planner with an independent simulator of the same rules.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The counts of a simulation. The simulation applies the rules in docs/explanation/replay.md literally. Each time, it
/// searches for the next use and adds up the sizes in the pool, whereas the planner keeps lists and running sums.
#[derive(Debug, Default, PartialEq, Eq)]
struct Simulated {
    moved: u64,
    hits: u64,
    misses: u64,
    evictions: u64,
    peak: u64,
}

fn simulate(sets: &[Vec<u32>], slots: &[u64], pinned: &[bool], budget: u64, depth: usize) -> Simulated {
    let mut pool: BTreeSet<u32> = BTreeSet::new();
    let mut seen = Simulated::default();
    let weigh = |pool: &BTreeSet<u32>| pool.iter().map(|&it| slots[it as usize]).sum::<u64>();
    let used_from = |it: u32, from: usize| (from..sets.len()).find(|&at| sets[at].contains(&it));
    for now in 0..sets.len() {
        // The step's own constants come first, then the constants of later steps.
        for target in now..=(now + depth).min(sets.len() - 1) {
            let mut stuck = false;
            for &it in &sets[target] {
                if pool.contains(&it) {
                    seen.hits += u64::from(target == now);
                    continue;
                }
                seen.misses += u64::from(target == now);
                let mut after = pool.clone();
                let mut gone = 0;
                while budget < weigh(&after) + slots[it as usize] {
                    // This evicts the constant whose next use is farthest away. If there are several, it evicts the
                    // first of them.
                    let far = |it: u32| used_from(it, now + usize::from(target != now)).unwrap_or(usize::MAX);
                    let victim = after
                        .iter()
                        .copied()
                        .filter(|it| !pinned[*it as usize] && !sets[now].contains(it) && target < far(*it))
                        .max_by_key(|&it| (far(it), std::cmp::Reverse(it)));
                    match victim {
                        Some(victim) => after.remove(&victim),
                        None => {
                            stuck = true;
                            break;
                        }
                    };
                    gone += 1;
                }
                if stuck {
                    break;
                }
                after.insert(it);
                seen.evictions += gone;
                seen.moved += slots[it as usize];
                pool = after;
                seen.peak = seen.peak.max(weigh(&pool));
            }
            if stuck {
                assert_ne!(target, now, "a step's own tensors always fit");
                break;
            }
        }
    }
    seen
}

fn bytes(all: &[u64]) -> Vec<Bytes> {
    all.iter().copied().map(Bytes::new).collect()
}

/// A random input for the planner.
#[derive(Debug)]
struct Case {
    sets: Vec<Vec<u32>>,
    slots: Vec<u64>,
    pinned: Vec<bool>,
}

impl Case {
    fn floor(&self) -> u64 {
        opt_shared::replay::floor(&self.sets, &bytes(&self.slots), &self.pinned).bytes().get()
    }

    fn plan(&self, budget: u64, depth: u32) -> Result<MovePlan, BelowFloor> {
        let slots = bytes(&self.slots);
        plan(Wanted {
            sets: &self.sets,
            slots: &slots,
            bytes: &slots,
            pinned: &self.pinned,
            budget: Bytes::new(budget),
            depth,
        })
    }
}

/// Applies the moves to an empty pool. Panics if a move is invalid, or if a step starts while one of its constants is
/// missing.
fn walk(case: &Case, plan: &MovePlan, budget: u64) {
    let mut pool: BTreeSet<u32> = BTreeSet::new();
    let apply = |one: &Move, running: &[u32], pool: &mut BTreeSet<u32>| {
        match one {
            Move::Load(it) => assert!(pool.insert(*it), "{it} is in the pool already"),
            Move::Evict(it) => {
                assert!(!running.contains(it), "{it} is in use");
                assert!(!case.pinned[*it as usize], "{it} is pinned");
                assert!(pool.remove(it), "{it} is not in the pool");
            }
        }
        assert!(pool.iter().map(|&it| case.slots[it as usize]).sum::<u64>() <= budget, "over the budget");
    };
    for (set, moves) in case.sets.iter().zip(&plan.steps) {
        moves.before.iter().for_each(|one| apply(one, set, &mut pool));
        assert!(set.iter().all(|it| pool.contains(it)), "a constant of the step is missing");
        moves.during.iter().for_each(|one| apply(one, set, &mut pool));
    }
}

fn cases() -> impl Strategy<Value = Case> {
    (1usize..12).prop_flat_map(|constants| {
        let one = 0..u32::try_from(constants).unwrap_or(1);
        (
            prop::collection::vec(prop::collection::btree_set(one, 0..5), 1..30),
            prop::collection::vec(1u64..100, constants),
            prop::collection::vec(prop::bool::weighted(0.15), constants),
        )
            .prop_map(|(sets, slots, pinned)| Case {
                sets: sets.into_iter().map(|set| set.into_iter().collect()).collect(),
                slots,
                pinned,
            })
    })
}

proptest! {
    #[test]
    fn moves_are_valid_and_their_totals_match_an_independent_simulator(case in cases(), depth in 0u32..4, share in 0.0f64..1.0) {
        let (floor, whole) = (case.floor(), case.slots.iter().sum::<u64>());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share")]
        let between = floor + ((whole - floor) as f64 * share) as u64;
        for budget in [floor, between, whole] {
            let plan = case.plan(budget, depth).expect("at the floor or above");
            walk(&case, &plan, budget);
            let hits = plan.steps.iter().map(|step| u64::from(step.hits)).sum();
            let misses = plan.steps.iter().map(|step| u64::from(step.misses)).sum();
            let planned = Simulated {
                moved: plan.bytes_moved.get(), hits, misses, evictions: plan.evictions, peak: plan.peak.get(),
            };
            prop_assert_eq!(planned, simulate(&case.sets, &case.slots, &case.pinned, budget, depth as usize));
            if budget == whole {
                prop_assert_eq!(plan.evictions, 0);
            }
        }
        if let Some(below) = floor.checked_sub(1) {
            let refused = case.plan(below, depth).expect_err("below the floor");
            prop_assert_eq!(refused.floor.bytes().get(), floor);
        }
    }
}

/// The uses cycle through more constants than fit into the pool. If the least recently used constant were evicted,
/// every use would be a miss.
#[test]
fn cycle_larger_than_the_pool_still_has_hits() {
    let case = Case {
        sets: (0..100).map(|it| vec![it % 10]).collect(),
        slots: vec![10; 10],
        pinned: vec![false; 10],
    };
    let plan = case.plan(60, 0).expect("above the floor");
    let misses: u32 = plan.steps.iter().map(|step| step.misses).sum();
    assert_eq!(
        misses,
        10 + 40,
        "after the first pass, each use finds five of the nine other constants in the pool"
    );
    assert_eq!(case.plan(100, 0).expect("all of it").bytes_moved, Bytes::new(100));
    assert_eq!(case.floor(), 30);
}
