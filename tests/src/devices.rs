//! A simulated card for tests: a twin of NVML that follows a script in the scenario's folder, and a twin of libcuda
//! that runs kernels on the emulated device. A *twin* is a library with the functions of a driver, which a program
//! loads in place of the driver.

use std::path::Path;
use std::process::Command;

pub use opt_nvml_twin::{Device, Script, Twin};
use opt_nvml_twin::{Process, Who};

use crate::paths::{data, repository};
use crate::scenario::Scenario;

/// The UUID that the twin of libcuda reports.
pub const UUID: &str = "GPU-7477696e-2d6f-662d-612d-636172642d30";

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

/// Makes a command load the twin of NVML instead of the driver's library.
pub fn with_twin<'c>(twin: &Twin, command: &'c mut Command) -> &'c mut Command {
    command.env("OPT_NVML_LIBRARY", twin.library())
}

/// Makes a command find a simulated card. The command loads this twin of NVML, and a twin of libcuda that is copied to
/// the scenario's folder.
pub fn on_a_card<'c>(scenario: &Scenario, twin: &Twin, command: &'c mut Command) -> &'c mut Command {
    with_card(scenario.path(), twin, command)
}

/// Like `on_a_card`, but copies the twin of libcuda to `folder`.
pub fn with_card<'c>(folder: &Path, twin: &Twin, command: &'c mut Command) -> &'c mut Command {
    let driver = folder.join("libcuda.so");
    if !driver.exists() {
        let built = opt_nvml_twin::built("libcuda.so").expect("the path of this program");
        std::fs::copy(built, driver).expect("cargo has built the twin beside the tests");
    }
    with_twin(twin, command).env("LD_LIBRARY_PATH", folder)
}

/// A script entry that stands for all processes with a context. Each pair is a time in milliseconds since the context
/// was first seen, and the MiB that the process holds from then on.
pub fn with_context(mib_from_ms: &[(u64, u64)]) -> Process {
    Process {
        who: Who::Context,
        mib_from_ms: mib_from_ms.to_vec(),
        listed_after_death_ms: 0,
        held_after_death_ms: 0,
    }
}

/// A plan for relu with these kernels of `configs/cuda`, given as (name, PTX file). If the device is a card, the plan
/// has no profile stage.
pub fn plan(device: &str, kernels: &[(&str, &str)]) -> String {
    let stages = if device == "emulated" { "" } else { "stages = [\"build\", \"verify\"]\n" };
    let mut text = format!(
        "[run]\ndevice = \"{device}\"\n{stages}[memory]\ndevice_ceiling = \"1GiB\"\n\
         [verify]\nstop_after = 1\ncall_timeout = \"60s\"\n[limits]\nmemory = \"64MiB\"\n\
         [[job]]\nname = \"relu\"\ncaptures = '{}'\nentries = [\"entry_000000.pt\"]\n",
        data("captures/torch_nn_functional_relu").display(),
    );
    for (kernel, file) in kernels {
        let args = match *kernel {
            "wants_a_workspace" => "\"input\", \"out\", \"scratch\", \"out.numel\"",
            _ => "\"input\", \"out\", \"out.numel\"",
        };
        let workspace = match *kernel {
            "wants_a_workspace" => {
                "[[job.candidate.workspace]]\nname = \"scratch\"\nbytes = \"out.numel * 4\"\n"
            }
            _ => "",
        };
        let verify = match (*kernel, device) {
            ("loops_forever", "emulated") => "verify = { call_timeout = \"2s\" }\n",
            _ => "",
        };
        text.push_str(&format!(
            "[[job.candidate]]\nname = \"{kernel}\"\nsources = ['{}']\n{verify}{workspace}\
             [[job.candidate.launch]]\nsymbol = \"{kernel}\"\ngrid = \"ceil_div(out.numel, 64)\"\nblock = 64\n\
             args = [{args}]\n",
            repository().join("configs/cuda/ptx").join(file).display(),
        ));
    }
    text
}
