//! Generates new values of an input, or finds the reason why the input keeps its captured values.
//!
//! Floats and complex numbers are drawn element by element from captured values, so they stay in the captured range.
//! Each variant, and each run of elements in a variant, favours large, small, extreme or average values to its own
//! degree. Otherwise, means and norms would hardly differ between calls, or between the rows of one call. Integers are
//! shuffled, so that indices stay in range and unique values stay unique (`unique`). If an output may contain
//! positions, floats get distinct values in a random order. In all cases, the results of one call are wrong for the
//! next.

use std::io;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use opt_shared::arguments::OutputTensor;
use opt_shared::capture::{CaptureError, DType, Kind, Tensor};
use opt_shared::formula::VALUES;
use opt_shared::units::to_index;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::PIECE;
use super::fresh::{between, is_fresh, key_of, spread};
use super::parallel::{TOO_MANY, is_index, parallel_indices};
use super::places::Places;
use super::runs::{Favours, Run, draw_runs};
use super::structure::{self, Structure};
use super::unique::{Kept, MIN_SHUFFLED};
use super::zeros::Zeros;
use crate::judge::element;
use crate::recorded::Recorded;
use crate::session::WIDEST_ELEMENT;

const TOO_FEW: &str = "too few values for a new order in each call";

/// The size, in bytes, of the largest input that a single thread draws. Larger inputs are drawn by several threads.
/// Only inputs on a card are that large.
const DRAWN_BY_ONE: u64 = 8 << 20;
/// The number of bytes of an input that one thread draws at a time.
const STRIPE: u64 = 1 << 20;
/// The maximum number of threads that draw one input. Their stripes together take less memory than the input.
const MOST_THREADS: usize = 8;

#[derive(Debug)]
pub(super) enum Source {
    /// Each element is drawn from these sorted values or, if `fresh`, from the interval between one of them and the
    /// next. `zeros` are the ranges that stay zero.
    Drawn { values: Vec<u8>, width: usize, bytes: u64, fresh: bool, zeros: Zeros },
    /// The captured elements are put into another order. If `fresh`, `captured` is sorted, and its elements are first
    /// replaced by other values in the captured range.
    Shuffled {
        captured: Vec<u8>,
        order: Vec<u8>,
        width: usize,
        fresh: bool,
        kept: Kept,
        /// If the tensor is a view, the places of its elements, and the bytes of all elements from its first to its
        /// last.
        view: Option<(Places, Vec<u8>)>,
    },
}

/// The reason why an input keeps its captured values, as it appears in messages.
pub(super) type WhyKept = &'static str;

/// Calls a function whose constant parameter is the width of an element, so that elements are copied without a loop.
macro_rules! by_width {
    ($width:expr, $($function:ident)::+($($argument:expr),*)) => {
        match $width {
            1 => $($function)::+::<1>($($argument),*),
            2 => $($function)::+::<2>($($argument),*),
            4 => $($function)::+::<4>($($argument),*),
            8 => $($function)::+::<8>($($argument),*),
            _ => $($function)::+::<WIDEST_ELEMENT>($($argument),*),
        }
    };
}

