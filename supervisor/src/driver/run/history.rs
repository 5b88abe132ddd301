//! Keeps the history of owed and reclaimable memory since this process started, for clients that connect late or ask
//! rarely. The history has a limited number of slots. A slot keeps the highest of its samples, so that peaks are not
//! lost. When all slots are used, every slot is made twice as wide.
//!
//! The full record of a run is kept by `evidence`.

use std::time::Duration;

use opt_shared::units::Bytes;

use crate::core::event::Moment;

/// The largest number of slots.
const MAX_SLOTS: usize = 512;
/// The initial width of a slot.
const FIRST_WIDTH: Duration = Duration::from_millis(250);

/// The highest owed and reclaimable memory within a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// The slot's index, counted from the start of this process.
    index: u32,
    pub owed: Bytes,
    pub reclaimable: Bytes,
}

/// The slots that have samples, the oldest first.
#[derive(Debug)]
pub struct History {
    width: Duration,
    slots: Vec<Slot>,
}

impl History {
    pub fn new() -> Self {
        Self { width: FIRST_WIDTH, slots: Vec::new() }
    }

    pub fn add(&mut self, at: Moment, owed: Bytes, reclaimable: Bytes) {
        let index = u32::try_from(at.as_nanos() / self.width.as_nanos()).unwrap_or(u32::MAX);
        self.push(Slot { index, owed, reclaimable });
        if MAX_SLOTS < self.slots.len() {
            self.width *= 2;
            for mut slot in std::mem::take(&mut self.slots) {
                slot.index /= 2;
                self.push(slot);
            }
        }
    }

    fn push(&mut self, slot: Slot) {
        match self.slots.last_mut() {
            Some(last) if last.index == slot.index => {
                last.owed = last.owed.max(slot.owed);
                last.reclaimable = last.reclaimable.max(slot.reclaimable);
            }
            _ => self.slots.push(slot),
        }
    }

    pub fn width(&self) -> Duration {
        self.width
    }

    /// Returns the slots that end after `since`, and the start time of each.
    pub fn since(&self, since: Moment) -> impl Iterator<Item = (Moment, Slot)> {
        let begin = |slot: &Slot| self.width * slot.index;
        let first = self.slots.partition_point(|slot| begin(slot) + self.width <= since);
        self.slots[first..].iter().map(move |slot| (begin(slot), *slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_bounded_and_keeps_the_peak() {
        let mut history = History::new();
        for step in 0..100_000_u64 {
            let owed = if step == 1234 { Bytes::gib(3) } else { Bytes::mib(step % 7) };
            history.add(Duration::from_millis(step * 100), owed, Bytes::kib(step));
            assert!(history.slots.len() <= MAX_SLOTS);
        }
        assert!(MAX_SLOTS / 2 <= history.slots.len(), "slots are no wider than needed");
        let peak = history.since(Duration::ZERO).max_by_key(|(_, slot)| slot.owed).expect("slots");
        assert_eq!(peak.1.owed, Bytes::gib(3));
        let at = Duration::from_millis(123_400);
        assert!(peak.0 <= at && at < peak.0 + history.width());
        let times: Vec<Moment> = history.since(Duration::ZERO).map(|(at, _)| at).collect();
        assert!(times.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn since_returns_only_slots_that_end_later() {
        let mut history = History::new();
        for step in 0..8 {
            history.add(FIRST_WIDTH * step, Bytes::mib(1), Bytes::ZERO);
        }
        let after = |since: Duration| history.since(since).count();
        assert_eq!(after(Duration::ZERO), 8);
        assert_eq!(after(FIRST_WIDTH * 7), 1, "the last slot may still grow");
        assert_eq!(after(FIRST_WIDTH * 100), 0);
    }
}
