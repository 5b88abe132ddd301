//! Finds out whether the device of a plan is present, and which device `auto` means.
//!
//! A separate process asks the driver, because a process that has loaded the driver stays large.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::device::Device;
use opt_shared::language::Toolchain;
use opt_shared::message::{ASK_DEVICE, ASK_NVRTC};

use crate::plan::{CandidatePlan, Plan, PlanErrors};
use crate::pool::{Canary, Executable};

/// The first load of a driver after a reboot takes seconds.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The device that `auto` means if there is a card.
pub const FIRST_CARD: Device = Device::Cuda(0);

/// A description of the card, or why it cannot be used. `None` for devices that need no driver.
pub fn present(device: Device) -> Result<Option<String>, String> {
    match device {
        Device::Cpu | Device::Emulated => Ok(None),
        Device::Cuda(_) => ask(&[ASK_DEVICE, &device.to_string()]).map(Some),
    }
}

/// The compiler for kernels without host code that a build with these folders finds, or why there is none.
pub fn compiler(toolchain: &[PathBuf]) -> Result<String, String> {
    let folders: Vec<String> = toolchain.iter().map(|folder| folder.display().to_string()).collect();
    let arguments: Vec<&str> = [ASK_NVRTC].into_iter().chain(folders.iter().map(String::as_str)).collect();
    ask(&arguments)
}

/// The compilers for all candidates of a plan that need one. Each set of folders is tried once.
pub fn compilers(plan: &Plan) -> Vec<Result<String, String>> {
    let needed = |it: &&CandidatePlan| it.source.language.kind().toolchain == Toolchain::Nvrtc;
    let folders: BTreeSet<&[PathBuf]> =
        plan.candidates().filter(needed).map(|it| &*it.build.toolchain).collect();
    folders.into_iter().map(compiler).collect()
}

fn ask(arguments: &[&str]) -> Result<String, String> {
    let output = Executable::open()
        .map_err(|error| error.to_string())
        .and_then(|executable| {
            Canary::start(&executable, arguments)
                .and_then(|mut canary| canary.hear(TIMEOUT))
                .map_err(|error| error.to_string())
        })
        .map_err(|error| format!("no process could be started to ask for it: {error}"))?;
    match output.trim().split_once(' ') {
        Some(("yes", what)) => Ok(what.to_owned()),
        Some(("no", why)) => Err(why.to_owned()),
        _ => Err("the process that asks for it gave no answer".to_owned()),
    }
}

/// Reads a plan and resolves `auto`: for candidates without host code, it is the first card, if there is one. For a
/// plan without any, it is the CPU, and the driver is not asked.
pub fn load(path: &Path, set: &[String]) -> Result<Plan, PlanErrors> {
    let plan = Plan::load(path, set)?;
    if plan.run.device.named().is_some() || !plan.has_device_code() {
        return Ok(plan);
    }
    let device = match present(FIRST_CARD) {
        Ok(_) => FIRST_CARD,
        Err(why) => {
            tracing::warn!("`[run] device = \"auto\"` means the CPU on this machine, because {why}");
            Device::Cpu
        }
    };
    let mut set = set.to_vec();
    set.push(format!("run.device=\"{device}\""));
    Plan::load(path, &set)
}
