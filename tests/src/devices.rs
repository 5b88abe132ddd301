//! A device of the stand-in for NVML: installs its script in a scenario's folder, and makes commands use it.

use std::process::Command;

use opt_nvml_twin::{Device, Script, Twin};

use crate::scenario::Scenario;

pub const UUID: &str = "GPU-00000000-0000-4000-8000-00000000beef";

/// A device with 8 GiB of its own memory, none of it in use.
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

/// Makes a command load the twin instead of the driver's library.
pub fn with_twin<'c>(twin: &Twin, command: &'c mut Command) -> &'c mut Command {
    command.env("OPT_NVML_LIBRARY", twin.library())
}
