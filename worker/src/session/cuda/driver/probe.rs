//! Queries the driver for a description of a card, in a process that does nothing else. Creates no context.

use opt_shared::causes::chain;
use opt_shared::device::Device;
use opt_shared::message::{DISCRETE, INTEGRATED};

use super::card::{describe, device_of};
use super::functions::{Functions, NoDriver, ok};

/// `CU_DEVICE_ATTRIBUTE_…`.
const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
const COMPUTE_CAPABILITY_MINOR: u32 = 76;

/// Returns `yes UUID integrated|discrete MAJOR.MINOR NAME`, or `no` and the reason.
pub(crate) fn tell(device: &str) -> String {
    let Some(Device::Cuda(ordinal)) = Device::from_name(device) else {
        return format!("no `{device}` is not a card");
    };
    match ask(ordinal) {
        Ok(what) => format!("yes {what}"),
        Err(why) => format!("no {}", chain(&why)),
    }
}

fn ask(ordinal: u32) -> Result<String, NoDriver> {
    let (functions, _) = Functions::load()?;
    let ask = || {
        let device = device_of(&functions, ordinal)?;
        let card = describe(&functions, device)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: each call writes one number to the given location.
        unsafe {
            ok(
                "cuDeviceGetAttribute",
                (functions.attribute)(&raw mut major, COMPUTE_CAPABILITY_MAJOR, device),
            )?;
            ok(
                "cuDeviceGetAttribute",
                (functions.attribute)(&raw mut minor, COMPUTE_CAPABILITY_MINOR, device),
            )?;
        }
        let memory = if card.integrated { INTEGRATED } else { DISCRETE };
        let uuid = card.uuid.unwrap_or_default();
        Ok(format!("{uuid} {memory} {major}.{minor} {}", card.name))
    };
    ask().map_err(|error| NoDriver::Device { ordinal, error })
}

#[cfg(test)]
mod tests {
    #[test]
    fn probe_refuses_names_that_are_no_card() {
        for name in ["cpu", "emulated", "cuda", "cuda:x"] {
            assert_eq!(super::tell(name), format!("no `{name}` is not a card"));
        }
    }
}
