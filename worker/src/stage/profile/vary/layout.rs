//! Decides where the variants of an entry's inputs lie in memory. Each input gets a region of whole pages, which
//! contains its variants one after another. This file does no I/O.

use opt_shared::formula::{self, ALIGNMENT};
use opt_shared::units::Bytes;

use crate::session::{Range64, Variants, VariedInput};

/// The size and alignment of an input whose variants are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The input's index among the tensor arguments.
    pub(super) tensor: usize,
    pub(super) bytes: u64,
    /// The offset of the input's first byte in the recorded storage, modulo `ALIGNMENT`.
    pub(super) phase: u64,
    /// If the call changes the input, the index of the output that contains its values after the call.
    pub(super) output: Option<usize>,
}

/// Lays out variants of all inputs for blocks of up to `calls` calls. The number of variants is that of
/// `formula::variants`, which is at most one for each call. Returns no variants if not even one variant of each input
/// fits into `largest`.
pub(super) fn lay_out(extents: &[Extent], calls: u32, page: u64, largest: Bytes) -> Variants {
    let stride = |extent: &Extent| extent.bytes.next_multiple_of(ALIGNMENT);
    let of_one_call = extents.iter().map(|extent| formula::variant(Bytes::new(extent.bytes))).sum();
    let count = formula::variants(of_one_call, calls, largest);
    if count == 0 {
        return Variants::default();
    }
    let mut at = 0;
    let inputs = extents.iter().map(|extent| {
        let bytes = (extent.phase + stride(extent) * u64::from(count)).next_multiple_of(page);
        let region = Range64 { start: at, bytes };
        at += bytes;
        VariedInput {
            tensor: extent.tensor,
            region,
            data: extent.phase,
            stride: stride(extent),
            output: extent.output,
        }
    });
    Variants { count, inputs: inputs.collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use opt_shared::settings::CacheState;

    use super::*;

    const PAGE: u64 = 4096;

    /// Generates sizes from one byte to 32 MiB. Each order of magnitude is equally likely.
    fn size() -> impl Strategy<Value = u64> {
        (0u32..25).prop_flat_map(|doublings| 1 << doublings..2u64 << doublings)
    }

    proptest! {
        /// The memory that the supervisor predicts for variants is never less than what their layout takes.
        #[test]
        fn variants_do_not_overlap_and_take_at_most_what_the_formula_says(
            inputs in prop::collection::vec((size(), 0u64..64, any::<bool>()), 1..4), calls in 2u32..600,
            on_card in any::<bool>(),
        ) {
            let largest = formula::largest_varied(on_card, CacheState::Auto);
            // The prediction includes all inputs. Some of them may turn out not to vary, because of a trial or of their
            // values.
            let extents: Vec<Extent> = inputs
                .iter()
                .enumerate()
                .filter(|(_, (_, _, varies))| *varies)
                .map(|(tensor, &(bytes, phase, _))| Extent { tensor, bytes, phase, output: None })
                .collect();
            let variants = lay_out(&extents, calls, PAGE, largest);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (input, extent) in variants.inputs.iter().zip(&extents) {
                prop_assert_eq!(input.region.start % PAGE, 0);
                for variant in 0..variants.count {
                    let at = input.at(variant);
                    prop_assert_eq!(at % ALIGNMENT, extent.phase);
                    prop_assert!(at + extent.bytes <= input.region.start + input.region.bytes);
                    taken.push((at, at + extent.bytes));
                }
            }
            taken.sort_unstable();
            prop_assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            let end = variants.inputs.last().map_or(0, |last| last.region.start + last.region.bytes);
            let predicted = formula::varied(
                inputs.iter().map(|input| Bytes::new(input.0)), calls, Bytes::new(PAGE), largest,
            );
            prop_assert!(Bytes::new(end) <= predicted, "{} {}", end, predicted);
        }
    }

    #[test]
    fn inputs_that_are_too_large_together_have_no_layout() {
        let extent = |tensor| Extent { tensor, bytes: 5 << 20, phase: 0, output: None };
        let count = |extents: &[Extent], on_card| {
            lay_out(extents, 100, PAGE, formula::largest_varied(on_card, CacheState::Auto)).count
        };
        assert_eq!(count(&[extent(0)], false), 1);
        assert_eq!(count(&[extent(0), extent(1)], false), 0);
        assert_eq!(count(&[extent(0), extent(1)], true), 1);
    }
}
