//! Checks whether the figures of an entry are plausible. They are compared with the runner's own clock and with what a
//! machine can do, and the idle rounds must show that the runner does not work in them.
//!
//! This file judges finished samples. It does not time anything, and does not compare outputs.

use std::fmt::Write as _;
use std::time::Duration;

use opt_shared::outcome::Status;

use super::Stop;
use super::idle::{Idleness, Share, is_overcharged, judge};
use super::pair::{Context, stop};
use super::samples::Samples;
use crate::session::{DeviceFacts, SessionError};

/// A rate at which no current CPU can write, even to its caches. A call that would need to write faster than 20 TB/s
/// did not write its outputs.
const FASTEST_WRITE_BYTES_PER_SECOND: f64 = 20e12;
/// The factor by which calls on a device may write faster than the device copied when its copy rate was measured. It
/// allows for errors of measurement.
const COPY_MARGIN: f64 = 1.1;
/// The largest tolerated excess of a block's time by the runner's own clock over its time by the worker's clock. If the
/// excess is larger than this, and also larger than a tenth of the time, the runner reported "done" too early.
const EXCESS_CLAIM_MS: f64 = 0.2;

/// Checks whether a side works during idle rounds, in which the clock does not run. If half of the rounds show work,
/// this is a proof only in comparison with `other`, because the machine could be the cause.
pub(super) fn works_unasked(
    context: &Context<'_>,
    samples: &Samples,
    other: Option<&Samples>,
    calls: u32,
) -> Result<Option<Stop>, SessionError> {
    let share = |side: &Samples| Share::of(&side.rounds, side.estimate * calls);
    let stands_out = other.map(share).is_some_and(|other| share(samples).stands_out_from(other));
    match judge(&samples.rounds, samples.estimate * calls) {
        Idleness::Idle => Ok(None),
        Idleness::Works { rounds, .. }
            if !stands_out && is_overcharged(&samples.rounds, samples.estimate * calls) =>
        {
            let exceeded = share(samples).exceeded as usize;
            Err(SessionError::NeverIdle { entry: context.recorded.name.clone(), exceeded, rounds })
        }
        Idleness::Works { least, rounds } => {
            let detail = format!(
                "its runner used at least {least:?} of CPU time in three quarters or more of {rounds} idle rounds, in which \
                 it had nothing to do"
            );
            Ok(Some(stop(context, Status::DeferredWork, detail)))
        }
        Idleness::Disturbed { exceeded, rounds } => {
            if let Some(other) = other.map(share)
                && stands_out
            {
                let detail = format!(
                    "its runner used CPU time in {exceeded} of {rounds} idle rounds, in which it had nothing to do, but the \
                     runner of the kernel that is timed beside it did so only in {} of {}",
                    other.exceeded, other.rounds
                );
                return Ok(Some(stop(context, Status::DeferredWork, detail)));
            }
            Err(SessionError::NeverIdle { entry: context.recorded.name.clone(), exceeded, rounds })
        }
    }
}

/// Compares the time by the runner's own clock with the worker's time, and the worker's time with what a machine can
/// do.
pub(super) fn implausible(
    context: &Context<'_>,
    samples: &Samples,
    calls: u32,
    handoff: Duration,
    device: Option<&DeviceFacts>,
) -> Result<Option<Stop>, SessionError> {
    let ms = median(&samples.ms);
    let written = context.recorded.outputs.iter().filter(|output| output.arguments.is_empty());
    let outputs: u64 = written.map(|output| output.tensor.distinct_bytes().get()).sum();
    let most_ms = median(&samples.most_ms);
    // Every element of the outputs may be compared, so a call must write each of them. (The elements along an expanded
    // axis are a single element.) Two kinds of tensors are left out: arguments that the call changes, because a call
    // may change few of their elements, and inputs, because a kernel may need few of their elements.
    let copy_rate = device.and_then(|device| device.copy_rate);
    if too_fast(most_ms, outputs, fastest_write(copy_rate)) {
        let mut detail =
            format!("a call took at most {:.1} ns, too little to write {outputs} bytes", most_ms * 1e6);
        if let Some(rate) = copy_rate {
            let _ = write!(detail, ": the device copies {:.1} GB/s at most", rate / 1e9);
        }
        return Ok(Some(stop(context, Status::TooFast, detail)));
    }
    if ms <= 0.0 {
        return Err(SessionError::NoTime { entry: context.recorded.name.clone(), handoff });
    }
    if device.is_some() {
        return Ok(seen_by_the_host(context, samples, ms, calls));
    }
    // On a busy machine, the runner's clock may show much less time than the worker's, because the runner reads its
    // clock between the worker's two readings. If it shows more time, the runner reported "done" before its calls were
    // finished.
    let claim = median(&samples.claims);
    if claims_more(claim, ms * f64::from(calls), handoff) {
        return Ok(Some(stop(
            context,
            Status::TimingMismatch,
            format!(
                "the runner's own clock shows {:.0} % of the time that the worker measured",
                claim * 100.0
            ),
        )));
    }
    Ok(None)
}

