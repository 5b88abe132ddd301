//! Checks that the machine has the device of a plan and the compilers for its code, and resolves the device `auto`.
//!
//! A child process queries the driver, because a process that has loaded the driver stays large until it ends.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use opt_shared::device::{CardShape, ComputeCapability, Device};
use opt_shared::language::Toolchain;
use opt_shared::message::{ASK_DEVICE, ASK_NVCC, ASK_NVRTC, DISCRETE, INTEGRATED};

use crate::plan::{CandidatePlan, Plan, PlanErrors};
use crate::pool::{Canary, Executable};

/// The timeout for one query. The first load of a driver after a reboot takes seconds.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The device that `auto` resolves to if the machine has a card.
pub const FIRST_CARD: Device = Device::Cuda(0);

/// A card, described by its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The UUID, in the form that NVML writes. The driver and NVML may number cards differently, and agree only on the
    /// UUID.
    pub uuid: String,
    /// Whether the card shares its memory with the CPU.
    pub is_integrated: bool,
    pub shape: CardShape,
    /// The card's name and compute capability, as text.
    pub description: String,
}

/// Returns the card of a device, or `None` for a device that needs no driver. The error says why the card cannot be
/// used.
pub fn card_of(device: Device) -> Result<Option<Card>, String> {
    match device {
        Device::Cpu | Device::Emulated => Ok(None),
        Device::Cuda(_) => {
            let answer =
                ask(|executable| Canary::with_driver(executable, &[ASK_DEVICE, &device.to_string()]))?;
            parse_card(&answer)
                .map(Some)
                .ok_or_else(|| format!("its driver's answer is not understood: {answer}"))
        }
    }
}

/// Parses `UUID integrated|discrete MAJOR.MINOR MULTIPROCESSORS SHARED_BYTES NAME`.
fn parse_card(answer: &str) -> Option<Card> {
    let mut words = answer.splitn(6, ' ');
    let (uuid, memory) = (words.next()?, words.next()?);
    let capability = ComputeCapability::from_name(words.next()?)?;
    let (multiprocessors, shared_bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let name = words.next()?;
    let is_integrated = match memory {
        INTEGRATED => true,
        DISCRETE => false,
        _ => return None,
    };
    let description = format!("{name}, compute capability {capability}");
    let shape = CardShape { capability, multiprocessors, shared_bytes };
    Some(Card { uuid: uuid.to_owned(), is_integrated, shape, description })
}

/// Returns the compiler for kernels without host code that a build would find with these folders. The error says why
/// there is none.
pub fn compiler(toolchain: &[PathBuf]) -> Result<String, String> {
    compiler_by(ASK_NVRTC, toolchain)
}

fn compiler_by(question: &str, toolchain: &[PathBuf]) -> Result<String, String> {
    let folders: Vec<String> = toolchain.iter().map(|folder| folder.display().to_string()).collect();
    let arguments: Vec<&str> = [question].into_iter().chain(folders.iter().map(String::as_str)).collect();
    ask(|executable| Canary::start(executable, &arguments))
}

/// The compiler for device code that a plan needs, or the reason why there is none.
#[derive(Debug)]
pub struct DeviceCompiler {
    /// The kernels that it compiles.
    pub kernels: &'static str,
    pub found: Result<String, String>,
}

/// Returns the compilers of device code that the candidates of a plan need. Each set of folders is tried once.
pub fn compilers(plan: &Plan) -> Vec<DeviceCompiler> {
    let compilers_of = |toolchains: &[Toolchain], question: &'static str, kernels: &'static str| {
        let needed = |it: &&CandidatePlan| toolchains.contains(&it.source.language.kind().toolchain);
        let folders: BTreeSet<&[PathBuf]> =
            plan.candidates().filter(needed).map(|it| &*it.build.toolchain).collect();
        let found =
            move |folders: &[PathBuf]| DeviceCompiler { kernels, found: compiler_by(question, folders) };
        folders.into_iter().map(found).collect::<Vec<_>>()
    };
    let mut all = compilers_of(&[Toolchain::Nvrtc], ASK_NVRTC, "kernels without host code");
    let with_host_code = [Toolchain::Nvcc, Toolchain::NvccRecorded, Toolchain::TorchNvcc];
    all.extend(compilers_of(&with_host_code, ASK_NVCC, "CUDA with host code"));
    all
}

/// Starts a process that answers `yes WHAT` or `no WHY`, and returns the answer.
fn ask(start: impl FnOnce(&Executable) -> io::Result<Canary>) -> Result<String, String> {
    let answer = Executable::open()
        .and_then(|executable| start(&executable)?.output(TIMEOUT))
        .map_err(|error| format!("the helper process for this query failed: {error}"))?;
    match answer.trim().split_once(' ') {
        Some(("yes", what)) => Ok(what.to_owned()),
        Some(("no", why)) => Err(why.to_owned()),
        _ => Err("the helper process for this query ended without an answer".to_owned()),
    }
}

/// Reads a plan and resolves the device `auto`. If the plan has candidates for a device and the machine has a card,
/// `auto` is the first card. Otherwise it is the CPU. If the plan has no such candidates, the driver is not queried.
pub fn load(path: &Path, set: &[String]) -> Result<Plan, PlanErrors> {
    let plan = Plan::load(path, set)?;
    if plan.run.device.named().is_some() || !plan.needs_device() {
        return Ok(plan);
    }
    let device = match card_of(FIRST_CARD) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_is_read_from_the_answer_of_its_driver() {
        let found = parse_card("GPU-1-2 integrated 8.7 16 167936 Tegra with a long name").expect("a card");
        assert_eq!((found.uuid.as_str(), found.is_integrated), ("GPU-1-2", true));
        assert_eq!(found.description, "Tegra with a long name, compute capability 8.7");
        assert_eq!((found.shape.multiprocessors, found.shape.shared_bytes), (16, 167_936));
        assert!(!parse_card("GPU-1 discrete 9.0 132 232448 A").expect("a card").is_integrated);
        for answer in
            ["", "GPU-1", "GPU-1 discrete 9.0", "GPU-1 discrete 9.0 x 1 A", "GPU-1 shared 9.0 1 1 A"]
        {
            assert_eq!(parse_card(answer), None, "{answer}");
        }
    }
}
