//! Lists the choices of an entry's inputs that are tried together in a trial. This file does no I/O.

use super::Eligible;

/// Returns the choices in the order in which they are tried: all inputs, only the inputs whose values are drawn, only
/// the inputs whose values are shuffled, and then single inputs, the largest first.
pub(super) fn choices(eligible: &[Eligible]) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..eligible.len()).collect();
    let of = |shuffled| all.iter().copied().filter(|&at| eligible[at].shuffled == shuffled).collect();
    let mut single = all.clone();
    single.sort_by_key(|&at| std::cmp::Reverse(eligible[at].extent.bytes));
    let mut found: Vec<Vec<usize>> = Vec::new();
    let ordered = [all.clone(), of(false), of(true)].into_iter().chain(single.into_iter().map(|at| vec![at]));
    for choice in ordered {
        if !choice.is_empty() && !found.contains(&choice) {
            found.push(choice);
        }
    }
    found
}

/// Returns the choice without the inputs at these positions in the choice.
pub(super) fn without(choice: &[usize], places: &[usize]) -> Vec<usize> {
    choice.iter().enumerate().filter(|(place, _)| !places.contains(place)).map(|(_, &at)| at).collect()
}
