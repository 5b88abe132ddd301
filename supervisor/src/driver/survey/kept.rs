//! How many entries may stay in memory until their job's signature is known.

use opt_shared::arguments::Entry;
use opt_shared::capture::{Storage, Tensor, Value};

/// Most bytes for all entries of a job together: the metadata of some hundred calls.
const MOST: usize = 1 << 20;

/// What is left of it.
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Room {
    /// Takes what the entry holds, or nothing if that is more than is left.
    pub(super) fn take(&mut self, entry: &Entry, storages: &[Storage]) -> bool {
        let mut left = self.0;
        let values =
            entry.args.iter().chain(entry.kwargs.iter().map(|(_, value)| value)).chain(&entry.output);
        let fits = spend(&mut left, size_of::<Entry>() + size_of_val(storages))
            // What the capturing side knew of the parameters is not worth a walk.
            && entry.signature.as_ref().is_none_or(|it| spend(&mut left, (it.params.len() + it.defaults.len()) * 128))
            && values.into_iter().all(|value| holds(value, &mut left));
        if fits {
            self.0 = left;
        }
        fits
    }
}

fn spend(left: &mut usize, bytes: usize) -> bool {
    let rest = left.checked_sub(bytes);
    *left = rest.unwrap_or(0);
    rest.is_some()
}

/// Ends as soon as nothing is left, however often a value stands in others.
fn holds(value: &Value, left: &mut usize) -> bool {
    let own = size_of::<Value>()
        + match value {
            Value::Str(text) => text.len(),
            Value::Bytes(bytes) | Value::ByteArray(bytes) => bytes.len(),
            Value::Tensor(tensor) => size_of::<Tensor>() + 16 * tensor.shape.len(),
            // Of any size, and seldom.
            Value::Int(int) if 64 < int.bits() => MOST,
            Value::NumpyArray(_) | Value::NumpyScalar { .. } | Value::Object(_) => MOST,
            _ => 0,
        };
    spend(left, own)
        && match value {
            Value::Sequence { items, .. } => items.iter().all(|item| holds(item, left)),
            Value::Dict { items, .. } => {
                items.iter().all(|(key, value)| holds(key, left) && holds(value, left))
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
            signature: None,
            unknown_keys: Vec::new(),
        };
        Entry { args: vec![argument], ..nothing }
    }

    #[test]
    fn small_entries_stay_until_there_is_no_room() {
        let mut room = Room::default();
        let text = entry(Value::Str("x".repeat(MOST / 4).into()));
        let stay = [(); 5].map(|()| room.take(&text, &[]));
        assert_eq!(stay, [true, true, true, false, false]);
        assert!(room.take(&entry(Value::None), &[]), "what did not fit took nothing");
    }

    /// A list of lists of one list, which would unfold to 2^100 values.
    #[test]
    fn a_value_that_stands_in_itself_many_times_is_left_soon() {
        let list = |items: Vec<Value>| Value::Sequence { kind: SequenceKind::List, items: Arc::from(items) };
        let deep = (0..100).fold(Value::None, |inner, _| list(vec![inner.clone(), inner]));
        assert!(!Room::default().take(&entry(deep), &[]));
    }
}
