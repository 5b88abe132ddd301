//! Decides the order of a job's parameters after looking at all of its entries.
//!
//! For every position and keyword, the builder keeps a fingerprint of the first value, the first few entries that
//! differ from it, and the number of arguments into which the value is turned.

use std::collections::{BTreeMap, BTreeSet};

use super::bind::arguments_made;
use super::fingerprint::Fingerprint;
use super::plain::{Refusal, plain_value, shorten};
use super::{Entry, PlainValue, Signature};
use crate::capture::Value;

/// Largest number of different keyword names, and of different forms of call, in a job. Real ops have a few of each.
const MAX_NAMES: usize = 1024;
const MAX_FORMS: usize = 1024;
/// Largest number of entries named in one message.
const MAX_NAMED: usize = 3;
/// The smallest similarity (Jaro-Winkler, 0 to 1) that a known name must have to an unknown one to be suggested.
const SIMILAR: f64 = 0.7;

/// A reason why no signature can be settled for a job. If there are several reasons, they are reported together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("there are no entries to take a signature from")]
    NoEntries,
    #[error("the entries use more than {limit} different {what} (are they calls of one op?)")]
    TooMany { what: &'static str, limit: usize },
    #[error("`{key}` names `{name}`, which no entry has ({})", nearest(suggestion.as_deref(), known))]
    UnknownName { key: &'static str, name: String, suggestion: Option<String>, known: Vec<String> },
    #[error("`params` names `{name}` twice")]
    RepeatedName { name: String },
    #[error(
        "{entry}: {found} positional arguments, but {signature_entry} recorded a signature of {known} parameters"
    )]
    TooManyPositional { entry: String, found: usize, known: usize, signature_entry: String },
    #[error("{entry}: parameter `{parameter}` is not in the signature that {signature_entry} recorded")]
    UnknownKeyword { entry: String, parameter: String, signature_entry: String },
    #[error("{entry}: parameter `{parameter}` is given twice, by position and by name")]
    GivenTwice { entry: String, parameter: String },
    #[error(
        "{entry}: parameter `{parameter}` is missing{} and has no default (add `{parameter}` to `defaults`)",
        and_others(*others)
    )]
    Missing { entry: String, parameter: String, others: usize },
    #[error(
        "{entry}: parameter `{parameter}` is missing and its recorded default cannot be passed (give another in `defaults`)"
    )]
    UnusableDefault {
        entry: String,
        parameter: String,
        #[source]
        reason: Refusal,
    },
    #[error(
        "{entry}: parameter `{parameter}` is left out by `params` but holds a tensor (a tensor is never left \
         out: its values would have to be equal in every entry; add `{parameter}` to `params`)"
    )]
    LeftOutTensor { entry: String, parameter: String },
    #[error(
        "{}{}: parameter `{parameter}` is left out by `params` but is not the same in every entry: it is {first_value} \
         in {first} and {other_value} in {} (add it to `params`, or use `entries` to choose entries that agree)",
        others.join(", "), and_others(*more), others.first().map_or("", String::as_str)
    )]
    LeftOutVaries {
        parameter: String,
        first: String,
        first_value: String,
        /// The first few entries that differ.
        others: Vec<String>,
        other_value: String,
        more: usize,
    },
    #[error("{entry}: parameter `{parameter}` is left out by `params` but cannot be compared across entries")]
    LeftOutIncomparable {
        entry: String,
        parameter: String,
        #[source]
        reason: Refusal,
    },
    #[error(
        "{entry}: the number of arguments for `{parameter}` is {found}, but {expected} in {first} (a list of tensors \
         must have the same length in every entry)"
    )]
    ListLength { entry: String, parameter: String, found: usize, first: String, expected: usize },
}

fn and_others(count: usize) -> String {
    let entries = if count == 1 { "entry" } else { "entries" };
    if count == 0 { String::new() } else { format!(" (and in {count} more {entries})") }
}

fn nearest(suggestion: Option<&str>, known: &[String]) -> String {
    match suggestion {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known: {}", known.join(", ")),
    }
}

/// The position or the keyword with which an entry passes a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ArgumentKey {
    Position(usize),
    Keyword(String),
}

/// The positions and keywords that an entry uses. A job has few such forms, even if it has many entries.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CallForm {
    positional: usize,
    keywords: BTreeSet<String>,
}

/// The entries that have one form of call, or that lack one parameter: the name of the first, and how many others.
#[derive(Clone, Debug)]
struct Tally {
    first: String,
    others: usize,
}

