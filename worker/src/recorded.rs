//! One recorded call, read from its capture. It does not depend on where the call's inputs are placed in memory.
//!
//! Opens the capture (reading only its directory and pickle), binds the arguments, and finds the outputs. `session`
//! places the inputs of a candidate; `judge` and `stage` judge differences between outputs.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use opt_shared::arguments::{
    Argument, ArgumentValue, Entry, OutputTensor, Piece, PlainValue, Signature, bind, judged, pieces,
};
use opt_shared::capture::{CaptureError, CaptureFile, FileIdentity, Tensor};
use opt_shared::ids::{EntryId, StorageId};
use opt_shared::message::EntryRef;
use opt_shared::settings::VerifySettings;
use opt_shared::units::{Bytes, to_index};
use rustix::fs::{Advice, fadvise};

use crate::judge::check::{tolerance_of, tolerance_of_change};
use crate::judge::{BytesSource, CompareError, Tolerance};

/// The number of bytes of a recorded output that are requested from the disk in advance, while the piece before them is
/// compared.
const NEXT_PIECE: u64 = 1 << 20;
/// The size of the pieces in which `Recorded::before` reads a value, in bytes.
const BEFORE_PIECE: u64 = 256 << 10;
/// The default read-ahead window of Linux, in bytes.
pub(crate) const READAHEAD_WINDOW: u64 = 128 << 10;

/// The reason why a capture cannot be used. The capture is to blame, unless the machine has run out of descriptors or
/// memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordedError {
    #[error("reading the capture {name}")]
    Capture { name: String, source: CaptureError },
    #[error(
        "the capture {name} now has {now}; it had {then} when the plan was checked (do not write captures during a run)"
    )]
    Changed { name: String, now: Bytes, then: Bytes },
    #[error(
        "the capture {name} was written or replaced since the plan was checked (do not write captures during a run)"
    )]
    Replaced { name: String },
    #[error(
        "the capture {name} was written or replaced while it was used (do not write captures during a run)"
    )]
    Written { name: String },
    #[error("interpreting the capture {name}")]
    Entry { name: String, source: opt_shared::arguments::EntryError },
    #[error("binding the arguments of {name}")]
    Bind { name: String, source: opt_shared::arguments::BindError },
    #[error("sampling the recorded output of {name}")]
    Scale { name: String, source: CompareError },
    #[error("storing the values of a lazily conjugated or negated argument of {name}")]
    Materialise { name: String, source: io::Error },
}

/// An opened capture, with its arguments in the order in which they are passed to a kernel.
pub(crate) struct Recorded {
    pub(crate) id: EntryId,
    pub(crate) name: String,
    pub(crate) capture: CaptureFile,
    pub(crate) arguments: Vec<Argument>,
    /// The returned tensors, followed by the final values of the arguments that the call changes.
    pub(crate) outputs: Vec<OutputTensor>,
    path: PathBuf,
    identity: Option<FileIdentity>,
}

impl Recorded {
    /// Reads the file's directory and its pickle, but no tensor.
    pub(crate) fn open(entry: &EntryRef, signature: &Signature) -> Result<Self, RecordedError> {
        let name = || entry.name.clone();
        let identity = FileIdentity::of(&entry.path);
        let capture = CaptureFile::open(&entry.path)
            .map_err(|source| RecordedError::Capture { name: name(), source })?;
        if capture.file_bytes() != entry.numbers.file {
            return Err(RecordedError::Changed {
                name: name(),
                now: capture.file_bytes(),
                then: entry.numbers.file,
            });
        }
        if entry.identity.is_some() && entry.identity != identity {
            return Err(RecordedError::Replaced { name: name() });
        }
        let recorded = Entry::from_value(capture.root())
            .map_err(|source| RecordedError::Entry { name: name(), source })?;
        let arguments =
            bind(&recorded, signature).map_err(|source| RecordedError::Bind { name: name(), source })?;
        let outputs =
            judged(&recorded, &arguments).map_err(|source| RecordedError::Bind { name: name(), source })?;
        Ok(Self {
            id: entry.id,
            name: name(),
            capture,
            arguments,
            outputs,
            path: entry.path.clone(),
            identity,
        })
    }

    pub(crate) fn check_unchanged(&self) -> Result<(), RecordedError> {
        if FileIdentity::of(&self.path) == self.identity {
            Ok(())
        } else {
            Err(RecordedError::Written { name: self.name.clone() })
        }
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.arguments.iter().filter_map(|argument| match &argument.value {
            ArgumentValue::Tensor(tensor) => Some(&**tensor),
            ArgumentValue::Plain(_) => None,
        })
    }

    pub(crate) fn pieces(&self) -> Vec<Piece> {
        pieces(self.capture.storages(), self.tensors())
    }

    /// Returns true if every input can be mapped from the capture's own file. This is false for a capture in a capture
    /// store, and if an input is a lazy conjugate or negative.
    pub(crate) fn is_in_place(&self) -> bool {
        !self.capture.is_packed() && !self.tensors().any(is_materialised)
    }

