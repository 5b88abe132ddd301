//! How the captures were read.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What became of inputs that were not in the page cache, and of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReport {
    /// Large inputs that were left to be read page by page, as a candidate touches them.
    pub page_by_page: u32,
    /// How many of those were read ahead in part, because they were seen to be read as a whole.
    pub turned: u32,
    /// What had been touched of them when that was seen.
    pub turned_after_bytes: Bytes,
    /// Large inputs left to the kernel's own read-ahead, because it does not tell what is in the cache.
    pub left_to_kernel: u32,
    /// Touched by candidates and not in the cache: read page by page.
    pub touched_bytes: Bytes,
    /// Read ahead of them.
    pub ahead_bytes: Bytes,
    /// Bytes of the captures' files in the page cache, summed over the moments before and after each entry, where the kernel
    /// tells: their difference is what was left behind.
    pub cached_before_bytes: Option<Bytes>,
    pub cached_after_bytes: Option<Bytes>,
}

impl ReadReport {
    /// One entry's figures on top of those before it.
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
