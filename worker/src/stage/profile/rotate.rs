//! Times the entries of a batch in turns (`cache_state = "rotate"`). Before each call, the caches contain data of the
//! other entries' calls, as in a model that runs one layer after another.
//!
//! In each round, one side calls every entry once, and then the other side does the same. If both sides called an entry
//! immediately after each other, the second side would find the first side's data in the caches.

use rand::seq::SliceRandom;

use super::entry::{Timing, idle_rounds, now, warm_up};
use super::pair::{Context, Draws, Made, OpenPair, Pairing};
use super::pairs::Pairs;
use super::samples::most_threads;
use super::vary::Variation;
use super::{Side, handoff};
use crate::session::{SessionError, VariantMemory};

pub(super) struct Rotation<'r, 'b, M> {
    pub(super) contexts: &'r [Context<'r>],
    pub(super) timings: &'r mut [Timing],
    pub(super) variations: &'r mut [Variation],
    pub(super) sides: &'r mut [Side<'b>],
    pub(super) memory: Option<&'r M>,
    pub(super) draws: &'r mut Draws,
}

impl<'b, M: VariantMemory> Rotation<'_, 'b, M> {
    /// Times every entry that has output elements. After the warm-up, makes rounds until each entry has enough pairs.
    pub(super) fn run(&mut self) -> Result<Made<()>, SessionError> {
        let mut entries: Vec<usize> = (0..self.contexts.len())
            .filter(|&index| !self.contexts[index].recorded.has_no_elements())
            .collect();
        // The order of entries is random, but the same in every round, so that no entry is called twice in succession.
        entries.shuffle(&mut self.draws.random);
        let mut turns = match self.warm_up(&entries)? {
            Ok(turns) => turns,
            Err(stop) => return Ok(Err(stop)),
        };
        while turns.iter().any(|(index, pairs)| !pairs.are_enough(&self.timings[*index].samples)) {
            if let Err(stop) = self.round(&mut turns)? {
                return Ok(Err(stop));
            }
        }
        for (index, mut pairs) in turns {
            let started = now(self.sides);
            pairs.end(&self.timings[index].samples);
            if let Err(stop) = idle_rounds(&mut self.pairing(index), &pairs)? {
                return Ok(Err(stop));
            }
            let spent = pairs.spent + (now(self.sides) - started);
            self.timings[index].add(&pairs, self.contexts[index].task.depth, self.sides, spent);
        }
        Ok(Ok(()))
    }

    /// Warms up the entries. Returns each entry with an empty list of pairs.
    fn warm_up(&mut self, entries: &[usize]) -> Result<Made<Vec<(usize, Pairs)>>, SessionError> {
        let (mut busy, mut threads) = (0.0_f64, 1);
        let mut turns = Vec::with_capacity(entries.len());
        for &index in entries {
            let started = now(self.sides);
            let mut pairing = self.pairing(index);
            let warm = match warm_up(&mut pairing)? {
                Ok(warm) => warm,
                Err(stop) => return Ok(Err(stop)),
            };
            busy = busy.max(warm.busy);
            threads = most_threads(pairing.samples).max(threads);
            let spent = now(pairing.sides) - started;
            turns.push((index, Pairs::new(&pairing, warm.slow, spent)));
        }
        handoff::settle_waiting(self.sides, threads, busy)?;
        Ok(Ok(turns))
    }

    fn round(&mut self, turns: &mut [(usize, Pairs)]) -> Result<Made<()>, SessionError> {
        let mut open: Vec<OpenPair> = Vec::with_capacity(turns.len());
        for (index, pairs) in turns.iter_mut() {
            let mut pairing = self.pairing(*index);
            let order = pairs.next(&mut pairing);
            open.push(pairing.open(order));
        }
        // The pair of the first entry decides which side goes first in the whole round.
        let numbers = open.first().map(|pair| pair.numbers(self.sides.len())).unwrap_or_default();
        for &number in numbers {
            // The varied inputs of all entries start at the same place in the same memory, and `time_side` overwrites
            // only the inputs of its own entry. If another entry's inputs are larger, their end would stay in memory,
            // and the next side could read it early. Therefore, the inputs of all entries are overwritten here.
            for (index, pairs) in &*turns {
                self.pairing(*index).hide(pairs.calls)?;
            }
            for (pair, (index, pairs)) in open.iter_mut().zip(&mut *turns) {
                let started = now(self.sides);
                if let Err(stop) = self.pairing(*index).time_side(pair, number)? {
                    return Ok(Err(stop));
                }
                pairs.spent += now(self.sides) - started;
            }
        }
        for (pair, (index, pairs)) in open.into_iter().zip(turns) {
            let mut pairing = self.pairing(*index);
            match pairing.check(pair)? {
                Ok(blocks) => pairs.add(&mut pairing, &blocks)?,
                Err(stop) => return Ok(Err(stop)),
            }
        }
        Ok(Ok(()))
    }

    fn pairing(&mut self, index: usize) -> Pairing<'_, 'b, M> {
        let (context, variation) = (&self.contexts[index], &mut self.variations[index]);
        self.timings[index].pairing(context, self.sides, variation, self.memory, self.draws)
    }
}
