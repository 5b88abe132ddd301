//! `opt-supervisor check`: reports everything about a plan that can be known before its candidates run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use opt_shared::arguments::{
    ArgumentValue, Entry, EntryFacts, Observed, VaryChoice, bind, c_skeleton, judged, table,
};
use opt_shared::capture::{CaptureFile, DType};
use opt_shared::device::{Device, DeviceKind};
use opt_shared::formula;
use opt_shared::settings::{ToleranceProfile, VerifySettings};
use opt_shared::units::Bytes;
use serde_json::json;

use super::check_machine::{CheckedMachine, text_of_launches};
use super::check_replays::{CheckedReplay, check_all};
use super::memory_plan::{self, JobMemory};
use super::{CheckArguments, CommandResult, Failure, load_plan, print_out};
use crate::core::spec::RunSpec;
use crate::driver::survey::facts::{self, JobFacts, stem};
use crate::driver::survey::launches::FirstLaunch;
use crate::driver::survey::limits::{check_floor, limits, memory_of_machine};
use crate::driver::survey::{read_facts, replay_facts, spec};
use crate::exit::Exit;
use crate::plan::lint::{self, Lint, Subject};
use crate::plan::{JobPlan, Plan};
use crate::report::figures::{counted, one_line, printable};

pub(super) fn check(arguments: &CheckArguments) -> CommandResult {
    super::log::start();
    let plan = load_plan(&arguments.plan, &arguments.set)?;
    let facts = read_facts(&plan).map_err(|error| Failure { exit: error.exit(), error: error.into() })?;
    if arguments.signature {
        return signatures(&plan, &facts, arguments.json);
    }
    let replay_facts = replay_facts::read_replays(&plan, &facts).map_err(Failure::usage)?;
    check_floor(&plan, memory_of_machine()).map_err(Failure::host)?;
    let (ceilings, floor) = limits(&plan);
    let cores = crate::memory::host::Host::detect().cores.unwrap_or(1);
    let spec = spec::spec(&plan, &facts, ceilings, floor);
    let memory: Vec<JobMemory> = plan
        .jobs
        .iter()
        .zip(&facts)
        .map(|(job, facts)| memory_plan::of_job(&plan, job, facts, &spec, cores))
        .collect();
    let mut all_findings = Vec::new();
    for (job, facts) in plan.jobs.iter().zip(&facts) {
        all_findings.push(examine(job, facts, plan.device())?);
    }
    let machine = CheckedMachine::of(&plan, &facts);
    let replays = check_all(&plan, &facts, &replay_facts, cores);
    let text = if arguments.json {
        format!("{:#}\n", document(&plan, &facts, &spec, &memory, &all_findings, &replays, &machine))
    } else {
        printable(&page(&plan, &facts, &spec, &memory, &all_findings, &replays, &machine))
    };
    print_out(&text)?;
    Ok(if facts.iter().all(|facts| facts.broken.is_some()) {
        Exit::NonePassed
    } else if machine.has_mistakes() {
        Exit::Usage
    } else if machine.is_lacking() || ceilings.host < smallest_that_runs(&memory) {
        Exit::Host
    } else {
        Exit::Good
    })
}

/// Returns the smallest ceiling under which all jobs run.
fn smallest_ceiling(memory: &[JobMemory]) -> Bytes {
    memory.iter().map(|job| job.smallest_ceiling).max().unwrap_or_default()
}

/// Returns the smallest ceiling under which at least one job runs.
fn smallest_that_runs(memory: &[JobMemory]) -> Bytes {
    memory.iter().map(|job| job.smallest_ceiling).min().unwrap_or_default()
}

