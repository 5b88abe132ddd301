//! Recognises relations between the inputs of an entry that a correct kernel may rely on, and that new values would
//! break.

use opt_shared::capture::{CaptureError, Kind, Tensor};
use opt_shared::units::to_index;

use super::Eligible;
use super::order::Order;
use super::parallel::is_index;
use super::source::{Source, WhyKept};
use super::zeros::Zeros;
use crate::judge::element;

/// The maximum number of elements in an index tensor that is checked for relations to offsets or padding.
const MOST_OFFSETS: u64 = 1 << 16;
/// The number of elements that are compared at a time.
const PIECE: u64 = 8 << 10;

const BESIDE_INDICES: &str = "it may depend on other indices, or they on it";
const BESIDE_PADDING: &str = "it may hold the lengths of a padded input";
const ORDERED: &str = "it is nowhere larger than another input of its shape, or nowhere smaller";

/// A function that reads the elements of a contiguous tensor, from the element with the first number up to but
/// excluding the element with the second.
pub(super) type Read<'r> = dyn Fn(&Tensor, u64, u64) -> Result<Vec<u8>, CaptureError> + 'r;

/// For each eligible input, returns the reason why it must keep its values because of another input, or `None` if it
/// may vary. `tensors` are all tensor arguments of the entry, with the names of their parameters.
pub(super) fn of(
    tensors: &[(&str, &Tensor)],
    eligible: &[Eligible],
    read: &Read<'_>,
) -> Result<Vec<Option<WhyKept>>, CaptureError> {
    let of = |input: &Eligible| tensors[input.extent.tensor];
    let padded: Vec<(&Tensor, &Zeros)> = eligible
        .iter()
        .filter_map(|input| match &input.source.source {
            Source::Drawn { zeros, .. } if !zeros.is_empty() => Some((of(input).1, zeros)),
            _ => None,
        })
        .collect();
    // If all inputs are indices, they may vary although they may depend on each other. Otherwise, nothing would vary in
    // a call that computes only with integers.
    let has_others = eligible.iter().any(|input| !is_index(of(input).1.dtype));
    let why = |input: &Eligible| {
        let (parameter, tensor) = of(input);
        let others = tensors.iter().enumerate().filter(|(number, _)| *number != input.extent.tensor);
        if !is_index(tensor.dtype) {
            for (_, (_, other)) in others {
                if are_ordered(read, tensor, other)? {
                    return Ok(Some(ORDERED));
                }
            }
            return Ok(None);
        }
        let varies = |number: usize| has_others && eligible.iter().any(|it| it.extent.tensor == number);
        for (number, (of_parameter, other)) in others {
            if *of_parameter != parameter
                && is_index(other.dtype)
                && (varies(number) || are_offsets_and_lengths(read, other, tensor)?)
            {
                return Ok(Some(BESIDE_INDICES));
            }
        }
        for &padded in &padded {
            if are_lengths(read, tensor, padded)? {
                return Ok(Some(BESIDE_PADDING));
            }
        }
        Ok(None)
    };
    eligible.iter().map(why).collect()
}

/// Returns true if one index tensor contains offsets, and the other one the distances (lengths) between them. The
/// offset after the last length may be missing.
fn are_offsets_and_lengths(
    read: &Read<'_>,
    offsets: &Tensor,
    lengths: &Tensor,
) -> Result<bool, CaptureError> {
    let (&[ends], &[count]) = (&offsets.shape[..], &lengths.shape[..]) else { return Ok(false) };
    if !(2..=MOST_OFFSETS).contains(&ends) || !(ends == count || ends == count + 1) {
        return Ok(false);
    }
    let (Some(ends), Some(lengths)) = (all(read, offsets)?, all(read, lengths)?) else {
        return Ok(false);
    };
    Ok(are_distances(&ends, &lengths))
}

/// Returns true if an index tensor contains the length of each part of a padded input. This is the case if, in every
/// part that ends with zeros, these zeros begin after as many rows as the index tensor says.
fn are_lengths(
    read: &Read<'_>,
    lengths: &Tensor,
    (padded, zeros): (&Tensor, &Zeros),
) -> Result<bool, CaptureError> {
    let (&[count], &[parts, rows, ..]) = (&lengths.shape[..], &padded.shape[..]) else { return Ok(false) };
    let part = padded.elements() / parts * padded.dtype.size();
    if count != parts || MOST_OFFSETS < count || !padded.is_contiguous() {
        return Ok(false);
    }
    let Some(lengths) = all(read, lengths)? else { return Ok(false) };
    Ok(begin_after(zeros, part, part / rows, &lengths))
}

/// Returns true if `distances` are the differences between neighbouring `numbers`.
fn are_distances(numbers: &[f64], distances: &[f64]) -> bool {
    let mut pairs = numbers.windows(2).zip(distances);
    pairs.all(|(pair, distance)| (pair[1] - pair[0] - distance).abs() < 0.5)
}

