//! The memory that a candidate may owe in addition to its inputs and outputs.

use crate::settings::LimitSettings;
use crate::units::Bytes;

/// The size of the stack that the C library gives to each thread, including the threads of OpenMP.
pub const STACK: Bytes = Bytes::mib(8);
const MIN_MEMORY: Bytes = Bytes::mib(256);

impl LimitSettings {
    /// The number of threads, with `"cores"` resolved.
    pub fn threads_on(&self, cores: u32) -> u32 {
        self.threads.unwrap_or(cores).max(1)
    }

    /// The memory that the candidate may owe in addition to its inputs and outputs, with `"auto"` resolved. `inputs` is
    /// the size of the largest entry's inputs.
    pub fn memory_for(&self, inputs: Bytes, cores: u32) -> Bytes {
        let stacks = STACK.saturating_mul(u64::from(self.threads_on(cores)));
        self.memory.unwrap_or_else(|| MIN_MEMORY.max(inputs) + stacks)
    }

    /// The limit of the candidate's private memory, whether or not that memory has been touched. If the plan gives a
    /// number, the stacks of all threads but the first are added to it. Although little of these stacks is ever
    /// touched, they would otherwise use up a small limit.
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
    fn memory_limit_is_given_by_the_plan_or_follows_from_inputs_and_threads() {
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
