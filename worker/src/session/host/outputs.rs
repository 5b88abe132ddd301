//! The outputs of one session's entries, in a memfd that is sealed against resizing.
//!
//! This module reads outputs with `pread` and maps nothing, so that the memory is counted once. (`view` maps the
//! outputs of timed sessions, but keeps pages only for a moment.)

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use opt_shared::arguments::OutputTensor;
use opt_shared::formula::{self, ALIGNMENT};
use opt_shared::units::Bytes;
use rustix::io::{pread, pwrite};

use crate::judge::BytesSource;
use crate::memfd;
use crate::recorded::allocated_bytes;
use crate::runner::frame::{OutputRegion, WireOutput};
use crate::session::StrayWrite;
use crate::wire::{signed, wire_type};

const CHUNK: usize = 64 * 1024;

/// The layout of the outputs of several calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    /// Two slots in the same pages: one begins right after the guard page in front, and the other ends right before the
    /// guard page behind, apart from padding to the alignment.
    AgainstGuards,
    /// One slot for each call of a block, at least two.
    Ring,
    /// One slot, in memory that no other entry uses.
    Separate,
}

/// The memory of one output, with all its slots.
#[derive(Clone, Debug)]
struct OutputSpan {
    /// The start of the tensor's pages. The bytes of these pages beside a slot are its slack.
    file_offset: u64,
    span: u64,
    /// The number of bytes that one slot uses.
    extent: u64,
    regions: Vec<OutputRegion>,
    wire: WireOutput,
}

/// The outputs of one entry: their slots in a memfd that several entries may share.
pub(crate) struct Outputs {
    memfd: Arc<OwnedFd>,
    /// The start of this layout in the memfd.
    base: u64,
    /// The size of this layout; the memfd may be larger.
    bytes: u64,
    memfd_bytes: u64,
    output_spans: Vec<OutputSpan>,
    slots: u32,
}

impl Outputs {
    /// Creates one memfd for the outputs of all these entries. Unless the layouts are separate, it has the size of the
    /// largest one, because only one entry is called at a time, and its outputs are read before the next entry is
    /// called.
    pub(crate) fn create_shared(entries: &[&[OutputTensor]], layout: Slots) -> rustix::io::Result<Vec<Self>> {
        let (mut base, mut memfd_bytes) = (0, 0);
        let mut layouts = Vec::with_capacity(entries.len());
        for outputs in entries {
            let (output_spans, bytes, slots) = Self::lay_out(outputs, layout, base);
            memfd_bytes = memfd_bytes.max(base + bytes);
            layouts.push((output_spans, base, bytes, slots));
            if layout == Slots::Separate {
                base += bytes;
            }
        }
        let memfd = Arc::new(memfd::fixed("opt-outputs", Bytes::new(memfd_bytes))?);
        Ok(layouts
            .into_iter()
            .map(|(output_spans, base, bytes, slots)| Self {
                memfd: Arc::clone(&memfd),
                base,
                bytes,
                memfd_bytes,
                output_spans,
                slots,
            })
            .collect())
    }

