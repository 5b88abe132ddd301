//! The device of a worker, which is opened when the first task needs it and held until the worker ends.

use std::cell::Cell;

use opt_shared::device::Device;

use super::driver::SharedDriver;
use super::driver::card::CardDriver;
use super::driver::emulated::EmulatedDriver;
use super::driver::{Driver, NoDriver};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Driver(#[from] NoDriver),
    #[error("the device `{0}` cannot run kernels without host code")]
    NoDevice(Device),
}

/// A device with a context of this process.
pub(crate) struct HeldDevice {
    pub(super) driver: SharedDriver,
    /// Set when the context has failed and this process cannot have another.
    pub(super) lost: Cell<bool>,
}

impl HeldDevice {
    pub(super) fn new(driver: Box<dyn Driver>) -> Self {
        Self { driver: SharedDriver::new(driver), lost: Cell::new(false) }
    }

    /// Returns true if sessions can be started in this process.
    pub(super) fn is_usable(&self) -> bool {
        !self.lost.get()
    }
}

pub(crate) struct WorkerDevice {
    device: Device,
    held: Option<HeldDevice>,
}

impl WorkerDevice {
    pub(crate) fn new(device: Device) -> Self {
        Self { device, held: None }
    }

    pub(crate) fn runs_device_code(&self) -> bool {
        self.device.runs_device_code()
    }

    pub(crate) fn hold(&mut self) -> Result<&HeldDevice, OpenError> {
        match &mut self.held {
            Some(held) => Ok(held),
            none => Ok(none.insert(open(self.device)?)),
        }
    }
}

fn open(device: Device) -> Result<HeldDevice, OpenError> {
    let driver: Box<dyn Driver> = match device {
        Device::Cuda(ordinal) => Box::new(CardDriver::open(ordinal)?),
        Device::Emulated => Box::new(EmulatedDriver::new()),
        Device::Cpu => return Err(OpenError::NoDevice(device)),
    };
    Ok(HeldDevice::new(driver))
}