    /// Checks the CRCs of all recorded data and, in a capture store, the digests of blobs. Data without a checksum
    /// counts as correct.
    pub(crate) fn check_crcs(&self) -> Result<(), CaptureError> {
        self.capture.storages().iter().try_for_each(|storage| self.capture.check_storage(storage.id))
    }

    /// Returns a reader of a recorded output. Its offsets are relative to the output's first byte in the storage.
    pub(crate) fn expected(&self, tensor: &Tensor) -> ExpectedSource<'_> {
        let range = tensor.byte_range();
        let storage = self.capture.storage(tensor.storage);
        let file = self.capture.file_of(storage.blob).ok().map(|file| (file, storage.file_offset));
        ExpectedSource {
            capture: &self.capture,
            storage: tensor.storage,
            start: range.start,
            end: range.end,
            file,
            requested: 0,
        }
    }

    /// Reads the value that an argument had before the call changed it, and passes the value to `each` in pieces with
    /// their offsets. For a returned tensor, passes nothing.
    pub(crate) fn before(
        &self,
        output: &OutputTensor,
        mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(tensor) = self.argument_before(output) else { return Ok(()) };
        let range = tensor.byte_range();
        let mut piece = vec![0; to_index((range.end - range.start).min(BEFORE_PIECE))];
        let mut at = range.start;
        while at < range.end {
            let piece = &mut piece[..to_index((range.end - at).min(BEFORE_PIECE))];
            self.capture.read_range(tensor.storage, at, piece).map_err(io::Error::other)?;
            each(at - range.start, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn tolerances(&self, settings: &VerifySettings) -> Result<Vec<Tolerance>, RecordedError> {
        self.outputs
            .iter()
            .map(|output| {
                let expected = &mut self.expected(&output.tensor);
                match self.argument_before(output) {
                    Some(before) => {
                        tolerance_of_change(expected, &mut self.expected(before), &output.tensor, settings)
                    }
                    None => tolerance_of(expected, &output.tensor, settings),
                }
                .map_err(|source| RecordedError::Scale { name: self.name.clone(), source })
            })
            .collect()
    }

    /// Returns the argument that the call changes to this output, as the argument was before the call. Returns `None`
    /// for a returned tensor.
    pub(crate) fn argument_before(&self, output: &OutputTensor) -> Option<&Tensor> {
        match &self.arguments.get(*output.arguments.first()?)?.value {
            ArgumentValue::Tensor(tensor) => Some(tensor),
            ArgumentValue::Plain(_) => None,
        }
    }

    /// Returns true if all outputs are empty.
    pub(crate) fn has_no_elements(&self) -> bool {
        self.outputs.iter().all(|output| output.tensor.elements() == 0)
    }

    pub(crate) fn describe(&self) -> Vec<String> {
        self.arguments
            .iter()
            .map(|argument| format!("{}: {}", argument.path, short_text(&argument.value)))
            .collect()
    }
}

/// Returns the number of bytes to allocate for an output with the captured strides.
pub(crate) fn allocated_bytes(tensor: &Tensor) -> u64 {
    tensor.extent_elements() * tensor.dtype.size()
}

/// Returns true if the tensor's values differ from the stored bytes, so that they must be computed and stored for a
/// kernel.
pub(crate) fn is_materialised(tensor: &Tensor) -> bool {
    tensor.elements() != 0 && (tensor.conjugate || tensor.negative)
}

/// Requests these bytes from the disk, without waiting for them. Makes one request for each read-ahead window, because
/// Linux silently limits a larger request to one window.
pub(crate) fn request_ahead(file: &File, bytes: Range<u64>) {
    let mut at = bytes.start;
    while at < bytes.end {
        let length = READAHEAD_WINDOW.min(bytes.end - at);
        if fadvise(file, at, NonZeroU64::new(length), Advice::WillNeed).is_err() {
            return;
        }
        at += length;
    }
}

pub(crate) struct ExpectedSource<'a> {
    capture: &'a CaptureFile,
    storage: StorageId,
    /// The output's range in the storage, in bytes.
    start: u64,
    end: u64,
    /// The file of the storage and the storage's offset in it, which are needed to request the next piece.
    file: Option<(Arc<File>, u64)>,
    /// The offset in the storage at which the last request ended.
    requested: u64,
}

impl ExpectedSource<'_> {
    /// Requests the next piece from the disk while this one is compared. Requests nothing beyond the end of the output.
    fn request_next(&mut self, from: u64) {
        let to = self.end.min(from.saturating_add(NEXT_PIECE));
        let from = from.max(self.requested);
        if let Some((file, base)) = self.file.as_ref().filter(|_| from < to) {
            request_ahead(file, base + from..base + to);
            self.requested = to;
        }
    }
}

impl BytesSource for ExpectedSource<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.request_next(self.start + offset + buffer.len() as u64);
        self.capture.read_range(self.storage, self.start + offset, buffer).map_err(io::Error::other)
    }
}

fn short_text(value: &ArgumentValue) -> String {
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
