//! Finds arguments that have the same values in several entries of a job, from headers alone. Weights are an example:
//! they are recorded with every call.
//!
//! Storages of equal size and CRC count as equal. If their contents differ after all, the only effect is that the input
//! is timed with its recorded values, which does no harm.

use std::collections::BTreeMap;

use opt_shared::arguments::{Argument, ArgumentValue, may_vary};
use opt_shared::capture::Storage;

/// The size and CRC of a storage.
type Content = (u64, u32);

/// Collects the inputs of a job's entries, and counts the entries that have the same content.
#[derive(Debug, Default)]
pub struct Repeated {
    /// The number of entries with each content.
    entries: BTreeMap<Content, u32>,
    /// For each entry, the arguments that could vary. Each has its path and its content.
    inputs: Vec<Vec<(String, Option<Content>)>>,
}

impl Repeated {
    /// Adds the next entry of the job.
    pub fn observe(&mut self, storages: &[Storage], arguments: &[Argument]) {
        let mut inputs = Vec::new();
        for argument in arguments {
            let ArgumentValue::Tensor(tensor) = &argument.value else { continue };
            if !may_vary(tensor) {
                continue;
            }
            let storage = storages.iter().find(|storage| storage.id == tensor.storage);
            let content = storage.and_then(|storage| Some((storage.bytes.get(), storage.crc32?)));
            inputs.push((argument.path.clone(), content));
        }
        let mut contents: Vec<Content> = inputs.iter().filter_map(|(_, content)| *content).collect();
        contents.sort_unstable();
        contents.dedup();
        for content in contents {
            *self.entries.entry(content).or_default() += 1;
        }
        self.inputs.push(inputs);
    }

    /// Returns for each entry, in order, the arguments that it shares with another entry. The list is empty for an
    /// entry that shares all of its arguments, because the same call may have been recorded twice, and at least one
    /// input must vary.
    pub fn settle(self) -> impl Iterator<Item = Vec<String>> {
        let Self { entries, inputs } = self;
        inputs.into_iter().map(move |inputs| {
            let all = inputs.len();
            let is_shared = |content: &Option<Content>| {
                content.is_some_and(|content| entries.get(&content).is_some_and(|count| 1 < *count))
            };
            let shared: Vec<String> =
                inputs.into_iter().filter(|(_, content)| is_shared(content)).map(|(path, _)| path).collect();
            if shared.len() == all { Vec::new() } else { shared }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_arguments_repeat_unless_an_entry_shares_all() {
        let inputs_of = |names: &[(&str, u32)]| {
            names.iter().map(|&(name, crc)| (name.to_owned(), Some((64, crc)))).collect::<Vec<_>>()
        };
        let inputs = vec![
            inputs_of(&[("input", 1), ("weight", 9)]),
            inputs_of(&[("input", 2), ("weight", 9)]),
            inputs_of(&[("input", 3), ("weight", 8)]),
            // The same call is recorded twice.
            inputs_of(&[("input", 5), ("weight", 7)]),
            inputs_of(&[("input", 5), ("weight", 7)]),
        ];
        let mut entries = BTreeMap::new();
        for (_, content) in inputs.iter().flatten() {
            *entries.entry(content.expect("known")).or_default() += 1;
        }
        let found: Vec<Vec<String>> = Repeated { entries, inputs }.settle().collect();
        assert_eq!(found, [vec!["weight"], vec!["weight"], vec![], vec![], vec![]]);
    }
}
