//! A device as NVML's twin has it: its script in a scenario's folder, and commands that are shown it.

use std::process::Command;

use opt_nvml_twin::{Device, Script, Twin};

use crate::scenario::Scenario;

pub const UUID: &str = "GPU-00000000-0000-4000-8000-00000000beef";

/// A device of 8 GiB of its own, of which nothing is in use.
pub fn device() -> Device {
    Device {
        uuid: UUID.to_owned(),
        name: "Twin 8G".to_owned(),
        total_mib: Some(8 << 10),
        utilisation: Some(0),
        ..Device::default()
    }
}

pub fn twin(scenario: &Scenario, script: &Script) -> Twin {
    Twin::install(scenario.path(), script).expect("cargo has built the twin beside the tests")
}

/// Has a command load the twin in place of the driver's library.
pub fn shown<'c>(twin: &Twin, command: &'c mut Command) -> &'c mut Command {
    command.env("OPT_NVML_LIBRARY", twin.library())
}
