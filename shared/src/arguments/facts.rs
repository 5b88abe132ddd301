//! Computes the sizes of one entry and other facts that are needed before the entry is run. Only headers are read for
//! this.
//!
//! `formula` explains the letters in parentheses.

use std::ops::Range;

use super::pieces::{Piece, distinct_ranges, find, is_lazy, pieces};
use super::{Argument, ArgumentValue, OutputTensor, PlainValue};
use crate::capture::{Kind, Storage, Tensor};
use crate::formula;
use crate::placement::whole_grains;
use crate::settings::CacheState;
use crate::units::Bytes;

/// Sizes and other facts about one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryFacts {
    /// The number of bytes of storages that the arguments use, with each byte counted once (I).
    pub input_bytes: Bytes,
    /// Bytes allocated for the outputs, with the strides that were captured (O).
    pub output_bytes: Bytes,
    /// Bytes of the outputs in the ring of a profile (R).
    pub ring_bytes: Bytes,
    /// Bytes of all variants of the inputs that may change between timed calls (V).
    pub varied_bytes: Bytes,
    /// `varied_bytes` if the entry runs on a card.
    pub varied_on_card_bytes: Bytes,
    /// Bytes of the expected outputs' values, which are streamed and compared.
    pub expected_bytes: Bytes,
    /// Input bytes that cannot be mapped in place and are owed (U): pages at the edges of a range, misaligned
    /// storages, views of conjugates or negatives, and tensors made from plain lists.
    pub unmapped_bytes: Bytes,
    /// The memory that the inputs take if they are copied, without the memory for views of conjugates or negatives.
    pub copied_bytes: Bytes,
    /// The parts of storages that the arguments use.
    pub pieces: Vec<Piece>,
    /// True if an output has no elements.
    pub zero_size: bool,
    /// True if an output overlaps an input in its storage. Only their first and last bytes are compared, so two
    /// interleaved views count as overlapping although they have no element in common.
    pub aliased: bool,
}

impl EntryFacts {
    /// Computes the facts of an entry. `storages` are those of its file, and `page` is the machine's page size.
    pub fn of(storages: &[Storage], arguments: &[Argument], outputs: &[OutputTensor], page: Bytes) -> Self {
        let inputs: Vec<&Tensor> = arguments
            .iter()
            .filter_map(|argument| match &argument.value {
                ArgumentValue::Tensor(tensor) => Some(&**tensor),
                ArgumentValue::Plain(_) => None,
            })
            .collect();
        let tensors: Vec<&Tensor> = outputs.iter().map(|output| &*output.tensor).collect();
        let lists: Bytes = arguments
            .iter()
            .filter_map(|argument| match &argument.value {
                ArgumentValue::Plain(value) => Some(list_bytes(value)),
                ArgumentValue::Tensor(_) => None,
            })
            .sum();
        let all = distinct_ranges(inputs.iter().copied());
        let pieces = pieces(storages, inputs.iter().copied());
        let in_place = inputs.iter().copied().filter(|tensor| !is_lazy(tensor));
        let lazy: Bytes = inputs
            .iter()
            .filter(|tensor| is_lazy(tensor))
            .map(|tensor| whole_grains(extent_bytes(tensor), page))
            .sum();
        let unmapped: Bytes = distinct_ranges(in_place)
            .into_iter()
            .flat_map(|(id, ranges)| ranges.into_iter().map(move |range| (id, range)))
            .map(|(id, range)| unmapped_of(find(storages, id), &range, page))
            .sum();
        let varied_bytes = |on_card| {
            formula::varied(
                inputs.iter().filter(|tensor| may_vary(tensor)).map(|tensor| extent_bytes(tensor)),
                formula::ring_slots(tensors.iter().map(|tensor| extent_bytes(tensor))),
                page,
                formula::largest_varied(on_card, CacheState::Auto),
            )
        };
        Self {
            input_bytes: all.values().flatten().map(length).sum(),
            output_bytes: formula::guarded(tensors.iter().map(|tensor| extent_bytes(tensor)), page),
            ring_bytes: formula::ring(tensors.iter().map(|tensor| extent_bytes(tensor)), page),
            varied_bytes: varied_bytes(false),
            varied_on_card_bytes: varied_bytes(true),
            expected_bytes: tensors.iter().map(|tensor| tensor.logical_bytes()).sum(),
            unmapped_bytes: unmapped + lazy + lists,
            copied_bytes: pieces.iter().map(|piece| piece.placed(page)).sum(),
            pieces,
            zero_size: tensors.iter().any(|tensor| tensor.elements() == 0),
            aliased: tensors.iter().any(|output| inputs.iter().any(|input| overlap(output, input))),
        }
    }
}

/// Decides from an input's header whether the input may have new values in each timed call. This is not the case for
/// empty inputs and bools, for a `torch.nn.Parameter`, which is constant, and for a lazy conjugate or negative, which
/// is written out only once.
pub fn may_vary(tensor: &Tensor) -> bool {
    tensor.elements() != 0 && !tensor.parameter && tensor.dtype.kind() != Kind::Bool && !is_lazy(tensor)
}

fn extent_bytes(tensor: &Tensor) -> Bytes {
    Bytes::new(tensor.extent_elements()).saturating_mul(tensor.dtype.size())
}

fn length(range: &Range<u64>) -> Bytes {
    Bytes::new(range.end - range.start)
}

fn list_bytes(value: &PlainValue) -> Bytes {
    match value {
        PlainValue::Ints(values) => Bytes::from(values.len()).saturating_mul(8),
        PlainValue::Floats(values) => Bytes::from(values.len()).saturating_mul(8),
        PlainValue::Bools(values) => Bytes::from(values.len()),
        _ => Bytes::ZERO,
    }
}

