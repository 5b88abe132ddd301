//! `opt-supervisor doctor`: tests with canaries which protections this machine can enforce, and shows them with other
//! facts about the machine.

mod devices;
mod runs;
mod timing;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use opt_shared::protection::{self, Protection};
use opt_shared::room::Room;
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use self::devices::Devices;
use self::runs::LiveRun;
use self::timing::Trial;
use super::{CommandResult, DoctorArguments, Failure, print_out};
use crate::core::room::Shortage;
use crate::driver::run::leaves::Leaves;
use crate::driver::run::protections;
use crate::driver::run::room::processes_left;
use crate::driver::survey::devices::{FIRST_CARD, card_of, compiler};
use crate::driver::survey::interpreters::{self, Described};
use crate::exit::Exit;
use crate::memory::cgroup::{self, Mounted};
use crate::memory::disturbance::Disturbance;
use crate::memory::features::Features;
use crate::memory::host::Host;
use crate::memory::machine::{MachineSample, MachineSampler};
use crate::pool::Executable;

/// The default interpreter, as in configs/default.toml.
const PYTHON: &str = "python3";

struct Findings {
    protections: Vec<Protection>,
    canaries_ms: f64,
    host: Host,
    memory: Option<MachineSample>,
    mounted: Mounted,
    group: Option<String>,
    limit: Option<cgroup::GroupLimit>,
    /// The number of processes and threads that can still be started. `None` if no limit could be read.
    processes_left: Option<u64>,
    features: Features,
    disturbance: Disturbance,
    /// The result of the timing trial, if a trial was requested.
    trial: Option<Result<Trial, String>>,
    /// The default interpreter.
    python: Described,
    /// A description of the first card, or the reason why it cannot be used.
    card: Result<Option<String>, String>,
    /// The compiler that is found by default for kernels without host code, or the reason why there is none.
    cuda_compiler: Result<String, String>,
    devices: Devices,
    runs: Vec<LiveRun>,
}

impl Findings {
    fn gather(timing: bool) -> Result<Self, Failure> {
        let executable = Executable::open().map_err(|error| {
            Failure::host(anyhow::Error::new(error).context("opening this program's own file"))
        })?;
        let root = Path::new("/");
        let started = Instant::now();
        // Several `doctor` commands can run at the same time, so each one puts the id of its process into the names of
        // its groups.
        let mut leaves = Leaves::open(&format!("doctor{}", std::process::id()));
        let protections = protections::try_all(&executable, &mut leaves);
        let group = leaves.folder().map(std::path::Path::to_owned);
        let group = group.or_else(|| Some(cgroup::own_groups(root).ok()?.version_2?.folder));
        let group = group.map(|folder| folder.display().to_string());
        drop(leaves);
        let canaries_ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(Self {
            protections,
            canaries_ms,
            host: Host::detect(),
            memory: MachineSampler::open(&root.join("proc")).and_then(|mut machine| machine.sample()).ok(),
            mounted: cgroup::mounted(root).unwrap_or_default(),
            group,
            limit: cgroup::memory_limit(root).ok().flatten(),
            processes_left: processes_left(),
            features: Features::detect(root),
            disturbance: Disturbance::read(root),
            trial: timing.then(|| Trial::run().map_err(|error| format!("{error:#}"))),
            python: interpreters::ask(PYTHON, false),
            card: card_of(FIRST_CARD).map(|card| card.map(|card| card.description)),
            cuda_compiler: compiler(&[]),
            devices: Devices::find(),
            runs: runs::ask(),
        })
    }

    /// Returns the protections that are missing although they are needed to run untrusted candidates.
    fn missing(&self) -> Vec<&str> {
        let needed = |name: &str| protection::known(name).is_none_or(|kind| kind.needed);
        self.protections
            .iter()
            .filter(|it| !it.present && needed(&it.name))
            .map(|it| it.name.as_str())
            .collect()
    }

    fn ram(&self) -> Option<Bytes> {
        self.memory.map(|it| it.total)
    }

    fn has(&self, name: &str) -> bool {
        self.protections.iter().any(|protection| protection.name == name && protection.present)
    }