/// Facts about the values of one position or keyword.
#[derive(Clone, Debug)]
struct ArgumentFacts {
    first_entry: String,
    fingerprint: Fingerprint,
    /// The first few entries whose value differs from that of the first entry.
    differing: Vec<(String, Fingerprint)>,
    more_differing: usize,
    tensor_in: Option<String>,
    incomparable_in: Option<(String, Refusal)>,
    /// The number of arguments into which the first value is turned.
    arguments: usize,
    /// The first entry whose value is turned into a different number of arguments.
    other_arguments: Option<(String, usize)>,
    has_tensor_list: bool,
}

struct Recorded {
    entry: String,
    params: Vec<String>,
    defaults: BTreeMap<String, Result<PlainValue, Refusal>>,
}

/// Collects the facts about a job's entries that determine its signature.
pub struct SignatureBuilder {
    params_override: Option<Vec<String>>,
    defaults_override: BTreeMap<String, PlainValue>,
    entries: usize,
    recorded: Option<Recorded>,
    /// The names of keyword arguments, in the order in which they were first seen.
    keywords: Vec<String>,
    positional: usize,
    forms: BTreeMap<CallForm, Tally>,
    facts: BTreeMap<ArgumentKey, ArgumentFacts>,
    too_many: Option<SignatureError>,
}

impl SignatureBuilder {
    /// Starts with the job's `params` and `defaults`. A name that is in both need not occur in the selected entries.
    pub fn new(
        params_override: Option<Vec<String>>,
        defaults_override: BTreeMap<String, PlainValue>,
    ) -> Self {
        Self {
            params_override,
            defaults_override,
            entries: 0,
            recorded: None,
            keywords: Vec::new(),
            positional: 0,
            forms: BTreeMap::new(),
            facts: BTreeMap::new(),
            too_many: None,
        }
    }

    /// Adds one entry. Call it once for each entry, in the job's order.
    pub fn observe(&mut self, entry_name: &str, entry: &Entry) {
        self.entries += 1;
        if self.too_many.is_some() {
            return;
        }
        if self.recorded.is_none()
            && let Some(signature) = &entry.signature
        {
            self.recorded = Some(Recorded {
                entry: entry_name.to_owned(),
                params: signature.params.iter().map(|name| name.to_string()).collect(),
                defaults: signature
                    .defaults
                    .iter()
                    .map(|(name, value)| (name.to_string(), plain_value(value)))
                    .collect(),
            });
        }
        self.positional = self.positional.max(entry.args.len());
        for (name, _) in &entry.kwargs {
            if !self.keywords.iter().any(|known| **known == **name) {
                self.keywords.push(name.to_string());
            }
        }
        let form = CallForm {
            positional: entry.args.len(),
            keywords: entry.kwargs.iter().map(|(name, _)| name.to_string()).collect(),
        };
        self.forms
            .entry(form)
            .and_modify(|tally| tally.others += 1)
            .or_insert_with(|| Tally { first: entry_name.to_owned(), others: 0 });
        for (index, value) in entry.args.iter().enumerate() {
            self.observe_value(ArgumentKey::Position(index), entry_name, value);
        }
        for (name, value) in &entry.kwargs {
            self.observe_value(ArgumentKey::Keyword(name.to_string()), entry_name, value);
        }
        self.too_many = if self.keywords.len() > MAX_NAMES {
            Some(SignatureError::TooMany { what: "parameter names", limit: MAX_NAMES })
        } else if self.forms.len() > MAX_FORMS {
            Some(SignatureError::TooMany { what: "sets of parameters", limit: MAX_FORMS })
        } else {
            None
        };
    }

    fn observe_value(&mut self, key: ArgumentKey, entry_name: &str, value: &Value) {
        let fingerprint = Fingerprint::of(value);
        let arguments = arguments_made(value);
        let is_tensor_list = !matches!(value, Value::Tensor(_)) && fingerprint == Fingerprint::Tensor;
        let facts = self.facts.entry(key).or_insert_with(|| ArgumentFacts {
            first_entry: entry_name.to_owned(),
            fingerprint: fingerprint.clone(),
            differing: Vec::new(),
            more_differing: 0,
            tensor_in: None,
            incomparable_in: None,
            arguments,
            other_arguments: None,
            has_tensor_list: false,
        });
        facts.has_tensor_list |= is_tensor_list;
        if arguments != facts.arguments && facts.other_arguments.is_none() {
            facts.other_arguments = Some((entry_name.to_owned(), arguments));
        }
        match &fingerprint {
            Fingerprint::Tensor if facts.tensor_in.is_none() => facts.tensor_in = Some(entry_name.to_owned()),
            Fingerprint::Incomparable(reason) if facts.incomparable_in.is_none() => {
                facts.incomparable_in = Some((entry_name.to_owned(), reason.clone()));
            }
            _ => {}
        }
        if fingerprint != facts.fingerprint {
            if facts.differing.len() < MAX_NAMED {
                facts.differing.push((entry_name.to_owned(), fingerprint));
            } else {
                facts.more_differing += 1;
            }
        }
    }

