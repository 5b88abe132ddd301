//! Assembles a plan: reads all layers of settings, looks up the files that jobs refer to, and numbers jobs and
//! candidates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use opt_shared::capture::store::{FolderForm, entries_folder, form_of};
use opt_shared::device::Device;
use opt_shared::ids::{CandidateId, JobId};

use super::candidates::{CandidateList, Draft, list_candidates};
use super::error::{Findings, PlanErrors, Spot, quote};
use super::job::{RawJob, read_jobs};
use super::layers::{Layers, Settings, TopLayers, complete, read_defaults, read_set};
use super::names::{NameOf, objection};
use super::render::label;
use super::replay::{KnownJobs, RawReplay, read_replays, settle_replays};
use super::schema::table_of_key;
use super::table::TableReader;
use super::{CandidatePlan, DeviceChoice, JobPlan, MAX_CANDIDATES, MAX_ENTRIES, Plan, glob, syntax};

/// Tables that are reserved for a later version.
const RESERVED: [&str; 2] = ["sandbox", "cache"];

/// The default of `entries`: the usual suffix of files that `torch.save` writes.
const DEFAULT_ENTRIES: &str = "*.pt";

pub(super) fn resolve(text: &str, path: &Path, set: &[String]) -> Result<Plan, PlanErrors> {
    let (source_path, base_dir) = absolute(path)?;
    let mut findings = Findings::new(&base_dir);
    let defaults = read_defaults(&mut findings);
    let source = findings.add_source(&label(path), text);
    let whole = Spot { source, span: 0..0, key: String::new() };
    let (plan_layers, raw_jobs, raw_replays) = read_plan(text, &whole, &mut findings);
    let set = read_set(set, &mut findings);
    let top = defaults.under(&plan_layers);
    let mut levels = Levels { top: &top.shared, set: &set.shared, whole: &whole, device: None };
    let settings = levels.top.settle(levels.set, &mut findings, &whole);
    let mut head = top.under(&set);
    levels.device = head.run.device.and_then(DeviceChoice::named);
    let mut jobs = Vec::with_capacity(raw_jobs.len());
    let names = match &settings {
        Some(settings) => levels.settle_jobs(&raw_jobs, settings, &mut jobs, &mut findings),
        None => vec![None; raw_jobs.len()],
    };
    let known_jobs = KnownJobs { settled: &jobs, written: &names };
    let replays = settle_replays(raw_replays, known_jobs, &mut findings);
    head.run.name.get_or_insert_with(|| name_of_file(&source_path));
    let run = complete(head.run, &mut findings, &whole);
    let memory = complete(head.memory, &mut findings, &whole);
    let plan = (|| {
        Some(Plan { source_path, base_dir, run: run?, memory: memory?, settings: settings?, jobs, replays })
    })();
    findings.finish(plan)
}

/// Returns the plan's path and its folder, both absolute. They must be UTF-8, because they are printed in a resolved
/// plan.
fn absolute(path: &Path) -> Result<(PathBuf, PathBuf), PlanErrors> {
    let refuse = |message: &str| PlanErrors::of_file(label(path), message.to_owned(), None);
    let source_path =
        std::path::absolute(path).map_err(|_| refuse("the path of the plan does not name a file"))?;
    if source_path.to_str().is_none() {
        return Err(refuse("the path of the plan is not UTF-8"));
    }
    let base_dir =
        source_path.parent().ok_or_else(|| refuse("the path of the plan does not name a file"))?.to_owned();
    Ok((source_path, base_dir))
}

/// Returns the name of the plan's file without its suffix, or `plan` if that cannot be the name of a folder.
fn name_of_file(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if objection(&stem, NameOf::Run).is_none() { stem } else { "plan".to_owned() }
}

fn read_plan(text: &str, whole: &Spot, findings: &mut Findings) -> (TopLayers, Vec<RawJob>, Vec<RawReplay>) {
    let Some(table) = syntax::parse(text, whole.source, findings) else {
        return (TopLayers::default(), Vec::new(), Vec::new());
    };
    let mut root = TableReader::new(&table, whole.clone());
    let layers = TopLayers::read(&mut root, findings);
    let jobs = read_jobs(&mut root, findings);
    let replays = read_replays(&mut root, findings);
    root.finish(findings, &RESERVED, |key| match key {
        "captures" | "baseline" | "candidates" | "params" | "defaults" | "dtypes" | "constant"
        | "partial" => Some("[job]"),
        key => table_of_key(key),
    });
    (layers, jobs, replays)
}

