//! Relations between the inputs of an entry that a correct kernel may rely on, and that new values would break.

use opt_shared::arguments::ArgumentValue;
use opt_shared::capture::{CaptureError, Kind, Tensor};
use opt_shared::units::to_index;

use super::Eligible;
use super::parallel::is_index;
use super::source::{Source, WhyKept};
use crate::judge::element;
use crate::recorded::Recorded;

/// Floats of fewer elements are ordered by chance.
const FEWEST_ORDERED: u64 = 16;
/// The number of elements that are compared at a time.
const PIECE: u64 = 8 << 10;

const BESIDE_INDICES: &str = "it may depend on other indices, or they on it";
const BESIDE_PADDING: &str = "it may hold the lengths of a padded input";
const ORDERED: &str = "it is nowhere larger than another input of its shape, or nowhere smaller";

/// For each of these inputs, the reason why it must keep its values because of another input; `None` if it may vary.
pub(super) fn of(recorded: &Recorded, eligible: &[Eligible]) -> Result<Vec<Option<WhyKept>>, CaptureError> {
    let tensors: Vec<(&str, &Tensor)> = recorded
        .arguments
        .iter()
        .filter_map(|argument| match &argument.value {
            ArgumentValue::Tensor(tensor) => Some((argument.parameter.as_str(), &**tensor)),
            ArgumentValue::Plain(_) => None,
        })
        .collect();
    let of = |input: &Eligible| tensors[input.extent.tensor];
    let is_padded =
        |input: &&Eligible| matches!(&input.source.source, Source::Drawn { zeros, .. } if !zeros.is_empty());
    let padded: Vec<&Tensor> = eligible.iter().filter(is_padded).map(|input| of(input).1).collect();
    let why = |input: &Eligible| {
        let (parameter, tensor) = of(input);
        let others = tensors.iter().enumerate().filter(|(number, _)| *number != input.extent.tensor);
        if !is_index(tensor.dtype) {
            for (_, (_, other)) in others {
                if are_ordered(recorded, tensor, other)? {
                    return Ok(Some(ORDERED));
                }
            }
            return Ok(None);
        }
        let varies = |number: usize| eligible.iter().any(|it| it.extent.tensor == number);
        let depends = |(number, (of_parameter, other)): (usize, &(&str, &Tensor))| {
            *of_parameter != parameter
                && is_index(other.dtype)
                && (varies(number) || may_be_offsets(other, tensor))
        };
        Ok(match () {
            () if others.into_iter().any(depends) => Some(BESIDE_INDICES),
            () if padded.iter().any(|it| may_be_lengths(tensor, it)) => Some(BESIDE_PADDING),
            () => None,
        })
    };
    eligible.iter().map(why).collect()
}

/// Returns true if one index may hold the offsets whose lengths the other holds: there is one for each length, with or
/// without the last end.
fn may_be_offsets(offsets: &Tensor, lengths: &Tensor) -> bool {
    match (&offsets.shape[..], &lengths.shape[..]) {
        (&[offsets], &[lengths]) => offsets == lengths || offsets == lengths + 1,
        _ => false,
    }
}

/// Returns true if an index may hold a length for each part of a padded input.
fn may_be_lengths(lengths: &Tensor, padded: &Tensor) -> bool {
    lengths.shape.len() == 1 && lengths.shape.first() == padded.shape.first()
}

