//! Turns the values of one entry into the arguments of a kernel, in the order of the signature, and finds the expected
//! outputs.
//!
//! `settle` decides the order. This file refuses values that no kernel can take; the error names the value's parameter
//! and path.

use std::collections::BTreeMap;

use super::entry::kind_name;
use super::heavy::walkable;
use super::pieces::is_lazy;
use super::plain::{Budget, Refusal, holds_tensor, ordered, plain_within, shorten};
use super::{
    Argument, ArgumentValue, Entry, MAX_ARGUMENT_BYTES, MAX_ARGUMENTS, OutputTensor, PlainValue, Signature,
};
use crate::capture::{Tensor, Value};

/// The error for an entry that does not match its job's signature, or that has a value which cannot be passed or
/// compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    #[error("the entry has {found} positional arguments, but the signature has {known} parameters")]
    TooManyPositional { found: usize, known: usize },
    #[error("parameter `{parameter}` is not in the signature")]
    UnknownKeyword { parameter: String },
    #[error("parameter `{parameter}` is given twice, by position and by name")]
    GivenTwice { parameter: String },
    #[error("parameter `{parameter}` is missing and has no default (add it to `defaults`)")]
    Missing { parameter: String },
    #[error("parameter `{parameter}` has a value that cannot be an argument, at `{path}`")]
    Value {
        parameter: String,
        path: String,
        #[source]
        reason: Refusal,
    },
    #[error(
        "the number of arguments for `{parameter}` is {found} in this entry and {expected} in the first (a list \
         of tensors must have the same length in every entry)"
    )]
    ListLength { parameter: String, found: usize, expected: usize },
    #[error("the entry has more than {MAX_ARGUMENTS} arguments")]
    TooManyArguments,
    #[error(
        "the arguments take {bytes} bytes without the elements of tensors, and at most {MAX_ARGUMENT_BYTES} can be \
         passed to a kernel (put long lists into tensors)"
    )]
    TooLarge { bytes: usize },
    #[error("`mutates` names `{path}`, {problem}")]
    Mutates { path: String, problem: &'static str },
    #[error("the returned `{path}` is {found} (only tensors, and tuples and lists of them, are compared)")]
    Output { path: String, found: &'static str },
    #[error("the returned `{path}` cannot be read")]
    OutputValue {
        path: String,
        #[source]
        reason: Refusal,
    },
}

/// The arguments of one entry in the order of `signature.params`.
pub fn bind(entry: &Entry, signature: &Signature) -> Result<Vec<Argument>, BindError> {
    let given = given(entry, &signature.captured)?;
    let mut arguments = Vec::with_capacity(signature.params.len());
    for parameter in &signature.params {
        let before = arguments.len();
        match given.get(parameter.as_str()) {
            Some(value) => flatten(value, parameter, &mut arguments)?,
            None => {
                let default = signature
                    .defaults
                    .get(parameter)
                    .ok_or_else(|| BindError::Missing { parameter: parameter.clone() })?;
                arguments.push(Argument {
                    parameter: parameter.clone(),
                    path: parameter.clone(),
                    value: ArgumentValue::Plain(default.clone()),
                });
            }
        }
        let found = arguments.len() - before;
        let expected = signature.lists.get(parameter).copied().unwrap_or(1);
        if found != expected {
            return Err(BindError::ListLength { parameter: parameter.clone(), found, expected });
        }
        if arguments.len() > MAX_ARGUMENTS {
            return Err(BindError::TooManyArguments);
        }
    }
    match arguments.iter().map(|argument| size_in_message(&argument.value)).sum() {
        bytes if MAX_ARGUMENT_BYTES < bytes => Err(BindError::TooLarge { bytes }),
        _ => Ok(arguments),
    }
}

/// The largest number of bytes that an argument can take in the message to the process that makes the call. An integer
/// takes one byte for each seven bits, and a float in a list may be written as text.
fn size_in_message(value: &ArgumentValue) -> usize {
    /// Room for a tensor's dtype, the ranges of its bytes and of its variants' bytes, and its place in a list.
    const TENSOR: usize = 80;
    const PLAIN: usize = 16;
    const FLOAT: usize = 28;
    let number = |value: u64| 64_u32.saturating_sub(value.leading_zeros()).div_ceil(7).max(1) as usize;
    // Signed integers are written with their sign in the lowest bit.
    let integer = |value: i64| 1 + number(value.cast_unsigned() << 1 ^ (value >> 63).cast_unsigned());
    match value {
        ArgumentValue::Tensor(tensor) => {
            let layout = tensor.shape.iter().chain(&tensor.stride);
            TENSOR + layout.map(|&size| number(size.saturating_mul(2))).sum::<usize>()
        }
        ArgumentValue::Plain(PlainValue::Str(text) | PlainValue::Device(text)) => PLAIN + text.len(),
        ArgumentValue::Plain(PlainValue::Ints(values)) => {
            PLAIN + values.iter().map(|&value| integer(value)).sum::<usize>()
        }
        ArgumentValue::Plain(PlainValue::Floats(values)) => PLAIN + FLOAT * values.len(),
        ArgumentValue::Plain(PlainValue::Bools(values)) => PLAIN + 2 * values.len(),
        ArgumentValue::Plain(
            PlainValue::None
            | PlainValue::Bool(_)
            | PlainValue::Int(_)
            | PlainValue::Float(_)
            | PlainValue::DType(_),
        ) => PLAIN + FLOAT,
    }
}

/// Returns the entry's values, each with its parameter.
pub(super) fn given<'a>(
    entry: &'a Entry,
    captured: &'a [String],
) -> Result<BTreeMap<&'a str, &'a Value>, BindError> {
    if entry.args.len() > captured.len() {
        return Err(BindError::TooManyPositional { found: entry.args.len(), known: captured.len() });
    }
    let mut given: BTreeMap<&str, &Value> =
        captured.iter().map(String::as_str).zip(entry.args.iter()).collect();
    for (name, value) in &entry.kwargs {
        if !captured.iter().any(|known| **known == **name) {
            return Err(BindError::UnknownKeyword { parameter: shorten(name) });
        }
        if given.insert(name, value).is_some() {
            return Err(BindError::GivenTwice { parameter: shorten(name) });
        }
    }
    Ok(given)
}

