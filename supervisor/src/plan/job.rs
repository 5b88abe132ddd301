//! Reads `[[job]]` and `[[job.candidate]]` as they are written. `resolve` and `candidates` later look up the files that
//! these name.

use std::collections::BTreeMap;

use opt_shared::arguments::PlainValue;
use opt_shared::capture::DType;
use opt_shared::language::Language;
use opt_shared::launch::Launch;
use toml::de::DeValue;

use super::codec::{Codec, Flag, NonEmptyText, Word, integer, number, string};
use super::error::{Findings, Located, Spot};
use super::launch::{LAUNCH_KEYS, read_launch};
use super::layers::Layers;
use super::lists::{List, located_list};
use super::names::{NameOf, objection};
use super::print;
use super::schema::{DTypeName, table_of_key};
use super::table::{TableReader, TomlValue, describe, tables, take_with, wrong_type};
use super::{MAX_CANDIDATES, MAX_JOBS};

/// Keys of a job that are reserved for a later version.
const RESERVED: [&str; 3] = ["search", "proposer", "holdout"];

/// A `[[job]]` as written. Its paths and patterns have not been looked up.
#[derive(Debug)]
pub(super) struct RawJob {
    /// The position of the job's header, at which missing keys are reported.
    pub(super) spot: Spot,
    pub(super) name: Option<Located<String>>,
    pub(super) captures: Option<Located<String>>,
    pub(super) entries: Option<Vec<Located<String>>>,
    pub(super) dtypes: Option<Vec<DType>>,
    pub(super) params: Option<Vec<String>>,
    pub(super) defaults: BTreeMap<String, PlainValue>,
    pub(super) constant: Option<Vec<String>>,
    pub(super) partial: Option<bool>,
    pub(super) baseline: Option<Located<String>>,
    pub(super) patterns: Vec<Located<String>>,
    pub(super) candidates: Vec<RawCandidate>,
    pub(super) layers: Layers,
}

/// A `[[job.candidate]]` as written.
#[derive(Debug)]
pub(super) struct RawCandidate {
    pub(super) spot: Spot,
    pub(super) name: Option<Located<String>>,
    pub(super) sources: Vec<Located<String>>,
    pub(super) language: Option<Located<Language>>,
    pub(super) symbol: Option<String>,
    pub(super) partial: Option<bool>,
    /// The launches and workspaces. `None` if one of them has a mistake, which has been reported.
    pub(super) launch: Option<Launch>,
    pub(super) layers: Layers,
}

