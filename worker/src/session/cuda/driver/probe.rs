//! Whether a card is there: its driver is asked, in a process that does nothing else. No context is made.

use opt_shared::causes::chain;
use opt_shared::device::Device;

use super::card::{describe, device_of, ok};
use super::functions::{Functions, NoDriver};

/// `CU_DEVICE_ATTRIBUTE_…`.
const COMPUTE_CAPABILITY_MAJOR: u32 = 75;
const COMPUTE_CAPABILITY_MINOR: u32 = 76;

/// `yes WHAT` or `no WHY`.
pub(crate) fn tell(device: &str) -> String {
    let Some(Device::Cuda(ordinal)) = Device::from_name(device) else {
        return format!("no `{device}` is no card");
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
        let name = describe(&functions, device)?.name;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are written by the calls.
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
        Ok(format!("{name}, compute capability {major}.{minor}"))
    };
    ask().map_err(|error| NoDriver::Device { ordinal, error })
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_no_card_is_refused_without_a_driver() {
        for name in ["cpu", "emulated", "cuda", "cuda:x"] {
            assert_eq!(super::tell(name), format!("no `{name}` is no card"));
        }
    }
}
