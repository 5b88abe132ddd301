//! Finds odd properties of a recorded call (capture lint) before any candidate runs on it.
//!
//! This file contains the lints that need only headers. The lints in `outputs` need the values of the outputs, from
//! which `statistics` computes figures. The caller has read the capture, so no file is opened here. A lint does not
//! refuse a capture. It warns that a verdict on the entry may mean little.

mod outputs;
mod statistics;

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;

use opt_shared::arguments::{Argument, ArgumentValue, BindError, Entry, OutputTensor, PlainValue, Signature};
use opt_shared::arguments::{EntryFacts, plain_value};
use opt_shared::capture::{Storage, Tensor, Value};
use opt_shared::causes::chain;
use opt_shared::ids::StorageId;
use opt_shared::units::Bytes;
use serde::Serialize;

pub use outputs::{ReadRange, of_values};
pub use statistics::{Statistics, statistics};

/// A storage counts as bloated if it is at least this many times as large as the part that the call uses.
const BLOAT_FACTOR: u64 = 4;
/// A storage counts as bloated only if it has at least this many unused bytes. Fewer are not worth a warning.
const BLOAT_BYTES: Bytes = Bytes::kib(256);

/// The property that a lint warns about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LintCode {
    /// The file, or a value in it, cannot be read.
    Unreadable,
    /// There is no output to compare with.
    NoOutput,
    /// The entry's arguments do not fit the job's signature in number or name.
    DifferingArity,
    /// The call cannot be used. It has an argument that no kernel can take, arguments that are too many or too large,
    /// or an output that cannot be compared.
    UnusableValue,
    /// The capture contains keys that are ignored.
    UnknownKeys,
    /// The output shares memory with an input.
    AliasedOutput,
    /// Judging by the op or its arguments, an input was saved after the call had written to it.
    InPlaceDamage,
    /// A view was saved with its whole storage.
    StorageBloat,
    /// An output has no elements.
    EmptyOutput,
    /// All elements of an output are equal, or nearly so. A kernel that ignores its inputs could pass.
    ConstantOutput,
    /// The output is so small that zeros would be within its absolute tolerance.
    TinyOutput,
    /// An output contains NaNs or infinities.
    NonfiniteOutput,
    /// An output equals an input, or differs from it by no more than the absolute tolerance. A kernel that copies the
    /// input could pass.
    OutputEqualsInput,
}

/// One warning about one entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lint {
    pub entry: String,
    pub code: LintCode,
    pub message: String,
    /// The unused bytes of a bloated storage, or the size of an output that equals an input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// The figures behind the message, except those that are not finite.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<&'static str, f64>,
}

/// An entry whose capture was read and whose values were bound to parameters.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub name: &'a str,
    pub entry: &'a Entry,
    pub signature: &'a Signature,
    pub storages: &'a [Storage],
    pub arguments: &'a [Argument],
    pub outputs: &'a [OutputTensor],
}

impl Lint {
    fn new(entry: &str, code: LintCode, message: String) -> Self {
        Self { entry: entry.to_owned(), code, message, bytes: None, numbers: BTreeMap::new() }
    }

