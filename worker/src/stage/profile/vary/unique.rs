//! Shuffles integers in such a way that distinct values stay distinct, and also distinct tuples of several index
//! tensors. This file does no I/O.
//!
//! For example, the indices of a scatter must be distinct along one axis. If two of them were equal, the result would
//! depend on the order in which a kernel writes, and a correct kernel would be refused. Which axis this is depends on
//! the function, so values that are distinct along an axis stay distinct along it, for every such axis. Some functions
//! take a tuple of index tensors, such as the rows and columns of `index_put`. If only the tuples are distinct, the
//! values are not shuffled. Instead, each value is replaced by another one wherever it occurs.

use rand::Rng;
use rand::rngs::SmallRng;

/// The minimum number of values to shuffle. Fewer values have so few orders (seven have 5,040) that a kernel could know
/// the results for all of them.
pub(super) const MIN_SHUFFLED: usize = 8;

/// The property that a new order of the elements must preserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Any order is allowed, because all values are distinct, or because there is no axis along which every line has
    /// distinct values.
    Nothing,
    /// Every line along this axis, but along no other axis, has distinct values.
    Line { shape: Vec<usize>, axis: usize },
    /// Every line along each of several axes has distinct values.
    Axes { shape: Vec<usize> },
    /// The elements are not distinct, but the tuples that they form with the elements of other tensors are. `values`
    /// are all distinct values, in ascending order of their bytes.
    Tuples { values: Vec<u8> },
}

impl Kept {
    /// Returns what a new order of `bytes` must preserve. `bytes` are the elements of a tensor of this shape, in
    /// row-major order. This takes as much memory as `bytes` does.
    pub(super) fn of<const WIDTH: usize>(shape: &[usize], bytes: &[u8]) -> Self {
        let elements = bytes.as_chunks::<WIDTH>().0;
        let long = shape.iter().filter(|&&length| 1 < length).count();
        if long < 2 || are_distinct(elements.iter().copied()) {
            return Self::Nothing;
        }
        let shape = shape.to_vec();
        let mut found = unique_axes(&shape, elements);
        let (first, second) = (found.next(), found.next());
        drop(found);
        match (first, second) {
            (None, _) => Self::Nothing,
            (Some(axis), None) => Self::Line { axis, shape },
            (Some(_), Some(_)) => Self::Axes { shape },
        }
    }

    /// Returns what a new order of `bytes` must preserve if only the tuples that its elements form with the elements of
    /// `others` are distinct. Returns `None` if the tuples are not distinct, or if the elements alone are. This takes
    /// as much memory as `bytes` and `others` together.
    pub(super) fn tuples<const WIDTH: usize>(bytes: &[u8], others: &[Vec<u8>]) -> Option<Self> {
        let elements = bytes.as_chunks::<WIDTH>().0;
        let width_of = |other: &Vec<u8>| other.len() / elements.len();
        let tuple = |at: usize| {
            let rest = others.iter().map(move |it| &it[at * width_of(it)..][..width_of(it)]);
            std::iter::once(&elements[at][..]).chain(rest)
        };
        let mut order: Vec<u32> = (0..u32::try_from(elements.len()).ok()?).collect();
        order.sort_unstable_by(|&one, &other| tuple(one as usize).cmp(tuple(other as usize)));
        let repeats = |pair: &[u32]| tuple(pair[0] as usize).eq(tuple(pair[1] as usize));
        if others.is_empty() || order.windows(2).any(repeats) {
            return None;
        }
        let mut values: Vec<[u8; WIDTH]> = order.into_iter().map(|at| elements[at as usize]).collect();
        values.dedup();
        (values.len() < elements.len()).then(|| Self::Tuples { values: values.into_flattened() })
    }

    /// Returns true if there are so few orders that a kernel could know the results for all of them. `width` is the
    /// size of an element.
    pub(super) fn has_few_orders(&self, width: usize) -> bool {
        let bits = match self {
            Self::Nothing => return false,
            Self::Line { shape, axis } => {
                let Lines { length, inner, outer } = Lines::along(shape, *axis);
                // The lines are shuffled, and also the values within each line.
                bits_of_orders(outer * inner)
                    + (0..outer * inner).map(|_| bits_of_orders(length)).sum::<f64>()
            }
            Self::Axes { shape } => shape.iter().copied().map(bits_of_orders).sum(),
            Self::Tuples { values } => bits_of_orders(values.len() / width),
        };
        bits < bits_of_orders(MIN_SHUFFLED)
    }

