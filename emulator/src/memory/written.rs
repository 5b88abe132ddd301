//! Records which bytes of an allocation were written.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A bit for each byte, which is set when the byte is written. Until [`forget`](Self::forget) is called for the first
/// time, there are no bits, and all bytes count as written.
#[derive(Debug, Default)]
pub struct Written(OnceLock<Box<[AtomicU32]>>);

impl Written {
    /// Makes a record for an allocation of `end` bytes, none of which was written. Returns `None` if memory for the
    /// bits cannot be allocated.
    pub fn nothing(end: u64) -> Option<Self> {
        let length = end.div_ceil(32) as usize;
        let mut bits = Vec::new();
        bits.try_reserve_exact(length).ok()?;
        bits.resize_with(length, || AtomicU32::new(0));
        Some(Self(OnceLock::from(bits.into_boxed_slice())))
    }

    #[inline(always)]
    pub fn is_tracked(&self) -> bool {
        self.0.get().is_some()
    }

    #[inline(always)]
    pub fn mark(&self, offset: u64, bytes: u64) {
        let Some(bits) = self.0.get() else { return };
        each_word(bits, offset, bytes, |word, mask| {
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        });
    }

    /// Marks bytes as never written. `end` is the offset of the end of the allocation.
    pub fn forget(&self, offset: u64, bytes: u64, end: u64) {
        let all = || (0..end.div_ceil(32)).map(|_| AtomicU32::new(u32::MAX)).collect();
        each_word(self.0.get_or_init(all), offset, bytes, |word, mask| {
            word.fetch_and(!mask, Ordering::Relaxed);
        });
    }

    /// True if any of up to 8 aligned bytes was written.
    #[inline(always)]
    pub fn has_any(&self, offset: u64, bytes: u64) -> bool {
        let Some(bits) = self.0.get() else { return true };
        // The access is aligned, so all its bits are in one word.
        let bits = bits[(offset / 32) as usize].load(Ordering::Relaxed) >> (offset % 32);
        bits & (u32::MAX >> (32 - bytes)) != 0
    }
}

/// Calls `change` with each word that has a bit of one of the bytes, and with a mask of these bits.
#[inline(always)]
fn each_word(bits: &[AtomicU32], offset: u64, bytes: u64, change: impl Fn(&AtomicU32, u32)) {
    let (mut at, end) = (offset, offset + bytes);
    while at < end {
        let within = at % 32;
        let count = (32 - within).min(end - at);
        change(&bits[(at / 32) as usize], (u32::MAX >> (32 - count)) << within);
        at += count;
    }
}
