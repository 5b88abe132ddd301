//! Hand-made values, tensors and entries for the tests of this module.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Entry, Observed, Signature, SignatureBuilder, bind, judged};
use crate::capture::{DType, DictKind, SequenceKind, Storage, Tensor, Value};
use crate::ids::StorageId;
use crate::units::Bytes;

pub(super) fn int(value: i64) -> Value {
    Value::Int(value)
}

pub(super) fn text(value: &str) -> Value {
    Value::Str(value.into())
}

pub(super) fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Sequence { kind: SequenceKind::List, items: items.into_iter().collect() }
}

pub(super) fn tuple(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Sequence { kind: SequenceKind::Tuple, items: items.into_iter().collect() }
}

pub(super) fn dict<'a>(items: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let items = items.into_iter().map(|(key, value)| (text(key), value)).collect();
    Value::Dict { kind: DictKind::Dict, items }
}

pub(super) fn dense(dtype: DType, shape: &[u64], storage: u32) -> Tensor {
    Tensor { object: storage, ..Tensor::dense(dtype, shape, StorageId(storage)) }
}

pub(super) fn tensor(dtype: DType, shape: &[u64], storage: u32) -> Value {
    Value::Tensor(Arc::new(dense(dtype, shape, storage)))
}

pub(super) fn storage(id: u32, bytes: u64, file_offset: u64) -> Storage {
    Storage {
        id: StorageId(id),
        bytes: Bytes::new(bytes),
        file_offset,
        blob: None,
        crc32: None,
        name: format!("data/{id}"),
    }
}

/// An entry without a recorded signature.
pub(super) fn unbound<'a>(
    args: impl IntoIterator<Item = Value>,
    kwargs: impl IntoIterator<Item = (&'a str, Value)>,
) -> Entry {
    let root = dict([("function_name", text("torch.op")), ("args", list(args)), ("kwargs", dict(kwargs))]);
    Entry::from_value(&root).expect("a good entry")
}

/// An entry in KernelForge's format, with its signature.
pub(super) fn bound<'a>(
    params: &[&str],
    defaults: impl IntoIterator<Item = (&'a str, Value)>,
    kwargs: impl IntoIterator<Item = (&'a str, Value)>,
) -> Entry {
    let signature =
        dict([("params", list(params.iter().map(|name| text(name)))), ("defaults", dict(defaults))]);
    let root = dict([
        ("function_name", text("torch.op")),
        ("args", list([])),
        ("kwargs", dict(kwargs)),
        ("signature", signature),
    ]);
    Entry::from_value(&root).expect("a good entry")
}

/// The signature of some entries and the kinds of values seen in them.
pub(super) fn observed(entries: &[Entry]) -> (Signature, Observed) {
    let mut builder = SignatureBuilder::new(None, BTreeMap::new());
    for (index, entry) in entries.iter().enumerate() {
        builder.observe(&format!("e{index}"), entry);
    }
    let signature = builder.finish().expect("a signature");
    let mut observed = Observed::new();
    for entry in entries {
        let arguments = bind(entry, &signature).expect("arguments");
        observed.observe(&arguments, &judged(entry, &arguments).expect("outputs"));
    }
    (signature, observed)
}
