//! Handles arguments that a call changes in place. Their values after the call are judged like outputs.
//!
//! A kernel gets such an argument as a writable copy of its value before the call. After the call, this copy is
//! compared with the recorded value, so both recorded values must have the same layout.

use super::bind::{BindError, flatten_within, is_same, outputs};
use super::heavy::walkable;
use super::pieces::is_lazy;
use super::plain::{Budget, shorten};
use super::{Argument, ArgumentValue, Entry, OutputTensor};
use crate::capture::{Tensor, Value};

/// The tensors by which a candidate's call is judged: those that it returns, followed by the arguments that it changes.
pub fn judged(entry: &Entry, arguments: &[Argument]) -> Result<Vec<OutputTensor>, BindError> {
    let mut all = outputs(entry)?;
    all.extend(changed(entry, arguments)?);
    Ok(all)
}

/// The tensors among `judged` that are returned. A kernel gets them as parameters after its arguments.
pub fn returned(judged: &[OutputTensor]) -> &[OutputTensor] {
    let count = judged.iter().take_while(|output| output.arguments.is_empty()).count();
    &judged[..count]
}

/// Returns the arguments that the call changes, with their values after the call.
fn changed(entry: &Entry, arguments: &[Argument]) -> Result<Vec<OutputTensor>, BindError> {
    let mut found: Vec<OutputTensor> = Vec::new();
    for (name, value) in &entry.mutates {
        let refused = |path: &str, problem| BindError::Mutates { path: shorten(path), problem };
        let of_parameter = |(index, argument): (usize, _)| {
            let argument: &Argument = argument;
            (*argument.parameter == **name).then_some(index)
        };
        let places: Vec<usize> = arguments.iter().enumerate().filter_map(of_parameter).collect();
        let after = values(name, value)?;
        if places.is_empty() {
            return Err(refused(name, "which is not a parameter of the call"));
        }
        if places.len() != after.len() {
            return Err(refused(name, "whose value has a different number of tensors after the call"));
        }
        for (&place, after) in places.iter().zip(after) {
            let argument = &arguments[place];
            let (before, after) = match (&argument.value, after) {
                (ArgumentValue::Tensor(before), ArgumentValue::Tensor(after)) => (before, after),
                // A list of tensors may also contain None.
                (ArgumentValue::Plain(before), ArgumentValue::Plain(after)) if *before == after => continue,
                _ => {
                    return Err(refused(
                        &argument.path,
                        "which is not a tensor both before and after the call",
                    ));
                }
            };
            if let Some(problem) = problem_of(before, &after, arguments) {
                return Err(refused(&argument.path, problem));
            }
            if found.iter().any(|known| known.arguments.contains(&place)) {
                continue;
            }
            let same = |(index, other): (usize, &Argument)| match &other.value {
                ArgumentValue::Tensor(other) if is_same(before, other) => Some(index),
                _ => None,
            };
            found.push(OutputTensor {
                path: argument.path.clone(),
                tensor: after,
                arguments: arguments.iter().enumerate().filter_map(same).collect(),
            });
        }
    }
    Ok(found)
}

/// Flattens a parameter's value after the call, in the order of the arguments.
fn values(name: &str, value: &Value) -> Result<Vec<ArgumentValue>, BindError> {
    let mut found = Vec::new();
    let mut path = name.to_owned();
    flatten_within(value, 0, &mut Budget::new(), &mut path, &mut |_, value| {
        found.push(value);
        Ok(())
    })
    .map_err(|reason| BindError::Value { parameter: shorten(name), path: shorten(&path), reason })?;
    Ok(found)
}

/// Returns the reason why an argument with these values before and after the call cannot be judged; `None` if it can be
/// judged.
fn problem_of(before: &Tensor, after: &Tensor, arguments: &[Argument]) -> Option<&'static str> {
    let inputs = || {
        arguments.iter().filter_map(|argument| match &argument.value {
            ArgumentValue::Tensor(tensor) => Some(&**tensor),
            ArgumentValue::Plain(_) => None,
        })
    };
    if before.dtype != after.dtype || before.shape != after.shape {
        Some("whose value has a different shape or dtype after the call")
    } else if is_lazy(before) || is_lazy(after) {
        Some("which is a lazy conjugate or negative view (record `tensor.resolve_conj().resolve_neg()`)")
    } else if !has_strides_of(before, after) {
        Some("whose value has different strides after the call (record both values with the same strides)")
    } else if before.extent_elements() < before.elements() {
        Some("which has elements that share memory")
    } else if inputs().any(|input| overlaps(input, after)) {
        Some(
            "whose value after the call shares memory with an argument, so the value before it is lost (clone the inputs before the call)",
        )
    } else if inputs().any(|input| overlaps(input, before) && !is_same(input, before)) {
        Some("which shares memory with another argument")
    } else if walkable(after).is_err() {
        Some("which is too large or too scattered to be compared")
    } else {
        None
    }
}

