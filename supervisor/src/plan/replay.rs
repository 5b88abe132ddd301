//! Reads and prints `[[replay]]` tables, each of which lists recorded calls of the jobs that are made again in a given
//! order, within a memory budget.
//!
//! This file looks up the jobs and entries that a replay names. It opens no capture, so the sizes of tensors are
//! checked later.

use std::collections::BTreeMap;

use opt_shared::ids::JobId;
use opt_shared::units::Bytes;
use toml::de::DeValue;

use super::amounts::Size;
use super::codec::{Codec, NonEmptyText, Number, Word, string};
use super::error::{Findings, Located, Spot, quote, suggest};
use super::job::{read_name, take};
use super::lists::{List, located_list};
use super::names::NameOf;
use super::print;
use super::schema::table_of_key;
use super::table::{TableReader, TomlValue, describe, tables, take_with};
use super::{JobPlan, ReplayCandidates, ReplayPlan, entry_files};

/// The maximum number of replays in a plan. Each one runs alone at the end of the run, and its result lists up to a
/// thousand steps.
pub const MAX_REPLAYS: usize = 16;
/// The largest allowed value of `prefetch`. Hardly any pool has room for the tensors of more steps.
const MAX_PREFETCH: u32 = 64;
/// The default value of `prefetch`. It loads the tensors of one step ahead, into memory that the running step leaves
/// free.
const DEFAULT_PREFETCH: u32 = 1;
const RECORDED: &str = "recorded";
const STEPS: &str = "an array of pairs `[\"JOB\", \"ENTRY\"]`, or \"recorded\"";

/// A `[[replay]]` as it is written. Its jobs and entries have not been looked up.
pub(super) struct RawReplay {
    name: Option<Located<String>>,
    job: Option<Located<String>>,
    steps: Option<Steps>,
    candidates: Option<ReplayCandidates>,
    budget: Option<Bytes>,
    pin: Vec<String>,
    prefetch: Option<u32>,
}

enum Steps {
    /// All entries of one job, in the order of their names.
    Recorded(Spot),
    Pairs(Vec<Located<(String, String)>>),
}

/// One step, written as `["JOB", "ENTRY"]`.
struct Pair;

impl Codec for Pair {
    type Value = (String, String);

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Self::Value> {
        let DeValue::Array(array) = value.get_ref() else {
            findings
                .report(spot, format!("wrong type: found {}", describe(value.get_ref())))
                .expected("a step: `[\"JOB\", \"ENTRY\"]`");
            return None;
        };
        let texts: Vec<Option<String>> =
            array.iter().map(|item| NonEmptyText::read(item, &spot.at(item.span()), findings)).collect();
        let [job, entry] = &texts[..] else {
            findings.report(spot, "this element is not a pair").expected("a step: `[\"JOB\", \"ENTRY\"]`");
            return None;
        };
        Some((job.clone()?, entry.clone()?))
    }

    fn print((job, entry): &Self::Value) -> String {
        format!("[{}, {}]", print::string(job), print::string(entry))
    }
}

/// Reads all replays of a plan.
pub(super) fn read_replays(root: &mut TableReader<'_, '_>, findings: &mut Findings) -> Vec<RawReplay> {
    let Some((value, spot)) = root.take("replay") else { return Vec::new() };
    let tables = tables(value, &spot, "[[replay]]", MAX_REPLAYS, findings);
    tables.into_iter().map(|table| read_replay(table, findings)).collect()
}

fn read_replay(mut table: TableReader<'_, '_>, findings: &mut Findings) -> RawReplay {
    let whole = table.spot.clone();
    for (key, expected) in [
        ("name", "a name: `name = \"…\"`"),
        ("steps", STEPS),
        ("budget", "the size of the pool: `budget = \"1GiB\"`"),
    ] {
        if !table.has(key) {
            findings.report(&whole, format!("the key `{key}` is missing")).expected(expected);
        }
    }
    let replay = RawReplay {
        name: read_name(&mut table, NameOf::Run, findings),
        job: take::<NonEmptyText>(&mut table, "job", findings),
        steps: take_with(&mut table, "steps", findings, read_steps).flatten(),
        candidates: take::<Word<ReplayCandidates>>(&mut table, "candidates", findings).map(|it| it.value),
        budget: take::<Size<1>>(&mut table, "budget", findings).map(|it| it.value),
        pin: take::<List<NonEmptyText>>(&mut table, "pin", findings).map_or_else(Vec::new, |it| it.value),
        prefetch: take::<Number<0, MAX_PREFETCH>>(&mut table, "prefetch", findings).map(|it| it.value),
    };
    table.finish(findings, &[], table_of_key);
    replay
}

fn read_steps(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Steps> {
    if let DeValue::String(_) = value.get_ref() {
        let word = string(value, spot, STEPS, findings)?;
        if word != RECORDED {
            findings.report(spot, format!("`{}` is not a list of steps", quote(&word))).expected(STEPS);
            return None;
        }
        return Some(Steps::Recorded(spot.clone()));
    }
    let pairs = located_list::<Pair>(value, spot, findings)?;
    if pairs.is_empty() {
        findings.report(spot, "the list names no step").expected(STEPS);
        return None;
    }
    Some(Steps::Pairs(pairs))
}

/// The jobs that replays can refer to. A reference to a job with a mistake is not a further mistake and is not
/// reported.
#[derive(Clone, Copy)]
pub(super) struct KnownJobs<'j> {
    /// The jobs without mistakes.
    pub(super) settled: &'j [JobPlan],
    /// For each job in the plan, its name. `None` for a job without a usable name.
    pub(super) written: &'j [Option<String>],
}