    fn with_bytes(self, bytes: Bytes) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    fn with_numbers<const N: usize>(self, numbers: [(&'static str, f64); N]) -> Self {
        Self { numbers: numbers.into_iter().filter(|(_, number)| number.is_finite()).collect(), ..self }
    }
}

/// Returns the lint for an entry that cannot be read at all, or that is not a recorded call.
pub fn unreadable(entry: &str, error: &dyn Error) -> Lint {
    Lint::new(entry, LintCode::Unreadable, chain(error))
}

/// Returns the lint for an entry that does not fit its job's signature, or that has a value which cannot be used.
pub fn unfit(entry: &str, error: &BindError) -> Lint {
    let code = match error {
        BindError::TooManyPositional { .. }
        | BindError::UnknownKeyword { .. }
        | BindError::GivenTwice { .. }
        | BindError::Missing { .. }
        | BindError::ListLength { .. } => LintCode::DifferingArity,
        BindError::Value { .. }
        | BindError::TooManyArguments
        | BindError::TooLarge { .. }
        | BindError::Mutates { .. }
        | BindError::Output { .. }
        | BindError::OutputValue { .. } => LintCode::UnusableValue,
    };
    Lint::new(entry, code, chain(error))
}

/// Returns the lints that need only the headers.
pub fn of_headers(subject: &Subject<'_>, facts: &EntryFacts) -> Vec<Lint> {
    let mut lints = Vec::new();
    let name = subject.name;
    if subject.outputs.is_empty() {
        let what = match &subject.entry.output {
            None => "the capture has no `output`",
            Some(_) => "the `output` has no tensor",
        };
        let message = format!("{what}, so no candidate can be verified with it");
        lints.push(Lint::new(name, LintCode::NoOutput, message));
    }
    if !subject.entry.unknown_keys.is_empty() {
        let keys = subject.entry.unknown_keys.join("`, `");
        lints.push(Lint::new(
            name,
            LintCode::UnknownKeys,
            format!("the capture has keys that are ignored: `{keys}`"),
        ));
    }
    for output in subject.outputs.iter().filter(|output| output.tensor.elements() == 0) {
        let message = format!("`{}` has no elements, so the entry is verified but not timed", output.path);
        lints.push(Lint::new(name, LintCode::EmptyOutput, message));
    }
    if facts.aliased {
        let message =
            "an output shares memory with an input, so the entry is verified but not timed".to_owned();
        lints.push(Lint::new(name, LintCode::AliasedOutput, message));
    }
    let judged = |parameter: &str| subject.entry.mutates.iter().any(|(name, _)| **name == *parameter);
    if let Some((parameter, because)) = written_input(subject).filter(|(parameter, _)| !judged(parameter)) {
        let message = format!(
            "`{parameter}` may have been recorded after the call changed it, because {because}: candidates would then \
             get the new value instead of the input (record the call with copies of its inputs, and put the new value \
             of `{parameter}` into `mutates`)"
        );
        lints.push(Lint::new(name, LintCode::InPlaceDamage, message));
    }
    lints.extend(bloat(subject));
    lints
}

/// Returns a parameter that the call writes to, judging by the op's name or the arguments. The text is the reason,
/// which becomes part of the message.
fn written_input<'a>(subject: &Subject<'a>) -> Option<(&'a str, String)> {
    let first = || tensors(subject.arguments).next().map(|(argument, _)| argument.parameter.as_str());
    let tensor_named = |wanted: &str| {
        tensors(subject.arguments)
            .map(|(argument, _)| argument.parameter.as_str())
            .find(|name| *name == wanted)
    };
    let is_true = |name| plain_argument(subject, name) == Some(PlainValue::Bool(true));
    let op =
        subject.entry.function_name.as_deref().unwrap_or_default().rsplit('.').next().unwrap_or_default();
    if is_true("inplace") {
        return Some((first()?, "`inplace` is True".to_owned()));
    }
    if op.ends_with('_') && !op.ends_with("__") {
        return Some((first()?, format!("`{op}` writes in place, judging by its name")));
    }
    if op.starts_with("embedding")
        && !matches!(plain_argument(subject, "max_norm"), None | Some(PlainValue::None))
    {
        return Some((tensor_named("weight")?, "`max_norm` renormalises it in place".to_owned()));
    }
    if op == "batch_norm" && is_true("training") {
        return Some((tensor_named("running_mean")?, "`training` is True, which updates it".to_owned()));
    }
    if op == "instance_norm" && is_true("use_input_stats") {
        return Some((
            tensor_named("running_mean")?,
            "`use_input_stats` is True, which updates it".to_owned(),
        ));
    }
    None
}

fn tensors(arguments: &[Argument]) -> impl Iterator<Item = (&Argument, &Tensor)> {
    arguments.iter().filter_map(|argument| match &argument.value {
        ArgumentValue::Tensor(tensor) => Some((argument, &**tensor)),
        ArgumentValue::Plain(_) => None,
    })
}

/// Returns the plain value of a parameter, even of one that is not among the plan's `params`.
fn plain_argument(subject: &Subject<'_>, parameter: &str) -> Option<PlainValue> {
    let by_name = subject.entry.kwargs.iter().find(|(name, _)| **name == *parameter).map(|(_, value)| value);
    let by_position = || -> Option<&Value> {
        let index = subject.signature.captured.iter().position(|name| name == parameter)?;
        subject.entry.args.get(index)
    };
    match by_name.or_else(by_position) {
        Some(value) => plain_value(value).ok(),
        None => subject.signature.defaults.get(parameter).cloned(),
    }
}

/// Returns the lints for storages that were saved as a whole although the call uses only small views of them.
fn bloat(subject: &Subject<'_>) -> Vec<Lint> {
    let mut views: BTreeMap<StorageId, Vec<(Range<u64>, &str)>> = BTreeMap::new();
    let inputs = tensors(subject.arguments).map(|(argument, tensor)| (tensor, argument.path.as_str()));
    for (tensor, path) in
        inputs.chain(subject.outputs.iter().map(|output| (&*output.tensor, output.path.as_str())))
    {
        views.entry(tensor.storage).or_default().push((tensor.byte_range(), path));
    }
    let mut lints = Vec::new();
    for (id, mut ranges) in views {
        let Some(storage) = subject.storages.iter().find(|storage| storage.id == id) else { continue };
        ranges.sort_by_key(|(range, _)| range.start);
        let mut reached = Bytes::ZERO;
        let mut end = 0;
        for (range, _) in &ranges {
            reached += Bytes::new(range.end.saturating_sub(range.start.max(end)));
            end = end.max(range.end);
        }
        let excess = storage.bytes - reached;
        if excess < BLOAT_BYTES || storage.bytes < reached.saturating_mul(BLOAT_FACTOR) {
            continue;
        }
        let mut paths: Vec<&str> = ranges.iter().map(|(_, path)| *path).collect();
        paths.sort_unstable();
        paths.dedup();
        let message = format!(
            "`{}`: only {reached} are used of a storage of {} (capture a compact copy: `tensor.clone()`)",
            paths.join("`, `"),
            storage.bytes
        );
        lints.push(Lint::new(subject.name, LintCode::StorageBloat, message).with_bytes(excess));
    }
    lints
}

#[cfg(test)]
mod tests;
