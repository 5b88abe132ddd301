//! The format of recorded launches: what the recorder is told about each call, and the artifact that it writes.
//!
//! The process that writes the artifact has run the candidate, so a reader must check everything in it.

use std::path::PathBuf;

use opt_shared::device::CardShape;
use opt_shared::launch::{Address, Pointer};
use serde::{Deserialize, Serialize};

use super::frame::{WireArgument, WireOutput};

/// The largest number of launches, fills and copies of one call.
pub(crate) const MAX_STEPS: usize = 4096;
/// The largest number of allocations of one call.
pub(crate) const MAX_WORKSPACES: usize = 256;
/// The largest allocation, in bytes. No card has as much memory.
pub(crate) const MAX_ALLOCATION: u64 = 1 << 40;
/// The largest number of images of a library, each of which becomes a module.
pub(crate) const MAX_IMAGES: usize = 256;
/// The largest number of different calls of a job.
pub(crate) const MAX_CALLS: usize = 4096;
/// The largest size of all parameters of a launch, in bytes, which is CUDA's limit since version 12.1.
pub(crate) const MAX_PARAMS: usize = 32_764;
/// The largest size of all calls in the artifact, in bytes. Decoded, they take up to 24 times as much.
pub(crate) const MAX_CALLS_BYTES: usize = 4 << 20;
const MAGIC: &[u8] = b"opt-launches 1\n";

/// The digest of a `HostView`.
pub(crate) type Key = [u8; 32];

/// What host code sees of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostView {
    /// The arguments. A tensor's range is its index in `inputs`.
    pub(crate) arguments: Vec<WireArgument>,
    pub(crate) inputs: Vec<InputView>,
    /// The outputs, without memory.
    pub(crate) outputs: Vec<WireOutput>,
}

/// A tensor among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InputView {
    /// The index of the argument.
    pub(crate) argument: usize,
    /// The size from the first element to the last. It is 0 if there are no elements.
    pub(crate) bytes: u64,
    /// The address modulo the alignment of device memory.
    pub(crate) phase: u64,
}

impl HostView {
    pub(crate) fn key(&self) -> Result<Key, postcard::Error> {
        Ok(*blake3::hash(&postcard::to_stdvec(self)?).as_bytes())
    }
}

/// The order to record the launches of some calls.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordOrder {
    /// The name of the function to call.
    pub(crate) symbol: String,
    /// The folders that may contain libraries that the candidate's library needs.
    pub(crate) library_path: Vec<PathBuf>,
    /// The card; `None` if the launches are for the emulated device.
    pub(crate) card: Option<CardShape>,
    pub(crate) calls: Vec<HostView>,
}

