//! Counts how often each kind of event occurs in simulated runs.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Outcome(BTreeMap<&'static str, u32>);

impl Outcome {
    pub(super) fn note(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    #[cfg(test)]
    pub(crate) fn of(&self, kind: &str) -> u32 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (&kind, count) in &other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts: Vec<String> = self.0.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        f.write_str(&counts.join(", "))
    }
}
