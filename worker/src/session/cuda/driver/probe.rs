//! Queries the driver for a description of a card, in a process that does nothing else. Creates no context.

use opt_shared::causes::chain;
use opt_shared::device::Device;
use opt_shared::message::{DISCRETE, INTEGRATED};

use super::card::{describe, device_of};
use super::functions::{Functions, NoDriver, ok};

/// `CU_DEVICE_ATTRIBUTE_…`.
const MULTIPROCESSORS: u32 = 16;
const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
const COMPUTE_CAPABILITY_MINOR: u32 = 76;
const SHARED_BYTES: u32 = 97;

/// Returns `yes UUID integrated|discrete MAJOR.MINOR MULTIPROCESSORS SHARED_BYTES NAME`, or `no` and the reason.
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
        let attribute = |number: u32| {
            let mut value = 0;
            // SAFETY: the call writes one number to the given location.
            ok("cuDeviceGetAttribute", unsafe { (functions.attribute)(&raw mut value, number, device) })?;
            Ok(value)
        };
        let (major, minor) = (attribute(COMPUTE_CAPABILITY_MAJOR)?, attribute(COMPUTE_CAPABILITY_MINOR)?);
        let (multiprocessors, shared) = (attribute(MULTIPROCESSORS)?, attribute(SHARED_BYTES)?);
        let memory = if card.integrated { INTEGRATED } else { DISCRETE };
        let uuid = card.uuid.unwrap_or_default();
        Ok(format!("{uuid} {memory} {major}.{minor} {multiprocessors} {shared} {}", card.name))
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
