//! Recognises that no number of one list exceeds the number at the same place in another list, and that this is not by
//! chance. This file does no I/O.

/// The minimum number of shifted pairs (see [`Order`]) that must break the order. With fewer, the order could be due to
/// chance.
const LEAST_BROKEN: u32 = 8;

/// Compares two lists of numbers place by place. Each number of the first list is also compared with the second list's
/// number at the next place. If the lists are not related, these shifted pairs break the order as often as the true
/// pairs do.
pub(super) struct Order {
    is_below: bool,
    is_above: bool,
    would_break_below: u32,
    would_break_above: u32,
    last: Option<f64>,
}

impl Order {
    pub(super) fn new() -> Self {
        Self { is_below: true, is_above: true, would_break_below: 0, would_break_above: 0, last: None }
    }

    /// Adds the next number of each list.
    pub(super) fn add(&mut self, one: f64, other: f64) {
        self.is_below &= one <= other;
        self.is_above &= other <= one;
        if let Some(last) = self.last.replace(one) {
            self.would_break_below = self.would_break_below.saturating_add(u32::from(other < last));
            self.would_break_above = self.would_break_above.saturating_add(u32::from(last < other));
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        self.is_below || self.is_above
    }

    /// Returns true if one list nowhere exceeds the other, and enough shifted pairs break this order. Equal lists do
    /// not count as ordered.
    pub(super) fn is_a_relation(&self) -> bool {
        let broken = if self.is_below { self.would_break_below } else { self.would_break_above };
        self.is_below != self.is_above && LEAST_BROKEN <= broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_a_relation(pairs: &[(f64, f64)]) -> bool {
        let mut order = Order::new();
        pairs.iter().for_each(|&(one, other)| order.add(one, other));
        order.is_a_relation()
    }

    #[test]
    fn order_is_a_relation_if_neighbours_would_break_it() {
        // The numbers of both lists go up and down together.
        let number = |at: u32| f64::from(at * 7 % 10);
        let pairs = |count: u32, distance: f64| -> Vec<(f64, f64)> {
            (0..count).map(|at| (number(at), number(at) + distance)).collect()
        };
        for (count, distance, expected) in [
            (40, 0.5, true),
            (40, -0.5, true),
            // There are too few pairs.
            (8, 0.5, false),
            // Every number of one list is below every number of the other.
            (40, 20.0, false),
            (40, -20.0, false),
            // The lists are equal.
            (40, 0.0, false),
        ] {
            assert_eq!(is_a_relation(&pairs(count, distance)), expected, "{count} {distance}");
        }
        let rising: Vec<(f64, f64)> = (0..40).map(|at| (f64::from(at), f64::from(at))).collect();
        assert!(!is_a_relation(&rising), "equal");
        for broken in [(5.0, 4.0), (f64::NAN, 4.0), (4.0, f64::NAN)] {
            assert!(!is_a_relation(&[&pairs(40, 0.5)[..], &[broken]].concat()), "{broken:?}");
        }
    }

    #[test]
    fn eight_shifted_pairs_must_break_the_order_and_equal_numbers_do_not() {
        for (broken, expected) in [(7, false), (8, true)] {
            // A 5 before a 2 breaks the order, and a 2 before a 2 does not.
            let below =
                [[(5.0, 6.0), (1.0, 2.0)].repeat(broken), [(2.0, 3.0), (1.0, 2.0)].repeat(20)].concat();
            let above: Vec<(f64, f64)> = below.iter().map(|&(one, other)| (-one, -other)).collect();
            for pairs in [below, above] {
                assert_eq!(is_a_relation(&pairs), expected, "{pairs:?}");
            }
        }
    }

    #[test]
    fn order_is_possible_until_both_directions_are_broken() {
        let mut order = Order::new();
        for (one, other, possible) in
            [(1.0, 1.0, true), (1.0, 2.0, true), (2.0, 2.0, true), (2.0, 1.0, false)]
        {
            order.add(one, other);
            assert_eq!(order.is_possible(), possible, "{one} {other}");
        }
    }
}