/// Returns true if two tensors of floats have the same shape and are in [`Order`].
fn are_ordered(recorded: &Recorded, one: &Tensor, other: &Tensor) -> Result<bool, CaptureError> {
    let is_comparable = |it: &Tensor| it.dtype.kind() == Kind::Float && it.is_contiguous();
    if !(is_comparable(one) && is_comparable(other) && one.shape == other.shape)
        || one.elements() < FEWEST_ORDERED
    {
        return Ok(false);
    }
    let read = |tensor: &Tensor, first: u64, end: u64| {
        let width = tensor.dtype.element_len() as u64;
        let mut bytes = vec![0; to_index((end - first) * width)];
        recorded.capture.read_range(tensor.storage, tensor.byte_range().start + first * width, &mut bytes)?;
        Ok::<Vec<u8>, CaptureError>(bytes)
    };
    let values = |tensor: &Tensor, bytes: &[u8]| -> Vec<f64> {
        let elements = bytes.chunks_exact(tensor.dtype.element_len());
        elements.map(|it| element::value(tensor.dtype, it)).collect()
    };
    let mut order = Order::default();
    for first in (0..one.elements()).step_by(to_index(PIECE)) {
        let end = one.elements().min(first + PIECE);
        let (ones, others) = (read(one, first, end)?, read(other, first, end)?);
        order.add(&values(one, &ones), &values(other, &others));
        if !order.is_possible() {
            return Ok(false);
        }
    }
    Ok(order.is_kept_by_nothing_else())
}

/// How two lists of numbers are ordered, element by element.
struct Order {
    is_below: bool,
    is_above: bool,
    is_equal: bool,
    /// The smallest and the largest number of each list.
    ranges: [(f64, f64); 2],
}

impl Default for Order {
    fn default() -> Self {
        let ranges = [(f64::INFINITY, f64::NEG_INFINITY); 2];
        Self { is_below: true, is_above: true, is_equal: true, ranges }
    }
}

impl Order {
    /// Adds the next numbers of the lists.
    fn add(&mut self, ones: &[f64], others: &[f64]) {
        for (&one, &other) in ones.iter().zip(others) {
            self.is_below &= one <= other;
            self.is_above &= other <= one;
            self.is_equal &= one == other;
            for (range, value) in self.ranges.iter_mut().zip([one, other]) {
                *range = (range.0.min(value), range.1.max(value));
            }
        }
    }

    fn is_possible(&self) -> bool {
        self.is_below || self.is_above
    }