/// Formats the findings about a plan as text.
fn page(
    plan: &Plan,
    facts: &[JobFacts],
    spec: &RunSpec,
    memory: &[JobMemory],
    all_findings: &[JobFindings],
    replays: &[CheckedReplay<'_>],
    machine: &CheckedMachine,
) -> String {
    let mut text = String::new();
    let jobs = plan.jobs.iter().zip(facts).zip(memory).zip(all_findings).zip(&machine.launches);
    for ((((job, facts), memory), findings), launches) in jobs {
        let classes: std::collections::BTreeSet<&str> =
            facts.entries.iter().map(|entry| entry.class.as_str()).collect();
        text.push_str(&format!(
            "job {}: {} in {}, {}; {}\n",
            job.name,
            counted(facts.entries.len(), "entry", "entries"),
            counted(classes.len(), "class", "classes"),
            facts.bytes,
            counted(job.candidates.len(), "candidate", "candidates")
        ));
        if let Some(broken) = &facts.broken {
            text.push_str(&format!("  cannot be used: {}\n", one_line(broken)));
        }
        if let Some(signature) = &facts.signature {
            text.push_str(&format!("  arguments: {}\n", one_line(&signature.params.join(", "))));
        }
        if plan.stages().profile && !findings.inputs.is_empty() {
            text.push_str(&findings.text_of_inputs());
        }
        text.push_str("  memory\n");
        for stage in &memory.stages {
            text.push_str(&stage.text());
        }
        text.push_str(&format!(
            "    smallest ceiling for this job: {} (the least that its largest stage can reserve, and {} for \
             the supervisor)\n",
            memory.smallest_ceiling, spec.supervisor
        ));
        text.push_str(&text_of_launches(launches));
        for lint in &findings.lints {
            let warning = format!("{}: {} ({})", lint.entry, lint.message, code(lint));
            text.push_str(&format!("  {}\n", one_line(&warning)));
        }
        text.push('\n');
    }
    for replay in replays {
        text.push_str(&replay.text(spec));
    }
    for (named, asked) in &machine.interpreters {
        text.push_str(&match asked {
            Ok(what) => format!("python {named}: {what}\n"),
            Err(why) => format!("python {named} cannot be used: {why}\n"),
        });
    }
    text.push_str(&machine.text());
    text.push_str(&format!(
        "ceiling {} (floor {}); the jobs need {}\n\n# The plan with all settings:\n{}",
        spec.ceilings.host,
        spec.floor,
        smallest_ceiling(memory),
        crate::plan::resolved_toml(plan)
    ));
    text
}

/// Formats the findings about a plan as JSON.
fn document(
    plan: &Plan,
    facts: &[JobFacts],
    spec: &RunSpec,
    memory: &[JobMemory],
    all_findings: &[JobFindings],
    replays: &[CheckedReplay<'_>],
    machine: &CheckedMachine,
) -> serde_json::Value {
    let jobs: Vec<_> = plan
        .jobs
        .iter()
        .zip(facts)
        .zip(memory)
        .zip(all_findings)
        .zip(&machine.launches)
        .map(|((((job, facts), memory), findings), launches)| {
            json!({
                "name": job.name,
                "entries": facts.entries.len(),
                "bytes": facts.bytes,
                "unique_bytes": facts.unique_bytes,
                "broken": facts.broken,
                "parameters": facts.signature.as_ref().map(|signature| &signature.params),
                "signature_digest": facts.signature.as_ref().map(opt_shared::arguments::Signature::digest),
                "candidates": job.candidates.iter().map(|it| &it.name).collect::<Vec<_>>(),
                "memory": memory.stages.iter().map(memory_plan::StagePlan::document).collect::<Vec<_>>(),
                "smallest_ceiling_bytes": memory.smallest_ceiling,
                "launches": launches.iter().map(FirstLaunch::document).collect::<Vec<_>>(),
                "inputs": findings.document_of_inputs(),
                "lint": findings.lints.iter().map(|lint| json!({
                    "entry": lint.entry, "code": code(lint), "message": lint.message, "bytes": lint.bytes,
                    "numbers": lint.numbers,
                })).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "jobs": jobs,
        "replays": replays.iter().map(|replay| replay.document(spec)).collect::<Vec<_>>(),
        "interpreters": machine.interpreters.iter().map(|(named, asked)| json!({
            "python": named,
            "found": asked.as_ref().ok(),
            "refused": asked.as_ref().err(),
        })).collect::<Vec<_>>(),
        "device": machine.document(),
        "ceiling_bytes": spec.ceilings.host,
        "floor_bytes": spec.floor,
        "supervisor_bytes": spec.supervisor,
        "smallest_ceiling_bytes": smallest_ceiling(memory),
        "resolved_plan": crate::plan::resolved_toml(plan),
    })
}

/// Returns the name of a lint, such as `tiny-output`.
fn code(lint: &Lint) -> String {
    serde_json::to_value(lint.code).ok().and_then(|code| Some(code.as_str()?.to_owned())).unwrap_or_default()
}

/// The findings from reading the captures of a job.
#[derive(Default)]
struct JobFindings {
    lints: Vec<Lint>,
    /// The tensor arguments of the job, by path. The list has one item for each entry that has the argument: the
    /// reason why the argument keeps its values in timed calls, or `None` if the argument varies.
    inputs: BTreeMap<String, Vec<Option<&'static str>>>,
}

impl JobFindings {
    /// Describes which inputs get new values in every timed call, as far as the plan and the headers show.
    fn text_of_inputs(&self) -> String {
        let mut varied = Vec::new();
        let mut unvaried = Vec::new();
        for (path, entries) in &self.inputs {
            let reasons: BTreeSet<&str> = entries.iter().copied().flatten().collect();
            let reasons: Vec<&str> = reasons.into_iter().collect();
            match entries.iter().filter(|why| why.is_none()).count() {
                0 => unvaried.push(format!("`{path}` ({})", reasons.join("; "))),
                all if all == entries.len() => varied.push(format!("`{path}`")),
                some => varied.push(format!(
                    "`{path}` in {some} of {} ({})",
                    counted(entries.len(), "entry", "entries"),
                    reasons.join("; ")
                )),
            }
        }
        let mut text = String::new();
        if !varied.is_empty() {
            text.push_str(&format!(
                "  timed with new values in every call, if the baseline works with them: {}\n",
                one_line(&varied.join(", "))
            ));
        }
        if !unvaried.is_empty() {
            text.push_str(&format!("  timed with the recorded values: {}\n", one_line(&unvaried.join(", "))));
        }
        text
    }

    fn document_of_inputs(&self) -> serde_json::Value {
        self.inputs
            .iter()
            .map(|(path, entries)| {
                let reasons: BTreeSet<&str> = entries.iter().copied().flatten().collect();
                let may_vary = entries.iter().filter(|why| why.is_none()).count();
                json!({ "path": path, "entries": entries.len(), "may_vary_in": may_vary, "kept_because": reasons })
            })
            .collect()
    }
}

/// Reads all captures of a job, including the data of their outputs, and collects warnings about them. Returns no
/// findings if the job has no signature.
fn examine(job: &JobPlan, facts: &JobFacts, device: Device) -> Result<JobFindings, Failure> {
    let files = crate::plan::entry_files(job).map_err(Failure::usage)?;
    let mut findings = JobFindings::default();
    let Some(signature) = &facts.signature else { return Ok(findings) };
    for path in &files {
        examine_entry(job, facts, device, (path, signature), &mut findings);
    }
    Ok(findings)
}

/// Adds the warnings about one capture, and records which of its inputs vary in timed calls. `path` is the capture's
/// file.
fn examine_entry(
    job: &JobPlan,
    facts: &JobFacts,
    device: Device,
    (path, signature): (&Path, &opt_shared::arguments::Signature),
    findings: &mut JobFindings,
) {
    let name = stem(path);
    let capture = match CaptureFile::open(path) {
        Ok(capture) => capture,
        Err(error) => return findings.lints.push(lint::unreadable(&name, &error)),
    };
    let entry = match Entry::from_value(capture.root()) {
        Ok(entry) => entry,
        Err(error) => return findings.lints.push(lint::unreadable(&name, &error)),
    };
    let bound = bind(&entry, signature).and_then(|arguments| {
        let outputs = judged(&entry, &arguments)?;
        Ok((arguments, outputs))
    });
    let (arguments, output_tensors) = match bound {
        Ok(bound) => bound,
        Err(error) => return findings.lints.push(lint::unfit(&name, &error)),
    };
    let usable_entry = facts.entries.iter().find(|fact| fact.entry.name == name);
    let repeated = usable_entry.map_or(&[][..], |fact| fact.entry.repeated.as_slice());
    let choice = VaryChoice {
        vary: &job.profile.vary,
        constant: &job.constant,
        repeated,
        largest: formula::largest_varied(device.kind() == DeviceKind::Cuda, job.profile.cache_state),
    };
    for argument in &arguments {
        if let ArgumentValue::Tensor(tensor) = &argument.value {
            let why = choice.kept_because(argument, tensor);
            findings.inputs.entry(argument.path.clone()).or_default().push(why);
        }
    }
    let page = Bytes::from(rustix::param::page_size());
    let numbers = EntryFacts::of(capture.storages(), &arguments, &output_tensors, page);
    let subject = Subject {
        name: &name,
        entry: &entry,
        signature,
        storages: capture.storages(),
        arguments: &arguments,
        outputs: &output_tensors,
    };
    findings.lints.extend(lint::of_headers(&subject, &numbers));
    let tolerance = |dtype| absolute_tolerance(&job.verify, dtype);
    findings.lints.extend(lint::of_values(&subject, &tolerance, &mut |id, offset, buffer| {
        capture.read_range(id, offset, buffer)
    }));
}

/// Returns the absolute tolerance that the plan gives for a dtype. If the plan gives none, the value depends on the
/// profile. For the profile `kernelforge`, it is roughly the tolerance of that profile. Otherwise, it is roughly the
/// tolerance of `standard` for outputs of about 1. Outputs must be well above the tolerance, because otherwise zeros
/// would pass.
fn absolute_tolerance(settings: &VerifySettings, dtype: DType) -> f64 {
    if let Some(atol) = settings.dtype.get(&dtype).and_then(|it| it.atol) {
        return atol;
    }
    match (settings.tolerance, dtype) {
        (ToleranceProfile::Kernelforge, _) => 1e-2,
        (_, DType::Float64 | DType::Complex128) => 1e-7,
        (_, DType::Float32 | DType::Complex64) => 1e-5,
        _ => 1e-3,
    }
}

/// Prints the argument table and a C skeleton for every job. If a job has no signature, prints the reason.
fn signatures(plan: &Plan, facts: &[JobFacts], as_json: bool) -> CommandResult {
    let mut text = String::new();
    let mut documents = Vec::new();
    for (job, facts) in plan.jobs.iter().zip(facts) {
        let Some(signature) = &facts.signature else {
            let why = facts.broken.clone().unwrap_or_default();
            text.push_str(&format!("job {}: no signature: {}\n\n", job.name, one_line(&why)));
            documents.push(json!({"job": job.name, "broken": why}));
            continue;
        };
        let observed = observed(job, signature)?;
        let symbol = job.candidates.first().map_or("run", |it| &it.source.symbol);
        let skeleton = c_skeleton(signature, &observed, symbol);
        text.push_str(&format!(
            "job {} (signature {})\n{}\n{skeleton}\n",
            job.name,
            signature.digest(),
            table(signature, &observed)
        ));
        documents.push(json!({
            "job": job.name, "parameters": signature.params, "digest": signature.digest(),
            "table": table(signature, &observed), "skeleton": skeleton,
        }));
    }
    print_out(&if as_json {
        format!("{:#}\n", serde_json::Value::from(documents))
    } else {
        printable(&text)
    })?;
    Ok(Exit::Good)
}

fn observed(job: &JobPlan, signature: &opt_shared::arguments::Signature) -> Result<Observed, Failure> {
    let files = crate::plan::entry_files(job).map_err(Failure::usage)?;
    let mut observed = Observed::new();
    for (arguments, output_tensors) in facts::observed(job, &files, signature) {
        observed.observe(&arguments, &output_tensors);
    }
    Ok(observed)
}
