//! Decides which thread writes a storage that several entries seem to share. The first thread that reaches the storage
//! writes it. The other threads only hash their copies, and then wait for the first one.
//!
//! Two storages of equal size and CRC are presumed to be equal until they have been read. After that, their digests
//! decide.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::CapturesError;

/// The size and the CRC of a storage, which are known before the storage is read.
pub(super) type SizeAndCrc = (u64, u32);

/// The interval at which a waiting thread checks whether the work was stopped.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The storages that some thread is writing or has written.
#[derive(Default)]
pub(super) struct Claims {
    /// Maps each storage to whether its writer has finished.
    known: Mutex<HashMap<SizeAndCrc, bool>>,
    finished: Condvar,
}

/// The right to write a storage. Dropping it marks the storage as finished, and wakes the waiting threads.
pub(super) struct Claim<'c> {
    claims: &'c Claims,
    size_and_crc: SizeAndCrc,
}

impl Claims {
    /// Returns the right to write a storage. `None` if another thread is writing it or has written it.
    pub(super) fn take(&self, size_and_crc: SizeAndCrc) -> Option<Claim<'_>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(&size_and_crc) {
            return None;
        }
        known.insert(size_and_crc, false);
        Some(Claim { claims: self, size_and_crc })
    }

    /// Waits until the claim is dropped, whether its writer has succeeded or not.
    pub(super) fn wait(&self, size_and_crc: SizeAndCrc, stop: &AtomicBool) -> Result<(), CapturesError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        while known.get(&size_and_crc) == Some(&false) {
            if stop.load(Ordering::Relaxed) {
                return Err(CapturesError::GivenUp);
            }
            known =
                self.finished.wait_timeout(known, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.known.lock().unwrap_or_else(PoisonError::into_inner).insert(self.size_and_crc, true);
        self.claims.finished.notify_all();
    }
}
