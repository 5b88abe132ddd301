//! Places the inputs of an entry for a runner: in byte ranges of files, or in slots of an arena.
//!
//! Lazy conjugates and negatives, whose values the file does not contain, are materialised in a sealed memfd.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use opt_shared::arguments::ArgumentValue;
use opt_shared::capture::store::BlobId;
use opt_shared::capture::{CaptureFile, Tensor, contiguous_strides, logical_values};
use opt_shared::formula::{self, ALIGNMENT};
use opt_shared::ids::StorageId;
use opt_shared::outcome::ReadReport;
use opt_shared::units::Bytes;
use rustix::io::write;

use super::evict::evict;
use super::read_ahead::{Watch, Whole};
use crate::memfd;
use crate::recorded::{Recorded, RecordedError, is_materialised};
use crate::runner::frame::{EntrySetup, InputRange, VariantRange, WireArgument, WireOutput};
use crate::session::{PoolSlot, Variants, VariedInput};
use crate::wire::{plain_argument, signed, wire_type};

/// A placeholder for the source of materialised values until the number of files is known. (They come after all files.)
const MATERIALISED: u8 = u8::MAX;

/// The number of bytes that `is_unreadable` reads at a time.
const READ_PIECE: u64 = 256 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoragePart {
    pub(crate) storage: StorageId,
    pub(crate) within: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputLocation {
    /// The capture's own files, or materialised values.
    Files,
    /// Copies in this worker's memory.
    Copied,
    /// Slots of a replay's pool, which are reused.
    Pool,
}

/// What was learned by watching the reads of an entry.
#[derive(Default)]
pub(crate) struct Learned {
    pub(crate) reads: ReadReport,
    pub(crate) whole: Whole,
}

/// One entry, with its inputs placed for a runner.
pub(crate) struct Placed {
    recorded: Recorded,
    inputs: Vec<InputRange>,
    /// `None` for materialised values.
    storage_parts: Vec<Option<StoragePart>>,
    wire: Vec<WireArgument>,
    /// The files that `InputRange::source` indexes; materialised values come after them.
    files: Vec<Arc<File>>,
    materialised: Option<OwnedFd>,
    materialised_bytes: Bytes,
    input_bytes: Bytes,
    memory: InputLocation,
    /// True if a runner maps the inputs without Linux's read-ahead.
    pub(super) page_by_page: bool,
    /// The thread that reads ahead of the runner, if there is one.
    watch: RefCell<Option<Watch>>,
    learned: RefCell<Learned>,
}

impl AsRef<Recorded> for Placed {
    fn as_ref(&self) -> &Recorded {
        &self.recorded
    }
}

impl Placed {
    /// Places the inputs in the capture's own files.
    pub(crate) fn in_files(recorded: Recorded) -> Result<Self, RecordedError> {
        let name = || recorded.name.clone();
        let mut ranges = Ranges::new(&recorded.capture);
        let wire = recorded
            .arguments
            .iter()
            .map(|argument| ranges.argument(&argument.value))
            .collect::<io::Result<_>>();
        let wire = wire.map_err(|source| RecordedError::Materialise { name: name(), source })?;
        let Ranges { mut inputs, storage_parts, sources, memfd, written, .. } = ranges;
        let materialised = u8::try_from(sources.len()).unwrap_or(u8::MAX);
        for range in inputs.iter_mut().filter(|range| range.source == MATERIALISED) {
            range.source = materialised;
        }
        if let Some(memfd) = &memfd {
            memfd::freeze(memfd)
                .map_err(|source| RecordedError::Materialise { name: name(), source: source.into() })?;
        }
        let input_bytes = inputs.iter().map(|range| Bytes::new(range.bytes)).sum();
        Ok(Self {
            inputs,
            storage_parts,
            wire,
            files: sources.into_iter().map(|(_, file)| file).collect(),
            materialised: memfd,
            materialised_bytes: Bytes::new(written),
            input_bytes,
            memory: InputLocation::Files,
            page_by_page: false,
            watch: RefCell::new(None),
            learned: RefCell::default(),
            recorded,
        })
    }

    /// Locates the inputs in an arena that has copies of them, at the offsets that `offset_of` returns. If `offset_of`
    /// returns `None` for an input, this moves none and returns `None`. Materialised values stay where they are.
    pub(crate) fn move_inputs(
        &mut self,
        arena: &Arc<File>,
        offset_of: impl Fn(&StoragePart) -> Option<u64>,
    ) -> Option<()> {
        let moved = |(range, storage_part): (&InputRange, &Option<StoragePart>)| {
            Some(match storage_part {
                Some(storage_part) => {
                    InputRange { source: 0, file_offset: offset_of(storage_part)?, ..*range }
                }
                None => InputRange { source: 1, ..*range },
            })
        };
        self.inputs = self.inputs.iter().zip(&self.storage_parts).map(moved).collect::<Option<_>>()?;
        self.files = vec![Arc::clone(arena)];
        self.memory = InputLocation::Copied;
        Some(())
    }

    /// Replaces the inputs by slots of a replay's pool. `slots` has an item for each tensor argument, in order.
    pub(crate) fn move_into_pool(&mut self, arena: &Arc<File>, slots: &[Option<PoolSlot>]) {
        let nowhere = InputRange { source: 0, file_offset: 0, bytes: 0, address_phase: 0 };
        let mut inputs = vec![nowhere; self.inputs.len()];
        for (range, slot) in self.tensor_ranges().zip(slots) {
            if let (Some(input), Some(PoolSlot { address, phase, bytes, .. })) =
                (inputs.get_mut(range as usize), slot)
            {
                *input = InputRange {
                    source: 0,
                    file_offset: *address,
                    bytes: bytes.get(),
                    address_phase: *phase,
                };
            }
        }
        self.inputs = inputs;
        self.files = vec![Arc::clone(arena)];
        (self.materialised, self.materialised_bytes) = (None, Bytes::ZERO);
        self.memory = InputLocation::Pool;
    }

    pub(crate) fn inputs(&self) -> &[InputRange] {
        &self.inputs
    }

    /// Returns the part of a storage that an input contains; `None` for materialised values.
    pub(super) fn storage_part(&self, input: usize) -> Option<&StoragePart> {
        self.storage_parts.get(input)?.as_ref()
    }

    /// Returns the index of the input range of each tensor argument, in order.
    fn tensor_ranges(&self) -> impl Iterator<Item = u32> {
        self.wire.iter().filter_map(|wire| match wire {
            WireArgument::Tensor { range, .. } => Some(*range),
            _ => None,
        })
    }

    /// Returns the name of the first argument that an input range belongs to.
    pub(crate) fn argument_of(&self, input: u32) -> Option<&str> {
        let shows =
            |wire: &WireArgument| matches!(wire, WireArgument::Tensor { range, .. } if *range == input);
        let at = self.wire.iter().position(shows)?;
        self.recorded.arguments.get(at).map(|argument| argument.path.as_str())
    }

    /// Returns true if an input lies in the capture's own files and cannot be read. Reads it up to the first error.
    pub(super) fn is_unreadable(&self, input: u32) -> bool {
        let Some((range, file)) = self
            .inputs
            .get(input as usize)
            .filter(|_| self.memory == InputLocation::Files)
            .and_then(|range| Some((range, self.files.get(usize::from(range.source))?)))
        else {
            return false;
        };
        let mut buffer = vec![0; usize::try_from(range.bytes.min(READ_PIECE)).unwrap_or_default()];
        let (mut at, end) = (range.file_offset, range.file_offset.saturating_add(range.bytes));
        while at < end {
            let step = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
            if file.read_exact_at(&mut buffer[..step], at).is_err() {
                return true;
            }
            at += step as u64;
        }
        false
    }

    pub(super) fn setup(&self, outputs: Vec<WireOutput>) -> EntrySetup {
        EntrySetup {
            inputs: self.inputs.clone(),
            arguments: self.wire.clone(),
            outputs,
            page_by_page: self.page_by_page,
            resident: self.memory != InputLocation::Files,
            pooled: self.memory == InputLocation::Pool,
            variants: Vec::new(),
            call: None,
        }
    }

    /// Returns the ranges in which a runner finds the variants of the entry's inputs.
    pub(super) fn variant_ranges(&self, variants: &Variants) -> Vec<VariantRange> {
        let ranges: Vec<u32> = self.tensor_ranges().collect();
        let of = |input: &VariedInput| {
            let &range = ranges.get(input.tensor)?;
            Some(VariantRange {
                range,
                file_offset: input.region.start,
                bytes: input.region.bytes,
                data_offset: input.data,
                stride: input.stride,
                count: variants.count,
            })
        };
        variants.inputs.iter().filter_map(of).collect()
    }

    pub(super) fn descriptors<'a>(&'a self, outputs: BorrowedFd<'a>) -> Vec<BorrowedFd<'a>> {
        let mut descriptors = vec![outputs];
        descriptors.extend(self.files.iter().map(|file| file.as_fd()));
        descriptors.extend(self.materialised.as_ref().map(AsFd::as_fd));
        descriptors
    }

    /// Evicts the entry's inputs from the caches of all CPUs.
    pub(super) fn evict(&self) -> rustix::io::Result<()> {
        for input in &self.inputs {
            let file = self.file(input.source).map(|file| file.as_fd());
            if let Some(file) = file.or(self.materialised.as_ref().map(AsFd::as_fd)) {
                evict(file, input.file_offset, input.bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the file or arena of this source; `None` for materialised values.
    pub(super) fn file(&self, source: u8) -> Option<&Arc<File>> {
        self.files.get(usize::from(source))
    }

    /// The size of all inputs that the candidate can see.
    pub(crate) fn input_bytes(&self) -> Bytes {
        self.input_bytes
    }

    /// The size of the inputs that are mapped from files or copies; zero for a pool.
    pub(super) fn mapped_bytes(&self) -> Bytes {
        if self.memory == InputLocation::Pool { Bytes::ZERO } else { self.input_bytes() }
    }

    /// The size of the inputs that a runner copies to private pages, because they fill a page only in part or are not
    /// aligned.
    pub(super) fn unmapped_bytes(&self) -> Bytes {
        if self.memory == InputLocation::Pool {
            return Bytes::ZERO;
        }
        let page = rustix::param::page_size() as u64;
        self.inputs.iter().map(|range| unmapped(range, page)).sum()
    }

    pub(super) fn materialised_bytes(&self) -> Bytes {
        self.materialised_bytes
    }

    pub(super) fn set_watch(&mut self, watch: Watch) {
        *self.watch.get_mut() = Some(watch);
    }

    /// Sets the process whose touches of the inputs are watched.
    pub(super) fn set_runner(&self, pid: u32) {
        if let Some(watch) = &*self.watch.borrow() {
            watch.set_runner(pid);
        }
    }

    /// Ends the watch, and keeps what was learned. Must be called while the runner is alive, because its touches cannot
    /// be counted afterwards.
    pub(super) fn stop_watching(&self) {
        if let Some(watch) = self.watch.take() {
            let (reads, whole) = watch.stop_and_learn();
            *self.learned.borrow_mut() = Learned { reads, whole };
        }
    }

    /// Ends the watch, and returns what was learned.
    pub(super) fn learned(self) -> Learned {
        self.stop_watching();
        self.learned.take()
    }
}

/// Returns the size of those mappings of a runner whose memory this worker is charged for. For copied inputs, only
/// whole pages are mapped, and an input that several entries share is mapped once. For a pool, every mapping of a slot
/// counts, because Linux counts each of them for the runner.
pub(super) fn of_worker(entries: &[Placed]) -> Bytes {
    let pooled = entries.iter().filter(|entry| entry.memory == InputLocation::Pool);
    let pooled: Bytes = pooled.flat_map(|entry| &entry.inputs).map(|range| Bytes::new(range.bytes)).sum();
    let copied: BTreeSet<(usize, InputRange)> = entries
        .iter()
        .filter(|entry| entry.memory == InputLocation::Copied)
        .flat_map(|entry| entry.inputs.iter().zip(&entry.storage_parts).enumerate())
        .filter_map(|(index, (range, storage_part))| storage_part.as_ref().map(|_| (index, *range)))
        .collect();
    let page = rustix::param::page_size() as u64;
    let whole_pages = |range: InputRange| {
        let end = range.file_offset + range.bytes;
        Bytes::new((end - end % page).saturating_sub(range.file_offset.next_multiple_of(page)))
    };
    pooled + copied.into_iter().map(|(_, range)| whole_pages(range)).sum::<Bytes>()
}

fn unmapped(range: &InputRange, page: u64) -> Bytes {
    let phase = u64::from(range.address_phase);
    formula::unmapped(range.file_offset, Bytes::new(range.bytes), phase, Bytes::new(page))
}

/// An error while reading the capture or writing the memfd.
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
    storage_parts: Vec<Option<StoragePart>>,
    /// The files that contain inputs: at most one, unless the capture lies in a store.
    sources: Vec<(Option<BlobId>, Arc<File>)>,
    memfd: Option<OwnedFd>,
    written: u64,
}

impl<'a> Ranges<'a> {
    fn new(capture: &'a CaptureFile) -> Self {
        Self {
            capture,
            inputs: Vec::new(),
            storage_parts: Vec::new(),
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

    /// Places a tensor. Returns the argument that refers to it.
    fn tensor(&mut self, tensor: &Arc<Tensor>) -> io::Result<WireArgument> {
        let mut stride = tensor.stride.clone();
        let range = if tensor.elements() == 0 {
            u32::MAX
        } else if is_materialised(tensor) {
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
            self.add(range, Some(StoragePart { storage: tensor.storage, within }))
        };
        Ok(WireArgument::Tensor {
            range,
            dtype: wire_type(tensor.dtype),
            shape: signed(&tensor.shape),
            stride: signed(&stride),
        })
    }

    fn source(&mut self, blob: Option<BlobId>) -> io::Result<u8> {
        let same_blob = self.sources.iter().position(|(opened, _)| *opened == blob);
        let at = match same_blob {
            Some(at) => at,
            None => {
                self.sources.push((blob, self.capture.file_of(blob)?));
                self.sources.len() - 1
            }
        };
        let source = u8::try_from(at).ok().filter(|&source| source < MATERIALISED);
        source.ok_or_else(|| io::Error::other(format!("the inputs lie in more than {MATERIALISED} files")))
    }

    fn add(&mut self, range: InputRange, storage_part: Option<StoragePart>) -> u32 {
        let at = self.inputs.iter().position(|known| *known == range).unwrap_or_else(|| {
            self.inputs.push(range);
            self.storage_parts.push(storage_part);
            self.inputs.len() - 1
        });
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Returns the offset at which the values start.
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
