//! Maps the inputs, outputs and variants of one entry in a runner, and prepares the arguments of the entry's calls.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use super::abi::{self, Arguments};
use super::cudart;
use super::fault::WatchedMapping;
use super::frame::{EntrySetup, InputRange, OutputRegion, VariantRange, WireOutput};
use super::map::{MapError, Mapped, map_input, map_output, map_slot, map_variants};
use super::returned::Expected;

/// The reason why an entry cannot be mapped.
pub(super) enum EntryError {
    Map(MapError),
    /// The entry's frame is wrong. The text says what is wrong with it.
    Frame(&'static str),
}

impl From<MapError> for EntryError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

pub(super) struct Entry {
    pub(super) arguments: Arguments,
    outputs: Vec<OutputMaps>,
    /// The properties that each output must have if it is returned. `None` for an output that is the new value of
    /// arguments.
    expected: Vec<Option<Expected>>,
    /// The range of the outputs' memfd that contains the outputs of this entry.
    output_range: Range<u64>,
    variants: Vec<VariantMap>,
}

struct VariantMap {
    mapped: Mapped,
    range: VariantRange,
}

impl VariantMap {
    /// Returns the address of the variant for a call into `slot`. If there are fewer variants than slots, they are used
    /// in turn.
    fn address(&self, slot: u32) -> *mut u8 {
        let variant = slot % self.range.count.max(1);
        self.mapped.data.wrapping_add(usize::try_from(self.range.stride).unwrap_or(0) * variant as usize)
    }
}

struct OutputMaps {
    has_elements: bool,
    /// The size of the data of one slot, in bytes.
    bytes: usize,
    regions: Vec<(Mapped, OutputRegion)>,
}

impl OutputMaps {
    /// Returns the address of a slot, or null if the output has no elements.
    fn slot(&self, slot: u32) -> *mut u8 {
        if !self.has_elements {
            return std::ptr::null_mut();
        }
        let mut number = slot;
        for (mapped, region) in &self.regions {
            if number < region.slots {
                let offset = usize::try_from(region.slot_stride).unwrap_or(0) * number as usize;
                return mapped.data.wrapping_add(offset);
            }
            number -= region.slots;
        }
        std::ptr::null_mut()
    }
}

/// The inputs that are already mapped. The key consists of the device and inode number of the file, the range, and the
/// input's index in its entry.
pub(super) type Inputs = BTreeMap<(u64, u64, InputRange, usize), Mapped>;

/// Returns the size of an output from its first element to its last, in bytes.
fn extent(output: &WireOutput) -> usize {
    let last = |(length, stride): (&i64, &i64)| (length - 1).saturating_mul(*stride);
    let elements = output.shape.iter().zip(&output.stride).map(last).fold(1, i64::saturating_add);
    let bits = u64::from(output.dtype.bits) * u64::from(output.dtype.lanes);
    let bytes = u64::try_from(elements).unwrap_or(0).saturating_mul(bits.div_ceil(8));
    usize::try_from(bytes).unwrap_or(0)
}

impl Entry {
    /// Maps the entry's memory. `known` contains the inputs that are already mapped. New mappings are added to
    /// `watched`.
    pub(super) fn map(
        entry: &EntrySetup,
        descriptors: Vec<OwnedFd>,
        on_device: bool,
        known: &mut Inputs,
        watched: &mut Vec<WatchedMapping>,
    ) -> Result<Self, EntryError> {
        let mut descriptors = descriptors.into_iter();
        let outputs_memfd = descriptors
            .next()
            .ok_or(EntryError::Frame("the frame of an entry has no descriptor for the outputs"))?;
        let files = descriptors
            .map(|descriptor| {
                let stat = rustix::fs::fstat(&descriptor)
                    .map_err(|_| EntryError::Frame("the file of an input cannot be examined"))?;
                Ok((File::from(descriptor), stat.st_dev, stat.st_ino))
            })
            .collect::<Result<Vec<_>, EntryError>>()?;
        let mut inputs = Vec::with_capacity(entry.inputs.len());
        for (index, range) in entry.inputs.iter().enumerate() {
            let (file, device, number) = files.get(usize::from(range.source)).ok_or(EntryError::Frame(
                "the frame of an entry has no descriptor for the file of an input",
            ))?;
            // An input that several entries share is mapped only once, so that it counts once in this process too.
            // Slots of a pool are not shared, because their contents change.
            let key = (*device, *number, InputRange { source: 0, ..*range }, index);
            if let Some(mapped) = known.get(&key).filter(|_| !entry.pooled) {
                inputs.push(mapped.data);
                continue;
            }
            let mapped = if entry.pooled { map_slot(file, range)? } else { map_input(file, range)? };
            if !entry.pooled {
                known.insert(key, mapped);
            }
            if entry.resident {
                mapped.touch();
            }
            if entry.page_by_page {
                mapped.without_read_ahead();
            }
            inputs.push(mapped.data);
            watched.push(WatchedMapping {
                mapped,
                output: false,
                index: u32::try_from(index).unwrap_or(u32::MAX),
            });
        }
        let mut outputs = Vec::with_capacity(entry.outputs.len());
        for (index, output) in entry.outputs.iter().enumerate() {
            let mut regions = Vec::with_capacity(output.regions.len());
            for region in &output.regions {
                let mapped = map_output(outputs_memfd.as_fd(), region)?;
                watched.push(WatchedMapping {
                    mapped,
                    output: true,
                    index: u32::try_from(index).unwrap_or(u32::MAX),
                });
                regions.push((mapped, *region));
            }
            outputs.push(OutputMaps {
                has_elements: !output.shape.contains(&0),
                bytes: extent(output),
                regions,
            });
        }
        let mut variants = Vec::with_capacity(entry.variants.len());
        for range in &entry.variants {
            let memory = files.last().ok_or(EntryError::Frame(
                "the frame of an entry with variants has no descriptor for their memory",
            ))?;
            let mapped = map_variants(memory.0.as_fd(), range)?;
            watched.push(WatchedMapping { mapped, output: false, index: range.range });
            variants.push(VariantMap { mapped, range: *range });
        }
        let device = if on_device { abi::ON_CUDA } else { abi::ON_CPU };
        if on_device {
            for (index, (data, range)) in inputs.iter_mut().zip(&entry.inputs).enumerate() {
                *data = cudart::show_input(*data, usize::try_from(range.bytes).unwrap_or(0), index);
            }
        }
        let arguments = Arguments::build(entry, &inputs, device).map_err(EntryError::Frame)?;
        let regions = || entry.outputs.iter().flat_map(|output| &output.regions);
        let start = regions().map(|region| region.file_offset).min().unwrap_or_default();
        let end = regions().map(|region| region.file_offset + region.bytes).max().unwrap_or_default();
        let expected = entry.outputs.iter().map(Expected::of).collect();
        Ok(Self { arguments, outputs, expected, output_range: start..end, variants })
    }

