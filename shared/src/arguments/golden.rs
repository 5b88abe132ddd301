//! Tests `bind` with the calls in `tests/data/expected`, which describe captures that PyTorch wrote. The arguments must
//! be in the same order as in KernelForge's verifier (`peer_launch`). The captures themselves are not read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use num_bigint::BigInt;
use serde_json::Value as Json;

use super::{
    Argument, ArgumentValue, Entry, EntryFacts, PlainValue, Signature, SignatureBuilder, bind, class_key,
    outputs,
};
use crate::capture::{DType, DictKind, SequenceKind, Storage, Tensor, Value};
use crate::ids::StorageId;
use crate::units::Bytes;

fn expected_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/expected")
}

fn number(json: &Json) -> u64 {
    json.as_str().expect("a number as a text").parse().expect("a number")
}

fn numbers(json: &Json) -> Vec<u64> {
    json.as_array().expect("a list").iter().map(number).collect()
}

fn items(node: &Json) -> Arc<[Value]> {
    node["items"].as_array().expect("items").iter().map(value).collect()
}

fn flag(json: &Json) -> bool {
    json.as_bool().expect("a flag")
}

/// Converts a node of the JSON to the value that the capture reader would return.
fn value(node: &Json) -> Value {
    let text = || -> Arc<str> { node["value"].as_str().expect("a string").into() };
    match node["type"].as_str().expect("a type") {
        "none" => Value::None,
        "bool" => Value::Bool(flag(&node["value"])),
        "int" => match text().parse() {
            Ok(integer) => Value::Int(integer),
            Err(_) => Value::BigInt(Arc::new(BigInt::from_str(&text()).expect("an integer"))),
        },
        "float" => {
            let bits = u64::from_str_radix(node["bits"].as_str().expect("bits"), 16).expect("hex");
            Value::Float(f64::from_bits(bits))
        }
        "str" => Value::Str(text()),
        "torch.dtype" => Value::DType(DType::from_name(&text()).expect("a dtype")),
        "torch.device" => Value::Device(text()),
        "torch.layout" => Value::Layout(text()),
        "list" => Value::Sequence { kind: SequenceKind::List, items: items(node) },
        "tuple" => Value::Sequence { kind: SequenceKind::Tuple, items: items(node) },
        "torch.Size" => Value::Sequence { kind: SequenceKind::Size, items: items(node) },
        "dict" => {
            let pairs = node["items"].as_array().expect("items");
            let items = pairs.iter().map(|pair| (value(&pair[0]), value(&pair[1]))).collect();
            Value::Dict { kind: DictKind::Dict, items }
        }
        "tensor" => Value::Tensor(Arc::new(Tensor {
            object: 0,
            dtype: DType::from_name(node["dtype"].as_str().expect("a dtype")).expect("a dtype"),
            shape: numbers(&node["shape"]),
            stride: numbers(&node["stride"]),
            storage_offset: number(&node["storage_offset"]),
            storage: StorageId(u32::try_from(node["storage"].as_u64().expect("an id")).expect("an id")),
            requires_grad: flag(&node["requires_grad"]),
            parameter: false,
            conjugate: flag(&node["conj"]),
            negative: flag(&node["neg"]),
        })),
        other => panic!("this test cannot convert a node of type `{other}`"),
    }
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).expect("an expectation")).expect("JSON")
}

struct Capture {
    name: String,
    entry: Entry,
    peer: Json,
    storages: Vec<Storage>,
}

/// The entries of one op, in order.
fn captures(op: &str) -> Vec<Capture> {
    let folder = expected_root().join("captures").join(op);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("captures").map(|found| found.expect("an entry").path()).collect();
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let json = read(path);
            let storages = json["storages"]
                .as_array()
                .expect("storages")
                .iter()
                .enumerate()
                .map(|(index, storage)| {
                    let id = u32::try_from(index).expect("few storages");
                    let bytes = storage["nbytes"].as_u64().unwrap_or_else(|| number(&storage["nbytes"]));
                    super::fixture::storage(id, bytes, 64 * (1 + u64::from(id)))
                })
                .collect();
            Capture {
                name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
                entry: Entry::from_value(&value(&json["root"])).expect("a good entry"),
                peer: json["peer_launch"].clone(),
                storages,
            }
        })
        .collect()
}

fn ops() -> Vec<String> {
    let mut ops: Vec<String> = std::fs::read_dir(expected_root().join("captures"))
        .expect("captures")
        .map(|found| found.expect("an op").file_name().to_string_lossy().into_owned())
        .collect();
    ops.sort();
    assert!(ops.len() >= 12, "{ops:?}");
    ops
}

fn settled(captures: &[Capture]) -> Signature {
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    for capture in captures {
        builder.observe(&capture.name, &capture.entry);
    }
    builder.finish().expect("a signature")
}

/// Returns the path from which KernelForge would take an argument.
fn source(argument: &Argument, entry: &Entry) -> Option<String> {
    let position = argument.parameter.strip_prefix("arg").and_then(|index| index.parse::<usize>().ok());
    match position {
        Some(index) if index < entry.args.len() => Some(format!("args[{index}]")),
        _ => {
            let given = entry.kwargs.iter().any(|(name, _)| **name == *argument.parameter);
            given.then(|| format!("kwargs.{}", argument.parameter))
        }
    }
}

#[test]
fn real_captures_are_bound_as_kernelforge_binds_them() {
    for op in ops() {
        let captures = captures(&op);
        let signature = settled(&captures);
        for capture in &captures {
            let place = format!("{op}/{}", capture.name);
            let arguments =
                bind(&capture.entry, &signature).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert_eq!(arguments.len(), signature.params.len(), "{place}");
            let peer_params: Vec<&str> =
                capture.peer["params"].as_array().expect("params").iter().filter_map(Json::as_str).collect();
            assert_eq!(signature.params, peer_params, "{place}");
            // KernelForge stops at the first parameter without a value, so only the parameters before that one are
            // compared. All entries of an op have the same number of positional arguments.
            let peer_sources = capture.peer["sources"].as_array().expect("sources");
            for (argument, peer) in arguments.iter().zip(peer_sources) {
                assert_eq!(source(argument, &capture.entry).as_deref(), peer.as_str(), "{place}");
            }
        }
    }
}

#[test]
fn real_captures_have_distinct_classes_and_correct_facts() {
    for op in ops() {
        let captures = captures(&op);
        let signature = settled(&captures);
        let mut classes = Vec::new();
        for capture in &captures {
            let place = format!("{op}/{}", capture.name);
            let arguments = bind(&capture.entry, &signature).expect("arguments");
            let tensors = outputs(&capture.entry).unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(!tensors.is_empty(), "{place}");
            classes.push(class_key(&arguments, &tensors));
            let facts = EntryFacts::of(&capture.storages, &arguments, &tensors, Bytes::kib(4));
            let zero = tensors.iter().any(|output| output.tensor.elements() == 0);
            assert_eq!(facts.zero_size, zero, "{place}");
            let inplace = arguments.iter().any(|argument| {
                argument.parameter == "inplace"
                    && argument.value == ArgumentValue::Plain(PlainValue::Bool(true))
            });
            assert_eq!(facts.aliased, inplace, "{place}");
            let stored_bytes: Bytes = capture.storages.iter().map(|storage| storage.bytes).sum();
            assert!(facts.input_bytes <= stored_bytes, "{place}");
        }
        // No two captures of an op are in the same class.
        let all = classes.len();
        classes.sort();
        classes.dedup();
        assert_eq!(classes.len(), all, "{op}: {classes:#?}");
    }
}
