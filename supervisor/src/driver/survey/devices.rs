//! Whether the device of a plan is there, and which one `auto` means.
//!
//! A process of ours asks the driver, because whoever asks it is never small again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::device::Device;
use opt_shared::language::Toolchain;
use opt_shared::message::{ASK_DEVICE, ASK_NVRTC};

use crate::plan::{CandidatePlan, Plan, PlanErrors};
use crate::pool::{Canary, Executable};

/// A driver that is loaded for the first time since the machine was started takes seconds.
const TIMEOUT: Duration = Duration::from_mins(2);

/// What `auto` means where there is one.
pub const FIRST_CARD: Device = Device::Cuda(0);

/// What a card is, or why it cannot be used. Nothing is asked of devices that need none.
pub fn present(device: Device) -> Result<Option<String>, String> {
    match device {
        Device::Cpu | Device::Emulated => Ok(None),
        Device::Cuda(_) => ask(&[ASK_DEVICE, &device.to_string()]).map(Some),
    }
}

/// Which compiler of kernels without host code a build finds that is given these folders, or what is missing.
pub fn compiler(toolchain: &[PathBuf]) -> Result<String, String> {
    let folders: Vec<String> = toolchain.iter().map(|folder| folder.display().to_string()).collect();
    let arguments: Vec<&str> = [ASK_NVRTC].into_iter().chain(folders.iter().map(String::as_str)).collect();
    ask(&arguments)
}

/// The same for all candidates of a plan that need one, each set of folders once.
pub fn compilers(plan: &Plan) -> Vec<Result<String, String>> {
    let needed = |it: &&CandidatePlan| it.source.language.kind().toolchain == Toolchain::Nvrtc;
    let folders: BTreeSet<&[PathBuf]> =
        plan.candidates().filter(needed).map(|it| &*it.build.toolchain).collect();
    folders.into_iter().map(compiler).collect()
}

fn ask(arguments: &[&str]) -> Result<String, String> {
    let said = Executable::open()
        .map_err(|error| error.to_string())
        .and_then(|executable| {
            Canary::start(&executable, arguments)
                .and_then(|mut canary| canary.hear(TIMEOUT))
                .map_err(|error| error.to_string())
        })
        .map_err(|error| format!("nobody could ask for it: {error}"))?;
    match said.trim().split_once(' ') {
        Some(("yes", what)) => Ok(what.to_owned()),
        Some(("no", why)) => Err(why.to_owned()),
        _ => Err("nobody could ask for it".to_owned()),
    }
}

/// Reads a plan, with what `auto` means on this machine: the first card for candidates without host code, if there is one. A
/// plan without any runs on the CPU, and no driver is asked.
pub fn load(path: &Path, set: &[String]) -> Result<Plan, PlanErrors> {
    let plan = Plan::load(path, set)?;
    if plan.run.device.named().is_some() || !plan.has_device_code() {
        return Ok(plan);
    }
    let device = match present(FIRST_CARD) {
        Ok(_) => FIRST_CARD,
        Err(why) => {
            tracing::warn!("`[run] device = \"auto\"` is the CPU here, because {why}");
            Device::Cpu
        }
    };
    let mut set = set.to_vec();
    set.push(format!("run.device=\"{device}\""));
    Plan::load(path, &set)
}
