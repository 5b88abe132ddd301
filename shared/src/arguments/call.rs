//! Describes one recorded call for candidates in an interpreter: lists, tuples and names of arguments are preserved,
//! not flattened.
//!
//! A tensor is identified by its index among the arguments that `bind` makes from the same entry. Candidates in all
//! languages therefore get the same bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bind::{BindError, given};
use super::plain::{Budget, Refusal, ordered, plain_within, shorten};
use super::{Argument, ArgumentValue, Entry, PlainValue, Signature};
use crate::capture::{DType, SequenceKind, Value};

/// The form in which a candidate expects its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The arguments are passed by position, in the order of the job's signature. Defaults are passed for missing
    /// arguments.
    Settled,
    /// The arguments are passed by position and by name, as recorded.
    Recorded,
}

/// A call with its arguments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub positional: Vec<Part>,
    pub named: Vec<(String, Part)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    None,
    Bool(bool),
    Int(i64),
    /// A float, as text that parses to the same number. It is not written as a JSON number, because JSON cannot
    /// represent infinities.
    Float(String),
    Str(String),
    /// An attribute of the `torch` module: a dtype, a layout, a memory format.
    Torch(String),
    Device(String),
    /// The index of a tensor among the entry's arguments.
    Tensor(u32),
    List(Vec<Part>),
    Tuple(Vec<Part>),
}

/// Makes the call for an entry. `arguments` must have been bound from the same entry with the same signature.
pub fn call(
    entry: &Entry,
    signature: &Signature,
    arguments: &[Argument],
    form: Form,
) -> Result<Call, BindError> {
    let given = given(entry, &signature.captured)?;
    let mut parts = Parts::new(arguments);
    let part = |parts: &mut Parts<'_>, name: &str, value: &Value| {
        parts.begin(name);
        parts.part(value, 0, &mut Budget::new()).map_err(|reason| BindError::Value {
            parameter: shorten(name),
            path: shorten(name),
            reason,
        })
    };
    match form {
        Form::Settled => {
            let mut positional = Vec::with_capacity(signature.params.len());
            for name in &signature.params {
                positional.push(match given.get(name.as_str()) {
                    Some(value) => part(&mut parts, name, value)?,
                    None => plain_part(signature.defaults.get(name).unwrap_or(&PlainValue::None)),
                });
            }
            Ok(Call { positional, named: Vec::new() })
        }
        Form::Recorded => {
            let names = signature.captured.iter();
            let positional = names.zip(&entry.args).map(|(name, value)| part(&mut parts, name, value));
            let positional = positional.collect::<Result<_, _>>()?;
            let named = entry
                .kwargs
                .iter()
                .map(|(name, value)| Ok((name.to_string(), part(&mut parts, name, value)?)));
            Ok(Call { positional, named: named.collect::<Result<_, BindError>>()? })
        }
    }
}

/// Converts values, and assigns indices to their tensors in the order in which `bind` flattened them.
struct Parts<'a> {
    /// For each parameter, the indices of its tensors.
    tensors: BTreeMap<&'a str, Vec<u32>>,
    /// The indices of the current parameter's tensors that have not been assigned yet. `begin` sets the current
    /// parameter.
    rest: std::vec::IntoIter<u32>,
}

impl<'a> Parts<'a> {
    fn new(arguments: &'a [Argument]) -> Self {
        let mut tensors: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (index, argument) in (0..).zip(arguments) {
            if let ArgumentValue::Tensor(_) = argument.value {
                tensors.entry(&argument.parameter).or_default().push(index);
            }
        }
        Self { tensors, rest: Vec::new().into_iter() }
    }

    fn begin(&mut self, parameter: &str) {
        self.rest = self.tensors.get(parameter).cloned().unwrap_or_default().into_iter();
    }