/// Returns true if at least one part ends with zeros, and if the zeros at the end of each such part begin after as many
/// rows as `lengths` states for the part. Parts have `part` bytes, and rows have `row` bytes.
fn begin_after(zeros: &Zeros, part: u64, row: u64, lengths: &[f64]) -> bool {
    let tails = (0..).zip(lengths).filter_map(|(number, &length)| {
        let start = zeros.start_of_tail((number + 1) * part)?.saturating_sub(number * part);
        Some((u32::try_from(start.div_ceil(row)).ok()?, length))
    });
    let agrees: Vec<bool> = tails.map(|(rows, length)| (f64::from(rows) - length).abs() < 0.5).collect();
    !agrees.is_empty() && agrees.into_iter().all(|agrees| agrees)
}

/// Returns the values of a tensor, or `None` if the tensor is not contiguous.
fn all(read: &Read<'_>, tensor: &Tensor) -> Result<Option<Vec<f64>>, CaptureError> {
    if !tensor.is_contiguous() {
        return Ok(None);
    }
    Ok(Some(values(tensor, &read(tensor, 0, tensor.elements())?).collect()))
}

fn values<'b>(tensor: &Tensor, bytes: &'b [u8]) -> impl Iterator<Item = f64> + 'b {
    let dtype = tensor.dtype;
    bytes.chunks_exact(dtype.element_len()).map(move |it| element::value(dtype, it))
}