    fn cgroup_version(&self) -> Option<&'static str> {
        match (self.mounted.version_1, self.mounted.version_2) {
            (true, true) => Some("hybrid"),
            (true, false) => Some("1"),
            (false, true) => Some("2"),
            (false, false) => None,
        }
    }

    /// Returns the version of Landlock, which is at the end of a detail such as "Landlock ABI 7".
    fn landlock_abi(&self) -> Option<u32> {
        let files =
            self.protections.iter().find(|protection| protection.name == "files" && protection.present)?;
        files.detail.rsplit(' ').next()?.parse().ok()
    }

    /// Returns by which means runners get separate namespaces.
    fn namespaces(&self) -> &'static str {
        match (self.has("pid_namespace"), rustix::process::geteuid().is_root()) {
            (true, true) => "as root",
            (true, false) => "inside user namespaces",
            (false, _) => "none",
        }
    }

    fn document(&self) -> Value {
        let protections: Vec<Value> = self
            .protections
            .iter()
            .map(|it| {
                let kind = protection::known(&it.name);
                json!({
                    "name": it.name,
                    "present": it.present,
                    "needed": kind.is_none_or(|kind| kind.needed),
                    "detail": it.detail,
                    "stops": kind.map(|kind| kind.stops),
                    "proof": kind.map(|kind| kind.proof),
                    "remedy": kind.filter(|_| !it.present).map(|kind| kind.remedy),
                })
            })
            .collect();
        let memory = self.memory;
        json!({
            "schema": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "safe": self.missing().is_empty(),
            "missed": self.missing(),
            "protections": protections,
            // The old name of `protections`; written for one more version.
            "rungs": protections,
            "canaries_ms": self.canaries_ms,
            "kernel": self.host.kernel,
            "cpu": self.host.cpu,
            "cores": self.host.cores,
            "page_size_bytes": crate::memory::page_size().get(),
            "memory": {
                "total_bytes": memory.map(|it| it.total.get()),
                "available_bytes": memory.map(|it| it.available.get()),
                "swap_total_bytes": memory.and_then(|it| it.swap_total).map(Bytes::get),
                "swap_free_bytes": memory.and_then(|it| it.swap_free).map(Bytes::get),
            },
            "cgroup": {
                "version": self.cgroup_version(),
                "group": self.group,
                "limit_bytes": self.limit.as_ref().map(|it| it.limit.get()),
                "limit_file": self.limit.as_ref().map(|it| it.path.display().to_string()),
            },
            "processes_left": self.processes_left,
            "pressure": { "readable": self.features.pressure, "trigger": self.features.pressure_trigger },
            "proc": { "children": self.features.children, "smaps_rollup": self.features.smaps_rollup },
            "timing": {
                "governors": self.disturbance.governors,
                "smt": self.disturbance.smt,
                "load": self.disturbance.load,
                "trial": self.trial.as_ref().and_then(|trial| trial.as_ref().ok()).map(Trial::document),
                "no_trial_because": match &self.trial {
                    None => Some("it was not requested (--timing)"),
                    Some(Err(why)) => Some(why.as_str()),
                    Some(Ok(_)) => None,
                },
            },
            "namespaces": self.namespaces(),
            "landlock_abi": self.landlock_abi(),
            "seccomp": self.has("system_calls"),
            "python": { "found": self.python.as_ref().ok(), "refused": self.python.as_ref().err() },
            "cuda_compiler": {
                "found": self.cuda_compiler.as_ref().ok(), "refused": self.cuda_compiler.as_ref().err(),
            },
            "gpu": { "driver": self.features.nvidia, "usable": self.card.is_ok(), "nvml": self.devices.document(self.ram()) },
            "runs": self.runs.iter().map(LiveRun::document).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let width = self.protections.iter().map(|protection| protection.name.len()).max().unwrap_or(0);
        for it in &self.protections {
            let kind = protection::known(&it.name);
            let mark = if it.present { "yes" } else { "NO " };
            let description = match kind {
                Some(kind) if it.present => kind.proof,
                _ => it.detail.as_str(),
            };
            let _ = write!(text, "{mark}  {:<width$}  {description}", it.name);
            match kind {
                _ if it.present && !it.detail.is_empty() => {
                    let _ = write!(text, " ({})", it.detail);
                }
                Some(kind) if !it.present => {
                    let needed = if kind.needed { "; needed" } else { "" };
                    let _ = write!(text, "{needed}\n     {:<width$}  remedy: {}", "", kind.remedy);
                }
                _ => {}
            }
            text.push('\n');
        }
        let _ = writeln!(text, "     (tested in {:.0} ms)\n", self.canaries_ms);
        for (name, value) in self.facts() {
            let _ = writeln!(text, "{name:<14} {value}");
        }
        text.push('\n');
        let missing = self.missing();
        if missing.is_empty() {
            text.push_str("All needed protections are present.\n");
        } else {
            let _ = writeln!(
                text,
                "NOT SAFE for candidates that you do not trust: {} missing. `run` warns about this, but starts nevertheless.",
                missing.join(", ")
            );
        }
        text
    }

    fn timing(&self) -> String {
        let mut parts = vec![match &self.trial {
            None => "not measured (`doctor --timing` measures it in about ten seconds)".to_owned(),
            Some(Ok(trial)) => trial.text(),
            Some(Err(why)) => format!("unknown: {why}"),
        }];
        if let Some(load) = self.disturbance.load {
            parts.push(format!("load {load}"));
        }
        if !self.disturbance.governors.is_empty() {
            parts.push(format!("governor {}", self.disturbance.governors.join(", ")));
        }
        if self.disturbance.smt == Some(true) {
            parts.push("two threads per core".to_owned());
        }
        parts.join("; ")
    }

    /// Describes how many processes can still be started. If they are too few for a run, says what to do.
    fn processes(&self) -> String {
        let Some(left) = self.processes_left else { return "no limit".to_owned() };
        let room = Room { pids: Some(left), ..Room::default() };
        Shortage::of(&room)
            .map_or_else(|| format!("{left} more can be started"), |shortage| format!("TOO FEW: {shortage}"))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let unknown = || "unknown".to_owned();
        let yes = |present: bool| if present { "yes" } else { "no" };
        let memory = self.memory.map_or_else(unknown, |it| {
            let swap = match it.swap_total {
                Some(Bytes::ZERO) => "no swap".to_owned(),
                Some(total) => format!("{total} of swap, {} free", it.swap_free.unwrap_or_default()),
                None => "swap unknown".to_owned(),
            };
            format!("{}, {} available, {swap}", it.total, it.available)
        });
        let cgroup = format!(
            "{}{}{}",
            self.cgroup_version().unwrap_or("none"),
            self.group.as_ref().map(|group| format!(", own group {group}")).unwrap_or_default(),
            self.limit
                .as_ref()
                .map(|it| format!(", limited to {} by {}", it.limit, it.path.display()))
                .unwrap_or_default(),
        );
        let or_reason = |answer: &Result<String, String>| match answer {
            Ok(what) => what.clone(),
            Err(why) => format!("none: {why}"),
        };
        let gpu = or_reason(&self.card.clone().map(Option::unwrap_or_default));
        let mut facts = vec![
            ("kernel", self.host.kernel.clone().unwrap_or_else(unknown)),
            ("processor", self.host.cpu.clone().unwrap_or_else(unknown)),
            ("cores", self.host.cores.map_or_else(unknown, |cores| cores.to_string())),
            ("page size", crate::memory::page_size().to_string()),
            ("memory", memory),
            ("cgroup", cgroup),
            ("processes", self.processes()),
            (
                "pressure",
                format!(
                    "readable: {}, a trigger can be armed: {}",
                    yes(self.features.pressure),
                    yes(self.features.pressure_trigger)
                ),
            ),
            (
                "/proc",
                format!(
                    "task/*/children: {}, smaps_rollup: {}",
                    yes(self.features.children),
                    yes(self.features.smaps_rollup)
                ),
            ),
            ("timing", self.timing()),
            ("namespaces", self.namespaces().to_owned()),
            ("Landlock", self.landlock_abi().map_or("none".to_owned(), |abi| format!("ABI {abi}"))),
            ("seccomp", yes(self.has("system_calls")).to_owned()),
            ("Python", self.python.clone().unwrap_or_else(|why| format!("none for kernels: {why}"))),
            ("CUDA compiler", or_reason(&self.cuda_compiler)),
            ("GPU", gpu),
            ("NVML", self.devices.text(self.ram())),
        ];
        facts.extend(self.runs.iter().map(|run| ("live run", run.text())));
        facts
    }
}

pub(super) fn doctor(arguments: &DoctorArguments) -> CommandResult {
    let findings = Findings::gather(arguments.timing)?;
    if arguments.json {
        print_out(&format!("{:#}\n", findings.document()))?;
    } else {
        print_out(&findings.text())?;
    }
    Ok(Exit::Good)
}
