//! From an entry's file to what a runner maps and a candidate is passed.
//!
//! Opens the capture (its directory and pickle only), binds the arguments, and lays down which bytes of the file
//! the runner may see. Values that do not lie in the file as they are (lazy conjugates and negatives) are written
//! into a sealed memfd. Nothing here starts a process or compares anything.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use opt_shared::arguments::{
    Argument, ArgumentValue, Entry, OutputLeaf, Piece, PlainValue, Signature, bind, outputs, pieces,
};
use opt_shared::capture::store::BlobId;
use opt_shared::capture::{CaptureFile, DType, Tensor, contiguous_strides, logical_values};
use opt_shared::causes::is_want_of_means;
use opt_shared::formula::{self, ALIGNMENT};
use opt_shared::ids::{EntryId, StorageId};
use opt_shared::message::EntryRef;
use opt_shared::settings::VerifySettings;
use opt_shared::units::Bytes;
use rustix::io::write;

use super::outputs::signed;
use crate::attempt::Trouble;
use crate::judge::check::tolerance_of;
use crate::judge::{BytesSource, Tolerance};
use crate::memfd;
use crate::runner::frame::{InputRange, WireArgument, WireType};

/// Of a recorded output, asked for while the piece before it is compared.
const NEXT_PIECE: u64 = 1 << 20;

/// Stands for the source behind all files, until their number is known.
const MATERIALISED: u8 = u8::MAX;

/// The capture cannot be used. Blame: the capture, but for `of_the_capture`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error("reading the capture {name}")]
    Capture { name: String, source: opt_shared::capture::CaptureError },
    #[error(
        "the capture {name} has {now} now and had {then} when the plan was checked (do not write captures during a run)"
    )]
    Changed { name: String, now: Bytes, then: Bytes },
    #[error("the capture {name}")]
    Entry { name: String, source: opt_shared::arguments::EntryError },
    #[error("the arguments of {name}")]
    Bind { name: String, source: opt_shared::arguments::BindError },
    #[error("sampling the recorded output of {name}")]
    Scale { name: String, source: crate::judge::CompareError },
    #[error("materialising an argument of {name}")]
    Materialise { name: String, source: io::Error },
}

impl PrepareError {
    /// An error of the worker if the machine, and not the capture, is to blame.
    pub(crate) fn of_the_capture(self, entry: &str) -> Result<Self, Trouble> {
        if is_want_of_means(&self) {
            return Err(Trouble::Means { entry: entry.to_owned(), source: Box::new(self) });
        }
        Ok(self)
    }
}

/// A part of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) storage: StorageId,
    pub(crate) within: Range<u64>,
}

/// One entry, ready to be given to a runner.
pub(crate) struct Prepared {
    pub(crate) id: EntryId,
    pub(crate) name: String,
    pub(crate) capture: CaptureFile,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) leaves: Vec<OutputLeaf>,
    pub(crate) inputs: Vec<InputRange>,
    /// Of each input, the part of a storage that it shows; none for materialised values.
    pub(crate) reached: Vec<Option<Reached>>,
    pub(crate) wire: Vec<WireArgument>,
    /// What `InputRange::source` counts: files of the capture, then materialised values.
    files: Vec<Arc<File>>,
    materialised: Option<OwnedFd>,
    pub(crate) materialised_bytes: Bytes,
    /// Bytes of all inputs that the candidate can see.
    pub(crate) input_bytes: Bytes,
    /// Input bytes that cannot be mapped in place: edge pages and odd placements.
    pub(crate) unmapped_bytes: Bytes,
}

/// What an entry's file says, before anything is made of it.
struct Recorded {
    capture: CaptureFile,
    arguments: Vec<Argument>,
    leaves: Vec<OutputLeaf>,
}

impl Recorded {
    fn read(entry: &EntryRef, signature: &Signature) -> Result<Self, PrepareError> {
        let name = || entry.name.clone();
        let capture = CaptureFile::open(&entry.path)
            .map_err(|source| PrepareError::Capture { name: name(), source })?;
        if capture.file_bytes() != entry.numbers.file {
            return Err(PrepareError::Changed {
                name: name(),
                now: capture.file_bytes(),
                then: entry.numbers.file,
            });
        }
        let recorded = Entry::from_value(capture.root())
            .map_err(|source| PrepareError::Entry { name: name(), source })?;
        let arguments =
            bind(&recorded, signature).map_err(|source| PrepareError::Bind { name: name(), source })?;
        let leaves = outputs(&recorded).map_err(|source| PrepareError::Bind { name: name(), source })?;
        Ok(Self { capture, arguments, leaves })
    }
}