    /// Puts elements, which must have the captured order, into another order.
    pub(super) fn reorder<const WIDTH: usize>(&self, elements: &mut [[u8; WIDTH]], random: &mut SmallRng) {
        match self {
            Self::Nothing => shuffle(elements.len(), random, |one, other| elements.swap(one, other)),
            // Whole lines are swapped, and then the values within each line.
            Self::Line { shape, axis } => {
                let Lines { length, inner, outer } = Lines::along(shape, *axis);
                let at = |line: usize, at: usize| line / inner * length * inner + line % inner + at * inner;
                shuffle(outer * inner, random, |one, other| {
                    (0..length).for_each(|number| elements.swap(at(one, number), at(other, number)));
                });
                for line in 0..outer * inner {
                    shuffle(length, random, |one, other| elements.swap(at(line, one), at(line, other)));
                }
            }
            Self::Tuples { values } => {
                let values = values.as_chunks::<WIDTH>().0;
                let mut others = values.to_vec();
                shuffle(others.len(), random, |one, other| others.swap(one, other));
                for element in elements {
                    if let Ok(at) = values.binary_search(element) {
                        *element = others[at];
                    }
                }
            }
            // All elements at one position of an axis are swapped with all elements at another position.
            Self::Axes { shape } => {
                for axis in 0..shape.len() {
                    let Lines { length, inner, outer } = Lines::along(shape, axis);
                    shuffle(length, random, |one, other| {
                        for block in 0..outer {
                            let start = block * length * inner;
                            (0..inner).for_each(|number| {
                                elements.swap(start + one * inner + number, start + other * inner + number);
                            });
                        }
                    });
                }
            }
        }
    }
}

/// The lines along an axis of a contiguous tensor. Each line has `length` elements, which are `inner` elements apart.
/// There are `inner` lines side by side in each of `outer` blocks.
struct Lines {
    length: usize,
    inner: usize,
    outer: usize,
}

impl Lines {
    fn along(shape: &[usize], axis: usize) -> Self {
        Self {
            length: shape[axis],
            inner: shape[axis + 1..].iter().product(),
            outer: shape[..axis].iter().product(),
        }
    }
}

/// Returns the axes of more than one element along which every line has distinct values.
fn unique_axes<const WIDTH: usize>(shape: &[usize], elements: &[[u8; WIDTH]]) -> impl Iterator<Item = usize> {
    (0..shape.len()).filter(|&axis| 1 < shape[axis]).filter(move |&axis| {
        let Lines { length, inner, outer } = Lines::along(shape, axis);
        (0..outer * inner).all(|line| {
            let start = line / inner * length * inner + line % inner;
            are_distinct((0..length).map(|at| elements[start + at * inner]))
        })
    })
}

/// Returns the binary logarithm of the number of orders that `count` things can have.
#[expect(clippy::cast_precision_loss, reason = "numbers of elements of a small tensor")]
fn bits_of_orders(count: usize) -> f64 {
    (2..=count).map(|number| (number as f64).log2()).sum()
}

/// Shuffles `count` things by the algorithm of Fisher and Yates. `swap` exchanges two of them.
fn shuffle(count: usize, random: &mut SmallRng, mut swap: impl FnMut(usize, usize)) {
    for last in (1..count).rev() {
        swap(random.random_range(0..=last), last);
    }
}

