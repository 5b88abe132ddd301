//! Capture lint: what is odd about a recorded call before anything is run on it.
//!
//! From headers here; what needs the values of the outputs is `outputs`' work, their figures are `statistics`'.
//! Opens no file: who calls has read the capture. A lint refuses nothing; it says what a verdict on this entry would be
//! worth.

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

/// A storage is bloated if it is this many times what the call reaches of it …
const BLOAT_FACTOR: u64 = 4;
/// … and this much larger: less is not worth a line.
const BLOAT_BYTES: Bytes = Bytes::kib(256);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LintCode {
    /// The file, or a value in it, cannot be read.
    Unreadable,
    /// There is nothing to compare with.
    NoOutput,
    /// The entry has not the arguments that the others have.
    DifferingArity,
    /// An argument or output is of a kind that no kernel takes or makes.
    UnusableValue,
    /// Keys of the capture that mean nothing here.
    UnknownKeys,
    /// The output lies on bytes of an input.
    AliasedOutput,
    /// An input was saved after the call had written to it.
    InPlaceDamage,
    /// A view was saved with all of its storage.
    StorageBloat,
    /// Some output has no elements.
    EmptyOutput,
    /// An output holds one value, or nearly so: a kernel that looks at no input could pass.
    ConstantOutput,
    /// Zeros would be within the tolerance.
    TinyOutput,
    /// NaNs or infinities in an output.
    NonfiniteOutput,
    /// An output is an input, byte for byte: a kernel that copies could pass.
    OutputEqualsInput,
}

/// One oddity of one entry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lint {
    pub entry: String,
    pub code: LintCode,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// What the message was written from; finite numbers only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<&'static str, f64>,
}

/// An entry that was read and bound.
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

/// An entry that cannot be read at all, or is no recorded call.
pub fn unreadable(entry: &str, error: &dyn Error) -> Lint {
    Lint::new(entry, LintCode::Unreadable, chain(error))
}

/// An entry that does not fit its job's signature.
pub fn unfit(entry: &str, error: &BindError) -> Lint {
    let code = match error {
        BindError::TooManyPositional { .. }
        | BindError::UnknownKeyword { .. }
        | BindError::GivenTwice { .. }
        | BindError::Missing { .. }
        | BindError::ListLength { .. } => LintCode::DifferingArity,
        BindError::Value { .. }
        | BindError::TooManyArguments
        | BindError::Output { .. }
        | BindError::OutputValue { .. } => LintCode::UnusableValue,
    };
    Lint::new(entry, code, chain(error))
}

/// What the headers alone say.
pub fn of_headers(subject: &Subject<'_>, facts: &EntryFacts) -> Vec<Lint> {
    let mut lints = Vec::new();
    let name = subject.name;
    if subject.outputs.is_empty() {
        let what = match &subject.entry.output {
            None => "the capture holds no `output`",
            Some(_) => "the `output` holds no tensor",
        };
        let message = format!("{what}, so no candidate can be verified with it");
        lints.push(Lint::new(name, LintCode::NoOutput, message));
    }
    if !subject.entry.unknown_keys.is_empty() {
        let keys = subject.entry.unknown_keys.join("`, `");
        lints.push(Lint::new(name, LintCode::UnknownKeys, format!("keys that mean nothing here: `{keys}`")));
    }
    for leaf in subject.outputs.iter().filter(|leaf| leaf.tensor.elements() == 0) {
        let message = format!("`{}` has no elements: verified, but not scored", leaf.path);
        lints.push(Lint::new(name, LintCode::EmptyOutput, message));
    }
    if facts.aliased {
        let message = "an output lies on bytes of an input: verified, but not scored".to_owned();
        lints.push(Lint::new(name, LintCode::AliasedOutput, message));
    }
    if let Some((parameter, because)) = written_input(subject) {
        let message = format!(
            "`{parameter}` was recorded after the call, and {because}: what a candidate is given may be what the call \
             left there, not what it was given (capture the call with copies of its inputs)"
        );
        lints.push(Lint::new(name, LintCode::InPlaceDamage, message));
    }
    lints.extend(bloat(subject));
    lints
}

/// A parameter that the call is named or asked to write to, and how one can tell.
fn written_input<'a>(subject: &Subject<'a>) -> Option<(&'a str, String)> {
    let first = || tensors(subject.arguments).next().map(|(argument, _)| argument.parameter.as_str());
    let of = |wanted: &str| {
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
        return Some((first()?, format!("`{op}` writes in place, as its name says")));
    }
    if op.starts_with("embedding")
        && !matches!(plain_argument(subject, "max_norm"), None | Some(PlainValue::None))
    {
        return Some((of("weight")?, "`max_norm` renormalises it in place".to_owned()));
    }
    if op == "batch_norm" && is_true("training") {
        return Some((of("running_mean")?, "`training` is True, which updates it".to_owned()));
    }
    if op == "instance_norm" && is_true("use_input_stats") {
        return Some((of("running_mean")?, "`use_input_stats` is True, which updates it".to_owned()));
    }
    None
}

fn tensors(arguments: &[Argument]) -> impl Iterator<Item = (&Argument, &Tensor)> {
    arguments.iter().filter_map(|argument| match &argument.value {
        ArgumentValue::Tensor(tensor) => Some((argument, &**tensor)),
        ArgumentValue::Plain(_) => None,
    })
}

/// The plain value of a parameter, also of one that the plan leaves out.
fn plain_argument(subject: &Subject<'_>, parameter: &str) -> Option<PlainValue> {
    let by_name = subject.entry.kwargs.iter().find(|(name, _)| **name == *parameter).map(|(_, value)| value);
    let by_position = || -> Option<&Value> {
        let place = subject.signature.captured.iter().position(|name| name == parameter)?;
        subject.entry.args.get(place)
    };
    match by_name.or_else(by_position) {
        Some(value) => plain_value(value).ok(),
        None => subject.signature.defaults.get(parameter).cloned(),
    }
}

/// Storages that are saved whole for a small view.
fn bloat(subject: &Subject<'_>) -> Vec<Lint> {
    let mut views: BTreeMap<StorageId, Vec<(Range<u64>, &str)>> = BTreeMap::new();
    let inputs = tensors(subject.arguments).map(|(argument, tensor)| (tensor, argument.path.as_str()));
    for (tensor, path) in inputs.chain(subject.outputs.iter().map(|leaf| (&*leaf.tensor, leaf.path.as_str())))
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
            "`{}` reaches {reached} of a storage of {} (capture a compact copy: `tensor.clone()`)",
            paths.join("`, `"),
            storage.bytes
        );
        lints.push(Lint::new(subject.name, LintCode::StorageBloat, message).with_bytes(excess));
    }
    lints
}

#[cfg(test)]
mod tests;
