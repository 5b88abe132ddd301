//! Tests the lints on entries that are built in memory.

use std::io;
use std::sync::Arc;

use opt_shared::arguments::{SignatureBuilder, bind, judged, outputs};
use opt_shared::capture::{DType, DictKind, SequenceKind, contiguous_strides};

use super::*;

fn text(value: &str) -> Value {
    Value::Str(value.into())
}

fn dict(items: Vec<(&str, Value)>) -> Value {
    let items = items.into_iter().map(|(key, value)| (text(key), value)).collect();
    Value::Dict { kind: DictKind::Dict, items }
}

fn floats(shape: &[u64], storage: u32, storage_offset: u64) -> Value {
    Value::Tensor(Arc::new(Tensor {
        object: storage,
        dtype: DType::Float32,
        shape: shape.to_vec(),
        stride: contiguous_strides(shape),
        storage_offset,
        storage: StorageId(storage),
        requires_grad: false,
        parameter: false,
        conjugate: false,
        negative: false,
    }))
}

/// Returns all lints of one call whose storages contain these floats. The absolute tolerance is 1e-2.
fn lints(op: &str, kwargs: Vec<(&str, Value)>, output: Option<Value>, storages: &[Vec<f32>]) -> Vec<Lint> {
    let mut items = vec![("function_name", text(op)), ("kwargs", dict(kwargs)), ("note", Value::None)];
    items.extend(output.map(|output| ("output", output)));
    let entry = Entry::from_value(&dict(items)).unwrap();
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    builder.observe("e0", &entry);
    let signature = builder.finish().unwrap();
    let arguments = bind(&entry, &signature).unwrap();
    let outputs = outputs(&entry).unwrap();
    let files: Vec<Storage> = (0..)
        .zip(storages)
        .map(|(id, values)| Storage {
            id: StorageId(id),
            bytes: Bytes::from(values.len() * 4),
            file_offset: 64,
            blob: None,
            crc32: None,
            name: format!("data/{id}"),
        })
        .collect();
    let facts = EntryFacts::of(&files, &arguments, &outputs, Bytes::kib(4));
    let subject = Subject {
        name: "e0",
        entry: &entry,
        signature: &signature,
        storages: &files,
        arguments: &arguments,
        outputs: &outputs,
    };
    let bytes: Vec<Vec<u8>> =
        storages.iter().map(|values| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let mut read = |id: StorageId, offset: u64, buffer: &mut [u8]| {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let source = bytes[id.index()].get(start..start + buffer.len());
        buffer.copy_from_slice(source.ok_or_else(|| io::Error::other("beyond the storage"))?);
        Ok::<(), io::Error>(())
    };
    let mut found = of_headers(&subject, &facts);
    found.extend(of_values(&subject, &|_| 1e-2, &mut read));
    assert_eq!(found.iter().filter(|lint| lint.code == LintCode::UnknownKeys).count(), 1);
    found.retain(|lint| lint.code != LintCode::UnknownKeys);
    found
}

fn codes(lints: &[Lint]) -> Vec<LintCode> {
    lints.iter().map(|lint| lint.code).collect()
}

fn ramp(length: u16) -> Vec<f32> {
    (0..length).map(f32::from).collect()
}

#[test]
fn ordinary_call_has_no_lints() {
    let found = lints(
        "torch.nn.functional.silu",
        vec![("input", floats(&[8], 0, 0)), ("inplace", Value::Bool(false))],
        Some(floats(&[8], 1, 0)),
        &[ramp(8), ramp(9)[1..].to_vec()],
    );
    assert_eq!(found, []);
}

#[test]
fn lint_reports_trivial_outputs() {
    let nearly: Vec<f32> = ramp(8).iter().map(|value| 5.0 + value * 1e-4).collect();
    let off_by = |difference: f32| ramp(8).iter().map(|value| value + difference).collect::<Vec<f32>>();
    let mut with_nan = ramp(9)[1..].to_vec();
    with_nan[3] = f32::NAN;
    with_nan[4] = f32::NEG_INFINITY;
    for (output, code) in [
        (vec![0.0; 8], LintCode::TinyOutput),
        (vec![1e-3, -9e-3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], LintCode::TinyOutput),
        (vec![2.5; 8], LintCode::ConstantOutput),
        (nearly, LintCode::ConstantOutput),
        (with_nan, LintCode::NonfiniteOutput),
        (ramp(8), LintCode::OutputEqualsInput),
        (off_by(5e-3), LintCode::OutputEqualsInput),
    ] {
        let found =
            lints("torch.op", vec![("x", floats(&[8], 0, 0))], Some(floats(&[8], 1, 0)), &[ramp(8), output]);
        assert_eq!(codes(&found), [code], "{found:?}");
        assert!(found[0].message.contains("`output`"), "{found:?}");
    }
    let of = |output: Vec<f32>| {
        lints("torch.op", vec![("x", floats(&[8], 0, 0))], Some(floats(&[8], 1, 0)), &[ramp(8), output])
    };
    let close = of(off_by(5e-3));
    assert!(close[0].message.contains("within the absolute tolerance 1e-2"), "{close:?}");
    assert_eq!(of(off_by(2e-2)), []);
}

#[test]
fn lint_compares_values_up_to_the_last_byte() {
    let length = 450_000_usize;
    let input: Vec<f32> = (0..97_u8).map(f32::from).cycle().take(length).collect();
    let mut output = input.clone();
    let shape = [length as u64];
    let run = |output: &[f32]| {
        let storages = [input.clone(), output.to_vec()];
        codes(&lints("torch.op", vec![("x", floats(&shape, 0, 0))], Some(floats(&shape, 1, 0)), &storages))
    };
    assert_eq!(run(&output), [LintCode::OutputEqualsInput]);
    output[length - 1] += 1.0;
    assert_eq!(run(&output), []);
    let mut constant = vec![1.0; length];
    assert_eq!(run(&constant), [LintCode::ConstantOutput]);
    constant[length - 1] = 1e6;
    assert_eq!(run(&constant), []);
}

#[test]
fn lint_reports_calls_that_write_to_an_input() {
    let yes = || Value::Bool(true);
    let x = || floats(&[8], 0, 0);
    let y = || floats(&[8], 1, 0);
    for (op, kwargs, parameter) in [
        ("torch.nn.functional.relu", vec![("input", x()), ("inplace", yes())], Some("input")),
        ("torch.Tensor.add_", vec![("input", x())], Some("input")),
        ("torch.Tensor.__add__", vec![("input", x())], None),
        (
            "torch.nn.functional.embedding",
            vec![("weight", x()), ("max_norm", Value::Float(1.0))],
            Some("weight"),
        ),
        ("torch.nn.functional.embedding", vec![("weight", x()), ("max_norm", Value::None)], None),
        (
            "torch.nn.functional.batch_norm",
            vec![("input", y()), ("running_mean", x()), ("training", yes())],
            Some("running_mean"),
        ),
        (
            "torch.nn.functional.batch_norm",
            vec![("input", y()), ("running_mean", Value::None), ("training", yes())],
            None,
        ),
    ] {
        let storages = [ramp(8), ramp(9)[1..].to_vec(), ramp(10)[2..].to_vec()];
        let found = lints(op, kwargs, Some(floats(&[8], 2, 0)), &storages);
        match parameter {
            Some(parameter) => {
                assert_eq!(codes(&found), [LintCode::InPlaceDamage], "{op}");
                assert!(
                    found[0].message.starts_with(&format!("`{parameter}` may have been recorded")),
                    "{found:?}"
                );
            }
            None => assert_eq!(found, [], "{op}"),
        }
    }
}

#[test]
fn changed_argument_with_both_values_is_not_damaged() {
    let arguments = dict(vec![("input", floats(&[8], 0, 0))]);
    let after = dict(vec![("input", floats(&[8], 1, 0))]);
    let codes_of = |keys: Vec<(&str, Value)>| {
        let entry = Entry::from_value(&dict(keys)).unwrap();
        let mut builder = SignatureBuilder::new(None, BTreeMap::new());
        builder.observe("e0", &entry);
        let signature = builder.finish().unwrap();
        let bound = bind(&entry, &signature).unwrap();
        let judged = judged(&entry, &bound).unwrap();
        let facts = EntryFacts::of(&[], &bound, &judged, Bytes::kib(4));
        let subject = Subject {
            name: "e0",
            entry: &entry,
            signature: &signature,
            storages: &[],
            arguments: &bound,
            outputs: &judged,
        };
        codes(&of_headers(&subject, &facts))
    };
    let head = || vec![("function_name", text("torch.relu_")), ("kwargs", arguments.clone())];
    assert_eq!(codes_of([head(), vec![("output", floats(&[8], 1, 0))]].concat()), [LintCode::InPlaceDamage]);
    assert_eq!(codes_of([head(), vec![("mutates", after.clone())]].concat()), []);
}

#[test]
fn output_that_shares_memory_with_an_input_is_aliased_not_equal() {
    let found = lints("torch.op", vec![("x", floats(&[8], 0, 0))], Some(floats(&[8], 0, 0)), &[ramp(8)]);
    assert_eq!(codes(&found), [LintCode::AliasedOutput]);
}

#[test]
fn lint_reports_missing_and_empty_outputs() {
    let x = || vec![("x", floats(&[8], 0, 0))];
    let none = lints("torch.op", x(), None, &[ramp(8)]);
    assert_eq!(codes(&none), [LintCode::NoOutput]);
    assert!(none[0].message.contains("no `output`"), "{none:?}");
    assert_eq!(codes(&lints("torch.op", x(), Some(Value::None), &[ramp(8)])), [LintCode::NoOutput]);
    let empty = lints("torch.op", x(), Some(floats(&[0, 4], 1, 0)), &[ramp(8), vec![]]);
    assert_eq!(codes(&empty), [LintCode::EmptyOutput]);
}

#[test]
fn lint_reports_the_unused_bytes_of_a_large_storage() {
    let view = |first| floats(&[64], 0, first);
    let items: Arc<[Value]> = [view(0), view(32)].into();
    let inputs = Value::Sequence { kind: SequenceKind::List, items };
    let output = ramp(9)[1..].to_vec();
    let found = lints(
        "torch.op",
        vec![("xs", inputs)],
        Some(floats(&[8], 1, 0)),
        &[ramp(65_535)[..].repeat(2), output],
    );
    assert_eq!(codes(&found), [LintCode::StorageBloat]);
    assert_eq!(found[0].bytes, Some(Bytes::new((2 * 65_535 - 96) * 4)));
    assert!(found[0].message.starts_with("`xs[0]`, `xs[1]`: only 384 B are used of"), "{found:?}");
}

#[test]
fn lint_reports_unreadable_values() {
    let found =
        lints("torch.op", vec![("x", floats(&[8], 0, 0))], Some(floats(&[8], 1, 0)), &[ramp(8), ramp(4)]);
    assert!(found.iter().any(|lint| lint.code == LintCode::Unreadable), "{found:?}");
    assert!(found[0].message.contains("beyond the storage"), "{found:?}");
}

#[test]
fn unfit_distinguishes_differing_arguments_from_unusable_values() {
    let arity = unfit("e1", &BindError::Missing { parameter: "weight".into() });
    assert_eq!((arity.code, arity.entry.as_str()), (LintCode::DifferingArity, "e1"));
    let reason = opt_shared::arguments::Refusal::Dict;
    let value = unfit("e1", &BindError::Value { parameter: "x".into(), path: "x[0]".into(), reason });
    assert_eq!(value.code, LintCode::UnusableValue);
    assert!(value.message.contains("`x[0]`") && value.message.contains("a dict"), "{value:?}");
    let json = serde_json::to_string(&value).unwrap();
    assert!(json.starts_with(r#"{"entry":"e1","code":"unusable-value","message":"#), "{json}");
}
