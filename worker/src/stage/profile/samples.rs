//! Collects the measurements of one side of an entry, from all runners of that side.

use std::time::Duration;

use rand::Rng;

use crate::session::{Block, DeviceBlock, IdleRound, Look, WIDEST_ELEMENT};

/// The maximum number of blocks that are kept.
const MAX_KEPT: usize = 24;

#[derive(Default)]
pub(super) struct Samples {
    /// For each block, the milliseconds per call, without the hand-off.
    pub(super) ms: Vec<f64>,
    /// For each block in `ms`, the milliseconds per call for which threads waited for a CPU, or 0 if this is unknown.
    pub(super) waited_ms: Vec<f64>,
    /// For each block, the milliseconds per call with the hand-off, which are an upper bound of the time of a call.
    /// This list also contains blocks that `ms` may leave out: disturbed blocks, and blocks that took no longer than
    /// the hand-off.
    pub(super) most_ms: Vec<f64>,
    /// For each block, the time by the runner's own clock, divided by the worker's time without the hand-off. On a
    /// device, the time by the host's clock, divided by the device's time.
    pub(super) claims: Vec<f64>,
    pub(super) rounds: Vec<IdleRound>,
    pub(super) discarded: u32,
    pub(super) slots_checked: u64,
    pub(super) plan_ms: Option<f64>,
    /// The shortest estimate so far of the time of a call.
    pub(super) estimate: Duration,
    /// True if the current runner has made a timed call. This matters for the time limit, because the first call may
    /// compile.
    pub(super) called: bool,
    pub(super) threads: u32,
    /// The total time of the timed blocks.
    elapsed: Duration,
    /// The total time for which the runner's threads waited for a CPU in these blocks, averaged over the threads. It
    /// includes the waits of the worker's thread. `None` if the operating system does not report waits.
    waited: Option<Duration>,
    /// The device's readings for each timed block. The list is empty on a CPU.
    pub(super) on_device: Vec<DeviceBlock>,
    pub(super) kept: Vec<KeptBlock>,
    /// The number of blocks that were offered to `keep` so far.
    offered: usize,
}

/// A block that a fresh runner repeats later, to compare the outputs.
pub(super) struct KeptBlock {
    /// The seed of the block's inputs.
    pub(super) seed: u64,
    pub(super) calls: u32,
    pub(super) looks: Vec<Look>,
    pub(super) elements: Vec<[u8; WIDEST_ELEMENT]>,
}

impl Samples {
    /// Adds the elapsed time and the waiting time of a timed block, and the device's readings if there are any.
    pub(super) fn add(&mut self, block: &Block) {
        self.elapsed += block.elapsed;
        if let Some(waited) = block.waited {
            *self.waited.get_or_insert_default() += waited / block.wake.threads.max(1);
        }
        self.on_device.extend(block.on_device);
    }

    /// Returns the device's clock rate in each block, in MHz.
    pub(super) fn clocks(&self) -> impl Iterator<Item = u32> {
        self.on_device.iter().filter_map(|block| block.pace.clock_mhz)
    }

    /// Returns the time for which runner and worker waited for a CPU, as a share of the time of the timed blocks. The
    /// share is at most 1. Returns `None` if the operating system does not report waits.
    pub(super) fn wait_share(&self) -> Option<f64> {
        let share = self.waited?.as_secs_f64() / self.elapsed.as_secs_f64();
        share.is_finite().then_some(share.min(1.0))
    }

    /// Offers a block to the random sample of kept blocks. Each block that was offered has the same probability of
    /// being in the sample.
    pub(super) fn keep(&mut self, block: KeptBlock, random: &mut impl Rng) {
        self.offered += 1;
        if self.kept.len() < MAX_KEPT {
            self.kept.push(block);
            return;
        }
        let at = random.random_range(0..self.offered);
        if let Some(place) = self.kept.get_mut(at) {
            *place = block;
        }
    }
}

