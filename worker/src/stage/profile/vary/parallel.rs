//! Finds index tensors of the same argument and shape, which may form tuples, such as the rows and columns of
//! `index_put`.

use opt_shared::arguments::ArgumentValue;
use opt_shared::capture::{CaptureError, DType, Tensor};
use opt_shared::units::to_index;

use super::places::Places;
use crate::recorded::Recorded;

pub(super) const TOO_MANY: &str = "too many values to be put into another order for each call";

/// Reads the elements of the other index tensors of the same argument and shape, which may form tuples with this one.
/// The inner error says why the tensors cannot be compared: they do not fit into `room` bytes, or have different
/// layouts.
pub(super) fn parallel_indices(
    recorded: &Recorded,
    tensor: &Tensor,
    places: &Places,
    room: u64,
) -> Result<Result<Vec<Vec<u8>>, &'static str>, CaptureError> {
    let range_of = |it: &Tensor| (it.storage, it.byte_range());
    let indices = recorded.arguments.iter().filter_map(|argument| match &argument.value {
        ArgumentValue::Tensor(it) if is_index(it.dtype) && it.shape == tensor.shape => {
            Some((&argument.parameter, it))
        }
        _ => None,
    });
    let parameter = indices.clone().find(|(_, it)| range_of(it) == range_of(tensor)).map(|(name, _)| name);
    let mut found = Vec::new();
    let mut left = room;
    let others = indices.filter(|(name, it)| Some(*name) == parameter && range_of(it) != range_of(tensor));
    for (_, other) in others {
        let range = other.byte_range();
        let length = range.end - range.start;
        let its_places = Places::of(other);
        if left < length {
            return Ok(Err(TOO_MANY));
        }
        if places.shape != its_places.shape || (1 < places.shape.len() && other.stride != tensor.stride) {
            return Ok(Err("it has the shape of other indices, but another layout"));
        }
        left -= length;
        let mut bytes = vec![0; to_index(length)];
        recorded.capture.read_range(other.storage, range.start, &mut bytes)?;
        its_places.gather(&mut bytes, other.dtype.element_len());
        found.push(bytes);
    }
    Ok(Ok(found))
}

/// Returns true if torch accepts tensors of this type as indices. Smaller integer types are left out, because storing
/// the order of such integers would take more memory than the integers themselves.
pub(super) fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::Int32 | DType::Int64)
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;

    /// Returns a capture whose first argument has eight indices. `others` makes the other arguments from it, with the
    /// names of their parameters.
    fn capture(others: impl FnOnce(&Tensor) -> Vec<(&'static str, Tensor)>) -> Recorded {
        let (entries, signature) =
            crate::session::scripted::entries_of("torch_nn_functional_embedding", &[0]);
        let mut recorded = Recorded::open(&entries[0], &signature).expect("a capture");
        let mut first = recorded.arguments[0].clone();
        let ArgumentValue::Tensor(tensor) = &first.value else { panic!("a tensor") };
        let tensor = Tensor { shape: vec![8], stride: vec![1], ..Tensor::clone(tensor) };
        let others = others(&tensor).into_iter().map(|(parameter, other)| {
            let value = ArgumentValue::Tensor(Arc::new(other));
            opt_shared::arguments::Argument { parameter: parameter.into(), value, ..first.clone() }
        });
        recorded.arguments = others.collect();
        first.value = ArgumentValue::Tensor(Arc::new(tensor));
        recorded.arguments.insert(0, first);
        recorded
    }

    /// Returns a capture with two arguments of eight indices each. The second is a view with this stride, and belongs
    /// to this parameter.
    pub(in super::super) fn indices(stride: u64, parameter: &'static str) -> Recorded {
        capture(|it| vec![(parameter, Tensor { stride: vec![stride], storage_offset: 1, ..it.clone() })])
    }

    fn parallel(recorded: &Recorded, room: u64) -> Result<Vec<Vec<u8>>, &'static str> {
        let ArgumentValue::Tensor(tensor) = &recorded.arguments[0].value else { panic!("a tensor") };
        parallel_indices(recorded, tensor, &Places::of(tensor), room).expect("readable")
    }

    #[test]
    fn parallel_indices_are_read_in_the_order_of_their_elements() {
        for (stride, parameter, is_parallel) in [(1, "input", true), (2, "input", true), (1, "other", false)]
        {
            let recorded = indices(stride, parameter);
            let found = parallel(&recorded, 120).expect("room for all");
            let mut all = vec![0; 128];
            let ArgumentValue::Tensor(tensor) = &recorded.arguments[0].value else { panic!("a tensor") };
            recorded.capture.read_range(tensor.storage, 0, &mut all).expect("readable");
            let expected: Vec<u8> =
                (0..8).flat_map(|at| all[(1 + at * to_index(stride)) * 8..][..8].to_vec()).collect();
            assert_eq!(
                found,
                is_parallel.then_some(expected).into_iter().collect::<Vec<_>>(),
                "{stride} {parameter}"
            );
        }
    }

    #[test]
    fn indices_that_cannot_be_compared_keep_their_values() {
        let recorded = indices(1, "input");
        assert!(parallel(&recorded, 64).is_ok());
        assert_eq!(parallel(&recorded, 63).err(), Some(TOO_MANY));
        let other_layout = Some("it has the shape of other indices, but another layout");
        for (shape, strides, why) in [
            (&[3, 3][..], [&[3, 1][..], &[3, 1]], None),
            (&[3, 3], [&[3, 1], &[1, 3]], other_layout),
            (&[2, 4], [&[4, 1], &[1, 2]], other_layout),
            // All of them are the same element.
            (&[8], [&[1], &[0]], other_layout),
        ] {
            let mut recorded = indices(1, "input");
            for (argument, stride) in recorded.arguments.iter_mut().zip(strides) {
                let ArgumentValue::Tensor(tensor) = &mut argument.value else { panic!("a tensor") };
                let (shape, stride) = (shape.to_vec(), stride.to_vec());
                *tensor = Arc::new(Tensor { shape, stride, ..Tensor::clone(tensor) });
            }
            assert_eq!(parallel(&recorded, 1000).err(), why, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn all_parallel_indices_must_fit_together() {
        let recorded = capture(|it| {
            let at = |storage_offset| Tensor { storage_offset, ..it.clone() };
            vec![("input", at(1)), ("input", at(2))]
        });
        assert_eq!(parallel(&recorded, 128).map(|it| it.len()), Ok(2));
        assert_eq!(parallel(&recorded, 127).err(), Some(TOO_MANY));
    }

    #[test]
    fn other_tensors_of_the_argument_are_not_parallel_indices() {
        let recorded = capture(|it| {
            let other =
                |dtype, elements| Tensor { dtype, shape: vec![elements], storage_offset: 1, ..it.clone() };
            vec![
                ("input", other(DType::Int64, 7)),
                ("input", other(DType::Float64, 8)),
                ("input", other(DType::Int16, 8)),
                ("input", other(DType::Float64, 7)),
            ]
        });
        assert_eq!(parallel(&recorded, 1000), Ok(Vec::new()));
    }
}
