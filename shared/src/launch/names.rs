//! Resolves the names in an expression to the parameters, outputs and workspaces of one entry.

use serde::{Deserialize, Serialize};

use super::Problem;
use super::node::{Attribute, Reference};
use super::scalar::Number;
use crate::arguments::{Argument, ArgumentValue, OutputTensor, PlainValue, returned};
use crate::capture::Tensor;

/// The names by which an expression can refer to the call's output.
const OUTPUT_NAMES: [&str; 2] = ["out", "output"];
/// The smallest similarity (Jaro-Winkler, 0 to 1) that a known name must have to an unknown one to be suggested in its
/// place.
const MIN_SIMILARITY: f64 = 0.7;

/// What an address in a launch points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pointer {
    /// The first element of an argument, by its index in the result of `bind`.
    Argument(usize),
    /// An output, by its index.
    Output(usize),
    Workspace(usize),
}

/// The names that an expression can refer to in one entry.
pub(super) struct Names<'a> {
    pub(super) arguments: &'a [Argument],
    pub(super) outputs: &'a [OutputTensor],
    /// The workspaces that have been evaluated so far, with their sizes in bytes.
    pub(super) workspaces: Vec<(&'a str, u64)>,
}

/// What a name in an expression stands for.
#[derive(Clone, Copy)]
pub(super) enum Named<'a> {
    Tensor(&'a Tensor, Pointer),
    Plain(&'a PlainValue),
    /// A whole list of tensors, with its length.
    Tensors(usize),
    /// A workspace, with its size in bytes.
    Workspace(u64, Pointer),
}

impl<'a> Names<'a> {
    pub(super) fn find(&self, reference: &Reference) -> Result<Named<'a>, Problem> {
        let path = path(&reference.name, &reference.indices);
        // Parameters take precedence, because their names are recorded and cannot be changed.
        for (index, argument) in self.arguments.iter().enumerate() {
            if argument.path == path {
                return Ok(match &argument.value {
                    ArgumentValue::Tensor(tensor) => Named::Tensor(tensor, Pointer::Argument(index)),
                    ArgumentValue::Plain(value) => Named::Plain(value),
                });
            }
        }
        let mut elements =
            self.arguments.iter().filter(|argument| argument.parameter == reference.name).peekable();
        if let Some(first) = elements.peek() {
            // A list of plain values is one argument, and the caller looks up the element.
            return match &first.value {
                ArgumentValue::Plain(value) if first.path == reference.name => Ok(Named::Plain(value)),
                _ if reference.indices.is_empty() => Ok(Named::Tensors(elements.count())),
                _ => Err(Problem::OutOfRange {
                    index: reference.indices.first().copied().unwrap_or(0),
                    length: elements.count(),
                }),
            };
        }
        if OUTPUT_NAMES.contains(&&*reference.name) {
            return self.output(&reference.indices);
        }
        if let Some(index) = self.workspaces.iter().position(|(name, _)| *name == reference.name)
            && reference.indices.is_empty()
        {
            return Ok(Named::Workspace(self.workspaces[index].1, Pointer::Workspace(index)));
        }
        Err(self.unknown(&reference.name))
    }

    fn output(&self, indices: &[i64]) -> Result<Named<'a>, Problem> {
        let outputs = returned(self.outputs);
        let found = |at: usize| Named::Tensor(&outputs[at].tensor, Pointer::Output(at));
        let path = path("output", indices);
        if let Some(at) = outputs.iter().position(|output| output.path == path) {
            return Ok(found(at));
        }
        match (indices, outputs) {
            ([], [_]) | ([0], [_]) => Ok(found(0)),
            ([], outputs) => Ok(Named::Tensors(outputs.len())),
            ([index, ..], outputs) => Err(Problem::OutOfRange { index: *index, length: outputs.len() }),
        }
    }

    fn unknown(&self, name: &str) -> Problem {
        let mut names: Vec<&str> = self.arguments.iter().map(|argument| &*argument.parameter).collect();
        names.dedup();
        names.extend(OUTPUT_NAMES.iter().take(1).copied().filter(|_| !returned(self.outputs).is_empty()));
        names.extend(self.workspaces.iter().map(|(name, _)| *name));
        let suggestion = names
            .iter()
            .map(|candidate| (strsim::jaro_winkler(candidate, name), *candidate))
            .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, candidate)| candidate.to_owned());
        Problem::UnknownName { suggestion, known: names.into_iter().map(str::to_owned).collect() }
    }
}

