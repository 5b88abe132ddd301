//! The device of a worker: opened when the first task needs it, held until the worker ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use opt_shared::device::Device;
use opt_shared::units::Bytes;

use super::driver::SharedDriver;
use super::driver::card::CardDriver;
use super::driver::emulated::EmulatedDriver;
use super::driver::{Driver, NoDriver};

/// What is left of a device for others, and for what a context takes itself.
const SHARE: f64 = 0.9;

/// A device that could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Driver(#[from] NoDriver),
    #[error("{0} runs no kernels without host code")]
    NoDevice(Device),
}

/// One device, with the context of this process.
pub(crate) struct HeldDevice {
    pub(super) driver: SharedDriver,
    /// The most that is ever placed on it.
    pub(super) cap: Bytes,
    /// Its context failed, and this process cannot have another.
    pub(super) lost: Cell<bool>,
}

impl HeldDevice {
    pub(super) fn new(driver: Box<dyn Driver>, cap: Bytes) -> Self {
        Self { driver: Rc::new(RefCell::new(driver)), cap, lost: Cell::new(false) }
    }

    /// Whether sessions can be started in this process.
    pub(super) fn is_usable(&self) -> bool {
        !self.lost.get()
    }
}

/// The device that a worker was told at its start.
pub(crate) struct WorkerDevice {
    device: Device,
    held: Option<HeldDevice>,
}

impl WorkerDevice {
    pub(crate) fn new(device: Device) -> Self {
        Self { device, held: None }
    }

    /// Whether tasks run on it, and not on the CPU.
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
    let cap = driver.card().total.fraction(SHARE);
    Ok(HeldDevice::new(driver, cap))
}