    fn lay_out(outputs: &[OutputTensor], layout: Slots, base: u64) -> (Vec<OutputSpan>, u64, u32) {
        let page = rustix::param::page_size() as u64;
        let extents = outputs.iter().map(|output| Bytes::new(allocated_bytes(&output.tensor)));
        let slots = match layout {
            Slots::AgainstGuards => 2,
            Slots::Ring => formula::ring_slots(extents),
            Slots::Separate => 1,
        };
        let mut offset = base;
        let mut output_spans = Vec::with_capacity(outputs.len());
        for output in outputs {
            let tensor = &output.tensor;
            let extent = allocated_bytes(tensor);
            let stride = extent.next_multiple_of(ALIGNMENT);
            let (span, regions) = match layout {
                Slots::AgainstGuards => {
                    let span = stride.next_multiple_of(page);
                    let region = |data_offset| OutputRegion {
                        file_offset: offset,
                        bytes: span,
                        data_offset,
                        slot_stride: 0,
                        slots: 1,
                    };
                    (span, vec![region(0), region(span - stride)])
                }
                Slots::Ring | Slots::Separate => {
                    let span = (stride * u64::from(slots)).next_multiple_of(page);
                    let region = OutputRegion {
                        file_offset: offset,
                        bytes: span,
                        data_offset: 0,
                        slot_stride: stride,
                        slots,
                    };
                    (span, vec![region])
                }
            };
            let wire = WireOutput {
                dtype: wire_type(tensor.dtype),
                shape: signed(&tensor.shape),
                stride: signed(&tensor.stride),
                arguments: output.arguments.iter().filter_map(|&index| u32::try_from(index).ok()).collect(),
                regions: regions.clone(),
            };
            output_spans.push(OutputSpan { file_offset: offset, span, extent, regions, wire });
            offset += span;
        }
        (output_spans, (offset - base).max(page), slots)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    pub(crate) fn memfd_bytes(&self) -> Bytes {
        Bytes::new(self.memfd_bytes)
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn wire(&self) -> Vec<WireOutput> {
        self.output_spans.iter().map(|output_span| output_span.wire.clone()).collect()
    }

    /// Fills all slots and slack with the poison.
    pub(crate) fn poison(&self, pattern: u8) -> io::Result<()> {
        self.poison_range(self.base, self.bytes, pattern)
    }

    /// Fills the slots that a block of `calls` calls will write.
    pub(crate) fn poison_slots(&self, calls: u32, pattern: u8) -> io::Result<()> {
        for output_span in &self.output_spans {
            let region = output_span.regions[0];
            let used = (region.slot_stride * u64::from(calls)).min(output_span.span);
            self.poison_range(output_span.file_offset, used, pattern)?;
        }
        Ok(())
    }

    fn poison_range(&self, from: u64, length: u64, pattern: u8) -> io::Result<()> {
        let buffer = [pattern; CHUNK];
        let mut at = from;
        let end = from + length;
        while at < end {
            let size = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            at += pwrite(&*self.memfd, &buffer[..size], at)? as u64;
        }
        Ok(())
    }

    /// Writes bytes of an output's value to several of its slots.
    pub(crate) fn write(&self, output: usize, slots: Range<u32>, at: u64, bytes: &[u8]) -> io::Result<()> {
        for slot in slots {
            let start = self.slot_start(output, slot) + at;
            let mut done = 0;
            while done < bytes.len() {
                done += pwrite(&*self.memfd, &bytes[done..], start + done as u64)?;
            }
        }
        Ok(())
    }

    /// Fills a slot of an output with bytes of a file.
    pub(crate) fn copy_from(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        output: usize,
        slot: u32,
    ) -> io::Result<()> {
        let length = self.output_spans[output].extent;
        let mut buffer = [0; CHUNK];
        let mut done = 0;
        while done < length {
            let size = usize::try_from(length - done).unwrap_or(CHUNK).min(CHUNK);
            match pread(file, &mut buffer[..size], at + done)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    self.write(output, slot..slot + 1, done, &buffer[..read])?;
                    done += read as u64;
                }
            }
        }
        Ok(())
    }

    /// Returns the first byte of the slack of this slot that no longer has the poison `pattern`. Used only with
    /// `AgainstGuards`.
    pub(crate) fn damaged_slack(&self, slot: u32, pattern: u8) -> io::Result<Option<StrayWrite>> {
        for (index, output_span) in self.output_spans.iter().enumerate() {
            let Some(region) = output_span.regions.get(slot as usize) else { continue };
            let data = region.data_offset;
            let end = data + output_span.extent;
            if let Some(at) = self.first_difference(output_span.file_offset, 0, data, pattern)? {
                return Ok(Some(StrayWrite { output: index, past: signed_offset(at) - signed_offset(data) }));
            }
            if let Some(at) =
                self.first_difference(output_span.file_offset, end, output_span.span, pattern)?
            {
                return Ok(Some(StrayWrite { output: index, past: signed_offset(at) - signed_offset(end) }));
            }
        }
        Ok(None)
    }

