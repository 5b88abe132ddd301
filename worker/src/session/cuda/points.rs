//! High-water marks at named points: device memory, and the resident memory of this process.

use std::sync::{Arc, Mutex, PoisonError};

use opt_shared::outcome::{DevicePoint, MemoryPoint};
use opt_shared::units::Bytes;

use super::driver::SharedDriver;

/// The marks of a lease. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Points(Arc<Mutex<Vec<DevicePoint>>>);

impl Points {
    /// Raises the marks of `point` to the present figures. If the driver does not answer, its figure counts as zero,
    /// and the next operation reports the error.
    pub(super) fn note(&self, point: MemoryPoint, placed: Bytes, driver: &SharedDriver) {
        let memory = driver.lock().memory().ok();
        let seen = DevicePoint {
            point,
            placed_bytes: placed,
            used_bytes: memory.map_or(Bytes::ZERO, |it| it.total - it.free),
            resident_bytes: resident(),
        };
        let mut points = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match points.iter_mut().find(|it| it.point == point) {
            Some(known) => known.absorb(&seen),
            None => points.push(seen),
        }
    }

    /// The marks, in the order of the points.
    pub(super) fn seen(&self) -> Vec<DevicePoint> {
        let mut points = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        points.sort_by_key(|it| it.point);
        points
    }
}

fn resident() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    // The fields of statm are size, resident, …, in pages.
    let pages = text.split_ascii_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
    Bytes::from(rustix::param::page_size()).saturating_mul(pages)
}
