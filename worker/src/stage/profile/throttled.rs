//! Decides whether a timed pair was disturbed by another process, or by a device that ran slower than usual. This file
//! does no I/O.

use std::time::Duration;

use super::{BASELINE, CANDIDATE};
use crate::session::Block;

/// The share of the median clock rate below which a block counts as throttled.
const LEAST_SHARE: f64 = 0.75;

/// The measurements of a pair of blocks, or of a single block if there is no baseline.
pub(super) struct Timed {
    /// For each side, the time of its block with the hand-off.
    pub(super) elapsed: Vec<Duration>,
    /// For each side, the time of its block by the runner's own clock or, on a device, by the host's clock. The list is
    /// empty if the times are sums over several blocks.
    pub(super) claimed: Vec<Duration>,
    /// The number of calls in each of these times.
    pub(super) calls: u32,
    /// The number of hand-offs in each of these times.
    pub(super) handoffs: u32,
    /// For each side, true if its block was preempted, which means that its runner or the worker had to wait for a CPU.
    pub(super) preempted: Vec<bool>,
    /// For each side, the milliseconds per call for which the runner's threads and the worker's thread waited for a
    /// CPU, or 0 if this is unknown.
    pub(super) waited_ms: Vec<f64>,
    /// True if a side has several threads, and these waited for a noticeable share of its block.
    pub(super) threads_waited: bool,
    /// The device's clock rate in each side's block, in MHz.
    pub(super) clocks: Vec<Option<u32>>,
}

impl Timed {
    fn net(&self, side: usize, handoff: Duration) -> Option<Duration> {
        Some(self.elapsed.get(side)?.saturating_sub(handoff * self.handoffs))
    }

    /// Returns the milliseconds per call of a side, without the hand-offs.
    pub(super) fn ms(&self, side: usize, handoff: Duration) -> Option<f64> {
        self.net(side, handoff).map(|net| ms_per_call(net, self.calls))
    }

    /// Returns the time by the runner's own clock, divided by the worker's time without the hand-offs.
    pub(super) fn claim(&self, side: usize, handoff: Duration) -> Option<f64> {
        Some(self.claimed.get(side)?.as_secs_f64() / self.net(side, handoff)?.as_secs_f64().max(1e-9))
    }

    /// Returns the time of the faster side's block. If the times are sums over several blocks, this is the average over
    /// that side's blocks.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.elapsed.iter().min().map(|&elapsed| elapsed / self.handoffs.max(1))
    }

    /// Returns the time of a call of the baseline, divided by the time of a call of the candidate.
    pub(super) fn ratio(&self, handoff: Duration) -> Option<f64> {
        Some(self.ms(BASELINE, handoff)? / self.ms(CANDIDATE, handoff)?)
    }

    /// Returns true if something outside the kernel slowed this side down: another process, or a low clock rate of the
    /// device.
    pub(super) fn is_disturbed(&self, side: usize, least_clock: Option<f64>) -> bool {
        self.preempted.get(side) == Some(&true) || is_throttled(self, side, least_clock)
    }

    pub(super) fn is_calm(&self, least_clock: Option<f64>) -> bool {
        (0..self.elapsed.len()).all(|side| !self.is_disturbed(side, least_clock))
    }
}

pub(super) fn ms_per_call(time: Duration, calls: u32) -> f64 {
    time.as_secs_f64() * 1e3 / f64::from(calls)
}

pub(super) fn clock_of(block: &Block) -> Option<u32> {
    block.on_device?.pace.clock_mhz
}

/// Returns the clock rate, in MHz, below which a block counts as throttled. It is a share of the median of all blocks
/// so far. Returns `None` on a CPU, or if the device did not report its clock rate.
pub(super) fn least_clock(clocks: impl Iterator<Item = u32>) -> Option<f64> {
    let mut clocks: Vec<u32> = clocks.collect();
    clocks.sort_unstable();
    clocks.get(clocks.len() / 2).map(|&median| f64::from(median) * LEAST_SHARE)
}

/// Returns true if a side of the pair ran with a clock rate below `least`, which is in MHz.
pub(super) fn is_throttled(pair: &Timed, side: usize, least: Option<f64>) -> bool {
    let clock = pair.clocks.get(side).copied().flatten();
    clock.zip(least).is_some_and(|(clock, least)| f64::from(clock) < least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::pace::Pace;
    use crate::session::{Called, DeviceBlock, WakeCost};

    fn scripted_block() -> Block {
        Block {
            elapsed: Duration::ZERO,
            called: Called::default(),
            wake: WakeCost { cpu: Duration::ZERO, threads: 1 },
            cpus_busy: 1.0,
            waited: None,
            changed: None,
            on_device: None,
        }
    }

    fn pair(clocks: [Option<u32>; 2]) -> Timed {
        Timed {
            elapsed: vec![Duration::from_millis(1); 2],
            claimed: Vec::new(),
            calls: 1,
            handoffs: 1,
            preempted: vec![false; 2],
            waited_ms: vec![0.0; 2],
            threads_waited: false,
            clocks: clocks.to_vec(),
        }
    }

    #[test]
    fn shortest_time_is_that_of_one_block() {
        let times = |elapsed: [u64; 2], handoffs| Timed {
            elapsed: elapsed.map(Duration::from_micros).to_vec(),
            handoffs,
            ..pair([None, None])
        };
        for (elapsed, handoffs, shortest) in [([90, 60], 1, 60), ([60, 90], 3, 20), ([60, 90], 0, 60)] {
            let found = times(elapsed, handoffs).shortest();
            assert_eq!(found, Some(Duration::from_micros(shortest)), "{elapsed:?} {handoffs}");
        }
    }

    #[test]
    fn block_below_three_quarters_of_the_median_clock_is_throttled() {
        let least = least_clock([1980, 1200, 1980, 1965, 1980].into_iter());
        assert_eq!(least, Some(1485.0));
        for (clock, throttled) in [(1980, false), (1485, false), (1484, true), (210, true)] {
            assert_eq!(is_throttled(&pair([Some(clock), Some(1980)]), 0, least), throttled, "{clock}");
            assert!(!is_throttled(&pair([Some(clock), Some(1980)]), 1, least));
        }
        assert!(!is_throttled(&pair([None, None]), 0, least), "an unknown clock proves nothing");
        assert_eq!(least_clock(std::iter::empty()), None);
        let pace = Pace { clock_mhz: Some(1980), ..Pace::default() };
        for (on_device, clock) in [(Some(DeviceBlock { pace, is_graph: false }), Some(1980)), (None, None)] {
            assert_eq!(clock_of(&Block { on_device, ..scripted_block() }), clock);
        }
        assert!(!is_throttled(&pair([Some(1), Some(1)]), 0, None));
    }

    /// The limit is a share of the median, so a clock rate that never changes is never below it.
    #[test]
    fn device_that_is_always_slow_is_not_throttled() {
        let least = least_clock([900; 20].into_iter());
        assert!(!is_throttled(&pair([Some(900), Some(900)]), 0, least));
    }
}