/// Compares a device's clock with the host's. A busy host notices the end of some blocks too late, but not of all
/// blocks, so only the smallest difference is judged.
fn seen_by_the_host(context: &Context<'_>, samples: &Samples, ms: f64, calls: u32) -> Option<Stop> {
    let claim = samples.claims.iter().copied().reduce(f64::min)?;
    claims_more(claim, ms * f64::from(calls), Duration::ZERO).then(|| {
        let detail = format!(
            "by the host's clock, every block took at least {:.0} % of the time that the device's clock shows",
            claim * 100.0
        );
        stop(context, Status::TimingMismatch, detail)
    })
}

/// Compares two clocks, one of which shows `ms` for a block and the other `claim` times as much. Returns true if the
/// excess is larger than `margin` and too large to be an error of measurement.
fn claims_more(claim: f64, ms: f64, margin: Duration) -> bool {
    EXCESS_CLAIM_MS + margin.as_secs_f64() * 1e3 < (claim - 1.0) * ms && 1.1 < claim
}

/// Returns the highest rate, in bytes per second, at which calls can write. `copy_rate` is the device's copy rate, or
/// `None` on a CPU or if the rate is unknown.
fn fastest_write(copy_rate: Option<f64>) -> f64 {
    copy_rate.map_or(FASTEST_WRITE_BYTES_PER_SECOND, |rate| rate * COPY_MARGIN)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Returns true if a call was too fast to write its outputs. `most_ms` includes the hand-off, because the hand-off may
/// be overestimated.
fn too_fast(most_ms: f64, outputs: u64, fastest: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "an order of magnitude is enough")]
    let rate = outputs as f64 / (most_ms / 1e3);
    most_ms <= 0.0 || fastest < rate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_is_all_hand_off_is_not_too_fast() {
        let (outputs, fastest) = (131_072, FASTEST_WRITE_BYTES_PER_SECOND);
        // A call of 4 us that consists entirely of hand-off proves nothing.
        assert!(!too_fast(0.004, outputs, fastest));
        // 512 calls in 2 us, including the hand-off, are too fast, because no CPU writes 64 MiB in that time.
        assert!(too_fast(0.002 / 512.0, outputs, fastest));
        assert!(too_fast(0.0, outputs, fastest));
        // Without outputs there is nothing to prove.
        assert!(!too_fast(1e-6, 0, fastest));
        assert!(!too_fast(1e3, 7, 7.0), "7 bytes in a second");
        assert_eq!(fastest_write(None), FASTEST_WRITE_BYTES_PER_SECOND);
        assert!((fastest_write(Some(100.0)) - 110.0).abs() < 1e-9);
    }

    #[test]
    fn claim_beyond_the_errors_of_measurement_is_noticed() {
        let us = Duration::from_micros;
        for (claim, ms, margin, more) in [
            (1.2, 1.5, us(0), true),
            (1.2, 0.5, us(0), false),
            (1.5, 0.4, us(0), false),
            (1.5, 0.5, us(100), false),
            (1.5, 0.7, us(100), true),
            // The clocks of a long block may differ by a tenth.
            (1.1, 100.0, us(0), false),
            (0.9, 100.0, us(0), false),
        ] {
            assert_eq!(claims_more(claim, ms, margin), more, "{claim} {ms} {margin:?}");
        }
        assert_eq!([median(&[9.0, 1.0, 2.0, 10.0, 11.0]), median(&[]), median(&[2.0, 1.0])], [9.0, 0.0, 2.0]);
    }
}