/// Appends the arguments into which a value is turned: one for each element if the value is a list that contains
/// tensors, and otherwise a single one.
fn flatten(value: &Value, parameter: &str, arguments: &mut Vec<Argument>) -> Result<(), BindError> {
    let mut path = parameter.to_owned();
    flatten_within(value, 0, &mut Budget::new(), &mut path, &mut |path, value| {
        arguments.push(Argument { parameter: parameter.to_owned(), path: path.to_owned(), value });
        if arguments.len() > MAX_ARGUMENTS { Err(Refusal::TooManyArguments) } else { Ok(()) }
    })
    .map_err(|reason| BindError::Value { parameter: parameter.to_owned(), path, reason })
}

/// Returns the number of arguments into which a value is turned. A value that cannot be passed is counted as one
/// argument, because `bind` refuses it later, and then names its path.
pub(super) fn arguments_made(value: &Value) -> usize {
    let mut made = 0;
    let flattened = flatten_within(value, 0, &mut Budget::new(), &mut String::new(), &mut |_, _| {
        made += 1;
        if made > MAX_ARGUMENTS { Err(Refusal::TooManyArguments) } else { Ok(()) }
    });
    if flattened.is_ok() { made } else { 1 }
}

/// Calls `take` for each argument into which a value is turned. After an error, `path` is the path of the value that
/// caused it.
pub(super) fn flatten_within(
    value: &Value,
    depth: usize,
    budget: &mut Budget,
    path: &mut String,
    take: &mut dyn FnMut(&str, ArgumentValue) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if let Value::Tensor(tensor) = value {
        if is_lazy(tensor) {
            walkable(tensor)?;
        }
        return take(path, ArgumentValue::Tensor(tensor.clone()));
    }
    if let Some(items) = ordered(value)
        && holds_tensor(value, depth, budget)?
    {
        for (index, item) in items.iter().enumerate() {
            let length = path.len();
            path.push_str(&format!("[{index}]"));
            flatten_within(item, depth + 1, budget, path, take)?;
            path.truncate(length);
        }
        return Ok(());
    }
    take(path, ArgumentValue::Plain(plain_within(value, depth, budget)?))
}

