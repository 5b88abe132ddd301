//! The call of one entry: its buffers, and the bytes of each launch's parameters.

use std::io;

use opt_shared::launch::{Pointer, ResolvedLaunch, ResolvedStep, Value};
use opt_shared::units::Bytes;

use super::buffers::{Bands, DeviceBuffer};
use super::driver::{Card, FunctionId, SharedDriver};
use super::placed::OnDevice;
use crate::recorded::allocated_bytes;
use crate::runner::cudart::RECORDER_NAME;

/// The size of the largest parameter that is no structure, in bytes.
const LARGEST_SCALAR: usize = 8;

/// The launches of one entry with their buffers.
pub(super) struct EntryCall {
    pub(super) resolved: ResolvedLaunch,
    pub(super) inputs: Vec<DeviceBuffer>,
    pub(super) outputs: Vec<DeviceBuffer>,
    pub(super) workspaces: Vec<DeviceBuffer>,
    /// The kernel of each step. Empty until the module is loaded.
    pub(super) functions: Vec<FunctionId>,
}

/// The owner of the memory for outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outputs {
    /// The session: each entry has the outputs of one call, between bands.
    OfOneCall,
    /// The timed session that contains this one: each call of a block has its own outputs, which this session neither
    /// allocates nor fills.
    Elsewhere,
}

/// A buffer that has not been allocated yet.
pub(super) struct WantedBuffer {
    pub(super) name: String,
    pub(super) bands: Bands,
}

pub(super) fn outputs_of(entry: &OnDevice, card: &Card) -> Vec<WantedBuffer> {
    let outputs = entry.as_ref().outputs.iter();
    outputs
        .map(|output| WantedBuffer {
            name: format!(
                "the {} `{}`",
                if output.arguments.is_empty() { "output" } else { "argument" },
                output.path
            ),
            bands: Bands::of(card, allocated_bytes(&output.tensor), 0),
        })
        .collect()
}

/// Returns the bytes of each parameter of a launch. `address` returns the address of a buffer.
pub(super) fn params(step: &ResolvedStep, address: impl Fn(Pointer) -> u64) -> Vec<Vec<u8>> {
    let bytes = |value: &Value| match value {
        Value::Pointer(pointer) => address(*pointer).to_le_bytes().to_vec(),
        Value::Null => 0_u64.to_le_bytes().to_vec(),
        Value::Scalar(scalar) => scalar.bytes().to_vec(),
        Value::Bytes { bytes, addresses } => {
            let mut bytes = bytes.clone();
            for it in addresses {
                if let Some(place) = bytes.get_mut(it.at..).and_then(<[u8]>::first_chunk_mut::<8>) {
                    *place = address(it.pointer).wrapping_add_signed(it.offset).to_le_bytes();
                }
            }
            bytes
        }
    };
    step.args.iter().map(bytes).collect()
}

/// Returns why the kernel of launch `number` cannot be launched with the arguments of its step. The text may have a prefix
/// that names a status. `takes` has the sizes of the kernel's parameters; `None` if the driver does not report them.
pub(super) fn misfit(number: usize, step: &ResolvedStep, takes: Option<&[usize]>) -> Option<String> {
    let gives: Vec<usize> = params(step, |_| 0).iter().map(Vec::len).collect();
    let symbol = &step.symbol;
    match takes {
        Some(takes) if takes == gives => None,
        Some(takes) => Some(format!(
            "launch {number}: `{symbol}` takes {}, and `args` gives {}",
            sizes(takes),
            sizes(&gives)
        )),
        None => gives.iter().any(|&bytes| LARGEST_SCALAR < bytes).then(|| {
            format!(
                "opt.Unsupported: launch {number}: `{symbol}` takes a structure, and {RECORDER_NAME} needs a driver for \
                 CUDA 12.4 or newer to pass it"
            )
        }),
    }
}

/// Describes the sizes of parameters, in bytes.
fn sizes(sizes: &[usize]) -> String {
    match sizes {
        [] => "no parameters".to_owned(),
        [one] => format!("one parameter of {one} bytes"),
        many => {
            let each: Vec<String> = many.iter().map(usize::to_string).collect();
            format!("{} parameters of {} bytes", many.len(), each.join(", "))
        }
    }
}

impl EntryCall {
    pub(super) fn buffers(&self) -> impl Iterator<Item = &DeviceBuffer> {
        self.inputs.iter().chain(&self.outputs).chain(&self.workspaces)
    }

    /// Returns the parts of device memory that are filled before a call: outputs and workspaces with their bands. For
    /// an argument that the call changes, only the bands are filled, because the fills and the write that restores the
    /// argument's value are in no fixed order.
    pub(super) fn poisoned(&self, entry: &OnDevice) -> Vec<(u64, Bytes)> {
        let outputs = &entry.as_ref().outputs;
        let is_changed =
            |number: usize| outputs.get(number).is_some_and(|output| !output.arguments.is_empty());
        let buffers = self.outputs.iter().chain(&self.workspaces).enumerate();
        let parts = buffers.flat_map(|(number, buffer)| {
            let Bands { front, bytes, back } = buffer.bands;
            let (start, all) = buffer.allocation();
            if is_changed(number) {
                [(start, Bytes::new(front)), (buffer.address + bytes, Bytes::new(back))]
            } else {
                [(start, all), (start, Bytes::ZERO)]
            }
        });
        parts.filter(|(_, bytes)| *bytes != Bytes::ZERO).collect()
    }

    pub(super) fn restore(&self, entry: &OnDevice, driver: &SharedDriver) -> io::Result<()> {
        let recorded = entry.as_ref();
        for (output, buffer) in recorded.outputs.iter().zip(&self.outputs) {
            recorded.before(output, |at, bytes| {
                driver.lock().write(buffer.address + at, bytes).map_err(io::Error::other)
            })?;
        }
        Ok(())
    }

    /// Returns the address of a buffer. As in PyTorch, it is 0 for an argument without elements.
    pub(super) fn address(&self, entry: &OnDevice, pointer: Pointer) -> u64 {
        match pointer {
            Pointer::Argument(argument) => {
                let outputs = &entry.as_ref().outputs;
                if let Some(changed) = outputs.iter().position(|output| output.arguments.contains(&argument))
                {
                    return self.address(entry, Pointer::Output(changed));
                }
                let place = entry.places.get(argument).copied().flatten();
                place.and_then(|(input, at)| Some(self.inputs.get(input)?.address + at)).unwrap_or(0)
            }
            Pointer::Output(output) => self.outputs.get(output).map_or(0, |it| it.address),
            Pointer::Workspace(workspace) => self.workspaces.get(workspace).map_or(0, |it| it.address),
        }
    }
}
