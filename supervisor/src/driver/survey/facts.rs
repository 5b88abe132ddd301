//! Reads the facts about a job's captures from their headers, before anything starts.
//!
//! This file converts captures to the numbers and the signature that the core and the workers receive. Only one capture
//! is open at a time, and little of it is kept. Arguments can be named only when every entry has been read. Until then,
//! small entries are kept in memory while there is room. The other entries are opened again afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use opt_shared::arguments::{
    Argument, Entry, EntryFacts, OutputTensor, Signature, SignatureBuilder, bind, class_key, judged,
};
use opt_shared::batch::{Share, compose};
use opt_shared::capture::{CaptureFile, DType, FileIdentity, Storage};
use opt_shared::causes::{chain, is_shortage};
use opt_shared::ids::EntryId;
use opt_shared::message::EntryRef;
use opt_shared::numbers::EntryNumbers;
use opt_shared::units::Bytes;

use super::choice::is_chosen;
use super::constants::Constants;
use super::entry_budget::EntryBudget;
use super::repeated::Repeated;
use crate::plan::JobPlan;
use crate::record::CapturesForm;

/// The number of problems that a message names. Further problems are only counted.
const NAMED_PROBLEMS: usize = 5;

/// An entry that could be read and that has outputs to compare with.
#[derive(Clone, Debug)]
pub struct UsableEntry {
    pub entry: EntryRef,
    /// The signature class, as text.
    pub class: String,
    /// Whether the entry may be timed. An entry is only verified if it has an output that has no elements, or one that
    /// overlaps an input in its storage.
    pub scored: bool,
}

/// Everything that is known about a job's captures.
#[derive(Clone, Debug, Default)]
pub struct JobFacts {
    pub signature: Option<Signature>,
    pub entries: Vec<UsableEntry>,
    pub bytes: Bytes,
    /// The total size of the distinct storages. Storages of equal size and CRC are counted once, because headers do not
    /// show their contents.
    pub unique_bytes: Bytes,
    pub digest: String,
    /// The recorded function, if all entries name the same one.
    pub function: Option<String>,
    /// Whether the captures are files or a store.
    pub form: Option<CapturesForm>,
    /// Why the captures cannot be used. `None` if they can.
    pub broken: Option<String>,
    /// Why the machine could not read the captures. If this is set, the other facts are incomplete.
    pub unread: Option<String>,
}

impl JobFacts {
    pub fn read(job: &JobPlan, files: &[PathBuf]) -> Self {
        let mut facts = Self::default();
        let mut problems = Vec::new();
        let mut kept_entries = Vec::new();
        let mut budget = EntryBudget::default();
        let mut builder = SignatureBuilder::new(job.params.clone(), job.defaults.clone());
        let mut functions = BTreeSet::new();
        for path in files {
            match read_headers(path, job.dtypes.as_deref()) {
                Ok(Some(headers)) => {
                    builder.observe(&headers.name, &headers.entry);
                    functions.insert(headers.entry.function_name.clone());
                    let is_small = budget.take(&headers.entry, &headers.storages);
                    kept_entries.push((path, is_small.then_some(headers)));
                }
                Ok(None) => {}
                Err(Unusable::Broken(problem)) => problems.push(problem),
                Err(Unusable::Unread(why)) => facts.unread = Some(why),
            }
        }
        if kept_entries.is_empty() && problems.is_empty() {
            problems.push("no entry is left to run (see `entries` and `dtypes`)".to_owned());
        }
        facts.function = match (functions.len(), functions.pop_first().flatten()) {
            (1, Some(name)) => Some(name.to_string()),
            _ => None,
        };
        let mut languages = job.candidates.iter().map(|it| it.source.language);
        if let Some(language) = languages.find(|it| !it.has_sources()).filter(|_| facts.function.is_none()) {
            problems.push(format!(
                "candidates in the language `{}` call the recorded function, but the captures do not all name the same \
                 one (`function_name`)",
                language.name()
            ));
        }
        match builder.finish() {
            Ok(signature) => facts.signature = Some(signature),
            Err(errors) => problems.extend(errors.iter().map(ToString::to_string)),
        }
        if let Some(signature) = facts.signature.clone() {
            let mut hasher = blake3::Hasher::new();
            let mut seen = BTreeMap::new();
            let mut constants = Constants::default();
            let mut repeated = Repeated::default();
            for (path, headers) in kept_entries {
                let headers = headers.map_or_else(|| read_headers(path, None), |it| Ok(Some(it)));
                let added = match headers {
                    Ok(Some(headers)) => {
                        let shared = (&mut constants, &mut repeated);
                        facts.add(path, headers, &signature, &mut hasher, &mut seen, shared)
                    }
                    Ok(None) => Ok(()),
                    Err(Unusable::Broken(problem)) => Err(problem),
                    Err(Unusable::Unread(why)) => {
                        facts.unread = Some(why);
                        Ok(())
                    }
                };
                problems.extend(added.err());
            }
            facts.digest = hasher.finalize().to_hex().to_string();
            facts.unique_bytes = seen.into_values().sum();
            for (fact, constants) in facts.entries.iter_mut().zip(constants.settle()) {
                fact.entry.numbers.constants = constants;
            }
            for (fact, repeated) in facts.entries.iter_mut().zip(repeated.settle()) {
                fact.entry.repeated = repeated;
            }
        }
        facts.set_weights();
        facts.broken = summarise(&problems);
        facts
    }