/// The content of the artifact.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// PTX or machine code, one image for each module.
    pub(crate) images: Vec<Vec<u8>>,
    /// For each call, its launches or an error text. The prefix of the text names a status (`stage::failure`).
    pub(crate) calls: Vec<(Key, Result<RecordedCall, String>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordedCall {
    pub(crate) steps: Vec<RecordedStep>,
    /// The sizes of the buffers that host code allocated, in bytes.
    pub(crate) workspaces: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordedStep {
    /// The index of the image.
    pub(crate) image: usize,
    pub(crate) symbol: String,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_mem: u32,
    pub(crate) params: Vec<RecordedParam>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordedParam {
    pub(crate) bytes: Vec<u8>,
    pub(crate) addresses: Vec<Address>,
}

impl RecordedCall {
    /// Combines two recordings of the same call, which were made with different addresses. Bytes that are the same in both
    /// are data. Other bytes must be addresses. An allocation to which no address belongs gets the size 0. The error says
    /// what is wrong.
    pub(crate) fn combined(self, other: &Self) -> Result<Self, String> {
        let same_shape = |(one, other): (&RecordedStep, &RecordedStep)| {
            let shape = |it: &RecordedStep| (it.image, it.grid, it.block, it.shared_mem, it.params.len());
            shape(one) == shape(other) && one.symbol == other.symbol
        };
        if self.steps.len() != other.steps.len()
            || self.workspaces != other.workspaces
            || !self.steps.iter().zip(&other.steps).all(same_shape)
        {
            return Err("opt.Nondeterministic: the host code makes other launches in each process".to_owned());
        }
        let mut call = self;
        for (number, (step, other)) in call.steps.iter_mut().zip(&other.steps).enumerate() {
            for (param, other) in step.params.iter_mut().zip(&other.params) {
                if !param.keep_addresses(other) {
                    return Err(format!(
                        "opt.Unsupported: launch {} (`{}`) gets bytes that depend on an address but are no address at a \
                         multiple of 8, and the launch recorder cannot replace them",
                        number + 1,
                        step.symbol
                    ));
                }
            }
        }
        let params = call.steps.iter().flat_map(|step| &step.params);
        let used: Vec<Pointer> = params.flat_map(|it| &it.addresses).map(|it| it.pointer).collect();
        for (number, bytes) in call.workspaces.iter_mut().enumerate() {
            if !used.contains(&Pointer::Workspace(number)) {
                *bytes = 0;
            }
        }
        Ok(call)
    }
}

impl RecordedParam {
    /// Keeps the addresses that another recording of the same parameter confirms. Returns false if other bytes differ.
    fn keep_addresses(&mut self, other: &Self) -> bool {
        self.addresses.retain(|address| other.addresses.contains(address));
        let mut rest = [self.bytes.clone(), other.bytes.clone()];
        for address in &self.addresses {
            let word = address.at..address.at + size_of::<u64>();
            // If the words are equal, they are data that look like an address.
            rest.iter_mut().filter_map(|bytes| bytes.get_mut(word.clone())).for_each(|bytes| bytes.fill(0));
        }
        let (one, other) = (&self.bytes, &other.bytes);
        self.addresses.retain(|address| {
            let word = address.at..address.at + size_of::<u64>();
            one.get(word.clone()) != other.get(word)
        });
        rest[0] == rest[1]
    }
}

impl Recording {
    /// Encodes the artifact. Returns `None` if the calls take more than `MAX_CALLS_BYTES`.
    pub(crate) fn to_bytes(&self) -> Result<Option<Vec<u8>>, postcard::Error> {
        let calls = postcard::to_stdvec(&self.calls)?;
        if MAX_CALLS_BYTES < calls.len() {
            return Ok(None);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend((calls.len() as u64).to_le_bytes());
        bytes.extend(calls);
        postcard::to_extend(&self.images, bytes).map(Some)
    }

    /// Decodes an artifact, and checks nothing else. The error says why it cannot be decoded.
    pub(crate) fn from_bytes(artifact: &[u8]) -> Result<Self, &'static str> {
        const CUT: &str = "it is cut off, or not of this version";
        let content = artifact.strip_prefix(MAGIC).ok_or("its first bytes are not those of such a file")?;
        let (length, rest) = content.split_first_chunk::<8>().ok_or(CUT)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if MAX_CALLS_BYTES < length {
            return Err("its calls take too much memory");
        }
        let (calls, images) = rest.split_at_checked(length).ok_or(CUT)?;
        // An image takes more memory than its shortest encoding, so their number is checked first.
        let (count, _) = postcard::take_from_bytes::<usize>(images).map_err(|_| CUT)?;
        if MAX_IMAGES < count {
            return Err("it has too many images");
        }
        let calls = postcard::from_bytes(calls).map_err(|_| CUT)?;
        Ok(Self { images: postcard::from_bytes(images).map_err(|_| CUT)?, calls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(bytes: &[u64], addresses: &[(usize, i64)]) -> RecordedCall {
        let address = |&(at, offset): &(usize, i64)| Address { at, pointer: Pointer::Argument(0), offset };
        let param = RecordedParam {
            bytes: bytes.iter().flat_map(|word| word.to_le_bytes()).collect(),
            addresses: addresses.iter().map(address).collect(),
        };
        let step = RecordedStep {
            image: 0,
            symbol: "k".to_owned(),
            grid: [1; 3],
            block: [1; 3],
            shared_mem: 0,
            params: vec![param],
        };
        RecordedCall { steps: vec![step], workspaces: Vec::new() }
    }

    #[test]
    fn two_recordings_tell_addresses_from_data() {
        let kept = |one: RecordedCall, other: RecordedCall| {
            one.combined(&other)
                .map(|call| call.steps[0].params[0].addresses.iter().map(|it| it.at).collect::<Vec<_>>())
        };
        assert_eq!(kept(call(&[10, 5], &[(0, 0)]), call(&[20, 5], &[(0, 0)])), Ok(vec![0]));
        // The second word looks like an address in one recording, or in both, but does not change.
        assert_eq!(kept(call(&[10, 5], &[(0, 0), (8, 3)]), call(&[20, 5], &[(0, 0)])), Ok(vec![0]));
        assert_eq!(kept(call(&[10, 5], &[(8, 3)]), call(&[10, 5], &[(8, 3)])), Ok(vec![]));
        for (one, other) in [
            // A difference of addresses, half an address, and an address with another offset.
            (call(&[10], &[]), call(&[20], &[])),
            (call(&[10], &[(0, 0)]), call(&[20], &[])),
            (call(&[10], &[(0, 0)]), call(&[20], &[(0, 4)])),
        ] {
            assert!(kept(one, other).expect_err("no address").contains("launch 1 (`k`)"));
        }
        let unused = || RecordedCall { workspaces: vec![8], ..call(&[1], &[]) };
        assert_eq!(unused().combined(&unused()).expect("equal").workspaces, [0]);
        let other = unused();
        assert!(call(&[1], &[]).combined(&other).expect_err("different").starts_with("opt.Nondeterministic"));
    }
}