fn tensors(arguments: &[Argument]) -> impl Iterator<Item = &Tensor> {
    arguments.iter().filter_map(|argument| match &argument.value {
        ArgumentValue::Tensor(tensor) => Some(&**tensor),
        ArgumentValue::Plain(_) => None,
    })
}

/// Its values do not lie in the file as they are.
fn is_written_out(tensor: &Tensor) -> bool {
    tensor.elements() != 0 && (tensor.conjugate || tensor.negative)
}

impl Prepared {
    pub(crate) fn open(entry: &EntryRef, signature: &Signature) -> Result<Self, PrepareError> {
        Self::lay_out(entry, Recorded::read(entry, signature)?)
    }

    /// None if it lies in a store, or has values that would have to be written out: beside another entry's they would
    /// cost memory that nobody counted on.
    pub(crate) fn open_in_place(
        entry: &EntryRef,
        signature: &Signature,
    ) -> Result<Option<Self>, PrepareError> {
        let recorded = Recorded::read(entry, signature)?;
        let in_place = !recorded.capture.is_packed() && !tensors(&recorded.arguments).any(is_written_out);
        if in_place { Self::lay_out(entry, recorded).map(Some) } else { Ok(None) }
    }

    fn lay_out(entry: &EntryRef, recorded: Recorded) -> Result<Self, PrepareError> {
        let name = || entry.name.clone();
        let Recorded { capture, arguments, leaves } = recorded;
        let mut ranges = Ranges::new(&capture);
        let mut wire = Vec::with_capacity(arguments.len());
        for argument in &arguments {
            wire.push(
                ranges
                    .argument(&argument.value)
                    .map_err(|source| PrepareError::Materialise { name: name(), source })?,
            );
        }
        let Ranges { mut inputs, reached, sources, memfd, written, .. } = ranges;
        let materialised = u8::try_from(sources.len()).unwrap_or(u8::MAX);
        for range in inputs.iter_mut().filter(|range| range.source == MATERIALISED) {
            range.source = materialised;
        }
        if let Some(memfd) = &memfd {
            memfd::freeze(memfd)
                .map_err(|source| PrepareError::Materialise { name: name(), source: source.into() })?;
        }
        let page = rustix::param::page_size() as u64;
        let input_bytes = inputs.iter().map(|range| Bytes::new(range.bytes)).sum();
        let unmapped_bytes = inputs.iter().map(|range| unmapped(range, page)).sum();
        Ok(Self {
            id: entry.id,
            name: name(),
            arguments,
            leaves,
            inputs,
            reached,
            wire,
            files: sources.into_iter().map(|(_, file)| file).collect(),
            materialised: memfd,
            materialised_bytes: Bytes::new(written),
            input_bytes,
            unmapped_bytes,
            capture,
        })
    }

    /// The parts of storages that its inputs lie in.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        pieces(self.capture.storages(), tensors(&self.arguments))
    }

    /// Its inputs lie in `arena` from now on, each at the offset that `place` gives for what it reaches. None, and nothing
    /// is moved, if it gives none for one of them.
    pub(crate) fn move_inputs(
        &mut self,
        arena: &Arc<File>,
        place: impl Fn(&Reached) -> Option<u64>,
    ) -> Option<()> {
        let page = rustix::param::page_size() as u64;
        let moved = |(range, reached): (&InputRange, &Option<Reached>)| {
            Some(match reached {
                Some(reached) => InputRange { source: 0, file_offset: place(reached)?, ..*range },
                None => InputRange { source: 1, ..*range },
            })
        };
        self.inputs = self.inputs.iter().zip(&self.reached).map(moved).collect::<Option<_>>()?;
        self.files = vec![Arc::clone(arena)];
        self.unmapped_bytes = self.inputs.iter().map(|range| unmapped(range, page)).sum();
        Some(())
    }

    /// Compares the CRCs of all recorded data, which reads the file once. Fine where the writer computed none.
    pub(crate) fn check_crcs(&self) -> Result<(), opt_shared::capture::CaptureError> {
        self.capture.storages().iter().try_for_each(|storage| self.capture.check_crc(storage.id))
    }

    /// What goes to the runner with the entry: the outputs, the files that inputs lie in, and materialised values if
    /// there are any.
    pub(crate) fn descriptors<'a>(&'a self, outputs: BorrowedFd<'a>) -> Vec<BorrowedFd<'a>> {
        let mut descriptors = vec![outputs];
        descriptors.extend(self.files.iter().map(|file| file.as_fd()));
        descriptors.extend(self.materialised.as_ref().map(AsFd::as_fd));
        descriptors
    }

    /// The file of the capture that inputs of this source lie in; none for materialised values.
    pub(crate) fn file(&self, source: u8) -> Option<&Arc<File>> {
        self.files.get(usize::from(source))
    }

    /// Reads the recorded output, in the order of its storage.
    pub(crate) fn expected(&self, leaf: &Tensor) -> ExpectedSource<'_> {
        let range = leaf.byte_range();
        let storage = self.capture.storage(leaf.storage);
        let file = self.capture.file_of(storage.blob).ok().map(|file| (file, storage.file_offset));
        ExpectedSource {
            capture: &self.capture,
            storage: leaf.storage,
            start: range.start,
            end: range.end,
            file,
            asked: 0,
        }
    }

    /// What each output is held to, in order.
    pub(crate) fn tolerances(&self, settings: &VerifySettings) -> Result<Vec<Tolerance>, PrepareError> {
        self.leaves
            .iter()
            .map(|leaf| {
                tolerance_of(&mut self.expected(&leaf.tensor), &leaf.tensor, settings)
                    .map_err(|source| PrepareError::Scale { name: self.name.clone(), source })
            })
            .collect()
    }

    pub(crate) fn has_no_elements(&self) -> bool {
        self.leaves.iter().all(|leaf| leaf.tensor.elements() == 0)
    }

    /// One short text per argument.
    pub(crate) fn describe(&self) -> Vec<String> {
        self.arguments
            .iter()
            .map(|argument| format!("{}: {}", argument.path, brief(&argument.value)))
            .collect()
    }
}