    fn add(
        &mut self,
        path: &Path,
        headers: EntryHeaders,
        signature: &Signature,
        hasher: &mut blake3::Hasher,
        seen: &mut BTreeMap<(u64, Option<u32>, u64), Bytes>,
        (constants, repeated): (&mut Constants, &mut Repeated),
    ) -> Result<(), String> {
        let EntryHeaders { name, entry, storages, file, form, identity } = headers;
        let arguments = bind(&entry, signature).map_err(|error| format!("{name}: {}", chain(&error)))?;
        let outputs = judged(&entry, &arguments).map_err(|error| format!("{name}: {}", chain(&error)))?;
        if outputs.is_empty() {
            return Err(format!("{name}: it holds no output to compare with"));
        }
        self.form = Some(form);
        let page = Bytes::from(rustix::param::page_size());
        let facts = EntryFacts::of(&storages, &arguments, &outputs, page);
        let number = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        for storage in &storages {
            note_storage(storage, number, seen, hasher);
        }
        hasher.update(name.as_bytes());
        hasher.update(&file.get().to_le_bytes());
        // If a file without CRCs was replaced by one of the same size, only the time of its last change shows this.
        if storages.iter().any(|storage| storage.crc32.is_none()) {
            hasher.update(&identity.map_or(0, |it| it.modified()).to_le_bytes());
        }
        self.bytes += file;
        constants.observe(&facts.pieces, page);
        repeated.observe(&storages, &arguments);
        self.entries.push(UsableEntry {
            entry: EntryRef {
                id: EntryId(number),
                name,
                path: path.to_owned(),
                identity,
                weight: 1,
                repeated: Vec::new(),
                numbers: EntryNumbers {
                    file,
                    inputs: facts.input_bytes,
                    outputs: facts.output_bytes,
                    ring: facts.ring_bytes,
                    buffers: u32::try_from(arguments.len() + outputs.len()).unwrap_or(u32::MAX),
                    varied: facts.varied_bytes,
                    varied_on_card: facts.varied_on_card_bytes,
                    unmapped: facts.unmapped_bytes,
                    copied: facts.copied_bytes,
                    constants: Arc::default(),
                },
            },
            class: class_key(&arguments, &outputs),
            scored: !facts.zero_size && !facts.aliased,
        });
        Ok(())
    }

    /// Sets each entry's weight to the number of entries in its class.
    fn set_weights(&mut self) {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for fact in &self.entries {
            *counts.entry(&fact.class).or_default() += 1;
        }
        let weights: Vec<u64> = self.entries.iter().map(|fact| counts[fact.class.as_str()]).collect();
        for (fact, weight) in self.entries.iter_mut().zip(weights) {
            fact.entry.weight = weight;
        }
    }