/// The layers of settings above a job.
struct Levels<'l> {
    top: &'l Layers,
    set: &'l Layers,
    whole: &'l Spot,
    /// The device of the run. `None` while it is `auto`.
    device: Option<Device>,
}

impl Levels<'_> {
    /// Resolves all jobs. Also returns the name of every job in the plan, including jobs with mistakes. The name is
    /// `None` if a job has no usable one.
    fn settle_jobs(
        &mut self,
        raw_jobs: &[RawJob],
        settings: &Settings,
        jobs: &mut Vec<JobPlan>,
        findings: &mut Findings,
    ) -> Vec<Option<String>> {
        let mut names: BTreeMap<String, ()> = BTreeMap::new();
        let mut written = Vec::with_capacity(raw_jobs.len());
        let mut next_candidate: u32 = 0;
        for raw in raw_jobs {
            let mut listed =
                list_candidates(raw, MAX_CANDIDATES.saturating_sub(next_candidate as usize), findings);
            if let Some(device) = self.device {
                listed
                    .drafts
                    .iter_mut()
                    .for_each(|draft| draft.source.language = draft.source.language.on(device));
            }
            report_unfit(&listed, self.device, findings);
            let captures = captures_of(raw, findings);
            let name = name_of_job(raw, captures.as_deref());
            if let Some((name, spot)) = &name
                && names.insert(name.clone(), ()).is_some()
            {
                findings
                    .report(spot, format!("two jobs are named `{}`", quote(name)))
                    .help("give one of them another `name`");
            }
            written.push(name.as_ref().map(|(name, _)| name.clone()));
            // All mistakes of a job are reported. A job with a mistake is never used, because the plan is then refused.
            let (Some(captures), Some((name, _))) = (captures, name) else { continue };
            let id = JobId(u32::try_from(jobs.len()).unwrap_or(u32::MAX));
            jobs.extend(self.settle_job(
                raw,
                id,
                name,
                captures,
                listed,
                &mut next_candidate,
                settings,
                findings,
            ));
        }
        written
    }

    #[expect(clippy::too_many_arguments, reason = "called once, with everything known about one job")]
    fn settle_job(
        &self,
        raw: &RawJob,
        id: JobId,
        name: String,
        captures: PathBuf,
        listed: CandidateList,
        next_candidate: &mut u32,
        above: &Settings,
        findings: &mut Findings,
    ) -> Option<JobPlan> {
        let job_settings = self.top.settle_below(&raw.layers, self.set, above, findings, self.whole)?;
        let layers = self.top.under(&raw.layers);
        let partial = raw.partial.unwrap_or(false);
        let first = *next_candidate;
        let mut candidates = Vec::with_capacity(listed.drafts.len());
        for draft in listed.drafts {
            let candidate_id = CandidateId(*next_candidate);
            *next_candidate = next_candidate.saturating_add(1);
            candidates.push(self.settle_candidate(
                draft,
                candidate_id,
                id,
                &layers,
                &job_settings,
                partial,
                findings,
            )?);
        }
        let entries = raw.entries.as_ref().map_or_else(
            || vec![DEFAULT_ENTRIES.to_owned()],
            |patterns| patterns.iter().map(|pattern| pattern.value.clone()).collect(),
        );
        let baseline = listed.baseline.and_then(|index| u32::try_from(index).ok());
        Some(JobPlan {
            id,
            name,
            captures,
            entries,
            dtypes: raw.dtypes.clone(),
            params: raw.params.clone(),
            constant: raw.constant.clone().unwrap_or_default(),
            defaults: raw.defaults.clone(),
            partial,
            baseline: baseline.map(|index| CandidateId(first.saturating_add(index))),
            candidates,
            recycle: job_settings.recycle,
            build: job_settings.build,
            verify: job_settings.verify,
            profile: job_settings.profile,
            limits: job_settings.limits,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "called once, with all levels above one candidate")]
    fn settle_candidate(
        &self,
        draft: Draft,
        id: CandidateId,
        job: JobId,
        layers: &Layers,
        above: &Settings,
        partial: bool,
        findings: &mut Findings,
    ) -> Option<CandidatePlan> {
        let candidate_settings = match &draft.layers {
            Some(candidate_settings) => {
                layers.settle_below(candidate_settings, self.set, above, findings, self.whole)?
            }
            None => above.clone(),
        };
        Some(CandidatePlan {
            id,
            job,
            name: draft.name,
            source: draft.source,
            recycle: candidate_settings.recycle,
            build: candidate_settings.build,
            verify: candidate_settings.verify,
            profile: candidate_settings.profile,
            limits: candidate_settings.limits,
            partial: draft.partial.unwrap_or(partial),
            launch: draft.launch,
        })
    }
}

