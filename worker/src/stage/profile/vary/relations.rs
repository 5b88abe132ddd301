//! Relations between the inputs of an entry that a correct kernel may rely on, and that new values would break.

use opt_shared::arguments::ArgumentValue;
use opt_shared::capture::{CaptureError, Kind, Tensor};
use opt_shared::units::to_index;

use super::Eligible;
use super::order::Order;
use super::parallel::is_index;
use super::source::{Source, WhyKept};
use super::zeros::Zeros;
use crate::judge::element;
use crate::recorded::Recorded;

/// Indices of more values are not compared with offsets.
const MOST_OFFSETS: u64 = 1 << 16;
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
    let padded: Vec<(&Tensor, &Zeros)> = eligible
        .iter()
        .filter_map(|input| match &input.source.source {
            Source::Drawn { zeros, .. } if !zeros.is_empty() => Some((of(input).1, zeros)),
            _ => None,
        })
        .collect();
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
        for (number, (of_parameter, other)) in others {
            if *of_parameter != parameter
                && is_index(other.dtype)
                && (varies(number) || are_offsets_and_lengths(recorded, other, tensor)?)
            {
                return Ok(Some(BESIDE_INDICES));
            }
        }
        for &padded in &padded {
            if are_lengths(recorded, tensor, padded)? {
                return Ok(Some(BESIDE_PADDING));
            }
        }
        Ok(None)
    };
    eligible.iter().map(why).collect()
}

/// Returns true if one index holds offsets, and the other the lengths between them. The last end may be missing.
fn are_offsets_and_lengths(
    recorded: &Recorded,
    offsets: &Tensor,
    lengths: &Tensor,
) -> Result<bool, CaptureError> {
    let (&[ends], &[count]) = (&offsets.shape[..], &lengths.shape[..]) else { return Ok(false) };
    if !(2..=MOST_OFFSETS).contains(&ends) || !(ends == count || ends == count + 1) {
        return Ok(false);
    }
    let (Some(ends), Some(lengths)) = (all(recorded, offsets)?, all(recorded, lengths)?) else {
        return Ok(false);
    };
    Ok(are_distances(&ends, &lengths))
}

/// Returns true if an index holds the length of each part of a padded input: the zeros at the end of a part begin there.
fn are_lengths(
    recorded: &Recorded,
    lengths: &Tensor,
    (padded, zeros): (&Tensor, &Zeros),
) -> Result<bool, CaptureError> {
    let (&[count], &[parts, rows, ..]) = (&lengths.shape[..], &padded.shape[..]) else { return Ok(false) };
    let part = padded.elements() / parts * padded.dtype.size();
    if count != parts || MOST_OFFSETS < count || !padded.is_contiguous() {
        return Ok(false);
    }
    let Some(lengths) = all(recorded, lengths)? else { return Ok(false) };
    Ok(begin_after(zeros, part, part / rows, &lengths))
}

/// Returns true if these are the distances between neighbouring numbers.
fn are_distances(numbers: &[f64], distances: &[f64]) -> bool {
    let pairs = numbers.windows(2).zip(distances);
    pairs.into_iter().all(|(pair, distance)| (pair[1] - pair[0] - distance).abs() < 0.5)
}

/// Returns true if the zeros at the ends of parts of `part` bytes begin after as many rows of `row` bytes as `lengths`
/// say, and at least one part ends with zeros.
fn begin_after(zeros: &Zeros, part: u64, row: u64, lengths: &[f64]) -> bool {
    let tails = (0..).zip(lengths).filter_map(|(number, &length)| {
        let start = zeros.start_of_tail((number + 1) * part)?.saturating_sub(number * part);
        Some((u32::try_from(start.div_ceil(row)).ok()?, length))
    });
    let agrees: Vec<bool> = tails.map(|(rows, length)| (f64::from(rows) - length).abs() < 0.5).collect();
    !agrees.is_empty() && agrees.into_iter().all(|agrees| agrees)
}

