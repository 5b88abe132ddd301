//! New values for one input: what they are drawn from, and why some inputs keep theirs.
//!
//! Floats are drawn anew, element by element, from values that were captured, so that their range stays what a kernel was recorded
//! with; each variant leans to larger or smaller ones by an amount of its own, or means and norms would hardly move. Integers are put
//! into another order: indices stay in range, and unique ones unique. So are floats where an output may say where one of them is.
//! Both leave nothing of one call's results for the next.

use std::io;

use opt_shared::arguments::OutputTensor;
use opt_shared::capture::{CaptureError, DType, Kind, Tensor};
use opt_shared::formula::VALUES;
use opt_shared::units::to_index;
use rand::Rng;
use rand::rngs::SmallRng;

use super::fresh::{between, is_fresh};
use super::structure::{self, Structure};
use crate::judge::element;
use crate::recorded::Recorded;

/// New values are written in pieces of this size.
const PIECE: usize = 64 << 10;

/// How one input gets its values.
#[derive(Debug)]
pub(super) enum Source {
    /// Each element is one of these, which are sorted, or between it and the next.
    Drawn { values: Vec<u8>, width: usize, bytes: u64, fresh: bool },
    /// The captured elements in another order; where they are `fresh` they are sorted, and each is between itself and the next.
    Shuffled { captured: Vec<u8>, order: Vec<u8>, width: usize, fresh: bool },
}

/// Why an input keeps its captured values, in a few words.
pub(super) type Kept = &'static str;

impl Source {
    /// Reads the captured values. `room`: what may be kept of them.
    pub(super) fn of(
        recorded: &Recorded,
        tensor: &Tensor,
        room: u64,
    ) -> Result<Result<Self, Kept>, CaptureError> {
        let range = tensor.byte_range();
        let bytes = range.end - range.start;
        let shuffled = tensor.dtype.kind() == Kind::Integer || gives_places(&recorded.leaves);
        if shuffled && room / 2 < bytes {
            return Ok(Err("too many values to be put into another order for each call"));
        }
        let mut captured = vec![0; to_index(bytes)];
        recorded.capture.read_range(tensor.storage, range.start, &mut captured)?;
        let width = tensor.dtype.element_len();
        Ok(match structure::of(tensor, &captured) {
            Some(kept) => Err(kept_because(kept)),
            None if shuffled => {
                let fresh = is_fresh(tensor.dtype, &captured);
                if fresh {
                    captured = sorted_sample(tensor.dtype, &captured, bytes);
                }
                Ok(Self::Shuffled { order: captured.clone(), captured, width, fresh })
            }
            None => {
                let fresh = is_fresh(tensor.dtype, &captured);
                Ok(Self::Drawn { values: sorted_sample(tensor.dtype, &captured, room), width, bytes, fresh })
            }
        })
    }

    /// Writes one variant, from its first byte on.
    pub(super) fn write(
        &mut self,
        random: &mut SmallRng,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Shuffled { captured, order, width, fresh } => {
                order.copy_from_slice(captured);
                if *fresh {
                    let next = captured.chunks_exact(*width).skip(1);
                    for (element, high) in order.chunks_exact_mut(*width).zip(next) {
                        let value = between(element, high, random.random());
                        element.copy_from_slice(&value[..*width]);
                    }
                }
                shuffle(order, *width, random);
                write(0, order)
            }
            Self::Drawn { values, width, bytes, fresh } => {
                let larger: u8 = random.random_range(25..=230);
                let mut piece = Vec::with_capacity(PIECE);
                let mut at = 0;
                while at < *bytes {
                    let length = to_index((*bytes - at).min(PIECE as u64));
                    piece.clear();
                    while piece.len() < length {
                        let at = drawn(values, *width, larger, random);
                        let low = &values[at..at + *width];
                        match values.get(at + *width..at + 2 * *width) {
                            Some(high) if *fresh => {
                                piece.extend_from_slice(&between(low, high, random.random())[..*width]);
                            }
                            _ => piece.extend_from_slice(low),
                        }
                    }
                    write(at, &piece[..length])?;
                    at += length as u64;
                }
                Ok(())
            }
        }
    }
}

/// Whether an output may say where something is, as those of `argmax` and `topk` do. Values that are drawn come more than once, and
/// of two that are alike any place is right: such inputs are put into another order.
fn gives_places(outputs: &[OutputTensor]) -> bool {
    outputs.iter().any(|leaf| leaf.tensor.dtype.kind() == Kind::Integer)
}

/// Where the larger of two values starts, with a chance of `larger` in 256; else the smaller.
fn drawn(values: &[u8], width: usize, larger: u8, random: &mut SmallRng) -> usize {
    let count = (values.len() / width) as u64;
    let bits: u64 = random.random();
    // 28 bits each place one of at most a million values; the other eight choose between the two.
    let place = |bits: u64| to_index(((bits & 0x0fff_ffff) * count) >> 28);
    let (one, other) = (place(bits), place(bits >> 28));
    let at = if (bits >> 56) < u64::from(larger) { one.max(other) } else { one.min(other) };
    at * width
}

fn shuffle(elements: &mut [u8], width: usize, random: &mut SmallRng) {
    let count = elements.len() / width;
    for last in (1..count).rev() {
        let other = random.random_range(0..=last);
        if other != last {
            let (head, tail) = elements.split_at_mut(last * width);
            head[other * width..][..width].swap_with_slice(&mut tail[..width]);
        }
    }
}