/// Reports candidates that the device of the run cannot run. For the candidates from one pattern, possibly thousands,
/// there is one report.
fn report_unfit(listed: &CandidateList, device: Option<Device>, findings: &mut Findings) {
    let Some(device) = device else { return };
    let mut reported: Option<&Rc<Spot>> = None;
    for draft in &listed.drafts {
        let Some(why) = draft.source.language.unfit_for(device) else { continue };
        if reported.is_some_and(|spot| Rc::ptr_eq(spot, &draft.spot)) {
            continue;
        }
        findings.report(&draft.spot, format!("candidate `{}`: {why}", quote(&draft.name)));
        reported = Some(&draft.spot);
    }
}

/// Returns the capture folder of a job. Reports a folder that cannot be used, and patterns that match none of its
/// files.
fn captures_of(raw: &RawJob, findings: &mut Findings) -> Option<PathBuf> {
    let captures = raw.captures.as_ref()?;
    let path = findings.absolute(&captures.value);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            findings
                .report(&captures.spot, format!("`{}` is not a folder", label(&path)))
                .expected("a folder of recorded calls")
                .help("name the folder here, and pick the file with `entries = [\"…\"]`");
            return None;
        }
        Err(error) => {
            findings
                .report(&captures.spot, format!("cannot find the folder `{}`: {error}", label(&path)))
                .help("paths are relative to the plan");
            return None;
        }
    }
    let patterns: Vec<String> = match &raw.entries {
        Some(patterns) => patterns.iter().map(|pattern| pattern.value.clone()).collect(),
        None => vec![DEFAULT_ENTRIES.to_owned()],
    };
    if form_of(&path) == FolderForm::Unfinished {
        findings
            .report(&captures.spot, format!("`{}` is a capture store that is not finished", label(&path)))
            .help("continue with `opt-supervisor captures pack`");
        return None;
    }
    match glob::list(&entries_folder(&path), &patterns, MAX_ENTRIES) {
        Ok(listing) => {
            for (index, _) in listing.has_match.iter().enumerate().filter(|(_, has_match)| !**has_match) {
                let pattern = raw.entries.as_ref().and_then(|patterns| patterns.get(index));
                let spot = pattern.map_or(&captures.spot, |pattern| &pattern.spot);
                findings.report(
                    spot,
                    format!("no file in `{}` matches `{}`", label(&path), quote(&patterns[index])),
                );
            }
        }
        Err(error) => {
            findings.report(&captures.spot, error.to_string());
        }
    }
    Some(path)
}

/// Returns the job's name, and the position of the name in the plan.
fn name_of_job(raw: &RawJob, captures: Option<&Path>) -> Option<(String, Spot)> {
    if let Some(name) = &raw.name {
        return Some((name.value.clone(), name.spot.clone()));
    }
    let captures = captures?;
    let folder_name = captures.file_name().map(ToOwned::to_owned).or_else(|| {
        // A path that ends with `..` has no file name.
        captures.canonicalize().ok()?.file_name().map(ToOwned::to_owned)
    })?;
    let spot = raw.captures.as_ref().map_or(&raw.spot, |captures| &captures.spot);
    Some((folder_name.to_string_lossy().into_owned(), spot.clone()))
}