/// The values of a contiguous tensor; `None` if it is not contiguous.
fn all(recorded: &Recorded, tensor: &Tensor) -> Result<Option<Vec<f64>>, CaptureError> {
    if !tensor.is_contiguous() {
        return Ok(None);
    }
    Ok(Some(values(tensor, &read(recorded, tensor, 0, tensor.elements())?).collect()))
}

/// Reads elements of a contiguous tensor.
fn read(recorded: &Recorded, tensor: &Tensor, first: u64, end: u64) -> Result<Vec<u8>, CaptureError> {
    let width = tensor.dtype.size();
    let mut bytes = vec![0; to_index((end - first) * width)];
    recorded.capture.read_range(tensor.storage, tensor.byte_range().start + first * width, &mut bytes)?;
    Ok(bytes)
}

fn values<'b>(tensor: &Tensor, bytes: &'b [u8]) -> impl Iterator<Item = f64> + 'b {
    let dtype = tensor.dtype;
    bytes.chunks_exact(dtype.element_len()).map(move |it| element::value(dtype, it))
}

/// Returns true if two tensors of floats have the same shape, and one nowhere exceeds the other ([`Order`]).
fn are_ordered(recorded: &Recorded, one: &Tensor, other: &Tensor) -> Result<bool, CaptureError> {
    let is_comparable = |it: &Tensor| it.dtype.kind() == Kind::Float && it.is_contiguous();
    if !(is_comparable(one) && is_comparable(other) && one.shape == other.shape) {
        return Ok(false);
    }
    let mut order = Order::new();
    for first in (0..one.elements()).step_by(to_index(PIECE)) {
        let end = one.elements().min(first + PIECE);
        let (ones, others) = (read(recorded, one, first, end)?, read(recorded, other, first, end)?);
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
            // The other one keeps its values, and holds no offsets.
            (vec![("a", index(8)), ("b", index(9))], &[0], &[], vec![None]),
            (vec![("a", index(8)), ("x", floats(&[8, 3]))], &[0, 1], &[1], vec![None, None]),
        ] {
            let found = of(&entry(&tensors), &eligible(varying, padded)).expect("readable");
            assert_eq!(found, expected, "{tensors:?}");
        }
    }

    #[test]
    fn lengths_are_distances_between_offsets() {
        for (numbers, distances, expected) in [
            (&[0.0, 3.0, 4.0, 8.0][..], &[3.0, 1.0, 4.0][..], true),
            // Without the last end.
            (&[0.0, 3.0, 4.0], &[3.0, 1.0, 4.0], true),
            (&[0.0, 3.0, 4.0, 8.0], &[3.0, 2.0, 4.0], false),
            (&[0.0, 3.0, 4.0, 8.0], &[3.0, 1.0, 5.0], false),
        ] {
            assert_eq!(are_distances(numbers, distances), expected, "{numbers:?} {distances:?}");
        }
    }

    #[test]
    fn padding_begins_where_lengths_say() {
        // Three parts of four rows of two halves: three, four and no rows are used.
        let bytes: Vec<u8> =
            [3, 4, 0].iter().flat_map(|&used| (0..8).map(move |at| u8::from(at < 2 * used))).collect();
        let halves: Vec<u8> = bytes.iter().flat_map(|&byte| [byte, byte]).collect();
        let zeros = Zeros::of(&halves, DType::Float16, 8);
        for (lengths, expected) in [
            ([3.0, 4.0, 0.0], true),
            // Nothing tells how long a part without zeros is.
            ([3.0, 2.0, 0.0], true),
            ([2.0, 4.0, 0.0], false),
            ([3.0, 4.0, 1.0], false),
        ] {
            assert_eq!(begin_after(&zeros, 16, 4, &lengths), expected, "{lengths:?}");
        }
        assert!(!begin_after(&zeros, 16, 4, &[]), "no part");
        assert!(!begin_after(&Zeros::default(), 16, 4, &[3.0]), "no zeros");
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
