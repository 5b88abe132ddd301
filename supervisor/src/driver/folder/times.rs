//! Combines the times of a candidate's entries into the figures of the candidate.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use opt_shared::outcome::{EntryProfile, Estimate, Profiled, geometric_mean};
use opt_shared::units::Bytes;

use crate::record::CandidateTimes;

/// Returns the entries that are used to compare candidates if there is no baseline: those whose inputs varied or, if no
/// inputs varied, all entries.
fn compared_entries(profiled: &Profiled) -> impl Iterator<Item = &EntryProfile> {
    let all = !profiled.entries.iter().any(EntryProfile::is_varied);
    profiled.entries.iter().filter(move |entry| all || entry.is_varied())
}

/// Returns a hash of the entries that are used to compare candidates without a baseline. For each entry, the hash also
/// covers whether its inputs varied. The times of candidates with different hashes cannot be compared.
pub(super) fn hash_of_compared(profiled: &Profiled) -> u64 {
    let mut hasher = DefaultHasher::new();
    compared_entries(profiled).for_each(|entry| (&entry.entry, entry.is_varied()).hash(&mut hasher));
    hasher.finish()
}

/// Returns the calls per millisecond, as the geometric mean over the entries that are used to compare candidates
/// without a baseline.
pub(super) fn rate(profiled: &Profiled) -> Option<Estimate> {
    let estimates: Vec<(Estimate, u64)> = compared_entries(profiled)
        .map(|entry| {
            let times = &entry.times;
            let rate = Estimate {
                value: 1.0 / times.median_time_ms,
                ci_low: 1.0 / times.ci_high,
                ci_high: 1.0 / times.ci_low,
            };
            (rate, entry.weight)
        })
        .collect();
    geometric_mean(&estimates)
}

/// Combines the timed entries. Times per call and throughput are weighted means, and `total_time_ms` is the weighted
/// sum of the medians. Samples are added up. The minimum and maximum times, the largest footprint and wait share, and
/// the fewest runners are those of all entries. The noise is the highest noise of a ranked entry, and `converged` is
/// true if all ranked entries have converged.
pub(super) fn times(profiled: &Profiled) -> CandidateTimes {
    let entries = &profiled.entries;
    if entries.is_empty() {
        return CandidateTimes::default();
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of entries")]
    let weight = |entry: &EntryProfile| entry.weight as f64;
    let total: f64 = entries.iter().map(weight).sum();
    let mean = |pick: &dyn Fn(&EntryProfile) -> f64| {
        Some(entries.iter().map(|entry| weight(entry) * pick(entry)).sum::<f64>() / total)
    };
    let varied = entries.iter().filter(|entry| entry.is_varied()).count() as u64;
    let footprint: Bytes = entries.iter().map(|entry| entry.footprint).max().unwrap_or_default();
    CandidateTimes {
        total_time_ms: Some(entries.iter().map(|entry| weight(entry) * entry.times.median_time_ms).sum()),
        median_time_ms: mean(&|entry| entry.times.median_time_ms),
        mean_time_ms: mean(&|entry| entry.times.mean_time_ms),
        std_time_ms: mean(&|entry| entry.times.std_time_ms),
        min_time_ms: entries.iter().map(|entry| entry.times.min_time_ms).reduce(f64::min),
        max_time_ms: entries.iter().map(|entry| entry.times.max_time_ms).reduce(f64::max),
        p5: mean(&|entry| entry.times.p5),
        p95: mean(&|entry| entry.times.p95),
        ci_low: mean(&|entry| entry.times.ci_low),
        ci_high: mean(&|entry| entry.times.ci_high),
        samples: Some(entries.iter().map(|entry| u64::from(entry.times.samples)).sum()),
        noise: profiled.ranked_entries().map(|entry| entry.noise).reduce(f64::max),
        converged: Some(profiled.ranked_entries().all(|entry| entry.converged)),
        cache_state: entries.first().map(|entry| entry.cache_state),
        footprint_bytes: Some(footprint),
        bytes_per_second: mean(&|entry| entry.bytes_per_second),
        varied_entries: Some(varied),
        unvaried_entries: Some(entries.len() as u64 - varied),
        runners: entries.iter().map(|entry| entry.runners).min(),
        wait_share: entries.iter().filter_map(|entry| entry.wait_share).reduce(f64::max),
    }
}