impl Source {
    /// Reads an input's captured values, and stores at most `room` bytes of them. Returns the source with its part of
    /// the seed. The inner error says why the input keeps its captured values.
    pub(super) fn of(
        recorded: &Recorded,
        tensor: &Tensor,
        room: u64,
    ) -> Result<Result<(Self, u64), WhyKept>, CaptureError> {
        let range = tensor.byte_range();
        let bytes = range.end - range.start;
        let shuffled = tensor.dtype.kind() == Kind::Integer || gives_positions(&recorded.outputs);
        if shuffled && room / 2 < bytes {
            return Ok(Err(TOO_MANY));
        }
        let places = Places::of(tensor);
        let width = tensor.dtype.element_len();
        let is_view = shuffled && places.has_gaps;
        if is_view && room < bytes + 2 * (places.elements() * width) as u64 {
            return Ok(Err(TOO_MANY));
        }
        if shuffled && places.elements() < MIN_SHUFFLED {
            return Ok(Err(TOO_FEW));
        }
        let mut captured = vec![0; to_index(bytes)];
        recorded.capture.read_range(tensor.storage, range.start, &mut captured)?;
        let all = is_view.then(|| captured.clone());
        places.gather(&mut captured, width);
        let key = key_of(tensor.dtype, &captured);
        let source = match structure::of(tensor, &captured) {
            Some(kept) => Err(kept_because(kept)),
            None if shuffled => {
                let fresh = is_fresh(tensor.dtype, &captured);
                let mut kept =
                    if fresh { Kept::Nothing } else { by_width!(width, Kept::of(&places.shape, &captured)) };
                if is_index(tensor.dtype) {
                    match parallel_indices(recorded, tensor, &places, room - bytes)? {
                        Err(why) => return Ok(Err(why)),
                        Ok(indices) => {
                            kept = by_width!(width, Kept::tuples(&captured, &indices)).unwrap_or(kept);
                        }
                    }
                }
                if kept.has_few_orders(width) {
                    return Ok(Err(TOO_FEW));
                }
                if fresh {
                    captured = sorted_sample(tensor.dtype, &captured, bytes);
                }
                let view = all.map(|all| (places, all));
                Ok(Self::Shuffled { order: captured.clone(), captured, width, fresh, kept, view })
            }
            None => {
                let fresh = is_fresh(tensor.dtype, &captured);
                let zeros = zeros_of(tensor, &captured, places.has_gaps);
                zeros.remove_from(&mut captured);
                let values = sorted_sample(tensor.dtype, &captured, room);
                // No values are left if all values are zeros of both signs. `structure` does not recognise this as
                // constant.
                if values.is_empty() {
                    Err(kept_because(Structure::Constant))
                } else {
                    Ok(Self::Drawn { values, width, bytes, fresh, zeros })
                }
            }
        };
        Ok(source.map(|source| (source, key)))
    }

    /// Writes one variant, from its first byte to its last.
    pub(super) fn write(
        &mut self,
        random: &mut SmallRng,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Shuffled { captured, order, width, fresh, kept, view } => {
                by_width!(*width, reorder(captured, order, *fresh, kept, random));
                let Some((places, all)) = view else { return write(0, order) };
                places.scatter(order, all, *width);
                write(0, all)
            }
            Self::Drawn { values, width, bytes, fresh, zeros } => {
                let mut write = |at, piece: &mut [u8]| {
                    zeros.write(at, piece);
                    write(at, piece)
                };
                let elements = (*bytes / *width as u64).max(1);
                let of_variant = Favours::of_variant(random);
                let mut run = Run { left: 0, favours: of_variant, of_variant };
                if DRAWN_BY_ONE < *bytes {
                    let draw = |stripe: &mut [u8], seed| {
                        let random = &mut SmallRng::seed_from_u64(seed);
                        by_width!(
                            *width,
                            draw_runs(values, stripe, &mut run.clone(), elements, *fresh, random)
                        );
                    };
                    return write_stripes(*bytes, random, draw, write);
                }
                let mut buffer = vec![0; to_index((*bytes).min(PIECE))];
                let mut at = 0;
                while at < *bytes {
                    let length = to_index((*bytes - at).min(PIECE));
                    let piece = &mut buffer[..length];
                    by_width!(*width, draw_runs(values, piece, &mut run, elements, *fresh, random));
                    write(at, piece)?;
                    at += length as u64;
                }
                Ok(())
            }
        }
    }
}

/// Returns true if an output may contain positions, as those of `argmax` and `topk` do. In this case all inputs are
/// shuffled. Drawn values would repeat, and the position of any of several equal values would be right.
fn gives_positions(outputs: &[OutputTensor]) -> bool {
    let is_counter = |output: &OutputTensor| !output.arguments.is_empty() && output.tensor.elements() < 2;
    outputs.iter().any(|output| output.tensor.dtype.kind() == Kind::Integer && !is_counter(output))
}

