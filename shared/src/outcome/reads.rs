//! How captures were read.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// How inputs that were not in the page cache were read, and what the cache held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Large inputs that were read page by page, as a candidate touched them.
    pub page_by_page: u32,
    /// How many of those were read ahead in part, because they were seen to be read densely.
    pub turned: u32,
    /// Bytes of these that had been touched by then.
    pub turned_after_bytes: Bytes,
    /// Large inputs left to the kernel's read-ahead, because it does not report what is in the cache.
    pub left_to_kernel: u32,
    /// Bytes that candidates touched and that were not in the cache: read page by page.
    pub touched_bytes: Bytes,
    /// Bytes read ahead of candidates.
    pub ahead_bytes: Bytes,
    /// Bytes of the captures' files in the page cache before and after each entry, summed over entries, if the
    /// kernel reports them: the difference was left behind.
    pub cached_before_bytes: Option<Bytes>,
    pub cached_after_bytes: Option<Bytes>,
}

impl ReadReport {
    /// Adds the figures of one more entry.
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
