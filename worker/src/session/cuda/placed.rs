//! The inputs of one recorded call on the device, and the files or values from which they are loaded.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use opt_shared::arguments::{ArgumentValue, Piece};
use opt_shared::capture::store::BlobId;
use opt_shared::capture::{CaptureError, Tensor, logical_values};
use opt_shared::ids::EntryId;
use opt_shared::replay;
use opt_shared::stream::{FileDisk, read_exact};
use opt_shared::units::Bytes;

use super::buffers::{BAND_BYTE, Bands};
use super::driver::{Card, DriverError, SharedDriver};
use crate::recorded::{Recorded, is_materialised};
use crate::residency::load::Origin;
use crate::residency::staging::Source;
use crate::session::PoolSlot;

/// The number of bytes that are read back from the device at a time.
const READ_BACK: usize = 1 << 20;

/// Identifies an input. Inputs with equal keys have equal contents.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A part of a storage in a capture store. The storage starts at `begins` in its blob.
    Content { blob: BlobId, begins: u64, start: u64, end: u64 },
    /// A part of a storage in the entry's own file.
    Own { entry: EntryId, storage: u32, start: u64 },
    /// The values of a lazy conjugate or negative, which no file contains.
    Values { entry: EntryId, argument: usize },
    /// A constant of a replay.
    Constant(u32),
}

/// A recorded call whose inputs are placed on the device when its session starts.
pub(crate) struct OnDevice {
    recorded: Recorded,
    pub(super) inputs: Vec<Input>,
    /// For each argument, the index of its input and its offset in it, in bytes. `None` if the argument is not a tensor
    /// or has no elements.
    pub(super) places: Vec<Option<(usize, u64)>>,
}

impl AsRef<Recorded> for OnDevice {
    fn as_ref(&self) -> &Recorded {
        &self.recorded
    }
}

/// An input with its own buffer on the device.
pub(super) struct Input {
    pub(super) key: Key,
    pub(super) bands: Bands,
    /// The names of the arguments whose data lies in this input.
    pub(super) name: String,
    contents: Contents,
}

enum Contents {
    Piece(Piece),
    /// The tensor's values, written out densely.
    Values(Arc<Tensor>),
    /// The input is at this address in the pool of a replay. Its bytes have this digest.
    InPool {
        address: u64,
        digest: replay::Digest,
    },
}

impl Input {
    /// The address of the input, if it lies in the pool of a replay.
    pub(super) fn pool_address(&self) -> Option<u64> {
        match self.contents {
            Contents::InPool { address, .. } => Some(address),
            Contents::Piece(_) | Contents::Values(_) => None,
        }
    }

    /// Reads an input back from the pool, and returns true if its bytes do not match its digest in the recording.
    /// Returns false for inputs that are not in a pool.
    pub(super) fn is_altered(&self, driver: &SharedDriver) -> Result<bool, DriverError> {
        let Contents::InPool { address, digest } = &self.contents else { return Ok(false) };
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; READ_BACK];
        let mut at = 0;
        while at < self.bands.bytes {
            let length = Bytes::new(self.bands.bytes - at).to_usize().min(READ_BACK);
            driver.lock().read(address + at, &mut chunk[..length])?;
            hasher.update(&chunk[..length]);
            at += length as u64;
        }
        Ok(hasher.finalize().as_bytes() != &digest.0)
    }

    fn add_name(&mut self, argument: &str) {
        self.name = match self.name.as_str() {
            "" => format!("the input `{argument}`"),
            known => format!("{known} and `{argument}`"),
        };
    }
}

impl OnDevice {
    pub(super) fn new(recorded: Recorded, card: &Card) -> Self {
        let mut inputs: Vec<Input> = Vec::new();
        let pieces = recorded.pieces();
        for piece in &pieces {
            let Piece { range, storage, content } = piece;
            let key = match *content {
                Some((blob, begins)) => Key::Content { blob, begins, start: range.start, end: range.end },
                None => Key::Own { entry: recorded.id, storage: storage.0, start: range.start },
            };
            let bands = Bands::of(card, range.end - range.start, range.start);
            let contents = Contents::Piece(piece.clone());
            inputs.push(Input { key, bands, name: String::new(), contents });
        }
        let mut places = Vec::with_capacity(recorded.arguments.len());
        for (number, argument) in recorded.arguments.iter().enumerate() {
            let place = match &argument.value {
                ArgumentValue::Tensor(tensor) if is_materialised(tensor) => {
                    let key = Key::Values { entry: recorded.id, argument: number };
                    let bands = Bands::of(card, tensor.logical_bytes().get(), 0);
                    let contents = Contents::Values(Arc::clone(tensor));
                    inputs.push(Input { key, bands, name: String::new(), contents });
                    Some((inputs.len() - 1, 0))
                }
                ArgumentValue::Tensor(tensor) if tensor.elements() != 0 => {
                    place_of(&recorded, &pieces, tensor)
                }
                ArgumentValue::Tensor(_) | ArgumentValue::Plain(_) => None,
            };
            if let Some(input) = place.and_then(|(at, _)| inputs.get_mut(at)) {
                input.add_name(&argument.path);
            }
            places.push(place);
        }
        Self { recorded, inputs, places }
    }