/// Writes an input of `bytes` bytes, stripe by stripe. Several threads draw the stripes. Each stripe has a seed of its
/// own, so the number of threads does not change what is written.
fn write_stripes(
    bytes: u64,
    random: &mut SmallRng,
    draw: impl Fn(&mut [u8], u64) + Sync,
    mut write: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS);
    let mut buffer = vec![0; to_index(STRIPE) * threads];
    let mut at = 0;
    while at < bytes {
        let length = to_index(bytes - at).min(buffer.len());
        let now = &mut buffer[..length];
        let stripes = now.chunks_mut(to_index(STRIPE));
        let work: Mutex<Vec<(&mut [u8], u64)>> =
            Mutex::new(stripes.map(|stripe| (stripe, random.random())).collect());
        let next = || work.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let draw_some = || std::iter::from_fn(next).for_each(|(stripe, seed)| draw(stripe, seed));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // If Linux refuses to create a thread, the other threads draw its stripes.
                let _ = std::thread::Builder::new().spawn_scoped(scope, draw_some);
            }
            draw_some();
        });
        drop(work);
        write(at, now)?;
        at += length as u64;
    }
    Ok(())
}

/// Puts the captured elements into a random order. If `fresh`, `captured` is sorted, and `spread` replaces the elements
/// by new ones first. If `spread` cannot do this, each element except the last is replaced by a value between itself
/// and the next element.
fn reorder<const WIDTH: usize>(
    captured: &[u8],
    order: &mut [u8],
    fresh: bool,
    kept: &Kept,
    random: &mut SmallRng,
) {
    let (captured, order) = (captured.as_chunks::<WIDTH>().0, order.as_chunks_mut::<WIDTH>().0);
    if !(fresh && spread(captured, order, random)) {
        order.copy_from_slice(captured);
        for at in 1..order.len() * usize::from(fresh) {
            order[at - 1] = between(order[at - 1], order[at], random.random());
        }
    }
    kept.reorder(order, random);
}

/// Returns the long runs of zeros among a tensor's floats. For integers, returns none, because zero is an index like
/// any other. `captured` are the elements in the order of memory, without the gaps of a view.
fn zeros_of(tensor: &Tensor, captured: &[u8], has_gaps: bool) -> Zeros {
    if tensor.dtype.kind() == Kind::Integer || has_gaps {
        return Zeros::default();
    }
    let row = tensor.shape.last().filter(|_| tensor.is_contiguous()).map_or(1, |&last| to_index(last));
    Zeros::of(captured, tensor.dtype, row)
}

/// Returns captured elements that are spaced evenly over the input, sorted by value. They take at most `room` bytes.
fn sorted_sample(dtype: DType, captured: &[u8], room: u64) -> Vec<u8> {
    by_width!(dtype.element_len(), sorted_sample_of(dtype, captured, room))
}

/// Does the work of `sorted_sample`. The width is a constant, so that the elements themselves are sorted. Sorting a
/// list of references would take memory for which the memory formula does not allow.
fn sorted_sample_of<const WIDTH: usize>(dtype: DType, captured: &[u8], room: u64) -> Vec<u8> {
    let (captured, _) = captured.as_chunks::<WIDTH>();
    let most = (to_index(room) / WIDTH).max(1);
    let step = captured.len().div_ceil(most).max(1);
    let mut elements: Vec<[u8; WIDTH]> = captured.iter().copied().step_by(step).collect();
    elements
        .sort_unstable_by(|one, other| element::value(dtype, one).total_cmp(&element::value(dtype, other)));
    elements.into_flattened()
}

/// Returns the number of bytes of captured values that are stored for each of `inputs` inputs.
pub(super) fn room(inputs: usize) -> u64 {
    VALUES.get() / (inputs.max(1) as u64)
}

fn kept_because(structure: Structure) -> WhyKept {
    match structure {
        Structure::Constant => "all of its elements are the same",
        Structure::Mask => "it holds negative infinities or lowest values, as masks do",
        Structure::Sorted => "it is sorted, as offsets are",
        Structure::Probabilities => "its rows sum to 1",
        Structure::UnitRows => "its rows have the norm 1",
        Structure::Symmetric => "it is symmetric",
        Structure::Triangular => "it is triangular",
        Structure::Dominant => "its diagonal is larger than the rest of each row",
        Structure::TwoValues => "it has only two values, as masks do",
        Structure::Repeated => "parts of it are equal, as in tables of rotary embeddings",
        Structure::OrderedColumns => "its columns are ordered, as those of boxes",
        Structure::LogProbabilities => "its rows are logarithms of numbers that sum to 1",
    }
}

#[cfg(test)]
mod tests;
