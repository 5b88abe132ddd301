//! Selects the entries of a job that match its `dtypes`.

use opt_shared::arguments::Entry;
use opt_shared::capture::{DType, Kind, Value};

/// Returns whether every float or complex tensor of the entry has one of these dtypes. If the entry has no such tensor,
/// every output must have one of the dtypes. For example, `["float32"]` selects a float32 embedding although its
/// indices are int64.
pub(super) fn is_chosen(entry: &Entry, dtypes: &[DType]) -> bool {
    let mut found = Vec::new();
    let arguments = entry.args.iter().chain(entry.kwargs.iter().map(|(_, value)| value));
    let results = || entry.output.iter().chain(entry.mutates.iter().map(|(_, value)| value));
    arguments.chain(results()).for_each(|value| collect(value, &mut found));
    found.retain(|dtype| matches!(dtype.kind(), Kind::Float | Kind::Complex));
    if found.is_empty() {
        results().for_each(|value| collect(value, &mut found));
    }
    !found.is_empty() && found.iter().all(|dtype| dtypes.contains(dtype))
}

/// Adds the dtypes of all tensors in a value. The recursion is bounded, because the depth and size of each value were
/// checked when the entry was read.
fn collect(value: &Value, dtypes: &mut Vec<DType>) {
    match value {
        Value::Tensor(tensor) => dtypes.push(tensor.dtype),
        Value::Sequence { items, .. } => items.iter().for_each(|item| collect(item, dtypes)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opt_shared::capture::{SequenceKind, Tensor};
    use opt_shared::ids::StorageId;

    use super::*;

    fn tensor(dtype: DType) -> Value {
        Value::Tensor(Arc::new(Tensor::dense(dtype, &[2], StorageId(0))))
    }

    #[test]
    fn dtypes_select_entries_by_their_float_tensors() {
        use DType::{BFloat16, Float32, Int64};
        for (arguments, output, wanted, chosen) in [
            (&[Int64, Float32][..], &[Float32][..], &[Float32][..], true),
            (&[Int64, Float32], &[Float32], &[BFloat16], false),
            (&[Float32, BFloat16], &[Float32], &[Float32], false),
            (&[Float32, BFloat16], &[Float32], &[Float32, BFloat16], true),
            (&[Float32], &[BFloat16], &[Float32], false),
            (&[Int64], &[Int64], &[Int64], true),
            (&[Int64], &[Int64], &[Float32], false),
            // If there are no float tensors, the outputs decide. If there are no outputs either, the entry is not
            // selected.
            (&[Int64], &[DType::Bool], &[DType::Bool], true),
            (&[Int64], &[], &[Int64], false),
        ] {
            let nested = |dtypes: &[DType]| Value::Sequence {
                kind: SequenceKind::List,
                items: dtypes.iter().copied().map(tensor).collect(),
            };
            let entry = Entry {
                function_name: None,
                args: vec![nested(arguments)],
                kwargs: Vec::new(),
                output: Some(nested(output)),
                mutates: Vec::new(),
                signature: None,
                unknown_keys: Vec::new(),
            };
            assert_eq!(is_chosen(&entry, wanted), chosen, "{arguments:?} {output:?} {wanted:?}");
        }
    }
}