/// Returns true if both tensors have the same strides. Strides of dimensions with one element do not matter.
fn has_strides_of(one: &Tensor, other: &Tensor) -> bool {
    let strides = one.stride.iter().zip(&other.stride).zip(&one.shape);
    one.elements() == 0 || strides.into_iter().all(|((a, b), &size)| a == b || size <= 1)
}

fn overlaps(one: &Tensor, other: &Tensor) -> bool {
    let (a, b) = (one.byte_range(), other.byte_range());
    one.storage == other.storage && a.start.max(b.start) < a.end.min(b.end)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::fixture::{dict, list, tensor, text, unbound};
    use super::super::{SignatureBuilder, bind};
    use super::*;
    use crate::capture::DType;

    fn entry(args: Vec<Value>, output: Value, mutates: Vec<(&str, Value)>) -> Entry {
        let mutates = mutates.into_iter().map(|(name, value)| (Arc::from(name), value)).collect();
        Entry { output: Some(output), mutates, ..unbound(args, []) }
    }

    fn found(entry: &Entry) -> Result<Vec<OutputTensor>, BindError> {
        let mut builder = SignatureBuilder::new(None, std::collections::BTreeMap::new());
        builder.observe("entry_000000.pt", entry);
        let signature = builder.finish().expect("a signature");
        judged(entry, &bind(entry, &signature).expect("arguments"))
    }

    fn f32s(size: u64, storage: u32) -> Value {
        tensor(DType::Float32, &[size], storage)
    }

    #[test]
    fn changed_arguments_follow_the_returned_tensors() {
        let entry = entry(
            vec![f32s(4, 0), f32s(3, 1), list([f32s(2, 2), Value::None])],
            f32s(4, 3),
            vec![("arg1", f32s(3, 4)), ("arg2", list([f32s(2, 5), Value::None]))],
        );
        let all = found(&entry).expect("outputs");
        let names: Vec<(&str, &[usize])> =
            all.iter().map(|it| (it.path.as_str(), it.arguments.as_slice())).collect();
        assert_eq!(names, [("output", &[][..]), ("arg1", &[1]), ("arg2[0]", &[2])]);
        assert_eq!(returned(&all).len(), 1);
    }

    #[test]
    fn changed_argument_that_is_returned_is_judged_once() {
        let twice = entry(vec![f32s(4, 0), f32s(4, 0)], f32s(4, 1), vec![("arg0", f32s(4, 1))]);
        let all = found(&twice).expect("outputs");
        let names: Vec<(&str, &[usize])> =
            all.iter().map(|it| (it.path.as_str(), it.arguments.as_slice())).collect();
        // Both arguments are the same tensor.
        assert_eq!(names, [("arg0", &[0, 1][..])]);
    }

    #[test]
    fn value_that_cannot_be_judged_is_refused() {
        let shorter = vec![("arg0", f32s(3, 1))];
        let same = vec![("arg0", f32s(4, 0))];
        let unknown = vec![("weight", f32s(4, 1))];
        let longer = vec![("arg0", list([f32s(4, 1), f32s(4, 2)]))];
        let words = vec![("arg0", text("done"))];
        for (mutates, part) in [
            (shorter, "a different shape or dtype"),
            (same, "the value before it is lost"),
            (unknown, "`weight`, which is not a parameter"),
            (longer, "a different number of tensors"),
            (words, "not a tensor both before and after"),
        ] {
            let message = found(&entry(vec![f32s(4, 0)], Value::None, mutates)).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        let dicts = vec![("arg0", dict([("a", f32s(4, 1))]))];
        assert!(matches!(
            found(&entry(vec![f32s(4, 0)], Value::None, dicts)),
            Err(BindError::Value { parameter, .. }) if parameter == "arg0"
        ));
    }

    #[test]
    fn other_view_of_a_changed_argument_is_refused() {
        let part = |first, size, stride| {
            let tensor = Tensor {
                storage_offset: first,
                shape: vec![size],
                stride: vec![stride],
                ..super::super::fixture::dense(DType::Float32, &[size], 0)
            };
            Value::Tensor(Arc::new(tensor))
        };
        let message = |args: Vec<Value>, after| {
            found(&entry(args, Value::None, vec![("arg0", after)])).unwrap_err().to_string()
        };
        assert!(message(vec![part(0, 4, 1), part(2, 4, 1)], f32s(4, 1)).contains("with another argument"));
        let negated = Tensor { negative: true, ..super::super::fixture::dense(DType::Float32, &[4], 0) };
        let negated = Value::Tensor(Arc::new(negated));
        assert!(message(vec![part(0, 4, 1), negated], f32s(4, 1)).contains("with another argument"));
        assert!(message(vec![part(0, 4, 0)], part(0, 4, 0)).contains("elements that share memory"));
        assert!(message(vec![part(0, 4, 2)], f32s(4, 1)).contains("different strides"));
        let apart = entry(vec![part(0, 4, 1), part(4, 4, 1)], Value::None, vec![("arg0", f32s(4, 1))]);
        assert_eq!(found(&apart).expect("outputs")[0].arguments, [0]);
    }
}