fn path(name: &str, indices: &[i64]) -> String {
    indices.iter().fold(name.to_owned(), |path, index| format!("{path}[{index}]"))
}

impl Named<'_> {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Tensor(..) => "a tensor".to_owned(),
            Self::Tensors(count) => format!("a list of {count} tensors"),
            Self::Workspace(..) => "a workspace".to_owned(),
            Self::Plain(value) => match value {
                PlainValue::None => "None".to_owned(),
                PlainValue::Bool(_) => "a bool".to_owned(),
                PlainValue::Int(_) => "an int".to_owned(),
                PlainValue::Float(_) => "a float".to_owned(),
                PlainValue::Str(_) => "a string".to_owned(),
                PlainValue::DType(_) => "a dtype".to_owned(),
                PlainValue::Device(_) => "a device".to_owned(),
                PlainValue::Ints(_) | PlainValue::Floats(_) | PlainValue::Bools(_) => "a list".to_owned(),
            },
        }
    }

    /// Returns the number that a reference stands for.
    pub(super) fn number(&self, reference: &Reference) -> Result<Number, Problem> {
        if let Some(attribute) = reference.attribute {
            return self.attribute(attribute).map(Number::Int);
        }
        let at = |length: usize| element(*reference.indices.first().unwrap_or(&0), length);
        let indexed = reference.indices.len() == 1;
        match self {
            Self::Plain(PlainValue::Int(value)) => Ok(Number::Int(*value)),
            Self::Plain(PlainValue::Float(value)) => Ok(Number::Float(*value)),
            Self::Plain(PlainValue::Bool(value)) => Ok(Number::Bool(*value)),
            Self::Plain(PlainValue::None) => Err(Problem::IsNone),
            Self::Plain(PlainValue::Ints(values)) if indexed => Ok(Number::Int(values[at(values.len())?])),
            Self::Plain(PlainValue::Floats(values)) if indexed => {
                Ok(Number::Float(values[at(values.len())?]))
            }
            Self::Plain(PlainValue::Bools(values)) if indexed => Ok(Number::Bool(values[at(values.len())?])),
            _ => Err(Problem::NotANumber { found: self.describe(), wanted: "a number" }),
        }
    }

    fn attribute(&self, attribute: Attribute) -> Result<i64, Problem> {
        let missing = || Problem::NoAttribute { found: self.describe(), attribute: attribute.name() };
        let as_integer = |value: u64| i64::try_from(value).map_err(|_| Problem::Overflow);
        let length = |values: usize| as_integer(values.try_into().unwrap_or(u64::MAX));
        match (self, attribute) {
            (Self::Tensor(tensor, _), _) => match attribute {
                Attribute::Numel => as_integer(tensor.elements()),
                Attribute::Ndim => length(tensor.shape.len()),
                Attribute::Itemsize => as_integer(tensor.dtype.size()),
                Attribute::Bytes => as_integer(tensor.logical_bytes().get()),
                Attribute::Shape(axis) => as_integer(tensor.shape[element(axis, tensor.shape.len())?]),
                Attribute::Stride(axis) => as_integer(tensor.stride[element(axis, tensor.stride.len())?]),
            },
            (Self::Workspace(bytes, _), Attribute::Bytes) => as_integer(*bytes),
            (Self::Tensors(count), Attribute::Numel) => length(*count),
            (Self::Plain(PlainValue::Ints(values)), Attribute::Numel) => length(values.len()),
            (Self::Plain(PlainValue::Floats(values)), Attribute::Numel) => length(values.len()),
            (Self::Plain(PlainValue::Bools(values)), Attribute::Numel) => length(values.len()),
            (Self::Plain(PlainValue::None), _) => Err(Problem::IsNone),
            _ => Err(missing()),
        }
    }
}

/// Checks an index, which counts back from the end if it is negative, as in Python.
fn element(index: i64, length: usize) -> Result<usize, Problem> {
    let out = Problem::OutOfRange { index, length };
    let from_start = if index < 0 {
        length.checked_sub(usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX))
    } else {
        usize::try_from(index).ok()
    };
    from_start.filter(|at| *at < length).ok_or(out)
}