    /// Returns the entries by size. The smallest comes first, so that failures are found early.
    pub fn entries_to_verify(&self) -> Vec<&UsableEntry> {
        let mut facts: Vec<&UsableEntry> = self.entries.iter().collect();
        facts.sort_by_key(|fact| (fact.entry.numbers.file, fact.entry.id));
        facts
    }

    /// Returns the entries to time, in the order in which they are batched. Entries in `unsupported`, and those that
    /// are only verified, are never included.
    ///
    /// If `distinct`, only the first entry of each class is timed, which is the one whose memory is predicted. Its
    /// weight is the number of entries in its class that are not in `unsupported`. Otherwise, all entries are timed,
    /// each with weight 1.
    pub fn entries_to_time(&self, distinct: bool, unsupported: &[EntryId]) -> Vec<UsableEntry> {
        let refused = self.unsupported_by_class(unsupported);
        let mut seen = BTreeSet::new();
        let chosen: Vec<UsableEntry> = self
            .entries
            .iter()
            .filter(|fact| fact.scored)
            .filter(|fact| !distinct || seen.insert(fact.class.as_str()))
            .filter(|fact| !unsupported.contains(&fact.entry.id))
            .cloned()
            .map(|mut fact| {
                let refused = refused.get(fact.class.as_str()).copied().unwrap_or(0);
                fact.entry.weight =
                    if distinct { fact.entry.weight.saturating_sub(refused).max(1) } else { 1 };
                fact
            })
            .collect();
        let shares: Vec<Share<'_>> = chosen.iter().map(|fact| fact.entry.share()).collect();
        compose(&shares).into_iter().map(|index| chosen[index].clone()).collect()
    }

    /// Returns the total weight of the entries that `entries_to_time` leaves out because of `unsupported`.
    pub fn weight_left_out(&self, distinct: bool, unsupported: &[EntryId]) -> u64 {
        if unsupported.is_empty() {
            return 0;
        }
        let weight = |unsupported| -> u64 {
            self.entries_to_time(distinct, unsupported).iter().map(|fact| fact.entry.weight).sum()
        };
        weight(&[]) - weight(unsupported)
    }

    fn unsupported_by_class(&self, unsupported: &[EntryId]) -> BTreeMap<&str, u64> {
        let mut counts = BTreeMap::new();
        for fact in self.entries.iter().filter(|fact| unsupported.contains(&fact.entry.id)) {
            *counts.entry(fact.class.as_str()).or_default() += 1;
        }
        counts
    }
}

/// The part of a capture that is kept until the signature is known.
struct EntryHeaders {
    name: String,
    entry: Entry,
    storages: Vec<Storage>,
    file: Bytes,
    form: CapturesForm,
    identity: Option<FileIdentity>,
}

/// The reason why a capture cannot be used.
enum Unusable {
    /// The file is not a capture, or does not contain a recorded call.
    Broken(String),
    /// The machine lacks the descriptors or the memory to read the file.
    Unread(String),
}

/// Reads one capture. Returns `None` if `dtypes` excludes it.
fn read_headers(path: &Path, dtypes: Option<&[DType]>) -> Result<Option<EntryHeaders>, Unusable> {
    let name = stem(path);
    // The file is identified before it is read, so that a change during the read is noticed later.
    let identity = FileIdentity::of(path);
    let capture = CaptureFile::open(path).map_err(|error| {
        let why = chain(&error);
        if is_shortage(&error) { Unusable::Unread(why) } else { Unusable::Broken(why) }
    })?;
    let entry = Entry::from_value(capture.root())
        .map_err(|error| Unusable::Broken(format!("{name}: {}", chain(&error))))?;
    if dtypes.is_some_and(|wanted| !is_chosen(&entry, wanted)) {
        return Ok(None);
    }
    let form = if capture.is_packed() { CapturesForm::Store } else { CapturesForm::Files };
    let (storages, file) = (capture.storages().to_vec(), capture.file_bytes());
    Ok(Some(EntryHeaders { name, entry, storages, file, form, identity }))
}

