//! Defines the file format of a recording: little-endian, with a version, and with a digest of all other bytes at the
//! end.
//!
//! The reader checks every count against a limit before it allocates memory for that many elements. Every reference
//! must have a target, every use must be at its stated index, and no bytes may follow the digest.
//!
//! ```text
//! magic 8 · version u32 · counts u32 ×4 · names · constants · steps · uses · BLAKE3 of all before it, 32
//! text: length u16, UTF-8        constant: key 32, digest 32, bytes u64, phase u8, dtype u8, rank u8, axes u64
//! step: job text, entry text     use: id u32, step u32, constant u32, epoch u32, name u32, bytes u64
//! ```

use std::collections::BTreeSet;

use super::{
    Constant, Digest, Key, MAX_CONSTANTS, MAX_NAME, MAX_RANK, MAX_STEPS, MAX_USES, Recording, Step, Use,
};
use crate::capture::DType;
use crate::units::Bytes;

const MAGIC: [u8; 8] = *b"optreply";
/// The version of the format. It is incremented whenever the layout or the computation of keys changes.
const VERSION: u32 = 1;
/// The size of the digest at the end, in bytes.
const DIGEST_BYTES: usize = 32;
/// The largest allowed size of a file, in bytes. The size must be limited because a file is read as a whole. A recorder
/// refuses a step that would make the file larger than this, for example because of many long names.
pub const MAX_FILE_BYTES: u64 = 512 << 20;

/// Computes the size of a recording's file, step by step, as [`Recording::encode`] would write it.
#[derive(Debug, Default)]
pub(super) struct FileSize(pub(super) u64);

impl FileSize {
    pub(super) fn name(&mut self, text: &str) {
        self.0 += 2 + text.len() as u64;
    }

    pub(super) fn step(&mut self, step: &Step) {
        self.name(&step.job);
        self.name(&step.entry);
    }

    pub(super) fn constant(&mut self, rank: usize) {
        self.0 += 32 + 32 + 8 + 3 + 8 * rank as u64;
    }

    pub(super) fn one_use(&mut self) {
        self.0 += 5 * 4 + 8;
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0 + (MAGIC.len() + 4 + 4 * 4 + DIGEST_BYTES) as u64
    }
}