/// Returns how many bytes of a range cannot be mapped. If the storage is unknown, the range is copied as a whole, so
/// this is the size of the range.
fn unmapped_of(storage: Option<&Storage>, range: &Range<u64>, page: Bytes) -> Bytes {
    let Some(storage) = storage else { return whole_grains(length(range), page) };
    let start = storage.file_offset.saturating_add(range.start);
    formula::unmapped(start, length(range), range.start % formula::ALIGNMENT, page)
}

fn overlap(one: &Tensor, other: &Tensor) -> bool {
    let (a, b) = (one.byte_range(), other.byte_range());
    one.storage == other.storage && a.start.max(b.start) < a.end.min(b.end)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::fixture::{dense, storage};
    use super::*;
    use crate::capture::DType;

    const PAGE: Bytes = Bytes::kib(4);

    fn given(tensor: Tensor) -> Argument {
        Argument { parameter: "x".into(), path: "x".into(), value: ArgumentValue::Tensor(Arc::new(tensor)) }
    }

    fn output_tensor(tensor: Tensor) -> OutputTensor {
        OutputTensor { path: "output".into(), tensor: Arc::new(tensor), arguments: Vec::new() }
    }

    fn unmapped(file_offset: u64, elements: u64, first: u64) -> u64 {
        let tensor = Tensor { storage_offset: first, ..dense(DType::Int8, &[elements], 0) };
        let storages = [storage(0, first + elements, file_offset)];
        EntryFacts::of(&storages, &[given(tensor)], &[], PAGE).unmapped_bytes.get()
    }

    #[test]
    fn aligned_storage_owes_only_its_edge_pages() {
        for (file_offset, elements, first, pages) in [
            (4096, 8192, 0, 0),
            (4096, 8191, 0, 1),
            (4160, 8192, 0, 2),
            (64, 10, 0, 1),
            (4032, 128, 0, 2),
            (4096, 4096, 4096, 0),
            (4096, 4096, 1, 2),
            (4096, 0, 0, 0),
            // This storage is misaligned, so all of it is copied.
            (4097, 8192, 0, 2),
            (4097, 8193, 0, 3),
        ] {
            let owed = unmapped(file_offset, elements, first);
            assert_eq!(owed, pages * 4096, "{file_offset} {elements} {first}");
        }
    }

    #[test]
    fn bytes_are_counted_once_however_many_views_reach_them() {
        let half = |first| given(Tensor { storage_offset: first, ..dense(DType::Float32, &[16], 0) });
        let storages = [storage(0, 4096, 4096), storage(1, 4096, 8192)];
        let facts = EntryFacts::of(
            &storages,
            &[half(0), half(8), half(100), given(dense(DType::Float32, &[16], 1))],
            &[],
            PAGE,
        );
        assert_eq!(facts.input_bytes, Bytes::new((24 + 16 + 16) * 4));
    }

    #[test]
    fn outputs_are_allocated_with_their_strides_and_compared_by_their_values() {
        let strided = Tensor { stride: vec![2048, 1], ..dense(DType::Float32, &[3, 4], 0) };
        let expanded = Tensor { stride: vec![0], ..dense(DType::Float64, &[100], 1) };
        let storages = [storage(0, 4096, 64), storage(1, 8, 8192)];
        let facts = EntryFacts::of(&storages, &[], &[output_tensor(strided), output_tensor(expanded)], PAGE);
        // The outputs take (2 · 2048 + 4) · 4 bytes and 8 bytes, and each has its own pages.
        assert_eq!(facts.output_bytes, Bytes::kib(20 + 4));
        assert_eq!(facts.expected_bytes, Bytes::new(12 * 4 + 800));
        assert!(!facts.zero_size);
    }

    #[test]
    fn output_over_an_inputs_bytes_is_aliased() {
        let storages = [storage(0, 4096, 64)];
        let part = |first, size| Tensor { storage_offset: first, ..dense(DType::Float32, &[size], 0) };
        for (input, output, aliased) in [
            (part(0, 8), part(0, 8), true),
            (part(0, 8), part(7, 8), true),
            (part(0, 8), part(8, 8), false),
            (part(0, 8), part(4, 0), false),
        ] {
            let facts = EntryFacts::of(&storages, &[given(input)], &[output_tensor(output.clone())], PAGE);
            assert_eq!(facts.aliased, aliased, "{output:?}");
            assert_eq!(facts.zero_size, output.elements() == 0);
        }
    }

    #[test]
    fn lazy_views_and_lists_are_owed_completely() {
        let storages = [storage(0, 1 << 20, 4096)];
        let tensor = Tensor { conjugate: true, ..dense(DType::Complex64, &[1024], 0) };
        let pads = Argument {
            parameter: "pad".into(),
            path: "pad".into(),
            value: ArgumentValue::Plain(PlainValue::Ints(vec![1, 2])),
        };
        let facts = EntryFacts::of(&storages, &[given(tensor), pads], &[], PAGE);
        assert_eq!(facts.unmapped_bytes, Bytes::new(8192 + 16));
        assert_eq!(facts.input_bytes, Bytes::new(8192));
    }

    proptest! {
        #[test]
        fn owed_edges_are_at_most_two_whole_pages(
            offset in 0..100_u64, first in 0..9000_u64, elements in 1..100_000_u64,
        ) {
            let owed = unmapped(offset * 64, elements, first);
            prop_assert!(owed.is_multiple_of(4096) && owed <= 8192);
            // The rest is whole pages within the range.
            let (start, end) = (offset * 64 + first, offset * 64 + first + elements);
            let mapped = (end / 4096).saturating_sub(start.div_ceil(4096)) * 4096;
            prop_assert!(mapped + owed >= elements && mapped <= elements);
        }
    }
}
