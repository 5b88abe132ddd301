//! Counts how captures were read: how many bytes, in which way, and what remained in the page cache.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Statistics of the reads of inputs that were not in the page cache, and of what the cache contained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Number of large inputs that were read page by page, as a candidate touched them.
    pub page_by_page: u32,
    /// Number of those inputs for which reading ahead began at some point, because the candidate's accesses were dense.
    pub turned: u32,
    /// Bytes of those inputs that candidates had touched before reading ahead began.
    pub turned_after_bytes: Bytes,
    /// Number of large inputs that were left to Linux's own read-ahead, because Linux does not report what is in the
    /// cache.
    pub left_to_kernel: u32,
    /// Bytes that were read page by page, when a candidate touched pages that were not in the cache.
    pub touched_bytes: Bytes,
    /// Bytes read ahead of candidates.
    pub ahead_bytes: Bytes,
    /// The number of bytes of the captures' files that were in the page cache before and after each group of entries
    /// (in a profile, each batch), summed over all groups or batches. `None` if Linux does not report the numbers. The
    /// difference is the number of bytes that the entries added to the cache.
    pub cached_before_bytes: Option<Bytes>,
    pub cached_after_bytes: Option<Bytes>,
}

impl ReadReport {
    /// Adds the figures of further reads.
    pub fn absorb(&mut self, entry: &Self) {
        self.page_by_page += entry.page_by_page;
        self.turned += entry.turned;
        self.turned_after_bytes += entry.turned_after_bytes;
        self.left_to_kernel += entry.left_to_kernel;
        self.touched_bytes += entry.touched_bytes;
        self.ahead_bytes += entry.ahead_bytes;
        for (all, one) in [
            (&mut self.cached_before_bytes, entry.cached_before_bytes),
            (&mut self.cached_after_bytes, entry.cached_after_bytes),
        ] {
            *all = one.map(|one| all.unwrap_or_default() + one).or(*all);
        }
    }
}
