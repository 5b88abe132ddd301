//! Records the launches that a session passed to the driver, so that they can be compared with those in the plan.

use std::collections::BTreeMap;
use std::ops::Range;

use super::driver::{FunctionId, Launch};
use super::placed::{Key, OnDevice};
use crate::session::KernelLaunch;

/// The launches of a session's last call.
#[derive(Default)]
pub(super) struct Launched {
    launches: Vec<Launch>,
    symbols: BTreeMap<FunctionId, String>,
}

impl Launched {
    pub(super) fn clear(&mut self) {
        self.launches.clear();
    }

    pub(super) fn push(&mut self, launch: Launch) {
        self.launches.push(launch);
    }

    /// Notes the symbol of a kernel.
    pub(super) fn note_symbol(&mut self, function: FunctionId, symbol: &str) {
        self.symbols.insert(function, symbol.to_owned());
    }

    /// Returns the launches, each with those of its parameters that are addresses in a replay's pool.
    pub(super) fn of(&self, entry: &OnDevice) -> Vec<KernelLaunch> {
        let constants: Vec<(Range<u64>, u32)> = entry
            .inputs
            .iter()
            .filter_map(|input| match (&input.key, input.pool_address()) {
                (Key::Constant(number), Some(start)) => Some((start..start + input.bands.bytes, *number)),
                _ => None,
            })
            .collect();
        let constant_at = |param: &Vec<u8>| {
            let address = u64::from_le_bytes(param.as_slice().try_into().ok()?);
            constants.iter().find(|(range, _)| range.contains(&address)).map(|(_, number)| *number)
        };
        let of = |launch: &Launch| KernelLaunch {
            symbol: self.symbols.get(&launch.function).cloned().unwrap_or_default(),
            constants: launch
                .params
                .iter()
                .enumerate()
                .filter_map(|(at, param)| Some((at, constant_at(param)?)))
                .collect(),
        };
        self.launches.iter().map(of).collect()
    }
}
