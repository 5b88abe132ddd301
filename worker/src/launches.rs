//! The launches that a candidate's host code makes, recorded during a build: the part of a call that host code sees,
//! and the artifact with the recorded launches.
//!
//! Host code cannot read device memory without a copy, so its launches depend only on shapes, dtypes, addresses and
//! plain values. A build runs it once for each different call, with addresses that stand for the call's tensors. A
//! worker later replaces these by the addresses of the buffers of an entry. The artifact is written by a process that
//! has run the candidate, so everything in it is checked.

use std::collections::BTreeMap;

use opt_shared::arguments::{Argument, ArgumentValue, OutputTensor};
use opt_shared::capture::{Tensor, contiguous_strides};
use opt_shared::formula::DEVICE_ALIGNMENT;
use opt_shared::launch::{Address, Pointer, ResolvedLaunch, ResolvedStep, Value};
use opt_shared::units::Bytes;

use crate::recorded::is_materialised;
use crate::runner::frame::{WireArgument, WireOutput};
use crate::runner::recording_format::{
    HostView, InputView, Key, MAX_ALLOCATION, MAX_CALLS, MAX_PARAMS, MAX_STEPS, MAX_WORKSPACES, RecordedCall,
    RecordedParam, RecordedStep, Recording,
};
use crate::wire::{plain_argument, signed, wire_type};

/// Returns what host code sees of a call with these arguments and outputs.
pub(crate) fn view_of(arguments: &[Argument], outputs: &[OutputTensor]) -> HostView {
    let mut inputs: Vec<InputView> = Vec::new();
    let mut views = Vec::with_capacity(arguments.len());
    for (argument, value) in arguments.iter().enumerate() {
        views.push(match &value.value {
            ArgumentValue::Plain(value) => plain_argument(value),
            ArgumentValue::Tensor(tensor) => {
                let range = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
                let (stride, bytes, phase) = layout(tensor);
                inputs.push(InputView { argument, bytes, phase });
                let (shape, stride) = (signed(&tensor.shape), signed(&stride));
                WireArgument::Tensor { range, dtype: wire_type(tensor.dtype), shape, stride }
            }
        });
    }
    let outputs = outputs.iter().map(|output| WireOutput {
        dtype: wire_type(output.tensor.dtype),
        shape: signed(&output.tensor.shape),
        stride: signed(&output.tensor.stride),
        arguments: output.arguments.iter().filter_map(|&index| u32::try_from(index).ok()).collect(),
        regions: Vec::new(),
    });
    HostView { arguments: views, inputs, outputs: outputs.collect() }
}

/// Returns a tensor's strides, its size in bytes from the first element to the last, and the phase of its address.
fn layout(tensor: &Tensor) -> (Vec<u64>, u64, u64) {
    if is_materialised(tensor) {
        return (contiguous_strides(&tensor.shape), tensor.logical_bytes().get(), 0);
    }
    let range = tensor.byte_range();
    (tensor.stride.clone(), range.end - range.start, range.start % DEVICE_ALIGNMENT.get())
}

/// The largest number of characters of an error text that are used.
const MAX_TEXT: usize = 2048;

/// The checked launches of an artifact, by the key of the call.
#[derive(Debug, Default)]
pub(crate) struct RecordedLaunches {
    pub(crate) images: Vec<Vec<u8>>,
    calls: BTreeMap<Key, Result<RecordedCall, String>>,
}

impl RecordedLaunches {
    /// Reads an artifact. The error says what is wrong with it.
    pub(crate) fn read(artifact: &[u8]) -> Result<Self, &'static str> {
        let recording = Recording::from_bytes(artifact)?;
        let images = recording.images.len();
        if MAX_CALLS < recording.calls.len() {
            return Err("it has too many calls");
        }
        let is_sound = |call: &RecordedCall| {
            call.steps.len() <= MAX_STEPS
                && call.workspaces.len() <= MAX_WORKSPACES
                && call.workspaces.iter().all(|&bytes| bytes <= MAX_ALLOCATION)
                && call.steps.iter().all(|step| is_sound(step, images, call.workspaces.len()))
        };
        if !recording.calls.iter().filter_map(|(_, call)| call.as_ref().ok()).all(is_sound) {
            return Err("a launch in it is impossible");
        }
        Ok(Self { images: recording.images, calls: recording.calls.into_iter().collect() })
    }

    /// Returns the launches of a call. The error text says why there are none.
    pub(crate) fn resolve(
        &self,
        arguments: &[Argument],
        outputs: &[OutputTensor],
    ) -> Result<ResolvedLaunch, String> {
        let view = view_of(arguments, outputs);
        let key = view.key().map_err(|error| format!("the call cannot be looked up: {error}"))?;
        let call = self.calls.get(&key).ok_or("the build did not record the launches of this call")?;
        let call = call.as_ref().map_err(|text| text.chars().take(MAX_TEXT).collect::<String>())?;
        let is_known = |address: &Address| match address.pointer {
            Pointer::Argument(argument) => argument < arguments.len(),
            Pointer::Output(output) => output < outputs.len(),
            Pointer::Workspace(workspace) => workspace < call.workspaces.len(),
        };
        let mut params = call.steps.iter().flat_map(|step| &step.params);
        if !params.all(|param| param.addresses.iter().all(is_known)) {
            return Err("a recorded launch refers to a tensor that the call does not have".to_owned());
        }
        Ok(ResolvedLaunch {
            steps: call.steps.iter().map(resolved).collect(),
            workspaces: call.workspaces.iter().copied().map(Bytes::new).collect(),
        })
    }
}

