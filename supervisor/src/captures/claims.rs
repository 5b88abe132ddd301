//! Decides which thread writes a storage that several entries seem to share: the first one that reaches it. The
//! others wait, then hash their own copy.
//!
//! Storages of equal size and CRC are presumed equal before any byte is read; the digest decides in the end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::CapturesError;

/// Size and CRC.
pub(super) type Likeness = (u64, u32);

/// How often a waiting thread checks whether the work was given up.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(super) struct Claims {
    /// Maps each storage to whether its writer has finished.
    known: Mutex<HashMap<Likeness, bool>>,
    finished: Condvar,
}

/// The right to write a storage. Dropping it wakes the waiting threads.
pub(super) struct Claim<'c> {
    claims: &'c Claims,
    likeness: Likeness,
}

impl Claims {
    /// Claims a storage; `None` if another thread has claimed it before.
    pub(super) fn take(&self, likeness: Likeness) -> Option<Claim<'_>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(&likeness) {
            return None;
        }
        known.insert(likeness, false);
        Some(Claim { claims: self, likeness })
    }

    /// Waits until the claim is dropped, whether or not its writer succeeded.
    pub(super) fn wait(&self, likeness: Likeness, stop: &AtomicBool) -> Result<(), CapturesError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        while known.get(&likeness) == Some(&false) {
            if stop.load(Ordering::Relaxed) {
                return Err(CapturesError::GivenUp);
            }
            known = self.finished.wait_timeout(known, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.known.lock().unwrap_or_else(PoisonError::into_inner).insert(self.likeness, true);
        self.claims.finished.notify_all();
    }
}