/// Captured elements evenly over the input, in the order of their values.
fn sorted_sample(dtype: DType, captured: &[u8], room: u64) -> Vec<u8> {
    let width = dtype.element_len();
    let count = captured.len() / width;
    let most = (to_index(room) / width).max(1);
    let step = count.div_ceil(most).max(1);
    let mut elements: Vec<&[u8]> = captured.chunks_exact(width).step_by(step).collect();
    elements.sort_by(|one, other| element::value(dtype, one).total_cmp(&element::value(dtype, other)));
    elements.concat()
}

/// Room for the values of each of `inputs` inputs.
pub(super) fn room(inputs: usize) -> u64 {
    VALUES.get() / (inputs.max(1) as u64)
}

fn kept_because(structure: Structure) -> Kept {
    match structure {
        Structure::Constant => "all of its elements are the same",
        Structure::Mask => "it holds negative infinities, as masks do",
        Structure::Sorted => "it is sorted, as offsets are",
        Structure::Probabilities => "its rows sum to 1",
        Structure::UnitRows => "its rows have the norm 1",
        Structure::Symmetric => "it is symmetric",
        Structure::Triangular => "it is triangular",
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]])).collect()
    }

    fn written(source: &mut Source, seed: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        let write = |at: u64, piece: &[u8]| {
            found[to_index(at)..][..piece.len()].copy_from_slice(piece);
            Ok(())
        };
        source.write(&mut SmallRng::seed_from_u64(seed), write).expect("written");
        found
    }

    #[test]
    fn floats_are_drawn_from_what_was_captured_and_move_their_mean() {
        let captured: Vec<u8> = (0..50_000u16).flat_map(|at| f32::from(at % 1000).to_le_bytes()).collect();
        let values = sorted_sample(DType::Float32, &captured, 8 << 10);
        assert!((4 << 10..=8 << 10).contains(&values.len()), "{}", values.len());
        assert!(floats(&values).is_sorted());
        let mut source = Source::Drawn { values, width: 4, bytes: captured.len() as u64, fresh: false };
        let variants: Vec<Vec<f32>> =
            (0..8).map(|seed| floats(&written(&mut source, seed, captured.len()))).collect();
        let mean = |values: &[f32]| values.iter().sum::<f32>() / 50_000.0;
        let means: Vec<f32> = variants.iter().map(|values| mean(values)).collect();
        for (number, values) in variants.iter().enumerate() {
            assert!(values.iter().all(|value| (0.0..1000.0).contains(value)));
            let same = values.iter().zip(floats(&captured)).filter(|(one, other)| **one == *other).count();
            assert!(same < 500, "{same} elements stay where they are");
            for (other, mean) in means.iter().enumerate().filter(|(other, _)| *other != number) {
                assert!(0.5 < (mean - means[number]).abs(), "variants {number} and {other} have one mean");
            }
        }
    }

    #[test]
    fn outputs_of_an_integer_type_may_say_where_something_is() {
        let output = |dtype| {
            let tensor = Tensor {
                object: 0,
                dtype,
                shape: vec![4],
                stride: vec![1],
                storage_offset: 0,
                storage: opt_shared::ids::StorageId(0),
                requires_grad: false,
                parameter: false,
                conjugate: false,
                negative: false,
            };
            OutputTensor { path: "output".into(), tensor: std::sync::Arc::new(tensor) }
        };
        assert!(gives_places(&[output(DType::Float32), output(DType::Int64)]));
        assert!(!gives_places(&[output(DType::Float32), output(DType::Bool)]));
    }

    #[test]
    fn fresh_floats_were_never_captured_and_stay_distinct() {
        let captured: Vec<u8> = (1..=1000u16).flat_map(|at| (f32::from(at) / 7.0).to_le_bytes()).collect();
        let known: std::collections::BTreeSet<u32> =
            floats(&captured).iter().map(|it| it.to_bits()).collect();
        let new = |bytes: &[u8]| floats(bytes).iter().filter(|it| !known.contains(&it.to_bits())).count();
        let mut drawn = Source::Drawn { values: captured.clone(), width: 4, bytes: 4000, fresh: true };
        assert!(950 < new(&written(&mut drawn, 1, 4000)));
        let mut shuffled =
            Source::Shuffled { captured: captured.clone(), order: captured.clone(), width: 4, fresh: true };
        let one = written(&mut shuffled, 1, 4000);
        assert!(950 < new(&one));
        let distinct: std::collections::BTreeSet<u32> = floats(&one).iter().map(|it| it.to_bits()).collect();
        assert_eq!(distinct.len(), 1000, "no two became alike");
    }

    #[test]
    fn integers_are_put_into_another_order_and_stay_what_they_are() {
        let captured: Vec<u8> = (0..1000i64).flat_map(i64::to_le_bytes).collect();
        let mut source =
            Source::Shuffled { captured: captured.clone(), order: captured.clone(), width: 8, fresh: false };
        let (one, other) = (written(&mut source, 1, 8000), written(&mut source, 2, 8000));
        let sorted = |bytes: &[u8]| {
            let mut all: Vec<i64> =
                bytes.chunks_exact(8).map(|it| i64::from_le_bytes(it.try_into().expect("eight"))).collect();
            all.sort_unstable();
            all
        };
        assert_ne!(one, other);
        assert_ne!(one, captured);
        assert_eq!(written(&mut source, 1, 8000), one, "the same numbers, the same order");
        assert_eq!(sorted(&one), (0..1000).collect::<Vec<i64>>());
        assert_eq!(sorted(&other), sorted(&one));
    }
}