/// The limit on waiting in a block, as the reciprocal of a share of the block's time. If runner and worker together
/// waited for a CPU for longer than this share, the block counts as preempted.
const PREEMPTED_ONE_IN: u32 = 50;

/// Returns the largest number of threads of a side.
pub(super) fn most_threads(sides: &[Samples]) -> u32 {
    sides.iter().map(|side| side.threads).max().unwrap_or(1)
}

/// Returns true if the runner or the worker's thread had to wait for a CPU during the block because other processes
/// used it. Returns false for runners with several threads, because these threads can wait for each other.
pub(super) fn was_preempted(block: &Block) -> bool {
    block.wake.threads == 1 && block.waited.is_some_and(|waited| block.elapsed / PREEMPTED_ONE_IN < waited)
}

/// Returns true if the runner has several threads, and these waited for a CPU for more than a fiftieth of the block on
/// average. Such a block is not discarded, but it may have taken longer than its work.
pub(super) fn threads_waited(block: &Block) -> bool {
    let threads = block.wake.threads;
    1 < threads && block.waited.is_some_and(|waited| block.elapsed / PREEMPTED_ONE_IN < waited / threads)
}

#[cfg(test)]
pub(super) mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::session::pace::Pace;
    use crate::session::{Called, WakeCost};

    /// A block of 200 us.
    pub(in crate::stage::profile) fn block(threads: u32, waited_us: u64) -> Block {
        Block {
            elapsed: Duration::from_micros(200),
            called: Called::default(),
            wake: WakeCost { cpu: Duration::ZERO, threads },
            cpus_busy: 1.0,
            waited: Some(Duration::from_micros(waited_us)),
            changed: None,
            on_device: None,
        }
    }

    #[test]
    fn most_threads_are_those_of_the_side_with_more() {
        let side = |threads| Samples { threads, ..Samples::default() };
        assert_eq!(most_threads(&[side(3), side(2)]), 3);
        assert_eq!(most_threads(&[side(2), side(4)]), 4);
        assert_eq!(most_threads(&[]), 1, "before the first block");
    }

    #[test]
    fn block_that_waited_for_more_than_a_fiftieth_of_its_time_was_preempted() {
        assert!(was_preempted(&block(1, 5)));
        assert!(!was_preempted(&block(1, 4)));
        assert!(!was_preempted(&block(2, 150)), "threads can wait for each other");
        assert!(!was_preempted(&Block { waited: None, ..block(1, 150) }));
        assert!(threads_waited(&block(2, 9)) && !threads_waited(&block(2, 8)));
        assert!(!threads_waited(&block(1, 150)) && !threads_waited(&Block { waited: None, ..block(2, 150) }));
        let mut samples = Samples::default();
        assert_eq!(samples.wait_share(), None);
        samples.add(&block(1, 50));
        samples.add(&block(1, 150));
        assert_eq!(samples.wait_share(), Some(0.5));
        samples.add(&block(4, 800));
        assert!(
            (samples.wait_share().expect("known") - 400.0 / 600.0).abs() < 1e-6,
            "an average over threads"
        );
        for clock_mhz in [Some(1980), None, Some(1200)] {
            let pace = Pace { clock_mhz, ..Pace::default() };
            samples.add(&Block { on_device: Some(DeviceBlock { pace, is_graph: false }), ..block(1, 0) });
        }
        assert_eq!(samples.clocks().collect::<Vec<u32>>(), [1980, 1200]);
    }

    #[test]
    fn late_blocks_are_kept_as_often_as_early_ones() {
        let mut random = SmallRng::seed_from_u64(3);
        let mut samples = Samples::default();
        for seed in 0..1000 {
            let block = KeptBlock { seed, calls: 1, looks: Vec::new(), elements: Vec::new() };
            samples.keep(block, &mut random);
        }
        assert_eq!(samples.kept.len(), MAX_KEPT);
        let late = samples.kept.iter().filter(|block| 500 <= block.seed).count();
        assert!((4..=20).contains(&late), "{late} of {MAX_KEPT}");
    }
}
