//! Records which parts of the outputs change from call to call, and decides whether enough of them do. This file does
//! no I/O.

/// The share of a part's elements that must have changed by more than the tolerance, as its reciprocal. The share is
/// not higher, because a ReLU may leave half of the elements at 0.
const MOVED_ONE_IN: u64 = 8;
/// The share of all computed elements that may be the same after every call, as its reciprocal. Only parts of arguments
/// that a call changes in place may stay the same. An example is an optimiser's counter of steps.
const STILL_ONE_IN: u64 = 64;
/// A part of an output.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// True if the part has changed from one call to the next.
    pub(super) changed: bool,
    /// False if the output is an argument that the call changes.
    pub(super) is_returned: bool,
    /// The number of the part's elements, or 0 if the recorded call did not change them.
    pub(super) computed: u64,
}

/// All parts of the outputs, in the order of the outputs, with the information whether each of them has changed.
pub(super) struct Changed(pub(super) Vec<Part>);

impl Changed {
    /// Adds the comparison of two calls. For each part, `parts` contains the number of elements that changed, and the
    /// number of elements that were checked.
    pub(super) fn add(&mut self, parts: impl Iterator<Item = (u64, u64)>) {
        for (part, (changed, elements)) in self.0.iter_mut().zip(parts) {
            part.changed |= (elements / MOVED_ONE_IN).max(1) <= changed;
        }
    }

    pub(super) fn is_everywhere(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|part| part.changed)
    }

    /// Returns true if some part changed, and if the parts that never changed meet two conditions: they lie in
    /// arguments that the call changes in place, and together they are a small share of what a call computes.
    pub(super) fn is_almost_everywhere(&self) -> bool {
        let computed = |parts: &dyn Fn(&&Part) -> bool| -> u64 {
            self.0.iter().filter(parts).map(|part| part.computed).sum()
        };
        let still = computed(&|part| !part.changed);
        self.0.iter().any(|part| part.changed)
            && self.0.iter().all(|part| part.changed || !part.is_returned)
            && still * STILL_ONE_IN <= computed(&|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(computed: &[u64]) -> Changed {
        let part = |&computed| Part { changed: false, is_returned: false, computed };
        Changed(computed.iter().map(part).collect())
    }

    #[test]
    fn every_part_must_change_in_some_call() {
        let mut changed = parts(&[16, 4]);
        assert!(!changed.is_everywhere(), "nothing was compared");
        // In the first part, 2 of 16 elements must change, and in the second 1 of 4.
        changed.add([(2, 16), (0, 4)].into_iter());
        assert!(!changed.is_everywhere() && !changed.is_almost_everywhere());
        changed.add([(1, 16), (0, 4)].into_iter());
        assert!(!changed.is_everywhere());
        changed.add([(0, 16), (1, 4)].into_iter());
        assert!(changed.is_everywhere() && changed.is_almost_everywhere());
        let mut changed = parts(&[16]);
        changed.add([(1, 16)].into_iter());
        assert!(!changed.is_everywhere());
        assert!(!parts(&[]).is_everywhere() && !parts(&[]).is_almost_everywhere());
    }

    #[test]
    fn parts_that_never_change_may_be_small_or_left_as_they_were() {
        for (computed, suffices) in
            [(&[63, 1][..], true), (&[62, 1], false), (&[1, 63], false), (&[16, 0], true), (&[0, 0], true)]
        {
            let mut changed = parts(computed);
            changed.add([(16, 16), (0, 16)].into_iter());
            assert_eq!(changed.is_almost_everywhere(), suffices, "{computed:?}");
        }
        let mut returned = parts(&[63, 1]);
        returned.0[1].is_returned = true;
        returned.add([(16, 16), (0, 16)].into_iter());
        assert!(!returned.is_almost_everywhere(), "a returned part never changes");
        let mut still = parts(&[0, 0]);
        still.add([(0, 16), (0, 16)].into_iter());
        assert!(!still.is_almost_everywhere(), "nothing changes");
    }
}