fn are_distinct<const WIDTH: usize>(elements: impl Iterator<Item = [u8; WIDTH]>) -> bool {
    let mut sorted: Vec<[u8; WIDTH]> = elements.collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn uniqueness_is_found_along_the_axes_that_have_it() {
        let line = |shape: &[usize], axis| Kept::Line { shape: shape.to_vec(), axis };
        for (shape, values, kept) in [
            (&[6][..], &[0, 1, 2, 3, 4, 5][..], Kept::Nothing),
            (&[2, 3], &[0, 1, 2, 3, 4, 5], Kept::Nothing),
            (&[2, 3], &[0, 1, 2, 0, 1, 2], line(&[2, 3], 1)),
            (&[2, 3], &[0, 0, 0, 1, 1, 1], line(&[2, 3], 0)),
            (&[2, 3], &[0, 1, 2, 1, 2, 0], Kept::Axes { shape: vec![2, 3] }),
            (&[2, 3], &[0, 0, 1, 1, 1, 0], line(&[2, 3], 0)),
            (&[2, 3], &[0, 0, 1, 0, 1, 1], Kept::Nothing),
            (&[1, 4], &[0, 1, 1, 0], Kept::Nothing),
            // Axes of one element are ignored.
            (&[1, 2, 3], &[0, 1, 2, 0, 1, 2], line(&[1, 2, 3], 2)),
            (&[2, 1, 3], &[0, 1, 2, 0, 1, 2], line(&[2, 1, 3], 2)),
            // Distinct values are found only in the first row, only in the first column, or only in the lines of the
            // first block.
            (&[2, 3], &[0, 1, 2, 1, 1, 2], Kept::Nothing),
            (&[2, 3], &[0, 5, 5, 1, 5, 5], Kept::Nothing),
            (&[2, 2, 2], &[0, 0, 1, 1, 0, 0, 0, 0], Kept::Nothing),
            (&[2, 2, 2], &[0, 0, 1, 1, 2, 2, 2, 2], line(&[2, 2, 2], 0)),
            (&[2, 2, 2], &[0, 0, 1, 1, 0, 0, 1, 1], line(&[2, 2, 2], 1)),
            (&[2, 2, 2], &[0, 1, 2, 3, 0, 1, 2, 3], Kept::Axes { shape: vec![2, 2, 2] }),
        ] {
            assert_eq!(Kept::of::<1>(shape, values), kept, "{shape:?} {values:?}");
        }
    }

    #[test]
    fn orders_differ_and_few_of_them_are_not_enough() {
        let kept = Kept::of::<1>(&[2, 3], &[0, 1, 2, 0, 1, 2]);
        let orders: std::collections::BTreeSet<Vec<u8>> = (0..200)
            .map(|seed| {
                let mut values = vec![0, 1, 2, 0, 1, 2];
                kept.reorder(values.as_chunks_mut::<1>().0, &mut SmallRng::seed_from_u64(seed));
                values
            })
            .collect();
        assert_eq!(orders.len(), 36, "each of the two rows has six orders");
        for (shape, few_of_axes, few_of_lines) in
            [(vec![2, 4], true, true), (vec![4, 4], true, false), (vec![5, 7], false, false)]
        {
            assert_eq!(Kept::Axes { shape: shape.clone() }.has_few_orders(8), few_of_axes, "{shape:?}");
            assert_eq!(
                Kept::Line { shape: shape.clone(), axis: 1 }.has_few_orders(8),
                few_of_lines,
                "{shape:?}"
            );
        }
        // Eight values have 40,320 orders. Two columns of five values have 28,800, because each column has 120 and the
        // columns can be swapped.
        for (shape, axis, few) in
            [([4, 2], 1, true), ([5, 2], 0, true), ([3, 4], 1, false), ([4, 3], 0, false), ([2, 5], 1, true)]
        {
            let found = Kept::Line { shape: shape.to_vec(), axis }.has_few_orders(8);
            assert_eq!(found, few, "{shape:?} along {axis}");
        }
        assert!(!Kept::Nothing.has_few_orders(8));
        for (bytes, few) in [(56, true), (64, false)] {
            assert_eq!(Kept::Tuples { values: vec![0; bytes] }.has_few_orders(8), few, "{bytes}");
        }
    }

    /// Returns a thousand orders. For each place, an order contains the earlier place of the element that is there now.
    fn orders(kept: &Kept, elements: u8) -> Vec<Vec<u8>> {
        (0..1000)
            .map(|seed| {
                let mut places: Vec<u8> = (0..elements).collect();
                kept.reorder(places.as_chunks_mut::<1>().0, &mut SmallRng::seed_from_u64(seed));
                places
            })
            .collect()
    }

    #[test]
    fn elements_reach_every_place_and_keep_their_lines() {
        for (shape, axis) in [
            (&[2, 3][..], 1),
            (&[3, 2], 0),
            (&[2, 3, 2], 0),
            (&[2, 3, 2], 1),
            (&[2, 3, 2], 2),
            (&[3, 2, 2], 1),
        ] {
            let count: usize = shape.iter().product();
            let inner: usize = shape[axis + 1..].iter().product();
            let position =
                |place: usize, axis: usize| place / shape[axis + 1..].iter().product::<usize>() % shape[axis];
            let line = |place: usize| (place / inner / shape[axis], place % inner);
            let shape = shape.to_vec();
            for kept in [Kept::Line { shape: shape.clone(), axis }, Kept::Axes { shape: shape.clone() }] {
                let mut reached = std::collections::BTreeSet::new();
                for order in orders(&kept, u8::try_from(count).expect("small")) {
                    let from: Vec<usize> = order.into_iter().map(usize::from).collect();
                    reached.extend(from.iter().copied().enumerate());
                    for (one, other) in (0..count).flat_map(|one| (0..one).map(move |other| (one, other))) {
                        let (before, after) = ((from[one], from[other]), (one, other));
                        let stays = match kept {
                            Kept::Axes { .. } => (0..shape.len()).all(|axis| {
                                (position(before.0, axis) == position(before.1, axis))
                                    == (position(after.0, axis) == position(after.1, axis))
                            }),
                            _ => (line(before.0) == line(before.1)) == (line(after.0) == line(after.1)),
                        };
                        assert!(stays, "{kept:?}: {from:?}");
                    }
                }
                assert_eq!(reached.len(), count * count, "{kept:?}");
            }
        }
    }

    #[test]
    fn tuples_are_found_only_if_no_tensor_alone_is_distinct() {
        let rows = &[7, 7, 2, 2, 2];
        let found = Kept::Tuples { values: vec![2, 7] };
        for (columns, kept) in [
            (vec![vec![0, 1, 0, 1, 2]], Some(found.clone())),
            // These are 16-bit integers.
            (vec![vec![0, 0, 1, 0, 0, 0, 1, 0, 0, 1]], Some(found.clone())),
            (vec![vec![0, 1, 0, 1, 1]], None),
            (vec![vec![0, 1, 0, 1, 1], vec![0, 0, 0, 0, 1]], Some(found)),
            (vec![], None),
        ] {
            assert_eq!(Kept::tuples::<1>(rows, &columns), kept, "{columns:?}");
        }
        assert_eq!(Kept::tuples::<1>(&[3, 1, 2], &[vec![0, 0, 0]]), None, "distinct without the others");
    }

    #[test]
    fn distinct_tuples_stay_distinct_and_their_set_changes() {
        let pairs: Vec<(u8, u8)> =
            (0..12).flat_map(|row| (row..row + 3).map(move |column| (row, column))).collect();
        let (rows, columns): (Vec<u8>, Vec<u8>) = pairs.iter().copied().unzip();
        let keep =
            |values: &[u8], others: &[u8]| Kept::tuples::<1>(values, &[others.to_vec()]).expect("tuples");
        let kept = [keep(&rows, &columns), keep(&columns, &rows)];
        let mut sets = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let random = &mut SmallRng::seed_from_u64(seed);
            let mut now = [rows.clone(), columns.clone()];
            for (kept, values) in kept.iter().zip(&mut now) {
                kept.reorder(values.as_chunks_mut::<1>().0, random);
            }
            let set: std::collections::BTreeSet<(u8, u8)> =
                now[0].iter().copied().zip(now[1].iter().copied()).collect();
            assert_eq!(set.len(), pairs.len(), "seed {seed}");
            sets.insert(set);
        }
        assert_eq!(sets.len(), 20);
    }

    proptest! {
        #[test]
        fn new_order_has_the_same_values_and_keeps_them_distinct_along_the_same_axes(
            shape in prop::collection::vec(1usize..5, 1..4), modulus in 1u8..9, seed in any::<u64>(),
        ) {
            let count = shape.iter().product::<usize>();
            let values: Vec<u8> =
                (0..count).map(|at| u8::try_from(at * 3 % usize::from(modulus)).expect("small")).collect();
            let kept = Kept::of::<1>(&shape, &values);
            let mut now = values.clone();
            kept.reorder(now.as_chunks_mut::<1>().0, &mut SmallRng::seed_from_u64(seed));
            let sorted = |values: &[u8]| {
                let mut sorted = values.to_vec();
                sorted.sort_unstable();
                sorted
            };
            prop_assert_eq!(sorted(&now), sorted(&values));
            let unique = |values: &[u8]| -> Vec<usize> {
                unique_axes(&shape, values.as_chunks::<1>().0).collect()
            };
            if kept != Kept::Nothing {
                let after = unique(&now);
                prop_assert!(unique(&values).iter().all(|axis| after.contains(axis)), "{:?} became {:?}", values, now);
            }
        }
    }
}