/// Returns true if two tensors of floats have the same shape, and one nowhere exceeds the other, and this is not by
/// chance ([`Order`]).
fn are_ordered(read: &Read<'_>, one: &Tensor, other: &Tensor) -> Result<bool, CaptureError> {
    let is_comparable = |it: &Tensor| it.dtype.kind() == Kind::Float && it.is_contiguous();
    if !(is_comparable(one) && is_comparable(other) && one.shape == other.shape) {
        return Ok(false);
    }
    let mut order = Order::new();
    for first in (0..one.elements()).step_by(to_index(PIECE)) {
        let end = one.elements().min(first + PIECE);
        let (ones, others) = (read(one, first, end)?, read(other, first, end)?);
        for (one, other) in values(one, &ones).zip(values(other, &others)) {
            order.add(one, other);
        }
        if !order.is_possible() {
            return Ok(false);
        }
    }
    Ok(order.is_a_relation())
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::DType;
    use opt_shared::ids::StorageId;

    use super::super::keyed::Keyed;
    use super::super::layout::Extent;
    use super::*;

    /// Tensors, each with its parameter and the bytes of its storage.
    #[derive(Default)]
    struct Entry {
        tensors: Vec<(&'static str, Tensor)>,
        storages: Vec<Vec<u8>>,
    }

    impl Entry {
        fn add(mut self, parameter: &'static str, dtype: DType, shape: &[u64], bytes: Vec<u8>) -> Self {
            let storage = StorageId(u32::try_from(self.storages.len()).expect("few"));
            // Another element precedes the tensor in its storage.
            let tensor = Tensor { storage_offset: 1, ..Tensor::dense(dtype, shape, storage) };
            self.storages.push([vec![0xff; dtype.element_len()], bytes].concat());
            self.tensors.push((parameter, tensor));
            self
        }

        fn index(self, parameter: &'static str, values: &[i64]) -> Self {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.add(parameter, DType::Int64, &[values.len() as u64], bytes)
        }

        fn floats(self, parameter: &'static str, shape: &[u64], values: &[f32]) -> Self {
            self.add(
                parameter,
                DType::Float32,
                shape,
                values.iter().flat_map(|it| it.to_le_bytes()).collect(),
            )
        }

        /// Returns the reasons that are found if only the inputs with these numbers are eligible.
        fn reasons(&self, varying: &[usize]) -> Vec<Option<WhyKept>> {
            let eligible: Vec<Eligible> = varying
                .iter()
                .map(|&tensor| {
                    let it = &self.tensors[tensor].1;
                    let width = it.dtype.element_len();
                    let row = it.shape.last().map_or(1, |&last| to_index(last));
                    let zeros = match it.dtype.kind() {
                        Kind::Float => Zeros::of(&self.storages[tensor][width..], it.dtype, row),
                        _ => Zeros::default(),
                    };
                    let source = Source::Drawn { values: Vec::new(), width, bytes: 0, fresh: false, zeros };
                    Eligible {
                        extent: Extent { tensor, bytes: 8, phase: 0, output: None },
                        source: Keyed { source, key: 0 },
                        name: tensor.to_string(),
                        shuffled: false,
                        is_index: false,
                    }
                })
                .collect();
            let tensors: Vec<(&str, &Tensor)> = self.tensors.iter().map(|(name, it)| (*name, it)).collect();
            let read = |tensor: &Tensor, first: u64, end: u64| {
                let start = tensor.byte_range().start;
                let at = |element: u64| to_index(start + element * tensor.dtype.size());
                Ok(self.storages[tensor.storage.index()][at(first)..at(end)].to_vec())
            };
            of(&tensors, &eligible, &read).expect("readable")
        }
    }

    #[test]
    fn indices_of_several_arguments_keep_their_values() {
        let entry = |other: &'static str| {
            let indices = Entry::default().index("a", &[5, 3, 4]).index(other, &[7, 1, 9, 2]);
            indices.floats("x", &[2], &[1.0, 2.0])
        };
        let beside = Some(BESIDE_INDICES);
        assert_eq!(entry("b").reasons(&[0, 1, 2]), [beside, beside, None]);
        assert_eq!(entry("b").reasons(&[0, 1]), [None, None], "nothing else varies");
        assert_eq!(entry("a").reasons(&[0, 1, 2]), [None; 3], "parts of one argument");
        assert_eq!(entry("b").reasons(&[0, 2]), [None, None], "the other one keeps its values");
        let narrow = Entry::default().index("a", &[5, 3, 4]).add("b", DType::Int8, &[3], vec![1, 2, 3]);
        assert_eq!(narrow.reasons(&[0, 1]), [None, None], "8-bit integers are no indices");
    }

    #[test]
    fn lengths_beside_their_offsets_keep_their_values() {
        for (offsets, lengths, expected) in [
            (&[0, 3, 4, 8][..], &[3, 1, 4][..], Some(BESIDE_INDICES)),
            // The last end is missing, or there is one end too many.
            (&[0, 3, 4], &[3, 1, 4], Some(BESIDE_INDICES)),
            (&[0, 3, 4, 8, 9], &[3, 1, 4], None),
            (&[0, 3], &[3, 1, 4], None),
            (&[0, 3, 4, 8], &[3, 2, 4], None),
            (&[0, 3, 4, 8], &[3, 1, 5], None),
            (&[0], &[0], None),
        ] {
            let entry = Entry::default().index("offsets", offsets).index("lengths", lengths);
            assert_eq!(entry.reasons(&[1]), [expected], "{offsets:?} {lengths:?}");
        }
    }

    #[test]
    fn lengths_of_padded_parts_keep_their_values() {
        // There are three parts of four rows of two floats. Of their rows, three, four and none are used.
        let values: Vec<f32> = [3, 4, 0]
            .iter()
            .flat_map(|&used| (0..8).map(move |at| if at < 2 * used { 1.5 } else { 0.0 }))
            .collect();
        for (shape, lengths, expected) in [
            (&[3, 4, 2][..], &[3, 4, 0][..], Some(BESIDE_PADDING)),
            // The second part has no zeros at its end, so its length cannot be checked.
            (&[3, 4, 2], &[3, 2, 0], Some(BESIDE_PADDING)),
            (&[3, 4, 2], &[2, 4, 0], None),
            (&[3, 4, 2], &[3, 4, 1], None),
            (&[3, 4, 2], &[3, 4], None),
            (&[3, 8], &[6, 8, 0], Some(BESIDE_PADDING)),
            (&[24], &[3, 4, 0], None),
        ] {
            let entry = Entry::default().index("lengths", lengths).floats("x", shape, &values);
            assert_eq!(entry.reasons(&[0, 1]), [expected, None], "{shape:?} {lengths:?}");
        }
        let full = Entry::default().index("lengths", &[4, 4, 4]).floats("x", &[3, 4, 2], &[1.5; 24]);
        assert_eq!(full.reasons(&[0, 1]), [None, None], "no part is padded");
    }

    #[test]
    fn floats_that_nowhere_exceed_others_of_their_shape_keep_their_values() {
        // These are more elements than are compared at a time.
        let count = PIECE + 40;
        let low: Vec<f32> =
            (0..count).map(|at| f32::from(u8::try_from(at * 7 % 10).expect("small"))).collect();
        let high: Vec<f32> = low.iter().map(|it| it + 0.5).collect();
        let mut broken = high.clone();
        broken[to_index(count) - 1] = -1.0;
        let entry = |shape: &[u64], other: &[f32]| {
            Entry::default().floats("low", &[count], &low).floats("high", shape, other)
        };
        assert_eq!(entry(&[count], &high).reasons(&[0, 1]), [Some(ORDERED); 2]);
        assert_eq!(entry(&[count], &high).reasons(&[1]), [Some(ORDERED)], "the other one keeps its values");
        assert_eq!(entry(&[count], &broken).reasons(&[0, 1]), [None, None]);
        assert_eq!(entry(&[1, count], &high).reasons(&[0, 1]), [None, None], "another shape");
        assert_eq!(entry(&[count], &low).reasons(&[0, 1]), [None, None], "equal");
        let mut strided = entry(&[count], &high);
        strided.tensors[1].1.stride = vec![0];
        assert_eq!(strided.reasons(&[0, 1]), [None, None], "not contiguous");
    }
}