    fn part(&mut self, value: &Value, depth: usize, budget: &mut Budget) -> Result<Part, Refusal> {
        if let Value::Tensor(_) = value {
            // A signature that leaves out a tensor is refused when it is settled.
            return self.rest.next().map(Part::Tensor).ok_or(Refusal::Tensor);
        }
        budget.visit(depth)?;
        if let Some(items) = ordered(value) {
            let parts = items.iter().map(|item| self.part(item, depth + 1, budget));
            let parts = parts.collect::<Result<_, _>>()?;
            let is_list = matches!(value, Value::Sequence { kind: SequenceKind::List, .. });
            return Ok(if is_list { Part::List(parts) } else { Part::Tuple(parts) });
        }
        Ok(match value {
            Value::Layout(name) | Value::MemoryFormat(name) => Part::Torch(name.to_string()),
            other => plain_part(&plain_within(other, depth, budget)?),
        })
    }
}

fn plain_part(value: &PlainValue) -> Part {
    let floats = |values: &[f64]| values.iter().map(|value| float(*value)).collect();
    match value {
        PlainValue::None => Part::None,
        PlainValue::Bool(value) => Part::Bool(*value),
        PlainValue::Int(value) => Part::Int(*value),
        PlainValue::Float(value) => float(*value),
        PlainValue::Str(text) => Part::Str(text.clone()),
        PlainValue::DType(dtype) => torch_dtype(*dtype),
        // A candidate in an interpreter runs on the CPU, even if the model used another device.
        PlainValue::Device(_) => Part::Device("cpu".to_owned()),
        PlainValue::Ints(values) => Part::Tuple(values.iter().copied().map(Part::Int).collect()),
        PlainValue::Floats(values) => Part::Tuple(floats(values)),
        PlainValue::Bools(values) => Part::Tuple(values.iter().copied().map(Part::Bool).collect()),
    }
}

fn float(value: f64) -> Part {
    Part::Float(format!("{value:e}"))
}

fn torch_dtype(dtype: DType) -> Part {
    Part::Torch(dtype.name().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::fixture::{int, list, tensor, tuple, unbound};
    use super::super::{SignatureBuilder, bind};
    use super::*;

    fn t(storage: u32) -> Value {
        tensor(DType::Float32, &[2], storage)
    }

    fn settled(entry: &Entry) -> (Signature, Vec<Argument>) {
        let mut builder = SignatureBuilder::new(None, BTreeMap::new());
        builder.observe("entry_000000.pt", entry);
        let signature = builder.finish().expect("a signature");
        let arguments = bind(entry, &signature).expect("bound");
        (signature, arguments)
    }

    #[test]
    fn call_keeps_lists_and_names_and_refers_to_tensors_by_index() {
        let entry = unbound(
            [list([t(0), tuple([t(1), int(7)])]), t(2)],
            [("dim", int(-1)), ("size", list([int(2), Value::Float(f64::INFINITY)]))],
        );
        let (signature, arguments) = settled(&entry);
        let list_part = Part::List(vec![Part::Tensor(0), Part::Tuple(vec![Part::Tensor(1), Part::Int(7)])]);
        let size = Part::List(vec![Part::Int(2), Part::Float("inf".to_owned())]);
        assert_eq!(
            call(&entry, &signature, &arguments, Form::Recorded).expect("a call"),
            Call {
                positional: vec![list_part.clone(), Part::Tensor(3)],
                named: vec![("dim".to_owned(), Part::Int(-1)), ("size".to_owned(), size.clone())],
            }
        );
        assert_eq!(
            call(&entry, &signature, &arguments, Form::Settled).expect("a call"),
            Call { positional: vec![list_part, Part::Tensor(3), Part::Int(-1), size], named: vec![] }
        );
    }

    #[test]
    fn settled_form_adds_a_missing_parameter() {
        let (signature, _) = settled(&unbound([t(0), int(2)], [("dim", int(0))]));
        let shorter = unbound([t(0), int(2)], []);
        let arguments = bind(&shorter, &signature).expect("bound");
        let made = |form| call(&shorter, &signature, &arguments, form).expect("a call");
        assert_eq!(made(Form::Settled).positional, [Part::Tensor(0), Part::Int(2), Part::None]);
        assert_eq!(
            made(Form::Recorded),
            Call { positional: vec![Part::Tensor(0), Part::Int(2)], named: vec![] }
        );
    }
}