pub(crate) struct ExpectedSource<'a> {
    capture: &'a CaptureFile,
    storage: StorageId,
    /// In the storage.
    start: u64,
    end: u64,
    /// Where the storage lies, to ask for what comes next.
    file: Option<(Arc<File>, u64)>,
    /// The disk was asked for everything before this.
    asked: u64,
}

impl ExpectedSource<'_> {
    /// Lets the disk bring the next piece while this one is compared, and nothing beyond the output.
    fn ask_for_next(&mut self, from: u64) {
        let to = self.end.min(from.saturating_add(NEXT_PIECE));
        let from = from.max(self.asked);
        if let Some((file, base)) = self.file.as_ref().filter(|_| from < to) {
            super::read_ahead::ask_for(file, base + from..base + to);
            self.asked = to;
        }
    }
}

impl BytesSource for ExpectedSource<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.ask_for_next(self.start + offset + buffer.len() as u64);
        self.capture.read_range(self.storage, self.start + offset, buffer).map_err(io::Error::other)
    }
}

/// Anonymous pages that mapping this range costs.
fn unmapped(range: &InputRange, page: u64) -> Bytes {
    let phase = u64::from(range.address_phase);
    formula::unmapped(range.file_offset, Bytes::new(range.bytes), phase, Bytes::new(page))
}

/// Reading the capture or writing the memfd went wrong.
struct Materialise(io::Error);

impl From<opt_shared::capture::CaptureError> for Materialise {
    fn from(error: opt_shared::capture::CaptureError) -> Self {
        Self(io::Error::other(error))
    }
}

/// The distinct byte ranges of an entry's inputs.
struct Ranges<'a> {
    capture: &'a CaptureFile,
    inputs: Vec<InputRange>,
    reached: Vec<Option<Reached>>,
    /// Files that inputs lie in: one, unless the capture lies in a store.
    sources: Vec<(Option<BlobId>, Arc<File>)>,
    memfd: Option<OwnedFd>,
    written: u64,
}

impl<'a> Ranges<'a> {
    fn new(capture: &'a CaptureFile) -> Self {
        Self {
            capture,
            inputs: Vec::new(),
            reached: Vec::new(),
            sources: Vec::new(),
            memfd: None,
            written: 0,
        }
    }

    fn argument(&mut self, value: &ArgumentValue) -> io::Result<WireArgument> {
        Ok(match value {
            ArgumentValue::Tensor(tensor) => self.tensor(tensor)?,
            ArgumentValue::Plain(plain) => plain_argument(plain),
        })
    }

    fn tensor(&mut self, tensor: &Arc<Tensor>) -> io::Result<WireArgument> {
        let mut stride = tensor.stride.clone();
        let range = if tensor.elements() == 0 {
            u32::MAX
        } else if is_written_out(tensor) {
            stride = contiguous_strides(&tensor.shape);
            let file_offset = self.materialise(tensor)?;
            let bytes = tensor.logical_bytes().get();
            self.add(InputRange { source: MATERIALISED, file_offset, bytes, address_phase: 0 }, None)
        } else {
            let within = tensor.byte_range();
            let storage = self.capture.storage(tensor.storage);
            let address_phase = (within.start % ALIGNMENT) as u8;
            let source = self.source(storage.blob)?;
            let range = InputRange {
                source,
                file_offset: storage.file_offset + within.start,
                bytes: within.end - within.start,
                address_phase,
            };
            self.add(range, Some(Reached { storage: tensor.storage, within }))
        };
        Ok(WireArgument::Tensor {
            range,
            dtype: wire_type(tensor.dtype),
            shape: signed(&tensor.shape),
            stride: signed(&stride),
        })
    }

