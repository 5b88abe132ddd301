//! Prints the part of `check` that depends on this machine: whether it has the device, compilers and interpreters that
//! the plan needs, and how the launches of the first entry are resolved.

use std::collections::BTreeMap;

use opt_shared::device::Device;
use serde_json::{Value, json};

use crate::driver::RunError;
use crate::driver::survey::compilers::{self, HostCompiler};
use crate::driver::survey::devices::{self, Card, DeviceCompiler};
use crate::driver::survey::facts::JobFacts;
use crate::driver::survey::interpreters::{self, Described};
use crate::driver::survey::launches::{self, FirstLaunch};
use crate::driver::survey::own_limits::{self, LimitTooLow};
use crate::driver::survey::priority;
use crate::plan::Plan;

/// The findings of `check` about this machine.
pub(super) struct CheckedMachine {
    pub(super) interpreters: BTreeMap<String, Described>,
    device: Device,
    /// The run's card, if its device is a card. The error says why the card cannot be used.
    card: Result<Option<Card>, String>,
    /// The compilers of device code, or the reasons why there are none.
    compilers: Vec<DeviceCompiler>,
    /// The compilers of C and C++.
    host_compilers: Vec<HostCompiler>,
    /// For each job, its launches, resolved for its first entry.
    pub(super) launches: Vec<Vec<FirstLaunch>>,
    not_timed: Option<&'static str>,
    /// The name of a job that asks for real-time priority, if this process may not give it.
    without_priority: Option<String>,
    /// A resource limit of this process that is too low for a run.
    too_low: Option<LimitTooLow>,
}

impl CheckedMachine {
    pub(super) fn of(plan: &Plan, facts: &[JobFacts]) -> Self {
        let device = plan.device();
        Self {
            interpreters: interpreters::ask_all(plan),
            device,
            card: devices::card_of(device),
            compilers: devices::compilers(plan),
            host_compilers: compilers::needed(plan.candidates()),
            launches: plan.jobs.iter().zip(facts).map(|(job, facts)| launches::of_job(job, facts)).collect(),
            not_timed: plan.not_timed_because(),
            // If the capabilities of this process cannot be read, `run` reports the reason.
            without_priority: priority::first_refused_job(plan).unwrap_or_default().map(str::to_owned),
            too_low: own_limits::raise().err(),
        }
    }

    /// Returns whether any launch has an error that does not depend on the entry. Such an error is a mistake in the
    /// plan.
    pub(super) fn has_mistakes(&self) -> bool {
        let mut wrong = self.launches.iter().flatten().filter_map(|first| first.resolved.as_ref().err());
        wrong.any(|error| error.problem.is_of_plan())
    }

    /// Returns whether this machine lacks something that the plan needs.
    pub(super) fn is_lacking(&self) -> bool {
        self.interpreters.values().any(Result::is_err)
            || self.card.is_err()
            || self.without_priority.is_some()
            || self.too_low.is_some()
            || self.compilers.iter().any(|compiler| compiler.found.is_err())
            || self.host_compilers.iter().any(|compiler| compiler.path.is_none())
    }

    pub(super) fn text(&self) -> String {
        let mut text = match (self.device, &self.card) {
            (Device::Cpu, _) => String::new(),
            (device, Ok(None)) => format!("device {device}\n"),
            (device, Ok(Some(card))) => format!("device {device}: {}\n", card.description),
            (device, Err(why)) => format!("device {device} cannot be used: {why}\n"),
        };
        if let Some(why) = self.not_timed {
            text.push_str(&format!("nothing is timed: {why}\n"));
        }
        if let Some(job) = &self.without_priority {
            text.push_str(&format!("{}\n", RunError::NoPriority { job: job.clone() }));
        }
        if let Some(too_low) = &self.too_low {
            text.push_str(&format!("{too_low}\n"));
        }
        for missing in self.host_compilers.iter().filter_map(HostCompiler::missing) {
            text.push_str(&format!("{missing}\n"));
        }
        for compiler in &self.compilers {
            let kernels = compiler.kernels;
            text.push_str(&match &compiler.found {
                Ok(what) => format!("{kernels}: compiled by {what}\n"),
                Err(why) => format!("{kernels} cannot be compiled: {why}\n"),
            });
        }
        text
    }

    pub(super) fn document(&self) -> Value {
        json!({
            "name": self.device.to_string(),
            "found": self.card.as_ref().ok().map(|card| card.as_ref().map(|card| &card.description)),
            "uuid": self.card.as_ref().ok().and_then(|card| Some(&card.as_ref()?.uuid)),
            "refused": self.card.as_ref().err(),
            "not_timed_because": self.not_timed,
            "without_priority": self.without_priority,
            "limit_too_low": self.too_low.as_ref().map(ToString::to_string),
            "host_compilers": self.host_compilers.iter().map(|compiler| json!({
                "language": compiler.language,
                "program": compiler.program,
                "path": compiler.path,
            })).collect::<Vec<_>>(),
            "compilers": self.compilers.iter().map(|compiler| json!({
                "kernels": compiler.kernels,
                "found": compiler.found.as_ref().ok(),
                "refused": compiler.found.as_ref().err(),
            })).collect::<Vec<_>>(),
        })
    }
}

pub(super) fn text_of_launches(launches: &[FirstLaunch]) -> String {
    let mut text = String::new();
    if !launches.is_empty() {
        text.push_str("  launches in the first entry\n");
    }
    text.extend(launches.iter().map(FirstLaunch::text));
    text
}
