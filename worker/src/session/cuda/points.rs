//! High-water marks at named points: what lies on the device, and what this process has beside it.

use std::cell::RefCell;
use std::rc::Rc;

use opt_shared::outcome::{DevicePoint, MemoryPoint};
use opt_shared::units::Bytes;

use super::driver::SharedDriver;

/// Shared by whoever places bytes.
#[derive(Clone, Default)]
pub(super) struct Points(Rc<RefCell<Vec<DevicePoint>>>);

impl Points {
    /// Looks now. A driver that does not answer leaves its figure at zero: what is wrong with it is said by what fails next.
    pub(super) fn look(&self, point: MemoryPoint, placed: Bytes, driver: &SharedDriver) {
        let memory = driver.borrow_mut().memory().ok();
        let seen = DevicePoint {
            point,
            placed_bytes: placed,
            used_bytes: memory.map_or(Bytes::ZERO, |it| it.total - it.free),
            resident_bytes: resident(),
        };
        let mut points = self.0.borrow_mut();
        match points.iter_mut().find(|it| it.point == point) {
            Some(known) => known.absorb(&seen),
            None => points.push(seen),
        }
    }

    /// In the order of the points.
    pub(super) fn seen(&self) -> Vec<DevicePoint> {
        let mut points = self.0.borrow().clone();
        points.sort_by_key(|it| it.point);
        points
    }
}

/// Resident memory of this process; zero where the kernel does not tell.
fn resident() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    // statm: size, resident, …, in pages.
    let pages = text.split_ascii_whitespace().nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
    Bytes::from(rustix::param::page_size()).saturating_mul(pages)
}