impl<'j> KnownJobs<'j> {
    /// Returns the job with this name. `None` if the job has a mistake or does not exist. Only the latter is reported
    /// here.
    fn find(self, name: &str, spot: &Spot, findings: &mut Findings) -> Option<&'j JobPlan> {
        let found = self.settled.iter().find(|job| job.name == name);
        // The replay may mean a job that has no usable name.
        let may_be_broken = self.written.iter().any(|it| it.as_ref().is_none_or(|it| it == name));
        if found.is_none() && !may_be_broken {
            let job_names: Vec<&str> = self.written.iter().flatten().map(String::as_str).collect();
            findings
                .report(spot, format!("the plan has no job `{}`", quote(name)))
                .help(suggest(name, &job_names));
        }
        found
    }
}

/// Looks up the jobs and entries that replays refer to.
pub(super) fn settle_replays(
    raw: Vec<RawReplay>,
    jobs: KnownJobs<'_>,
    findings: &mut Findings,
) -> Vec<ReplayPlan> {
    let mut names = BTreeMap::new();
    let mut entries: BTreeMap<JobId, Vec<String>> = BTreeMap::new();
    let mut settled = Vec::new();
    for raw in raw {
        if let Some(name) = &raw.name
            && names.insert(name.value.clone(), ()).is_some()
        {
            findings
                .report(&name.spot, format!("two replays are named `{}`", quote(&name.value)))
                .help("give one of them another `name`");
        }
        let steps = steps_of(&raw, jobs, &mut entries, findings);
        let (Some(name), Some(steps), Some(budget)) = (raw.name, steps, raw.budget) else { continue };
        settled.push(ReplayPlan {
            name: name.value,
            steps,
            candidates: raw.candidates.unwrap_or(ReplayCandidates::Winners),
            budget,
            pin: raw.pin,
            prefetch: raw.prefetch.unwrap_or(DEFAULT_PREFETCH),
        });
    }
    settled
}

fn steps_of(
    raw: &RawReplay,
    jobs: KnownJobs<'_>,
    entries: &mut BTreeMap<JobId, Vec<String>>,
    findings: &mut Findings,
) -> Option<Vec<(JobId, String)>> {
    match raw.steps.as_ref()? {
        Steps::Recorded(spot) => {
            let job = match &raw.job {
                Some(name) => jobs.find(&name.value, &name.spot, findings)?,
                None if jobs.written.len() < 2 => jobs.settled.first()?,
                None => {
                    findings
                        .report(spot, "the plan has several jobs")
                        .expected("the one whose entries are replayed: `job = \"…\"`");
                    return None;
                }
            };
            let names = entries_of(job, entries);
            Some(names.iter().map(|entry| (job.id, entry.clone())).collect())
        }
        Steps::Pairs(pairs) => {
            if let Some(job) = &raw.job {
                findings
                    .report(&job.spot, "this key has no effect if `steps` is a list of pairs")
                    .help("remove it, or write `steps = \"recorded\"`");
            }
            let mut steps = Vec::with_capacity(pairs.len());
            let mut all_found = true;
            for Located { value: (job, entry), spot } in pairs {
                let Some(job) = jobs.find(job, spot, findings) else {
                    all_found = false;
                    continue;
                };
                let names = entries_of(job, entries);
                // `entry_000001.pt` and `entry_000001` name the same entry.
                let stem = entry.strip_suffix(".pt").unwrap_or(entry);
                if names.iter().any(|it| it == stem) {
                    steps.push((job.id, stem.to_owned()));
                } else {
                    let all: Vec<&str> = names.iter().map(String::as_str).collect();
                    let near = super::error::nearest(stem, all.iter().copied());
                    findings
                        .report(spot, format!("job `{}` has no entry `{}`", quote(&job.name), quote(entry)))
                        .help_if(near.map(|near| format!("did you mean `{near}`?")));
                    all_found = false;
                }
            }
            all_found.then_some(steps)
        }
    }
}

/// Returns the names of a job's entries, in order. Empty if they cannot be listed, which was reported with the job.
fn entries_of<'e>(job: &JobPlan, known: &'e mut BTreeMap<JobId, Vec<String>>) -> &'e [String] {
    known.entry(job.id).or_insert_with(|| {
        let stem = |path: &std::path::PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        entry_files(job).unwrap_or_default().iter().filter_map(stem).collect()
    })
}

/// Returns the lines of one replay, as TOML that reads back as the same replay.
pub(super) fn print_replay(replay: &ReplayPlan, jobs: &[JobPlan]) -> Vec<(&'static str, String)> {
    let name = |id: JobId| jobs.get(id.index()).map_or_else(String::new, |job| job.name.clone());
    let pairs: Vec<(String, String)> =
        replay.steps.iter().map(|(job, entry)| (name(*job), entry.clone())).collect();
    let recorded = replay.steps.first().and_then(|(first, _)| {
        let job = jobs.get(first.index())?;
        let all = entry_files(job).ok()?;
        let stems = all.iter().filter_map(|path| path.file_stem()?.to_str());
        let steps = replay.steps.iter().map(|(id, entry)| (*id, entry.as_str()));
        steps.eq(stems.map(|stem| (*first, stem))).then(|| job.name.clone())
    });
    let mut lines = vec![("name", print::string(&replay.name))];
    match recorded {
        Some(job) => {
            lines.push(("job", print::string(&job)));
            lines.push(("steps", print::string(RECORDED)));
        }
        None => lines.push(("steps", List::<Pair>::print(&pairs))),
    }
    lines.push(("candidates", Word::<ReplayCandidates>::print(&replay.candidates)));
    lines.push(("budget", Size::<1>::print(&replay.budget)));
    lines.push(("pin", List::<NonEmptyText>::print(&replay.pin)));
    lines.push(("prefetch", replay.prefetch.to_string()));
    lines
}
