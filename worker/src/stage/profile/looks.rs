//! Chooses at random the output elements that are read as soon as a candidate reports that a block is done. This file
//! does no I/O.
//!
//! The output elements of the block are divided into n parts of equal size, and a random element is drawn from each
//! part before the block starts. (From the last part, the last element is taken.) If a candidate has done only a share
//! f of the block when it reports "done", this is detected with a probability of about 1 − f^n or more.

use opt_shared::arguments::OutputTensor;
use opt_shared::capture::Tensor;
use rand::Rng;

use crate::session::{LOOKS, Look};

/// Draws the elements to read for a block of `calls` calls. The last element of the last call is always among them.
pub(super) fn draw(outputs: &[OutputTensor], calls: u32, random: &mut impl Rng) -> Vec<Look> {
    let filled: Vec<(usize, &Tensor)> = outputs
        .iter()
        .enumerate()
        .map(|(number, output)| (number, &*output.tensor))
        .filter(|(_, tensor)| tensor.elements() != 0)
        .collect();
    let Some(&(last_output, last)) = filled.last().filter(|_| 0 < calls) else { return Vec::new() };
    let mut looks: Vec<Look> = (0..LOOKS)
        .map(|number| {
            let (output, tensor) = filled[random.random_range(0..filled.len())];
            // The elements of all calls, one call after another, are divided into one part per look.
            let elements = u128::from(tensor.elements());
            let all = elements * u128::from(calls);
            let (from, to) = (
                all * u128::from(number) / u128::from(LOOKS),
                all * u128::from(number + 1) / u128::from(LOOKS),
            );
            let at = from + random.random_range(0..(to - from).max(1));
            look(output, tensor, narrow(at / elements), narrow(at % elements))
        })
        .collect();
    if let Some(end) = looks.last_mut() {
        *end = look(last_output, last, u64::from(calls) - 1, last.elements() - 1);
    }
    looks
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn look(output: usize, tensor: &Tensor, slot: u64, element: u64) -> Look {
    Look {
        output,
        slot: u32::try_from(slot).unwrap_or(u32::MAX),
        offset: offset_of(tensor, element),
        width: tensor.dtype.element_len(),
    }
}

/// Returns the byte offset of an element from the first one. Elements are numbered in row-major order.
pub(super) fn offset_of(tensor: &Tensor, mut element: u64) -> u64 {
    let mut offset = 0;
    for (&size, &stride) in tensor.shape.iter().zip(&tensor.stride).rev() {
        offset += element % size * stride;
        element /= size;
    }
    offset * tensor.dtype.size()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use opt_shared::capture::DType;
    use opt_shared::ids::StorageId;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn strided_output(shape: &[u64], stride: &[u64]) -> OutputTensor {
        let tensor = Tensor { stride: stride.to_vec(), ..Tensor::dense(DType::Float32, shape, StorageId(0)) };
        OutputTensor { path: "output".into(), tensor: Arc::new(tensor), arguments: Vec::new() }
    }

    proptest! {
        #[test]
        fn every_part_of_a_block_is_looked_at(calls in 1u32..5000, elements in 1u64..10_000, seed in 0u64..100) {
            let outputs = [strided_output(&[elements], &[1])];
            let looks = draw(&outputs, calls, &mut SmallRng::seed_from_u64(seed));
            prop_assert_eq!(looks.len(), LOOKS as usize);
            let slots: BTreeSet<u32> = looks.iter().map(|look| look.slot).collect();
            // A part that begins in the middle of a call's elements shares this call with the previous part.
            prop_assert!(calls.min(LOOKS) as usize <= 2 * slots.len(), "{} of {}", slots.len(), calls);
            for look in &looks {
                prop_assert!(look.slot < calls && look.offset + 4 <= elements * 4, "{:?}", look);
            }
            let end = looks[LOOKS as usize - 1];
            prop_assert_eq!((end.slot, end.offset), (calls - 1, (elements - 1) * 4));
        }
    }

    #[test]
    fn looks_at_one_call_are_spread_over_its_elements() {
        let looks = draw(&[strided_output(&[6400], &[1])], 1, &mut SmallRng::seed_from_u64(1));
        let mut parts: Vec<u64> = looks.iter().map(|look| look.offset / 400).collect();
        parts.dedup();
        assert_eq!(parts, (0..64).collect::<Vec<u64>>());
        let others = draw(&[strided_output(&[6400], &[1])], 1, &mut SmallRng::seed_from_u64(2));
        let same = looks.iter().zip(&others).filter(|(one, other)| one.offset == other.offset).count();
        assert!(same < 32, "{same} of 64 looks are at the same elements");
    }

    #[test]
    fn element_offsets_follow_the_strides() {
        let tensor = &strided_output(&[2, 3], &[1, 4]).tensor;
        let offsets: Vec<u64> = (0..6).map(|element| offset_of(tensor, element)).collect();
        assert_eq!(offsets, [0, 16, 32, 4, 20, 36]);
        assert!(draw(&[strided_output(&[0], &[1])], 3, &mut SmallRng::seed_from_u64(1)).is_empty());
        assert!(draw(&[strided_output(&[9], &[1])], 0, &mut SmallRng::seed_from_u64(1)).is_empty());
    }
}
