//! Reads a card's clock, power and limits from NVML. All of it is optional: a machine may have no NVML, and a card may
//! not report every figure.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;

use crate::session::pace::{Limits, Pace};

/// The file name of NVML's library, as the driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";
const MILLIWATTS_PER_WATT: f64 = 1e3;

pub(super) struct Gauges {
    nvml: Option<Nvml>,
    uuid: String,
}

impl Gauges {
    /// Loads the library if the machine has it.
    pub(super) fn of(uuid: String) -> Self {
        Self { nvml: Nvml::builder().lib_path(LIBRARY.as_ref()).init().ok(), uuid }
    }

    /// Reads the current figures. A figure that cannot be read is `None`.
    pub(super) fn read(&self) -> Pace {
        let device = self.nvml.as_ref().and_then(|nvml| nvml.device_by_uuid(self.uuid.as_str()).ok());
        let Some(device) = device else { return Pace::default() };
        Pace {
            clock_mhz: device.clock_info(Clock::SM).ok(),
            power_watts: device
                .power_usage()
                .ok()
                .map(|milliwatts| f64::from(milliwatts) / MILLIWATTS_PER_WATT),
            limits: device.current_throttle_reasons().ok().map(limits),
        }
    }
}

fn limits(reasons: ThrottleReasons) -> Limits {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    Limits {
        power: reasons.contains(ThrottleReasons::SW_POWER_CAP),
        heat: reasons.intersects(heat),
        external: reasons.intersects(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
    }
}
