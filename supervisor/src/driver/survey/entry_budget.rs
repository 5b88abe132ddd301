//! Limits the memory for the entries of a job that are kept until the job's signature is known.

use opt_shared::arguments::Entry;
use opt_shared::capture::{Storage, Tensor, Value};

/// The largest number of bytes that a job's entries may take in memory.
const MAX_BYTES: usize = 1 << 20;

/// The number of bytes that a job's entries may still take.
pub(super) struct EntryBudget(usize);

impl Default for EntryBudget {
    fn default() -> Self {
        Self(MAX_BYTES)
    }
}

impl EntryBudget {
    /// Subtracts the size of the entry from the remaining bytes and returns true. If the entry is too large, subtracts
    /// nothing and returns false.
    pub(super) fn take(&mut self, entry: &Entry, storages: &[Storage]) -> bool {
        let mut left = self.0;
        let named = entry.kwargs.iter().chain(&entry.mutates).map(|(_, value)| value);
        let values = entry.args.iter().chain(named).chain(&entry.output);
        let fits = spend(&mut left, size_of::<Entry>() + size_of_val(storages))
            // Signatures are small, so their size is estimated without looking at their values.
            && entry.signature.as_ref().is_none_or(|it| spend(&mut left, (it.params.len() + it.defaults.len()) * 128))
            && values.into_iter().all(|value| spend_value(value, &mut left));
        if fits {
            self.0 = left;
        }
        fits
    }
}

/// Subtracts `bytes` from `left`. If `left` is too small, sets it to 0 and returns false.
fn spend(left: &mut usize, bytes: usize) -> bool {
    let rest = left.checked_sub(bytes);
    *left = rest.unwrap_or(0);
    rest.is_some()
}

/// Subtracts the size of `value` from `left`. Returns false if `value` is too large. Stops as soon as nothing is left,
/// so that a value which contains the same part very often takes little time.
fn spend_value(value: &Value, left: &mut usize) -> bool {
    let shallow_bytes = size_of::<Value>()
        + match value {
            Value::Str(text) => text.len(),
            Value::Bytes(bytes) | Value::ByteArray(bytes) => bytes.len(),
            Value::Tensor(tensor) => size_of::<Tensor>() + 16 * tensor.shape.len(),
            // Values of these kinds are rare and may have any size, so they are never kept.
            Value::BigInt(_) | Value::NumpyArray(_) | Value::NumpyScalar { .. } | Value::Object(_) => {
                MAX_BYTES
            }
            _ => 0,
        };
    spend(left, shallow_bytes)
        && match value {
            Value::Sequence { items, .. } => items.iter().all(|item| spend_value(item, left)),
            Value::Dict { items, .. } => {
                items.iter().all(|(key, value)| spend_value(key, left) && spend_value(value, left))
            }
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opt_shared::capture::SequenceKind;

    use super::*;

    fn entry(argument: Value) -> Entry {
        let nothing = Entry {
            function_name: None,
            args: Vec::new(),
            kwargs: Vec::new(),
            output: None,
            mutates: Vec::new(),
            signature: None,
            unknown_keys: Vec::new(),
        };
        Entry { args: vec![argument], ..nothing }
    }

    #[test]
    fn take_accepts_entries_while_they_fit() {
        let mut budget = EntryBudget::default();
        let text = entry(Value::Str("x".repeat(MAX_BYTES / 4).into()));
        let stay = [(); 5].map(|()| budget.take(&text, &[]));
        assert_eq!(stay, [true, true, true, false, false]);
        assert!(
            budget.take(&entry(Value::None), &[]),
            "an entry that did not fit used nothing of the budget"
        );
    }

    /// Tests a value that is a list with the same list in it twice, which again contains the same list twice, and so
    /// on. It would unfold to 2^100 values.
    #[test]
    fn take_refuses_deeply_shared_values_quickly() {
        let list = |items: Vec<Value>| Value::Sequence { kind: SequenceKind::List, items: Arc::from(items) };
        let deep = (0..100).fold(Value::None, |inner, _| list(vec![inner.clone(), inner]));
        assert!(!EntryBudget::default().take(&entry(deep), &[]));
    }
}