/// Returns the tensors that the call returned, in order and without any `None`. The list is empty if the capture has no
/// output. An argument that the call both changed and returned is left out, because a kernel changes it in place.
pub fn outputs(entry: &Entry) -> Result<Vec<OutputTensor>, BindError> {
    let mut found = Vec::new();
    if let Some(output) = &entry.output {
        collect_outputs(output, 0, &mut Budget::new(), &mut "output".to_owned(), &mut found)?;
    }
    found.retain(|output| !is_after_value(entry, &output.tensor));
    Ok(found)
}

/// Returns true if two tensors are the same view of the same storage, with the same values.
pub(super) fn is_same(one: &Tensor, other: &Tensor) -> bool {
    one.storage == other.storage
        && one.storage_offset == other.storage_offset
        && one.dtype == other.dtype
        && one.shape == other.shape
        && one.stride == other.stride
        && one.conjugate == other.conjugate
        && one.negative == other.negative
}

/// Returns true if `mutates` records the same tensor as the value of an argument after the call.
fn is_after_value(entry: &Entry, tensor: &Tensor) -> bool {
    entry.mutates.iter().any(|(_, value)| holds(value, tensor, 0, &mut Budget::new()))
}

fn holds(value: &Value, wanted: &Tensor, depth: usize, budget: &mut Budget) -> bool {
    if budget.visit(depth).is_err() {
        return false;
    }
    match value {
        Value::Tensor(tensor) => is_same(tensor, wanted),
        other => ordered(other)
            .is_some_and(|items| items.iter().any(|item| holds(item, wanted, depth + 1, budget))),
    }
}