/// Reads all jobs of a plan. A plan without jobs is reported at `root`.
pub(super) fn read_jobs(root: &mut TableReader<'_, '_>, findings: &mut Findings) -> Vec<RawJob> {
    let found = root.take("job");
    let is_empty =
        |(value, _): &(&TomlValue<'_>, Spot)| value.get_ref().as_array().is_some_and(|it| it.is_empty());
    let Some((value, spot)) = found.filter(|it| !is_empty(it)) else {
        findings
            .report(&root.spot.clone(), "the plan has no job")
            .expected("a `[[job]]` with its `captures` and `candidates`");
        return Vec::new();
    };
    let jobs = tables(value, &spot, "[[job]]", MAX_JOBS, findings);
    jobs.into_iter().map(|table| read_job(table, findings)).collect()
}

fn read_job(mut table: TableReader<'_, '_>, findings: &mut Findings) -> RawJob {
    let captures = take::<NonEmptyText>(&mut table, "captures", findings);
    if !table.has("captures") {
        findings
            .report(&table.spot.clone(), "the key `captures` is missing")
            .expected("a folder of recorded calls: `captures = \"…\"`");
    }
    let params = take_with(&mut table, "params", findings, read_params).flatten();
    let defaults = take_with(&mut table, "defaults", findings, |value, spot, findings| {
        read_defaults(value, spot, params.as_deref(), findings)
    });
    let job = RawJob {
        spot: table.spot.clone(),
        name: read_name(&mut table, NameOf::Job, findings),
        captures,
        entries: take_with(&mut table, "entries", findings, read_entries).flatten(),
        dtypes: take_with(&mut table, "dtypes", findings, read_dtypes).flatten(),
        params,
        defaults: defaults.unwrap_or_default(),
        constant: take::<List<NonEmptyText>>(&mut table, "constant", findings).map(|names| names.value),
        partial: take::<Flag>(&mut table, "partial", findings).map(|partial| partial.value),
        baseline: take::<NonEmptyText>(&mut table, "baseline", findings),
        patterns: take_with(&mut table, "candidates", findings, located_list::<NonEmptyText>)
            .flatten()
            .unwrap_or_default(),
        candidates: take_with(&mut table, "candidate", findings, |value, spot, findings| {
            let tables = tables(value, spot, "[[job.candidate]]", MAX_CANDIDATES, findings);
            tables.into_iter().map(|table| read_candidate(table, findings)).collect()
        })
        .unwrap_or_default(),
        layers: Layers::read(&mut table, findings),
    };
    table.finish(findings, &RESERVED, table_of_key);
    job
}

fn read_candidate(mut table: TableReader<'_, '_>, findings: &mut Findings) -> RawCandidate {
    let sources = take_with(&mut table, "sources", findings, |value, spot, findings| {
        let sources = located_list::<NonEmptyText>(value, spot, findings)?;
        if sources.is_empty() {
            findings.report(spot, "the list is empty").expected("at least one source");
        }
        Some(sources)
    });
    let language = take::<Word<Language>>(&mut table, "language", findings);
    let has_sources = language.as_ref().is_none_or(|language| language.value.has_sources());
    if let (Some(Some(sources)), false) = (&sources, has_sources)
        && let Some(first) = sources.first()
    {
        findings.report(
            &first.spot,
            "a candidate in the language `torch` or `torch.compile` is the recorded function itself and has no sources",
        );
    }
    if sources.is_none() && has_sources {
        findings
            .report(&table.spot.clone(), "the key `sources` is missing")
            .expected("the candidate's source files: `sources = [\"…\"]`");
    }
    let candidate = RawCandidate {
        spot: table.spot.clone(),
        name: read_name(&mut table, NameOf::Candidate, findings),
        sources: sources.flatten().unwrap_or_default(),
        language,
        symbol: take_with(&mut table, "symbol", findings, read_symbol).flatten(),
        partial: take::<Flag>(&mut table, "partial", findings).map(|partial| partial.value),
        launch: read_launch(&mut table, findings),
        layers: Layers::read(&mut table, findings),
    };
    table.finish(findings, &[], |key| {
        if LAUNCH_KEYS.contains(&key) { Some("[job.candidate.launch]") } else { table_of_key(key) }
    });
    candidate
}

pub(super) fn take<C: Codec>(
    table: &mut TableReader<'_, '_>,
    key: &'static str,
    findings: &mut Findings,
) -> Option<Located<C::Value>> {
    let (value, spot) = table.take(key)?;
    C::read(value, &spot, findings).map(|value| Located { value, spot })
}

pub(super) fn read_name(
    table: &mut TableReader<'_, '_>,
    of: NameOf,
    findings: &mut Findings,
) -> Option<Located<String>> {
    let (value, spot) = table.take("name")?;
    let name = string(value, &spot, "a name", findings)?;
    if let Some(objection) = objection(&name, of) {
        findings.report(&spot, format!("this name {objection}"));
        return None;
    }
    Some(Located { value: name, spot })
}

fn read_entries(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vec<Located<String>>> {
    let patterns = located_list::<NonEmptyText>(value, spot, findings)?;
    let before = findings.count();
    if patterns.is_empty() {
        findings.report(spot, "the list is empty").help("leave the key out to take every entry");
    }
    for pattern in &patterns {
        if pattern.value.contains('/') {
            findings
                .report(&pattern.spot, "this pattern contains a `/`")
                .expected("a pattern of file names in the folder of `captures`");
        } else if let Err(error) = super::glob::compile(&pattern.value) {
            findings.report(&pattern.spot, error.to_string());
        }
    }
    (findings.count() == before).then_some(patterns)
}

fn read_dtypes(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vec<DType>> {
    let dtypes = List::<DTypeName>::read(value, spot, findings)?;
    if dtypes.is_empty() {
        findings.report(spot, "the list is empty").help("leave the key out to take entries of every type");
        return None;
    }
    Some(dtypes)
}

fn read_params(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<Vec<String>> {
    let items = located_list::<NonEmptyText>(value, spot, findings)?;
    let before = findings.count();
    let mut params: Vec<String> = Vec::with_capacity(items.len());
    for item in items {
        if let Some(objection) = objection(&item.value, NameOf::Parameter) {
            findings.report(&item.spot, format!("this name {objection}"));
        } else if params.contains(&item.value) {
            findings.report(&item.spot, format!("the parameter `{}` is listed twice", item.value));
        }
        params.push(item.value);
    }
    (findings.count() == before).then_some(params)
}

fn read_symbol(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<String> {
    const FORM: &str = "the name of a C function, such as `run`";
    let symbol = string(value, spot, FORM, findings)?;
    let first_fits = symbol.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !first_fits || !symbol.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') || symbol.len() > 256 {
        findings.report(spot, format!("{} is not a symbol", describe(value.get_ref()))).expected(FORM);
        return None;
    }
    Some(symbol)
}

fn read_defaults(
    value: &TomlValue<'_>,
    spot: &Spot,
    params: Option<&[String]>,
    findings: &mut Findings,
) -> BTreeMap<String, PlainValue> {
    let Some(table) = TableReader::of(value, spot, findings) else { return BTreeMap::new() };
    let mut defaults = BTreeMap::new();
    for (name, value, spot, key_spot) in table.entries() {
        if let Some(objection) = objection(name, NameOf::Parameter) {
            findings.report(&key_spot, format!("this name {objection}"));
        } else if let Some(params) = params.filter(|params| !params.iter().any(|param| param == name)) {
            let parameters: Vec<&str> = params.iter().map(String::as_str).collect();
            findings
                .report(&key_spot, "this parameter is not among `params`")
                .help(super::error::suggest(name, &parameters));
        }
        if let Some(value) = Plain::read(value, &spot, findings) {
            defaults.insert(name.to_owned(), value);
        }
    }
    defaults
}

/// Reads and prints the default value of a parameter.
pub(super) struct Plain;

impl Codec for Plain {
    type Value = PlainValue;

    fn read(value: &TomlValue<'_>, spot: &Spot, findings: &mut Findings) -> Option<PlainValue> {
        const FORM: &str =
            "a number, a boolean, a string (\"none\" for None), or an array of numbers or booleans";
        match value.get_ref() {
            DeValue::String(text) if text == "none" => Some(PlainValue::None),
            DeValue::String(text) => Some(PlainValue::Str(text.clone().into_owned())),
            DeValue::Integer(_) => integer(value, spot, FORM, findings).map(PlainValue::Int),
            DeValue::Float(_) => number(value, spot, FORM, findings).map(PlainValue::Float),
            DeValue::Boolean(value) => Some(PlainValue::Bool(*value)),
            DeValue::Array(array) => {
                if array.iter().all(|item| item.get_ref().is_integer()) {
                    return array
                        .iter()
                        .map(|item| integer(item, &spot.at(item.span()), FORM, findings))
                        .collect::<Option<_>>()
                        .map(PlainValue::Ints);
                }
                if array.iter().all(|item| item.get_ref().is_bool()) {
                    return List::<Flag>::read(value, spot, findings).map(PlainValue::Bools);
                }
                array
                    .iter()
                    .map(|item| {
                        number(item, &spot.at(item.span()), "numbers only, or booleans only", findings)
                    })
                    .collect::<Option<_>>()
                    .map(PlainValue::Floats)
            }
            other => {
                wrong_type(other, spot, FORM, findings);
                None
            }
        }
    }

    fn print(value: &PlainValue) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        match value {
            PlainValue::None => print::string("none"),
            PlainValue::Bool(value) => value.to_string(),
            PlainValue::Int(value) => value.to_string(),
            PlainValue::Float(value) => print::float(*value),
            PlainValue::Str(text) | PlainValue::Device(text) => print::string(text),
            PlainValue::DType(dtype) => print::string(dtype.name()),
            PlainValue::Ints(values) => list(values.iter().map(ToString::to_string).collect()),
            PlainValue::Floats(values) => list(values.iter().map(|value| print::float(*value)).collect()),
            PlainValue::Bools(values) => list(values.iter().map(ToString::to_string).collect()),
        }
    }
}