    fn source(&mut self, blob: Option<BlobId>) -> io::Result<u8> {
        let known = self.sources.iter().position(|(known, _)| *known == blob);
        let at = match known {
            Some(at) => at,
            None => {
                self.sources.push((blob, self.capture.file_of(blob)?));
                self.sources.len() - 1
            }
        };
        let source = u8::try_from(at).ok().filter(|&source| source < MATERIALISED);
        source.ok_or_else(|| io::Error::other("its inputs lie in too many files"))
    }

    fn add(&mut self, range: InputRange, reached: Option<Reached>) -> u32 {
        let at = self.inputs.iter().position(|known| *known == range).unwrap_or_else(|| {
            self.inputs.push(range);
            self.reached.push(reached);
            self.inputs.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Writes the values in row-major order and returns where they start.
    fn materialise(&mut self, tensor: &Tensor) -> io::Result<u64> {
        let memfd = match self.memfd.take() {
            Some(memfd) => memfd,
            None => memfd::growing("opt-values")?,
        };
        let start = self.written.next_multiple_of(ALIGNMENT);
        rustix::fs::seek(&memfd, rustix::fs::SeekFrom::Start(start))?;
        let mut written = start;
        logical_values(self.capture, tensor, &mut |mut chunk: &[u8]| -> Result<(), Materialise> {
            while !chunk.is_empty() {
                let done = write(&memfd, chunk).map_err(|errno| Materialise(errno.into()))?;
                chunk = &chunk[done..];
                written += done as u64;
            }
            Ok(())
        })
        .map_err(|Materialise(error)| error)?;
        self.written = written;
        self.memfd = Some(memfd);
        Ok(start)
    }
}

pub(crate) fn wire_type(dtype: DType) -> WireType {
    #[expect(clippy::cast_possible_truncation, reason = "at most 16 bytes")]
    WireType { code: dtype.dlpack_code(), bits: (dtype.size() * 8) as u8 }
}

fn plain_argument(value: &PlainValue) -> WireArgument {
    match value {
        PlainValue::None => WireArgument::None,
        PlainValue::Bool(value) => WireArgument::Bool(*value),
        PlainValue::Int(value) => WireArgument::Int(*value),
        PlainValue::Float(value) => WireArgument::Float(*value),
        PlainValue::Str(value) => WireArgument::Str(value.clone()),
        PlainValue::DType(dtype) => WireArgument::DType(wire_type(*dtype)),
        // A kernel on the CPU computes on the CPU, wherever the model ran: type 1 is the CPU in DLPack.
        PlainValue::Device(_) => WireArgument::Device { kind: 1, index: 0 },
        PlainValue::Ints(values) => {
            array(DType::Int64, values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        PlainValue::Floats(values) => {
            array(DType::Float64, values.len(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        PlainValue::Bools(values) => {
            array(DType::Bool, values.len(), values.iter().map(|&value| u8::from(value)).collect())
        }
    }
}

fn array(dtype: DType, elements: usize, bytes: Vec<u8>) -> WireArgument {
    WireArgument::Array { dtype: wire_type(dtype), elements: elements as u64, bytes }
}

fn brief(value: &ArgumentValue) -> String {
    match value {
        ArgumentValue::Tensor(tensor) => {
            let strided =
                if tensor.is_contiguous() { String::new() } else { format!(" strides {:?}", tensor.stride) };
            format!("{}{:?}{strided}", tensor.dtype, tensor.shape)
        }
        ArgumentValue::Plain(plain) => match plain {
            PlainValue::None => "None".to_owned(),
            PlainValue::Bool(value) => value.to_string(),
            PlainValue::Int(value) => value.to_string(),
            PlainValue::Float(value) => format!("{value:?}"),
            PlainValue::Str(value) => format!("{value:?}"),
            PlainValue::DType(dtype) => format!("torch.{dtype}"),
            PlainValue::Device(device) => device.clone(),
            PlainValue::Ints(values) => format!("{values:?}"),
            PlainValue::Floats(values) => format!("{values:?}"),
            PlainValue::Bools(values) => format!("{values:?}"),
        },
    }
}
