//! Random loads for tests: with shared or unused storages, without any storage, with one huge storage, or with ten
//! thousand tiny ones.

use std::cell::Cell;
use std::io;

use opt_shared::placement::{Peak, Placing, Terms, whole_grains};
use opt_shared::units::Bytes;
use rand::rngs::SmallRng;
use rand::seq::{IndexedMutRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::residency::ledger::Kind;
use crate::residency::load::Origin;
use crate::residency::staging::Source;

/// A storage whose bytes depend on its number and on their position. Counts how often it was opened, and records
/// whether it is open now.
pub(crate) struct Storage {
    pub(crate) number: usize,
    pub(crate) bytes: u64,
    pub(crate) held: u64,
    pub(crate) opened: Cell<u32>,
    pub(crate) open_now: Cell<bool>,
    /// True if `read_at` writes the bytes.
    pub(crate) real: bool,
}

pub(crate) fn byte_of(number: usize, at: u64) -> u8 {
    (number as u64 * 97 + at * 31 + at / 4093).to_le_bytes()[0]
}

struct Reading<'a>(&'a Storage);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.open_now.set(false);
    }
}

impl Origin for Storage {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    fn held(&self) -> Bytes {
        Bytes::new(self.held)
    }

    fn describe(&self) -> String {
        format!("storage {}", self.number)
    }

    fn open(&self) -> io::Result<Box<dyn Source + '_>> {
        self.opened.set(self.opened.get() + 1);
        self.open_now.set(true);
        Ok(Box::new(Reading(self)))
    }
}

impl Source for Reading<'_> {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.0.bytes)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        assert!(self.0.open_now.get());
        if self.0.real {
            for (index, byte) in into.iter_mut().enumerate() {
                *byte = byte_of(self.0.number, at.get() + index as u64);
            }
        }
        Ok(())
    }
}

/// A random load: what it must place, and the parameters of its device and slots.
pub(crate) struct LoadCase {
    pub(crate) storages: Vec<Storage>,
    pub(crate) tensors: Vec<usize>,
    pub(crate) after: Vec<(Kind, Bytes)>,
    pub(crate) terms: Terms,
}

impl LoadCase {
    /// Creates a case from a seed. `max` is the size of the largest possible storage, in bytes.
    pub(crate) fn random(seed: u64, grain: u64, max: u64, real: bool) -> Self {
        let chance = &mut SmallRng::seed_from_u64(seed);
        let shape = chance.random_range(0..100);
        let (count, giant, size) = match shape {
            0..5 => (0, false, 0..=0),
            5 if !real => (10_000, false, 0..=64),
            6..26 => (chance.random_range(1..12), true, 0..=max / 100),
            _ => (chance.random_range(1..24), false, 0..=max / 10),
        };
        // 0: no source uses host memory. 1 and 2: the sources of some storages do. 3: all sources do.
        let holding = chance.random_range(0..4);
        let mut storages: Vec<Storage> = (0..count)
            .map(|number| {
                let bytes = if chance.random_bool(0.08) { 0 } else { chance.random_range(size.clone()) };
                let holds = holding == 3 || 0 < holding && chance.random_bool(0.4);
                let held = match chance.random_range(0..10) {
                    _ if !holds => 0,
                    0 => chance.random_range(0..=2 * bytes + 1),
                    _ => bytes,
                };
                let (opened, open_now) = (Cell::new(0), Cell::new(false));
                Storage { number, bytes, held, opened, open_now, real }
            })
            .collect();
        if giant && let Some(storage) = storages.choose_mut(chance) {
            storage.bytes = chance.random_range(max / 2..=max);
            storage.held = if 0 < holding { storage.bytes } else { 0 };
        }
        let sharing = chance.random_range(0..3);
        let idle = chance.random_bool(0.3);
        let mut tensors = Vec::new();
        for index in 0..storages.len() {
            let users = match chance.random_range(0..10) {
                0 if idle => 0,
                1..4 if 0 < sharing => chance.random_range(2..6),
                _ => 1,
            };
            tensors.extend(std::iter::repeat_n(index, users));
        }
        tensors.shuffle(chance);
        let after = (0..chance.random_range(0..4))
            .map(|_| {
                let kinds = [Kind::Output, Kind::Workspace, Kind::Activation];
                (kinds[chance.random_range(0..3)], Bytes::new(chance.random_range(0..=max)))
            })
            .collect();
        let slot = Bytes::new(chance.random_range(max / 400 + 1..=max / 10));
        let terms = Terms { grain: Bytes::new(grain), slots: chance.random_range(1..5), slot };
        Self { storages, tensors, after, terms }
    }

    /// For each storage, the number of tensors in it.
    pub(crate) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.storages.len()];
        self.tensors.iter().for_each(|&storage| uses[storage] += 1);
        uses
    }

    /// The predicted peak, computed from sizes alone.
    pub(crate) fn peak(&self) -> Peak {
        let placings: Vec<Placing> = (self.storages.iter().zip(self.uses()))
            .filter(|(_, uses)| 0 < *uses)
            .map(|(it, _)| Placing { bytes: it.bytes(), held: it.held() })
            .collect();
        let after: Vec<Bytes> = self.after.iter().map(|it| it.1).collect();
        Peak::of(&placings, &after, self.terms)
    }

    /// The size of a buffer of this many bytes, in whole grains.
    pub(crate) fn placed(&self, bytes: Bytes) -> u64 {
        whole_grains(bytes, self.terms.grain).get()
    }
}