    fn first_difference(&self, base: u64, from: u64, to: u64, pattern: u8) -> io::Result<Option<u64>> {
        let mut buffer = [0u8; CHUNK];
        let mut at = from;
        while at < to {
            let size = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
            let read = pread(&*self.memfd, &mut buffer[..size], base + at)?;
            if let Some(found) = buffer[..read].iter().position(|&byte| byte != pattern) {
                return Ok(Some(at + found as u64));
            }
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += read as u64;
        }
        Ok(None)
    }

    pub(crate) fn source(&self, output: usize, slot: u32) -> SlotSource<'_> {
        let start = self.slot_start(output, slot);
        SlotSource { memfd: self.memfd.as_fd(), start, extent: self.output_spans[output].extent }
    }

    pub(crate) fn slot_start(&self, output: usize, slot: u32) -> u64 {
        let output_span = &self.output_spans[output];
        let mut number = slot;
        for region in &output_span.regions {
            if number < region.slots {
                return region.file_offset + region.data_offset + u64::from(number) * region.slot_stride;
            }
            number -= region.slots;
        }
        output_span.file_offset
    }
}

pub(crate) struct SlotSource<'a> {
    memfd: BorrowedFd<'a>,
    start: u64,
    extent: u64,
}

impl BytesSource for SlotSource<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.extent < offset.saturating_add(buffer.len() as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buffer.len() {
            match pread(self.memfd, &mut buffer[done..], self.start + offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}

fn signed_offset(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::{DType, Tensor};
    use opt_shared::ids::StorageId;
    use proptest::prelude::*;

    use super::*;

    fn float_output(elements: u64) -> OutputTensor {
        let tensor = Tensor::dense(DType::Float32, &[elements], StorageId(0));
        OutputTensor { path: "output".into(), tensor: Arc::new(tensor), arguments: Vec::new() }
    }

    proptest! {
        #[test]
        fn outputs_take_the_predicted_size(sizes in prop::collection::vec(0u64..3_000_000, 0..4)) {
            let outputs: Vec<_> = sizes.iter().copied().map(float_output).collect();
            let extents = || sizes.iter().map(|elements| Bytes::new(4 * elements));
            let page = Bytes::from(rustix::param::page_size());
            let taken = |slots| Outputs::create_shared(&[&outputs], slots).map(|outputs| outputs[0].memfd_bytes());
            prop_assert_eq!(taken(Slots::AgainstGuards), Ok(formula::guarded(extents(), page)));
            prop_assert_eq!(taken(Slots::Ring), Ok(formula::ring(extents(), page)));
            prop_assert_eq!(taken(Slots::Separate), Ok(formula::guarded(extents(), page)));
        }

        #[test]
        fn separate_outputs_of_entries_share_no_byte(sizes in prop::collection::vec(0u64..9000, 1..5)) {
            let entries: Vec<[OutputTensor; 1]> = sizes.iter().map(|&elements| [float_output(elements)]).collect();
            let entries: Vec<&[OutputTensor]> = entries.iter().map(<[_; 1]>::as_slice).collect();
            let outputs = Outputs::create_shared(&entries, Slots::Separate).expect("memory");
            for (number, entry) in outputs.iter().enumerate() {
                entry.poison(u8::try_from(number).expect("few")).expect("written");
            }
            for (number, (entry, elements)) in outputs.iter().zip(&sizes).enumerate() {
                let mut bytes = vec![0; usize::try_from(4 * elements).expect("few")];
                entry.source(0, 0).read_at(0, &mut bytes).expect("read");
                prop_assert!(bytes.iter().all(|&byte| usize::from(byte) == number));
            }
        }
    }
}