/// Why a file is not a valid recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    #[error("its first 8 bytes are not those of a recording")]
    Magic,
    #[error("its format is version {found}, but this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("the file ends too early (while reading: {what})")]
    Truncated { what: &'static str },
    #[error("{bytes} bytes follow its end")]
    Trailing { bytes: usize },
    #[error("it was changed after it was written: its digest differs")]
    DigestDiffers,
    #[error("its header announces {found} {what} (the limit is {limit})")]
    TooMany { what: &'static str, found: u64, limit: usize },
    #[error("{what} {index} {problem}")]
    Wrong { what: &'static str, index: usize, problem: &'static str },
}

impl Recording {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        let word = |out: &mut Vec<u8>, value: usize| {
            out.extend_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
        };
        word(&mut out, VERSION as usize);
        for count in [self.names.len(), self.constants.len(), self.steps.len(), self.uses.len()] {
            word(&mut out, count);
        }
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        };
        self.names.iter().for_each(|name| text(&mut out, name));
        for constant in &self.constants {
            out.extend_from_slice(&constant.key.0);
            out.extend_from_slice(&constant.digest.0);
            out.extend_from_slice(&constant.bytes.get().to_le_bytes());
            let dtype = DType::ALL.iter().position(|it| *it == constant.dtype);
            let small = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
            out.extend_from_slice(&[
                constant.phase,
                dtype.map_or(u8::MAX, small),
                small(constant.shape.len()),
            ]);
            constant.shape.iter().for_each(|axis| out.extend_from_slice(&axis.to_le_bytes()));
        }
        for step in &self.steps {
            text(&mut out, &step.job);
            text(&mut out, &step.entry);
        }
        for it in &self.uses {
            for value in [it.id, it.step, it.constant, it.epoch, it.name] {
                out.extend_from_slice(&value.to_le_bytes());
            }
            out.extend_from_slice(&it.bytes.get().to_le_bytes());
        }
        let digest = blake3::hash(&out);
        out.extend_from_slice(digest.as_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, RecordingError> {
        let mut reader = Reader { rest: bytes };
        if reader.array::<8>("its first bytes")? != MAGIC {
            return Err(RecordingError::Magic);
        }
        let version = reader.word("its version")?;
        if version != VERSION {
            return Err(RecordingError::Version { found: version });
        }
        let name_count = reader.count("names", MAX_USES, 2)?;
        let constant_count = reader.count("constants", MAX_CONSTANTS, 75)?;
        let step_count = reader.count("steps", MAX_STEPS, 4)?;
        let use_count = reader.count("uses", MAX_USES, 28)?;
        let names =
            (0..name_count).map(|index| reader.text("name", index)).collect::<Result<Vec<String>, _>>()?;
        let constants =
            (0..constant_count).map(|index| reader.constant(index)).collect::<Result<Vec<_>, _>>()?;
        let steps = (0..step_count)
            .map(|index| Ok(Step { job: reader.text("step", index)?, entry: reader.text("step", index)? }))
            .collect::<Result<Vec<_>, _>>()?;
        let uses = (0..use_count).map(|_| reader.one_use()).collect::<Result<Vec<_>, _>>()?;
        let body = bytes.len() - reader.rest.len();
        let digest = reader.array::<DIGEST_BYTES>("its digest")?;
        if !reader.rest.is_empty() {
            return Err(RecordingError::Trailing { bytes: reader.rest.len() });
        }
        if *blake3::hash(&bytes[..body]).as_bytes() != digest {
            return Err(RecordingError::DigestDiffers);
        }
        let recording = Self { constants, names, steps, uses };
        recording.check()?;
        Ok(recording)
    }

    /// Checks that every reference is valid, every use is at its stated index, no name or constant is repeated or
    /// unused, and no step uses a constant twice.
    fn check(&self) -> Result<(), RecordingError> {
        let wrong = |what, index, problem| Err(RecordingError::Wrong { what, index, problem });
        let mut seen = BTreeSet::new();
        if let Some(index) = self.names.iter().position(|name| !seen.insert(name)) {
            return wrong("name", index, "occurs twice");
        }
        let mut keys = BTreeSet::new();
        if let Some(index) = self.constants.iter().position(|it| !keys.insert(it.key)) {
            return wrong("constant", index, "occurs twice");
        }
        let mut epochs = vec![0u32; self.constants.len()];
        let mut named = vec![false; self.names.len()];
        let mut step_before = 0;
        let mut in_step = BTreeSet::new();
        for (index, it) in self.uses.iter().enumerate() {
            if it.id as usize != index {
                return wrong("use", index, "has a number that differs from its position");
            }
            if it.step < step_before || self.steps.len() <= it.step as usize {
                return wrong(
                    "use",
                    index,
                    "belongs to an earlier step than the use before it, or to no step",
                );
            }
            if step_before < it.step {
                in_step.clear();
                step_before = it.step;
            }
            let Some(constant) = self.constants.get(it.constant as usize) else {
                return wrong("use", index, "refers to a constant that the recording does not contain");
            };
            if !in_step.insert(it.constant) {
                return wrong("use", index, "has the same constant as an earlier use of its step");
            }
            match named.get_mut(it.name as usize) {
                Some(slot) => *slot = true,
                None => return wrong("use", index, "refers to a name that the recording does not contain"),
            }
            if constant.bytes != it.bytes {
                return wrong("use", index, "differs in size from its constant");
            }
            let epoch = &mut epochs[it.constant as usize];
            if *epoch != it.epoch {
                return wrong(
                    "use",
                    index,
                    "has an epoch that is not the number of earlier uses of its constant",
                );
            }
            *epoch += 1;
        }
        if let Some(index) = epochs.iter().position(|&uses| uses == 0) {
            return wrong("constant", index, "is never used");
        }
        if let Some(index) = named.iter().position(|named| !named) {
            return wrong("name", index, "is never used");
        }
        Ok(())
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], RecordingError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(RecordingError::Truncated { what })?;
        self.rest = rest;
        Ok(*taken)
    }

    fn word(&mut self, what: &'static str) -> Result<u32, RecordingError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn long(&mut self, what: &'static str) -> Result<u64, RecordingError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads the number of elements that follow, each of which takes at least `min_bytes`. The number must not exceed
    /// the limit, nor the number of elements that fit into the remaining bytes.
    fn count(&mut self, what: &'static str, limit: usize, min_bytes: usize) -> Result<usize, RecordingError> {
        let found = self.word(what)?;
        let count = usize::try_from(found).unwrap_or(usize::MAX);
        if limit < count {
            return Err(RecordingError::TooMany { what, found: u64::from(found), limit });
        }
        if self.rest.len() < count.saturating_mul(min_bytes) {
            return Err(RecordingError::Truncated { what });
        }
        Ok(count)
    }

    fn text(&mut self, what: &'static str, index: usize) -> Result<String, RecordingError> {
        let length = usize::from(u16::from_le_bytes(self.array(what)?));
        if MAX_NAME < length {
            return Err(RecordingError::Wrong {
                what,
                index,
                problem: "has a string longer than 1024 bytes",
            });
        }
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(RecordingError::Truncated { what })?;
        self.rest = rest;
        String::from_utf8(taken.to_vec()).map_err(|_| RecordingError::Wrong {
            what,
            index,
            problem: "has a string that is not valid UTF-8",
        })
    }

    fn constant(&mut self, index: usize) -> Result<Constant, RecordingError> {
        const WHAT: &str = "constant";
        let wrong = |problem| RecordingError::Wrong { what: WHAT, index, problem };
        let key = Key(self.array(WHAT)?);
        let digest = Digest(self.array(WHAT)?);
        let bytes = self.long(WHAT)?;
        let [phase, dtype, rank] = self.array::<3>(WHAT)?;
        let dtype = *DType::ALL.get(usize::from(dtype)).ok_or_else(|| wrong("has an unknown data type"))?;
        if MAX_RANK < usize::from(rank) {
            return Err(wrong("has too many axes"));
        }
        if 64 <= phase {
            return Err(wrong("has a phase of 64 or more"));
        }
        if digest == Digest::UNKNOWN {
            return Err(wrong("has no digest"));
        }
        let shape = (0..rank).map(|_| self.long(WHAT)).collect::<Result<Vec<u64>, _>>()?;
        // The number of bytes is not compared with the shape, because a view with gaps spans more bytes than its
        // elements take, and a view that repeats elements spans fewer.
        let elements = shape.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis));
        if elements.and_then(|elements| elements.checked_mul(dtype.size())).is_none_or(|bytes| bytes == 0) {
            return Err(wrong("has a shape with no elements or too many"));
        }
        if bytes == 0 || bytes.checked_add(u64::from(phase)).is_none_or(|end| i64::MAX as u64 <= end) {
            return Err(wrong("has an impossible size"));
        }
        Ok(Constant { key, digest, bytes: Bytes::new(bytes), phase, dtype, shape })
    }

    fn one_use(&mut self) -> Result<Use, RecordingError> {
        const WHAT: &str = "a use";
        Ok(Use {
            id: self.word(WHAT)?,
            step: self.word(WHAT)?,
            constant: self.word(WHAT)?,
            epoch: self.word(WHAT)?,
            name: self.word(WHAT)?,
            bytes: Bytes::new(self.long(WHAT)?),
        })
    }
}