    /// Prepares the arguments for a call into `slot`. `varied` is true if the inputs that vary get new values.
    pub(super) fn renew_arguments(&mut self, slot: u32, planned: bool, varied: bool, on_device: bool) {
        let Self { arguments, outputs, variants, .. } = self;
        let slots = outputs.iter().enumerate().map(|(index, output)| {
            let data = output.slot(slot);
            if on_device { cudart::show_output(data, output.bytes, index) } else { data }
        });
        arguments.renew(planned, slots);
        for it in variants.iter().filter(|_| varied) {
            arguments.show(planned, it.range.range, it.address(slot));
        }
    }

    /// Returns the memory to which returned tensors are copied after a call into `slot`.
    pub(super) fn targets(&self, slot: u32) -> impl Iterator<Item = (&Expected, *mut u8)> + Clone {
        let outputs = self.expected.iter().zip(&self.outputs);
        outputs.filter_map(move |(expected, output)| Some((expected.as_ref()?, output.slot(slot))))
    }

    pub(super) fn shares_outputs_with(&self, other: &Self) -> bool {
        self.output_range.start < other.output_range.end && other.output_range.start < self.output_range.end
    }

    fn output_regions(&self) -> impl Iterator<Item = &(Mapped, OutputRegion)> {
        self.outputs.iter().flat_map(|output| &output.regions)
    }

    /// Drops the output pages from this process's page tables, so that these pages count only once, for the worker's
    /// memfd. The mappings stay.
    pub(super) fn drop_output_pages(&self) {
        let page = rustix::param::page_size();
        for (mapped, region) in self.output_regions() {
            let bytes = usize::try_from(region.bytes).unwrap_or(0);
            if 0 < bytes {
                // SAFETY: this is our own shared mapping, without its guard pages; its content stays in the memfd.
                let _ = unsafe {
                    rustix::mm::madvise(
                        (mapped.start + page) as *mut _,
                        bytes,
                        rustix::mm::Advice::LinuxDontNeed,
                    )
                };
            }
        }
    }
}