    pub fn finish(mut self) -> Result<Signature, Vec<SignatureError>> {
        if self.entries == 0 {
            return Err(vec![SignatureError::NoEntries]);
        }
        if let Some(error) = self.too_many.take() {
            return Err(vec![error]);
        }
        let captured = self.captured();
        let mut errors = Vec::new();
        let (defaults, unusable) = self.defaults(&captured, &mut errors);
        let params = self.params(&captured, &mut errors);
        self.check_forms(&captured, &params, &defaults, &unusable, &mut errors);
        for name in captured.iter().filter(|name| !params.contains(name)) {
            errors.extend(self.left_out(name, &captured, &defaults));
        }
        let lists = self.lists(&captured, &params, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let positional = if self.recorded.is_some() { 0 } else { self.positional };
        Ok(Signature { params, defaults, positional, captured, lists })
    }

    /// Every parameter, in the captures' own order.
    fn captured(&self) -> Vec<String> {
        if let Some(recorded) = &self.recorded {
            return recorded.params.clone();
        }
        let mut names: Vec<String> = (0..self.positional).map(|index| format!("arg{index}")).collect();
        let keywords = self.keywords.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>();
        names.extend(keywords);
        names
    }

    /// The recorded defaults (without a signature: None for keywords), overridden by the plan's, and the unusable ones.
    fn defaults(
        &self,
        captured: &[String],
        errors: &mut Vec<SignatureError>,
    ) -> (BTreeMap<String, PlainValue>, BTreeMap<String, Refusal>) {
        let mut defaults = BTreeMap::new();
        let mut unusable = BTreeMap::new();
        match &self.recorded {
            Some(recorded) => {
                for (name, value) in recorded.defaults.iter().filter(|(name, _)| captured.contains(name)) {
                    match value {
                        Ok(value) => defaults.insert(name.clone(), value.clone()).map_or((), drop),
                        Err(reason) => unusable.insert(name.clone(), reason.clone()).map_or((), drop),
                    }
                }
            }
            None => {
                defaults
                    .extend(captured[self.positional..].iter().map(|name| (name.clone(), PlainValue::None)));
            }
        }
        for (name, value) in &self.defaults_override {
            if captured.contains(name) || self.params_override.iter().flatten().any(|wanted| wanted == name) {
                unusable.remove(name);
                defaults.insert(name.clone(), value.clone());
            } else {
                errors.push(unknown_name("defaults", name, captured));
            }
        }
        (defaults, unusable)
    }

    fn params(&self, captured: &[String], errors: &mut Vec<SignatureError>) -> Vec<String> {
        let Some(wanted) = &self.params_override else {
            return captured.to_vec();
        };
        let mut params: Vec<String> = Vec::new();
        for name in wanted {
            if !captured.contains(name) && !self.defaults_override.contains_key(name) {
                errors.push(unknown_name("params", name, captured));
            } else if params.contains(name) {
                errors.push(SignatureError::RepeatedName { name: name.clone() });
            } else {
                params.push(name.clone());
            }
        }
        params
    }

    fn check_forms(
        &self,
        captured: &[String],
        params: &[String],
        defaults: &BTreeMap<String, PlainValue>,
        unusable: &BTreeMap<String, Refusal>,
        errors: &mut Vec<SignatureError>,
    ) {
        let signature_entry =
            || self.recorded.as_ref().map_or(String::new(), |recorded| recorded.entry.clone());
        let mut missing: BTreeMap<&str, Tally> = BTreeMap::new();
        for (form, tally) in &self.forms {
            let entry = || tally.first.clone();
            if form.positional > captured.len() {
                errors.push(SignatureError::TooManyPositional {
                    entry: entry(),
                    found: form.positional,
                    known: captured.len(),
                    signature_entry: signature_entry(),
                });
            }
            for name in &form.keywords {
                match captured.iter().position(|known| known == name) {
                    None => errors.push(SignatureError::UnknownKeyword {
                        entry: entry(),
                        parameter: shorten(name),
                        signature_entry: signature_entry(),
                    }),
                    Some(index) if index < form.positional => {
                        errors.push(SignatureError::GivenTwice { entry: entry(), parameter: shorten(name) })
                    }
                    Some(_) => {}
                }
            }
            for name in
                params.iter().filter(|name| !form.gives(name, captured) && !defaults.contains_key(*name))
            {
                missing
                    .entry(name)
                    .and_modify(|known| known.others += 1 + tally.others)
                    .or_insert_with(|| tally.clone());
            }
        }
        for (name, tally) in missing {
            let (entry, parameter) = (tally.first, shorten(name));
            errors.push(match unusable.get(name) {
                Some(reason) => SignatureError::UnusableDefault { entry, parameter, reason: reason.clone() },
                None => SignatureError::Missing { entry, parameter, others: tally.others },
            });
        }
    }

    fn facts_of(&self, name: &str, captured: &[String]) -> Vec<&ArgumentFacts> {
        let position = captured.iter().position(|known| known == name).map(ArgumentKey::Position);
        [position, Some(ArgumentKey::Keyword(name.to_owned()))]
            .into_iter()
            .flatten()
            .filter_map(|key| self.facts.get(&key))
            .collect()
    }

    /// Checks a parameter that is left out. It must have the same value in every entry, because a kernel does not
    /// receive it. A tensor is refused even if there is only one entry, because its values are not read here.
    fn left_out(
        &self,
        name: &str,
        captured: &[String],
        defaults: &BTreeMap<String, PlainValue>,
    ) -> Option<SignatureError> {
        let parameter = shorten(name);
        let facts = self.facts_of(name, captured);
        if let Some(entry) = facts.iter().find_map(|facts| facts.tensor_in.clone()) {
            return Some(SignatureError::LeftOutTensor { entry, parameter });
        }
        if let Some((entry, reason)) = facts.iter().find_map(|facts| facts.incomparable_in.clone()) {
            return Some(SignatureError::LeftOutIncomparable { entry, parameter, reason });
        }
        let first = facts.first()?;
        let mut differing = first.differing.clone();
        let mut more_differing = first.more_differing;
        for other in &facts[1..] {
            let seen = std::iter::once((other.first_entry.clone(), other.fingerprint.clone()))
                .chain(other.differing.clone());
            differing.extend(seen.filter(|(_, fingerprint)| *fingerprint != first.fingerprint));
            more_differing += other.more_differing;
        }
        let default = defaults.get(name).map(Fingerprint::of_plain);
        for (_, tally) in self.forms.iter().filter(|(form, _)| !form.gives(name, captured)) {
            if default.as_ref() != Some(&first.fingerprint) {
                let fingerprint = default.clone().unwrap_or_else(Fingerprint::nothing);
                differing.push((tally.first.clone(), fingerprint));
                more_differing += tally.others;
            }
        }
        let other_value = differing.first()?.1.shown();
        more_differing += differing.len().saturating_sub(MAX_NAMED);
        Some(SignatureError::LeftOutVaries {
            parameter,
            first: first.first_entry.clone(),
            first_value: first.fingerprint.shown(),
            others: differing.into_iter().take(MAX_NAMED).map(|(entry, _)| entry).collect(),
            other_value,
            more: more_differing,
        })
    }

    fn lists(
        &self,
        captured: &[String],
        params: &[String],
        errors: &mut Vec<SignatureError>,
    ) -> BTreeMap<String, usize> {
        let mut lists = BTreeMap::new();
        for name in params {
            let facts = self.facts_of(name, captured);
            let Some(first) = facts.first() else { continue };
            // An entry that lacks the parameter gets the default, which is a single argument.
            let lacking = self
                .forms
                .iter()
                .find(|(form, _)| !form.gives(name, captured))
                .map(|(_, tally)| (tally.first.clone(), 1));
            let mut others =
                facts.iter().filter_map(|facts| facts.other_arguments.clone()).collect::<Vec<_>>();
            others.extend(facts[1..].iter().map(|facts| (facts.first_entry.clone(), facts.arguments)));
            others.extend(lacking);
            if let Some((entry, found)) = others.into_iter().find(|(_, found)| *found != first.arguments) {
                errors.push(SignatureError::ListLength {
                    entry,
                    parameter: shorten(name),
                    found,
                    first: first.first_entry.clone(),
                    expected: first.arguments,
                });
            } else if facts.iter().any(|facts| facts.has_tensor_list) {
                lists.insert(name.clone(), first.arguments);
            }
        }
        lists
    }
}

impl CallForm {
    fn gives(&self, name: &str, captured: &[String]) -> bool {
        self.keywords.contains(name) || captured.iter().take(self.positional).any(|known| known == name)
    }
}

fn unknown_name(key: &'static str, name: &str, captured: &[String]) -> SignatureError {
    let suggestion = captured
        .iter()
        .map(|known| (strsim::jaro_winkler(known, name), known))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known.clone());
    SignatureError::UnknownName { key, name: shorten(name), suggestion, known: captured.to_vec() }
}