/// Counts a storage, and adds its size and CRC to the digest. Its data is not read, so storages of equal size and CRC
/// count as one. Storages without a CRC are counted separately.
fn note_storage(
    storage: &Storage,
    entry: u32,
    seen: &mut BTreeMap<(u64, Option<u32>, u64), Bytes>,
    hasher: &mut blake3::Hasher,
) {
    let key_without_crc =
        if storage.crc32.is_none() { u64::from(entry) << 32 | u64::from(storage.id.0) } else { 0 };
    seen.insert((storage.bytes.get(), storage.crc32, key_without_crc), storage.bytes);
    hasher.update(&storage.bytes.get().to_le_bytes());
    hasher.update(&storage.crc32.unwrap_or(0).to_le_bytes());
}

/// Returns the name of a file without its suffix.
pub fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

fn summarise(problems: &[String]) -> Option<String> {
    if problems.is_empty() {
        return None;
    }
    let mut text = problems.iter().take(NAMED_PROBLEMS).cloned().collect::<Vec<_>>().join("; ");
    if NAMED_PROBLEMS < problems.len() {
        text.push_str(&format!("; and {} more", problems.len() - NAMED_PROBLEMS));
    }
    Some(text)
}

/// Returns the arguments and outputs of every entry that can be used.
pub fn observed(
    job: &JobPlan,
    files: &[PathBuf],
    signature: &Signature,
) -> Vec<(Vec<Argument>, Vec<OutputTensor>)> {
    let mut all = Vec::new();
    for path in files {
        let Ok(Some(EntryHeaders { entry, .. })) = read_headers(path, job.dtypes.as_deref()) else {
            continue;
        };
        if let Ok(arguments) = bind(&entry, signature)
            && let Ok(outputs) = judged(&entry, &arguments)
        {
            all.push((arguments, outputs));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns facts with one entry for each of these classes, in order. An entry with a question mark is only
    /// verified.
    fn facts(classes: &[&str]) -> JobFacts {
        let entry = |(number, class): (u32, &&str)| UsableEntry {
            entry: EntryRef {
                id: EntryId(number),
                name: format!("entry_{number:06}"),
                path: PathBuf::new(),
                identity: None,
                weight: 1,
                repeated: Vec::new(),
                numbers: EntryNumbers {
                    file: Bytes::new(1),
                    inputs: Bytes::new(1),
                    outputs: Bytes::new(1),
                    ring: Bytes::new(1),
                    buffers: 1,
                    varied: Bytes::ZERO,
                    varied_on_card: Bytes::ZERO,
                    unmapped: Bytes::ZERO,
                    copied: Bytes::ZERO,
                    constants: Arc::default(),
                },
            },
            class: class.trim_end_matches('?').to_owned(),
            scored: !class.contains('?'),
        };
        let mut facts = JobFacts { entries: (0..).zip(classes).map(entry).collect(), ..JobFacts::default() };
        facts.set_weights();
        facts
    }

    /// If a candidate supports only one of five entries of a class, its speed-up must count for that entry only.
    #[test]
    fn entry_stands_for_the_supported_entries_of_its_class() {
        let facts = facts(&["a", "a", "b", "a", "c?", "a", "a?"]);
        for (distinct, unsupported, timed, left_out) in [
            (true, &[][..], &[(0, 5), (2, 1)][..], 0),
            (true, &[1, 3, 5, 6], &[(0, 1), (2, 1)], 4),
            // Only the first entry of each class is timed, so the whole class is left out.
            (true, &[0], &[(2, 1)], 5),
            (true, &[0, 1, 3, 5, 6], &[(2, 1)], 5),
            // No entry of its class is timed.
            (true, &[4], &[(0, 5), (2, 1)], 0),
            (false, &[0, 4, 6], &[(1, 1), (2, 1), (3, 1), (5, 1)], 1),
        ] {
            let unsupported: Vec<EntryId> = unsupported.iter().copied().map(EntryId).collect();
            let mut found: Vec<(u32, u64)> = facts
                .entries_to_time(distinct, &unsupported)
                .iter()
                .map(|fact| (fact.entry.id.0, fact.entry.weight))
                .collect();
            found.sort_unstable();
            assert_eq!(found, timed, "{distinct} {unsupported:?}");
            assert_eq!(facts.weight_left_out(distinct, &unsupported), left_out, "{distinct} {unsupported:?}");
        }
    }
}