fn is_sound(step: &RecordedStep, images: usize, workspaces: usize) -> bool {
    let bytes: usize = step.params.iter().map(|param| param.bytes.len()).fold(0, usize::saturating_add);
    let fits = |param: &RecordedParam, address: &Address| {
        address.at.checked_add(8).is_some_and(|end| end <= param.bytes.len())
            && !matches!(address.pointer, Pointer::Workspace(at) if workspaces <= at)
    };
    step.image < images
        && bytes <= MAX_PARAMS
        && step.params.iter().all(|param| param.addresses.iter().all(|address| fits(param, address)))
}

fn resolved(step: &RecordedStep) -> ResolvedStep {
    let value = |param: &RecordedParam| Value::Bytes {
        bytes: param.bytes.clone(),
        addresses: param.addresses.clone(),
    };
    ResolvedStep {
        module: step.image,
        symbol: step.symbol.clone(),
        grid: step.grid,
        block: step.block,
        shared_mem: step.shared_mem,
        args: step.params.iter().map(value).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recording() -> Recording {
        let addresses = vec![Address { at: 8, pointer: Pointer::Workspace(0), offset: -4 }];
        let step = RecordedStep {
            image: 0,
            symbol: "k".to_owned(),
            grid: [2, 1, 1],
            block: [32, 1, 1],
            shared_mem: 16,
            params: vec![RecordedParam { bytes: vec![7; 16], addresses }],
        };
        let view = view_of(&[], &[]);
        let call = RecordedCall { steps: vec![step], workspaces: vec![64] };
        Recording {
            images: vec![b".version 7.0".to_vec()],
            calls: vec![(view.key().expect("a key"), Ok(call)), ([3; 32], Err("opt.Raised: no".to_owned()))],
        }
    }

    #[test]
    fn recorded_launches_are_found_by_the_call() {
        let found = RecordedLaunches::read(&recording().to_bytes().expect("encoded").expect("not too long"))
            .expect("sound");
        let launch = found.resolve(&[], &[]).expect("recorded");
        assert_eq!((launch.steps[0].module, launch.workspaces.as_slice()), (0, &[Bytes::new(64)][..]));
        let Value::Bytes { bytes, addresses } = &launch.steps[0].args[0] else { panic!("{launch:?}") };
        assert_eq!((bytes.len(), addresses[0].offset), (16, -4));
        assert!(RecordedLaunches::default().resolve(&[], &[]).is_err());
    }

    #[test]
    fn launches_that_refer_to_nothing_are_refused() {
        let refused = |change: &dyn Fn(&mut RecordedStep)| {
            let mut recording = recording();
            if let (_, Ok(call)) = &mut recording.calls[0] {
                change(&mut call.steps[0]);
            }
            RecordedLaunches::read(&recording.to_bytes().expect("encoded").expect("not too long")).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|step| step.image = 1));
        assert!(refused(&|step| step.params[0].addresses[0].at = 9));
        assert!(refused(&|step| step.params[0].addresses[0].at = usize::MAX));
        assert!(refused(&|step| step.params[0].addresses[0].pointer = Pointer::Workspace(1)));
        assert!(refused(&|step| step.params[0].bytes = vec![0; MAX_PARAMS + 1]));
        let mut recording = recording();
        if let (_, Ok(call)) = &mut recording.calls[0] {
            call.steps[0].params[0].addresses[0].pointer = Pointer::Output(0);
        }
        let read = RecordedLaunches::read(&recording.to_bytes().expect("encoded").expect("not too long"))
            .expect("outputs are not known yet");
        assert!(read.resolve(&[], &[]).expect_err("no output").contains("does not have"));
    }

    proptest! {
        #[test]
        fn damaged_artifacts_never_panic(at in 0usize..200, value: u8, length in 0usize..200) {
            let mut bytes = recording().to_bytes().expect("encoded").expect("not too long");
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(length.max(1));
            if let Ok(read) = RecordedLaunches::read(&bytes) {
                let _ = read.resolve(&[], &[]);
            }
        }
    }
}