    /// Returns true if one list is nowhere larger than the other, and new numbers from the same ranges would change
    /// that, because the ranges overlap. Equal lists have no order.
    fn is_kept_by_nothing_else(&self) -> bool {
        let [one, other] = self.ranges;
        self.is_possible() && !self.is_equal && one.0 < other.1 && other.0 < one.1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use opt_shared::capture::DType;
    use opt_shared::ids::StorageId;

    use super::super::keyed::Keyed;
    use super::super::layout::Extent;
    use super::super::zeros::Zeros;
    use super::*;

    /// An entry with these tensors as arguments, each with its parameter.
    fn entry(tensors: &[(&str, Tensor)]) -> Recorded {
        let (entries, signature) =
            crate::session::scripted::entries_of("torch_nn_functional_embedding", &[0]);
        let mut recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        let model = recorded.arguments[0].clone();
        let argument = |(parameter, tensor): &(&str, Tensor)| opt_shared::arguments::Argument {
            parameter: (*parameter).into(),
            value: ArgumentValue::Tensor(Arc::new(tensor.clone())),
            ..model.clone()
        };
        recorded.arguments = tensors.iter().map(argument).collect();
        recorded
    }

    /// The inputs with these numbers vary. `padded` ones have zeros.
    fn eligible(numbers: &[usize], padded: &[usize]) -> Vec<Eligible> {
        let input = |&tensor: &usize| {
            let zeros = if padded.contains(&tensor) {
                Zeros::of(&[0; 64], DType::Float32, 1)
            } else {
                Zeros::default()
            };
            Eligible {
                extent: Extent { tensor, bytes: 8, phase: 0, output: None },
                source: Keyed {
                    source: Source::Drawn { values: Vec::new(), width: 1, bytes: 0, fresh: false, zeros },
                    key: 0,
                },
                name: tensor.to_string(),
                shuffled: false,
                is_index: false,
            }
        };
        numbers.iter().map(input).collect()
    }

    fn index(length: u64) -> Tensor {
        Tensor::dense(DType::Int64, &[length], StorageId(0))
    }

    #[test]
    fn indices_of_several_parameters_keep_their_values() {
        let floats = |shape: &[u64]| Tensor::dense(DType::Float32, shape, StorageId(0));
        let beside = Some(BESIDE_INDICES);
        for (tensors, varying, padded, expected) in [
            (vec![("a", index(8)), ("b", index(9))], &[0, 1][..], &[][..], vec![beside, beside]),
            (vec![("a", index(8)), ("a", index(8))], &[0, 1], &[], vec![None, None]),
            // The other one keeps its values: are there as many of them as offsets?
            (vec![("a", index(8)), ("b", index(8))], &[0], &[], vec![beside]),
            (vec![("a", index(8)), ("b", index(9))], &[0], &[], vec![beside]),
            (vec![("a", index(8)), ("b", index(7))], &[0], &[], vec![None]),
            (vec![("a", index(8)), ("b", index(10))], &[0], &[], vec![None]),
            // Floats, padded or not, and whether there is a length for each part.
            (vec![("a", index(8)), ("x", floats(&[8, 3]))], &[0, 1], &[], vec![None, None]),
            (vec![("a", index(8)), ("x", floats(&[8, 3]))], &[0, 1], &[1], vec![Some(BESIDE_PADDING), None]),
            (vec![("a", index(8)), ("x", floats(&[7, 3]))], &[0, 1], &[1], vec![None, None]),
        ] {
            let found = of(&entry(&tensors), &eligible(varying, padded)).expect("readable");
            assert_eq!(found, expected, "{tensors:?}");
        }
    }

    #[test]
    fn order_counts_if_ranges_overlap() {
        let is_ordered = |ones: &[f64], others: &[f64]| {
            let mut order = Order::default();
            ones.chunks(2).zip(others.chunks(2)).for_each(|(ones, others)| order.add(ones, others));
            order.is_kept_by_nothing_else()
        };
        for (ones, others, expected) in [
            (&[1.0, 2.0, 5.0], &[1.0, 3.0, 6.0], true),
            (&[1.0, 2.0, 5.0], &[1.0, 3.0, 4.0], false),
            (&[1.0, 2.0, 5.0], &[1.0, 2.0, 5.0], false),
            // Any number of the first list is smaller than any of the second.
            (&[1.0, 2.0, 5.0], &[5.0, 6.0, 7.0], false),
            (&[1.0, 2.0, f64::NAN], &[1.0, 3.0, 6.0], false),
        ] {
            assert_eq!(is_ordered(ones, others), expected, "{ones:?} {others:?}");
            assert_eq!(is_ordered(others, ones), expected, "{others:?} {ones:?}");
        }
    }

    #[test]
    fn only_floats_of_the_same_shape_are_compared() {
        let (entries, signature) =
            crate::session::scripted::entries_of("torch_nn_functional_embedding", &[0]);
        let recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        let ArgumentValue::Tensor(table) = &recorded.arguments[1].value else { panic!("a tensor") };
        let part = |first: u64, shape: &[u64]| Tensor {
            storage_offset: first,
            ..Tensor::dense(DType::Float32, shape, table.storage)
        };
        let read = |first: u64| {
            let mut bytes = vec![0; 64];
            recorded.capture.read_range(table.storage, first * 4, &mut bytes).expect("readable");
            bytes.chunks_exact(4).map(|it| element::value(DType::Float32, it)).collect::<Vec<f64>>()
        };
        let all: Vec<f64> = (0..100).map(|at| read(at)[0]).collect();
        // The largest of 100 numbers is above its sixteen predecessors, one by one, if it is repeated.
        let repeated = |first: u64| Tensor { stride: vec![0], ..part(first, &[16]) };
        let largest = (0..100).max_by(|&one, &other| all[one].total_cmp(&all[other])).expect("some") as u64;
        assert!(!are_ordered(&recorded, &part(0, &[16]), &part(50, &[16])).expect("readable"));
        assert!(!are_ordered(&recorded, &part(0, &[16]), &part(0, &[4, 4])).expect("readable"));
        assert!(!are_ordered(&recorded, &part(0, &[16]), &repeated(largest)).expect("readable"), "not dense");
    }
}
