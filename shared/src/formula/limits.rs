//! What a candidate may owe beyond what it is given.

use crate::settings::LimitSettings;
use crate::units::Bytes;

/// The stack of each thread, as the C library makes it and an OpenMP thread gets it.
pub const STACK: Bytes = Bytes::mib(8);
const LEAST_MEMORY: Bytes = Bytes::mib(256);

impl LimitSettings {
    /// With `"cores"` resolved.
    pub fn threads_on(&self, cores: u32) -> u32 {
        self.threads.unwrap_or(cores).max(1)
    }

    /// What the candidate may owe beyond its outputs, with `"auto"` resolved; `inputs` are those of the largest entry.
    pub fn memory_for(&self, inputs: Bytes, cores: u32) -> Bytes {
        let stacks = STACK.saturating_mul(u64::from(self.threads_on(cores)));
        self.memory.unwrap_or_else(|| LEAST_MEMORY.max(inputs) + stacks)
    }

    /// What it may have of private memory, touched or not: where the plan gives a figure, the stacks of its further
    /// threads come on top, for they are hardly touched and would leave nothing of a small figure.
    pub fn private_memory_for(&self, inputs: Bytes, cores: u32) -> Bytes {
        let further = STACK.saturating_mul(u64::from(self.threads_on(cores)) - 1);
        let memory = self.memory_for(inputs, cores);
        if self.memory.is_some() { memory + further } else { memory }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_candidate_may_owe_what_the_plan_says_or_its_inputs_again() {
        for (memory, threads, inputs, owed, private) in [
            (None, Some(2), 100, 256 + 16, 256 + 16),
            (None, Some(2), 400, 400 + 16, 400 + 16),
            (None, None, 0, 256 + 4 * 8, 256 + 4 * 8),
            (Some(64), Some(1), 400, 64, 64),
            (Some(64), Some(0), 400, 64, 64),
            (Some(64), Some(3), 400, 64, 64 + 16),
        ] {
            let limits = LimitSettings {
                memory: memory.map(Bytes::mib),
                threads,
                processes: None,
                open_files: 256,
                output: Bytes::kib(64),
                env: BTreeMap::new(),
            };
            assert_eq!(limits.memory_for(Bytes::mib(inputs), 4), Bytes::mib(owed), "{limits:?}");
            assert_eq!(limits.private_memory_for(Bytes::mib(inputs), 4), Bytes::mib(private), "{limits:?}");
        }
    }
}