fn collect_outputs(
    value: &Value,
    depth: usize,
    budget: &mut Budget,
    path: &mut String,
    found: &mut Vec<OutputTensor>,
) -> Result<(), BindError> {
    let refused = |path: &str, reason| BindError::OutputValue { path: path.to_owned(), reason };
    budget.visit(depth).map_err(|reason| refused(path, reason))?;
    match value {
        Value::None => Ok(()),
        Value::Tensor(tensor) => {
            if found.len() == MAX_ARGUMENTS {
                return Err(refused(path, Refusal::TooManyArguments));
            }
            walkable(tensor).map_err(|reason| refused(path, reason.into()))?;
            found.push(OutputTensor { path: path.clone(), tensor: tensor.clone(), arguments: Vec::new() });
            Ok(())
        }
        other => {
            let items = ordered(other)
                .ok_or_else(|| BindError::Output { path: path.clone(), found: kind_name(other) })?;
            for (index, item) in items.iter().enumerate() {
                let length = path.len();
                path.push_str(&format!("[{index}]"));
                collect_outputs(item, depth + 1, budget, path, found)?;
                path.truncate(length);
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SignatureBuilder;
    use super::super::fixture::{dict, int, list, tensor, text, tuple, unbound};
    use super::*;
    use crate::capture::DType;

    fn settle(entry: &Entry) -> Signature {
        let mut builder = SignatureBuilder::new(None, BTreeMap::new());
        builder.observe("entry_000000.pt", entry);
        builder.finish().expect("a signature")
    }

    fn bound_alone(entry: &Entry) -> Result<Vec<Argument>, BindError> {
        bind(entry, &settle(entry))
    }

    #[test]
    fn lists_of_tensors_are_flattened_and_plain_lists_are_not() {
        let t = |storage| tensor(DType::Float32, &[2], storage);
        let entry = unbound(
            [t(0), tuple([t(1), t(2)]), list([t(3), Value::None, tuple([int(1), int(2)]), tuple([t(4)])])],
            [("stride", tuple([int(2), tuple([int(1)])]))],
        );
        let arguments = bound_alone(&entry).unwrap();
        let paths: Vec<&str> = arguments.iter().map(|argument| argument.path.as_str()).collect();
        assert_eq!(
            paths,
            ["arg0", "arg1[0]", "arg1[1]", "arg2[0]", "arg2[1]", "arg2[2]", "arg2[3][0]", "stride"]
        );
        assert_eq!(arguments[4].value, ArgumentValue::Plain(PlainValue::None));
        assert_eq!(arguments[5].value, ArgumentValue::Plain(PlainValue::Ints(vec![1, 2])));
        assert_eq!(arguments[6].parameter, "arg2");
        assert_eq!(arguments[7].value, ArgumentValue::Plain(PlainValue::Ints(vec![2, 1])));
    }

    #[test]
    fn value_that_cannot_be_passed_is_named_by_parameter_and_path() {
        let t = tensor(DType::Float32, &[2], 0);
        for (value, path, reason) in [
            (dict([("a", int(1))]), "arg0", Refusal::Dict),
            (Value::Ellipsis, "arg0", Refusal::Kind("an Ellipsis")),
            (tuple([t.clone(), list([t, Value::Ellipsis])]), "arg0[1][1]", Refusal::Kind("an Ellipsis")),
        ] {
            let error = bound_alone(&unbound([value], [])).unwrap_err();
            assert_eq!(error, BindError::Value { parameter: "arg0".into(), path: path.into(), reason });
        }
    }

    #[test]
    fn arguments_must_fit_into_one_message() {
        let ints = |count| list((0..count).map(|_| int(-1_000_000)));
        // A number of 21 bits takes four bytes with its tag.
        assert!(bound_alone(&unbound([ints(30_000)], [])).is_ok());
        for entry in [
            unbound([ints(31_000)], []),
            unbound([ints(20_000), ints(20_000)], []),
            unbound((0..60).map(|_| text(&"n".repeat(4000))), []),
            unbound((0..600).map(|storage| tensor(DType::Int8, &[1; 64], storage)), []),
        ] {
            let error = bound_alone(&entry).unwrap_err();
            assert!(matches!(error, BindError::TooLarge { .. }), "{error}");
        }
        let all = (0..1024).map(|storage| tensor(DType::Int8, &[4; 8], storage));
        assert!(bound_alone(&unbound(all, [])).is_ok(), "as many tensors as arguments are allowed");
    }

    #[test]
    fn entry_must_fit_the_signature() {
        let signature = settle(&unbound([int(1), int(2)], [("dim", int(0))]));
        for (entry, part) in [
            (unbound([int(1)], [("dim", int(0))]), "`arg1` is missing"),
            (unbound([int(1), int(2)], [("dimm", int(0))]), "`dimm` is not in the signature"),
            (unbound([int(1), int(2), int(3)], [("dim", int(0))]), "`dim` is given twice"),
            (unbound([int(1), int(2), int(3), int(4)], []), "4 positional arguments"),
            (
                unbound([list([tensor(DType::Int8, &[], 0), int(2)]), int(2)], []),
                "the number of arguments for `arg0` is 2",
            ),
        ] {
            let message = bind(&entry, &signature).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let missing_keyword = bind(&unbound([int(1), int(2)], []), &signature).unwrap();
        assert_eq!(missing_keyword[2].value, ArgumentValue::Plain(PlainValue::None));
    }

    #[test]
    fn outputs_are_found_in_nested_tuples() {
        let t = |storage| tensor(DType::Float32, &[2], storage);
        let with_output = |output| Entry { output: Some(output), ..unbound([int(1)], []) };
        let paths = |entry: &Entry| {
            outputs(entry).map(|found| found.into_iter().map(|output| output.path).collect::<Vec<_>>())
        };
        assert_eq!(paths(&with_output(t(0))).unwrap(), ["output"]);
        let nested = with_output(tuple([t(0), Value::None, list([t(1)])]));
        assert_eq!(paths(&nested).unwrap(), ["output[0]", "output[2][0]"]);
        assert_eq!(paths(&unbound([int(1)], [])).unwrap(), [""; 0]);
        let scalar = with_output(tuple([t(0), int(3)]));
        assert_eq!(
            paths(&scalar).unwrap_err(),
            BindError::Output { path: "output[1]".into(), found: "an integer" }
        );
        let text_output = paths(&with_output(text("done"))).unwrap_err().to_string();
        assert!(text_output.contains("the returned `output` is a string"), "{text_output}");
    }
}
