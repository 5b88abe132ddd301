//! Draws the elements of an input from its sorted captured values. Successive elements form runs, and each run favours
//! certain values, such as large ones, to its own degree. This file does no I/O.

use opt_shared::units::to_index;
use rand::Rng;
use rand::rngs::SmallRng;

use super::fresh::between;

/// The length of the shortest runs, in elements.
const MIN_RUN: u64 = 64;

/// The current run: successive elements that favour the same values to the same degree.
#[derive(Clone)]
pub(super) struct Run {
    /// The number of the run's elements that have not been drawn yet.
    pub(super) left: usize,
    pub(super) favours: Favours,
    /// The degrees for the whole variant, near which the degrees of its runs are drawn.
    pub(super) of_variant: Favours,
}

/// The degrees to which a run favours certain values: probabilities, in 128ths, with which an element takes a certain
/// one of two random values. Half of the elements take the larger value with the probability `larger`. The other half
/// take the value farther from the median with the probability `distant`. Without the second half, the norm of
/// symmetric values would hardly change.
#[derive(Clone, Copy)]
pub(super) struct Favours {
    larger: u64,
    distant: u64,
}

impl Favours {
    /// Draws the degrees for a whole variant.
    pub(super) fn of_variant(random: &mut SmallRng) -> Self {
        Self { larger: random.random_range(32..=96), distant: random.random_range(32..=96) }
    }

    /// Draws the degrees of one run, near the degrees for the variant.
    fn near(self, random: &mut SmallRng) -> Self {
        let mut near = |degree| random.random_range(degree - 32..=degree + 32);
        Self { larger: near(self.larger), distant: near(self.distant) }
    }
}

impl Run {
    /// Begins a run in an input of `elements` elements. The length of the run is uniform on a logarithmic scale, up to
    /// half of the input, so that rows of any length differ from each other.
    fn begin(&mut self, elements: u64, random: &mut SmallRng) {
        let doublings = (elements / MIN_RUN / 4).max(1).ilog2();
        let shortest = MIN_RUN << random.random_range(0..=doublings);
        self.left = to_index(random.random_range(shortest..=2 * shortest));
        self.favours = self.of_variant.near(random);
    }
}

/// Fills `piece`, which are the next bytes of an input of `elements` elements, with drawn elements, beginning new runs
/// where necessary.
pub(super) fn draw_runs<const WIDTH: usize>(
    values: &[u8],
    piece: &mut [u8],
    run: &mut Run,
    elements: u64,
    fresh: bool,
    random: &mut SmallRng,
) {
    let mut rest = piece;
    while !rest.is_empty() {
        if run.left == 0 {
            run.begin(elements, random);
        }
        let length = run.left.min(rest.len() / WIDTH).max(1);
        let (now, later) = rest.split_at_mut((length * WIDTH).min(rest.len()));
        draw::<WIDTH>(values, now, run.favours, fresh, random);
        run.left = run.left.saturating_sub(length);
        rest = later;
    }
}

/// Fills `piece` with elements drawn from sorted values. For each element, draws two of the values at random, and takes
/// one of them. If `fresh`, the element lies between the taken value and the next larger one.
fn draw<const WIDTH: usize>(
    values: &[u8],
    piece: &mut [u8],
    favours: Favours,
    fresh: bool,
    random: &mut SmallRng,
) {
    let (values, _) = values.as_chunks::<WIDTH>();
    let count = values.len() as u64;
    // Of the 64 random bits, 28 each select the two values (of at most a million), and the other eight decide between
    // the two.
    let place = |bits: u64| to_index(((bits & 0x0fff_ffff) * count) >> 28);
    for element in piece.as_chunks_mut::<WIDTH>().0 {
        let bits: u64 = random.random();
        let (one, other) = (place(bits), place(bits >> 28));
        let (by_distance, chance) = ((bits >> 56) & 1 == 1, bits >> 57);
        let (is_other, degree) = if by_distance {
            (one.abs_diff(values.len() / 2) < other.abs_diff(values.len() / 2), favours.distant)
        } else {
            (one < other, favours.larger)
        };
        let at = if is_other == (chance < degree) { other } else { one };
        *element = match values.get(at + 1) {
            Some(&high) if fresh => between(values[at], high, random.random()),
            _ => values[at],
        };
    }
}