    /// Describes a call whose inputs lie in a pool. `slots` has one item for each tensor argument, in order.
    pub(super) fn in_pool(recorded: Recorded, slots: &[Option<PoolSlot>]) -> Self {
        let (mut inputs, mut places) = (Vec::<Input>::new(), Vec::with_capacity(recorded.arguments.len()));
        let mut slots = slots.iter().copied();
        for argument in &recorded.arguments {
            let slot = match argument.value {
                ArgumentValue::Tensor(_) => slots.next().flatten(),
                ArgumentValue::Plain(_) => None,
            };
            let place = slot.map(|slot| {
                let key = Key::Constant(slot.constant);
                let at = inputs.iter().position(|input| input.key == key);
                let at = at.unwrap_or_else(|| {
                    let bands = Bands { front: 0, bytes: slot.length.get(), back: 0 };
                    let address = slot.address + u64::from(slot.phase);
                    let contents = Contents::InPool { address, digest: slot.digest };
                    inputs.push(Input { key, bands, name: String::new(), contents });
                    inputs.len() - 1
                });
                inputs[at].add_name(&argument.path);
                (at, 0)
            });
            places.push(place);
        }
        Self { recorded, inputs, places }
    }

    /// Returns the distinct inputs by key, with the origins of their bytes. Inputs in a pool are left out.
    pub(super) fn origins(&self) -> BTreeMap<Key, InputOrigin<'_>> {
        self.inputs
            .iter()
            .filter(|input| input.pool_address().is_none())
            .map(|input| (input.key.clone(), InputOrigin { recorded: &self.recorded, input }))
            .collect()
    }
}

fn place_of(recorded: &Recorded, pieces: &[Piece], tensor: &Tensor) -> Option<(usize, u64)> {
    let within = tensor.byte_range();
    let covers = |piece: &Piece| piece.range.start <= within.start && within.end <= piece.range.end;
    let storage = recorded.capture.storage(tensor.storage);
    let content = storage.blob.map(|blob| (blob, storage.file_offset));
    let own = pieces.iter().position(|piece| covers(piece) && piece.storage == tensor.storage);
    // Two storages with the same content share one piece.
    let at = own.or_else(|| {
        pieces.iter().position(|piece| covers(piece) && content.is_some() && piece.content == content)
    })?;
    Some((at, within.start - pieces[at].range.start))
}

pub(super) struct InputOrigin<'a> {
    recorded: &'a Recorded,
    input: &'a Input,
}

impl Origin for InputOrigin<'_> {
    fn bytes(&self) -> Bytes {
        self.input.bands.allocated()
    }

    fn held(&self) -> Bytes {
        match &self.input.contents {
            Contents::Piece(_) | Contents::InPool { .. } => Bytes::ZERO,
            Contents::Values(tensor) => tensor.logical_bytes(),
        }
    }

    fn describe(&self) -> String {
        format!("{} of {}", self.input.name, self.recorded.name)
    }

    fn open(&self) -> io::Result<Box<dyn Source + '_>> {
        let reader = match &self.input.contents {
            Contents::Piece(piece) => {
                let storage = self.recorded.capture.storage(piece.storage);
                let file = self.recorded.capture.file_of(storage.blob)?;
                let disk = FileDisk::new(&file, 1)?;
                Reader::File { disk, begins: storage.file_offset + piece.range.start }
            }
            Contents::Values(tensor) => {
                let mut values = Vec::with_capacity(tensor.logical_bytes().to_usize());
                let written: Result<(), CaptureError> =
                    logical_values(&self.recorded.capture, tensor, &mut |chunk: &[u8]| {
                        values.extend_from_slice(chunk);
                        Ok(())
                    });
                written.map_err(io::Error::other)?;
                Reader::Values(values)
            }
            Contents::InPool { .. } => {
                return Err(io::Error::other("an input in a pool is not loaded again"));
            }
        };
        Ok(Box::new(InputSource { origin: self, reader }))
    }
}

enum Reader {
    File { disk: FileDisk, begins: u64 },
    Values(Vec<u8>),
}

struct InputSource<'a> {
    origin: &'a InputOrigin<'a>,
    reader: Reader,
}

impl Source for InputSource<'_> {
    fn bytes(&self) -> Bytes {
        self.origin.bytes()
    }

    fn describe(&self) -> String {
        self.origin.describe()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        let Bands { front, bytes, .. } = self.origin.input.bands;
        into.fill(BAND_BYTE);
        let (from, to) = (at.get().max(front), (at.get() + into.len() as u64).min(front + bytes));
        if to <= from {
            return Ok(());
        }
        let start = Bytes::new(from - at.get()).to_usize();
        let part = &mut into[start..start + Bytes::new(to - from).to_usize()];
        match &self.reader {
            Reader::File { disk, begins } => {
                read_exact(disk, part, begins + (from - front)).map_err(|fault| fault.source)
            }
            Reader::Values(values) => {
                let at = Bytes::new(from - front).to_usize();
                let found = values.get(at..at + part.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                part.copy_from_slice(found);
                Ok(())
            }
        }
    }
}
