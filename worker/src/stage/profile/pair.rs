//! Makes pairs of blocks: one block of the candidate and one of the baseline, with the same inputs. The times of a pair
//! are used only if its outputs are right.

use std::time::Duration;

use opt_shared::message::{Depth, ProfileTask};
use opt_shared::outcome::{CacheStateReached, Mismatch, Status};
use opt_shared::settings::{CacheState, Priority};
use opt_shared::units::Bytes;
use rand::Rng;
use rand::rngs::StdRng;

use super::idle::Draw;
use super::looks;
use super::samples::{KeptBlock, Samples};
use super::undone::{Checked, too_little};
use super::vary::Variation;
use super::{BASELINE, CANDIDATE, Side, Stop};
use crate::judge::Tolerance;
use crate::judge::element::differs;
use crate::recorded::Recorded;
use crate::session::{
    Answer, Block, BlockOrder, LOOKS, Look, Session, SessionError, VariantMemory, WIDEST_ELEMENT,
};
use crate::stage::POISONS;
use crate::stage::calls::EntryCalls;
use crate::stage::failure::{self, CallKind};

/// The factor in the time limit of a block. Once the duration of calls is known, the limit is at most `MIN_LIMIT` plus
/// `LIMIT_FACTOR` times the expected duration of the block.
const LIMIT_FACTOR: u32 = 20;
const MIN_LIMIT: Duration = Duration::from_secs(5);
/// The reciprocal of the probability with which all output slots of a pair are checked.
const ALL_SLOTS_ONE_IN: u32 = 16;

/// An entry, and how it is timed.
pub(super) struct Context<'a> {
    pub(super) task: &'a ProfileTask,
    pub(super) recorded: &'a Recorded,
    /// The size of all inputs of the entry.
    pub(super) inputs: Bytes,
    pub(super) tolerances: &'a [Tolerance],
    /// The entry's index in the sessions.
    pub(super) index: usize,
    pub(super) weight: u64,
    /// True if the entries of the batch are timed in turns. It is always false if only one entry of the batch is timed.
    pub(super) rotates: bool,
    pub(super) priority: Priority,
    /// True if a device's clock times the calls.
    pub(super) on_device: bool,
}

impl Context<'_> {
    /// Returns true if caches are cold at the beginning of a call. On a device, this is the default, and `"rotate"`
    /// means the same.
    fn is_cold(&self) -> bool {
        match self.task.profile.cache_state {
            CacheState::Cold => true,
            CacheState::Auto | CacheState::Rotate => self.on_device,
            CacheState::Warm => false,
        }
    }

    /// Returns true if the entry is only screened. A screen has no idle rounds, because the few that fit into it would
    /// prove nothing. Every candidate that may win is profiled in full afterwards.
    pub(super) fn is_screened(&self) -> bool {
        self.task.depth == Depth::Screen
    }

    /// Returns true if every block is a single call. This is necessary if the caches must be cold or must contain other
    /// entries' data, because the first call of a longer block would fill them for the next calls. On a device, the
    /// caches could be flushed before every call of a block. But then a kernel could compute the results of later calls
    /// early, because the inputs of these calls would already be in memory.
    pub(super) fn has_single_calls(&self) -> bool {
        self.is_cold() || self.rotates
    }

    /// Returns the judge of this entry's outputs.
    pub(super) fn judge(&self) -> EntryCalls<'_> {
        EntryCalls::new(&self.task.verify, self.recorded, self.tolerances, self.index)
    }

    pub(super) fn cache_state(&self) -> CacheStateReached {
        if self.is_cold() {
            CacheStateReached::Cold
        } else if self.rotates {
            CacheStateReached::Rotate
        } else {
            CacheStateReached::Warm
        }
    }
}

/// The random number generators of a pair of runners. `random` depends on the candidate's seed. It determines the order
/// of blocks, the poisons, the elements and slots to check, and the new inputs. `rounds` is unpredictable, and
/// determines when idle rounds take place.
pub(super) struct Draws {
    pub(super) random: StdRng,
    pub(super) rounds: Draw,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) calls: u32,
    pub(super) baseline_first: bool,
    /// True if all slots are compared. If false, usually only one random slot is compared.
    pub(super) all_slots: bool,
}

/// Makes the pairs of blocks of one entry, in one pair of runners.
pub(super) struct Pairing<'p, 'b, M> {
    pub(super) context: &'p Context<'p>,
    pub(super) sides: &'p mut [Side<'b>],
    pub(super) samples: &'p mut [Samples],
    pub(super) variation: &'p mut Variation,
    pub(super) memory: Option<&'p M>,
    pub(super) draws: &'p mut Draws,
}

/// A pair whose blocks are being made. Both sides get the same inputs and the same poison.
pub(super) struct OpenPair {
    order: Order,
    /// The seed of the pair's input values.
    seed: u64,
    poison: u8,
    /// For each side, its block and the elements that were read after it.
    blocks: Vec<Option<(Block, Vec<Seen>)>>,
}

/// An output element with the value that it had when its block ended.
struct Seen {
    look: Look,
    element: [u8; WIDEST_ELEMENT],
}

impl OpenPair {
    /// Returns the sides in the order in which their blocks are made.
    pub(super) fn numbers(&self, sides: usize) -> &'static [usize] {
        match (sides, self.order.baseline_first) {
            (1, _) => &[CANDIDATE],
            (_, true) => &[BASELINE, CANDIDATE],
            (_, false) => &[CANDIDATE, BASELINE],
        }
    }
}

/// A result, or the index of the side that stopped and the reason.
pub(super) type Made<T> = Result<T, (usize, Stop)>;

impl<M: VariantMemory> Pairing<'_, '_, M> {
    /// Makes and checks one block of each side. Returns the blocks in the order of the sides.
    pub(super) fn make(&mut self, order: Order) -> Result<Made<Vec<Block>>, SessionError> {
        let mut pair = self.open(order);
        for &number in pair.numbers(self.sides.len()) {
            if let Err(stop) = self.time_side(&mut pair, number)? {
                return Ok(Err(stop));
            }
        }
        self.check(pair)
    }

    pub(super) fn open(&mut self, order: Order) -> OpenPair {
        let seed = self.draws.random.random();
        let poison = POISONS[self.draws.random.random_range(0..POISONS.len())];
        OpenPair { order, seed, poison, blocks: self.sides.iter().map(|_| None).collect() }
    }

    pub(super) fn time_side(&mut self, pair: &mut OpenPair, number: usize) -> Result<Made<()>, SessionError> {
        let calls = pair.order.calls;
        // Both sides use the same input memory. Overwrite the values of the first block, so that the second side cannot
        // read the inputs before its block starts, not even in an idle round.
        self.hide(calls)?;
        while !self.context.is_screened() && self.draws.rounds.is_round() {
            if let Err(stop) = self.idle_round(number)? {
                return Ok(Err(stop));
            }
        }
        let looks = looks::draw(&self.context.recorded.outputs, calls, &mut self.draws.random);
        let block = match self.block(number, calls, CallKind::Timed, Some(pair.poison), &looks, pair.seed)? {
            Ok(block) => block,
            Err(stop) => return Ok(Err(stop)),
        };
        if let Some(look) = block.changed.and_then(|at| looks.get(at)) {
            return Ok(Err((number, self.deferred(look, calls, "once the process was stopped"))));
        }
        // Read the elements now, because if entries take turns, the process runs again before this block is compared.
        let seen = looks
            .into_iter()
            .map(|look| Ok(Seen { look, element: self.output(number, &look)? }))
            .collect::<Result<_, SessionError>>()?;
        pair.blocks[number] = Some((block, seen));
        Ok(Ok(()))
    }

    /// Checks the outputs of both sides' blocks. Returns the blocks in the order of the sides.
    pub(super) fn check(&mut self, pair: OpenPair) -> Result<Made<Vec<Block>>, SessionError> {
        let OpenPair { order, seed, poison, blocks } = pair;
        let (blocks, seen): (Vec<Block>, Vec<Vec<Seen>>) = blocks.into_iter().flatten().unzip();
        for (number, seen) in seen.iter().enumerate() {
            for Seen { look, element } in seen {
                if self.output(number, look)? != *element {
                    let stop = self.deferred(look, order.calls, "after calls of other entries");
                    return Ok(Err((number, stop)));
                }
            }
        }
        let looks: Vec<Vec<Look>> =
            seen.iter().map(|seen| seen.iter().map(|seen| seen.look).collect()).collect();
        let checked = match (self.variation.varies(), self.sides.len()) {
            (true, 2..) => self.check_against_baseline(order, seed, poison, &looks)?,
            (true, _) => self.keep(order.calls, seed, &looks)?,
            (false, _) => self.check_against_capture(order, poison, &looks)?,
        };
        Ok(checked.map(|()| blocks))
    }

    /// If any input varies, overwrites the input values of `calls` calls.
    pub(super) fn hide(&mut self, calls: u32) -> Result<(), SessionError> {
        let Some(memory) = self.memory else { return Ok(()) };
        self.variation.hide(self.context.recorded, memory, calls)
    }

    /// Makes an idle round, in which the runner is woken but not asked to make a call.
    pub(super) fn idle_round(&mut self, number: usize) -> Result<Made<()>, SessionError> {
        let seed = self.draws.random.random();
        let Self { context, sides, variation, memory, .. } = self;
        let mut renew = || match memory {
            Some(memory) => variation.write_for(context.recorded, *memory, 1, seed),
            None => Ok(()),
        };
        Ok(match sides[number].session.clock().idle(context.index, &mut renew)? {
            Answer::Done(round) => {
                self.samples[number].rounds.push(round);
                Ok(())
            }
            Answer::Died => Err((number, Stop::Died { entry: self.context.index })),
        })
    }

    pub(super) fn block(
        &mut self,
        number: usize,
        calls: u32,
        what: CallKind,
        poison: Option<u8>,
        looks: &[Look],
        seed: u64,
    ) -> Result<Made<Block>, SessionError> {
        let order = BlockOrder {
            entry: self.context.index,
            calls,
            plan: what == CallKind::TimedPlan,
            varied: self.variation.varies(),
            cold: self.context.is_cold() && what == CallKind::Timed,
            poison,
            looks,
            expected: self.samples[number].estimate * calls,
            limit: self.limit(number, calls, what),
        };
        let Self { context, sides, variation, memory, .. } = self;
        let mut renew = || match memory {
            Some(memory) => variation.write_for(context.recorded, *memory, calls, seed),
            None => Ok(()),
        };
        let block = match sides[number].session.clock().block(&order, &mut renew)? {
            Answer::Done(block) => block,
            Answer::Died => return Ok(Err((number, Stop::Died { entry: context.index }))),
        };
        Ok(match failure::verdict_of_calls(&block.called, calls, what) {
            Some(verdict) => Err((number, stop(self.context, verdict.status, verdict.detail))),
            None => {
                self.samples[number].called |= what == CallKind::Timed;
                Ok(block)
            }
        })
    }

    /// Returns the time limit of a block, which is `call_timeout` for each call. Once this runner has called the entry,
    /// the limit is also at most `MIN_LIMIT` plus a multiple of the block's expected duration. Without this bound, a
    /// kernel that slows down on purpose would take time away from all other candidates.
    fn limit(&self, number: usize, calls: u32, what: CallKind) -> Duration {
        let allowed = self.context.task.verify.call_timeout.saturating_mul(calls);
        if what != CallKind::Timed || !self.samples[number].called {
            return allowed;
        }
        let expected = self.samples[number].estimate.saturating_mul(calls);
        let limit = MIN_LIMIT + expected.saturating_mul(LIMIT_FACTOR);
        // The limit is rounded down to whole milliseconds, because it appears in messages.
        allowed.min(Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)))
    }

    fn deferred(&self, look: &Look, calls: u32, when: &str) -> Stop {
        let output = &self.context.recorded.outputs[look.output].path;
        let detail = format!(
            "`{output}` of timed call {} of a block of {calls} changed after the block was reported as done (byte {} had \
             another value {when})",
            look.slot + 1,
            look.offset,
        );
        stop(self.context, Status::DeferredWork, detail)
    }

    /// Returns the slots to compare. These are one random slot or all slots, and also every slot for which an element
    /// that was looked at is wrong.
    fn slots_to_compare(&mut self, order: Order, wrong: impl Iterator<Item = u32>) -> Vec<u32> {
        let random = &mut self.draws.random;
        let mut slots: Vec<u32> = if order.all_slots || random.random_range(0..ALL_SLOTS_ONE_IN) == 0 {
            (0..order.calls).collect()
        } else {
            vec![random.random_range(0..order.calls)]
        };
        slots.extend(wrong);
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Compares the outputs with the baseline's for the same inputs. If they differ, a fresh runner of the baseline
    /// decides which side was wrong.
    fn check_against_baseline(
        &mut self,
        order: Order,
        seed: u64,
        poison: u8,
        looks: &[Vec<Look>],
    ) -> Result<Made<()>, SessionError> {
        let mut wrong = Vec::new();
        for look in looks.iter().flatten() {
            let found = self.output(CANDIDATE, look)?;
            let expected = self.output(BASELINE, look)?;
            if self.differs(look, &expected, &found, 2) {
                wrong.push(look.slot);
            }
        }
        let slots = self.slots_to_compare(order, wrong.into_iter());
        let [candidate, baseline] = &*self.sides else { return Ok(Ok(())) };
        let (candidate, baseline) = (&*candidate.session, &*baseline.session);
        let (context, calls) = (self.context, order.calls);
        let mut found = None;
        for &slot in &slots {
            self.samples[CANDIDATE].slots_checked += 1;
            let mismatch = context.judge().compare_sessions(candidate, slot, poison, baseline)?;
            found = mismatch.map(|it| (slot, it));
            if found.is_some() {
                break;
            }
        }
        if found.is_none() {
            let checked = Checked { calls, seed, slots: &slots };
            found = too_little(&context.judge(), self.variation, &checked, candidate, baseline)?;
        }
        Ok(found.map_or(Ok(()), |(slot, mismatch)| {
            let entry = context.index;
            Err((CANDIDATE, Stop::Disputed { entry, slot, calls, seed, poison, mismatch }))
        }))
    }

    fn check_against_capture(
        &mut self,
        order: Order,
        poison: u8,
        looks: &[Vec<Look>],
    ) -> Result<Made<()>, SessionError> {
        for (number, looks) in looks.iter().enumerate() {
            let mut wrong = Vec::new();
            for look in looks {
                let found = self.output(number, look)?;
                if self.is_not_the_recorded(look, &found) {
                    wrong.push(look.slot);
                }
            }
            let slots = self.slots_to_compare(order, wrong.into_iter());
            for slot in slots {
                self.samples[number].slots_checked += 1;
                let found = self.context.judge().compare(&*self.sides[number].session, slot, poison)?;
                match found {
                    Ok(None) => {}
                    Ok(Some(mismatch)) => {
                        return Ok(Err((number, wrong_in_time(self.context, mismatch, slot, order.calls))));
                    }
                    Err(failure) => return Ok(Err((number, Stop::Failed(failure)))),
                }
            }
        }
        Ok(Ok(()))
    }

    /// Offers a block and the elements that were read to the random sample of kept blocks. This is done if inputs vary
    /// and there is no baseline to compare with. After all timing, a fresh runner repeats the kept blocks.
    fn keep(&mut self, calls: u32, seed: u64, looks: &[Vec<Look>]) -> Result<Made<()>, SessionError> {
        let mut elements = Vec::with_capacity(looks[CANDIDATE].len());
        for look in &looks[CANDIDATE] {
            elements.push(self.output(CANDIDATE, look)?);
        }
        let block = KeptBlock { seed, calls, looks: looks[CANDIDATE].clone(), elements };
        let samples = &mut self.samples[CANDIDATE];
        samples.slots_checked += u64::from(calls.min(LOOKS));
        samples.keep(block, &mut self.draws.random);
        Ok(Ok(()))
    }

    fn output(&self, number: usize, look: &Look) -> Result<[u8; WIDEST_ELEMENT], SessionError> {
        let mut element = [0; WIDEST_ELEMENT];
        self.sides[number]
            .session
            .output(self.context.index, look.output, look.slot)
            .read_at(look.offset, &mut element[..look.width])
            .map_err(|source| SessionError::Outputs { entry: self.context.recorded.name.clone(), source })?;
        Ok(element)
    }

    fn differs(&self, look: &Look, expected: &[u8], found: &[u8], times: u32) -> bool {
        let tolerance = self.context.tolerances[look.output];
        let tolerance = if times == 1 { tolerance } else { tolerance.doubled() };
        differs(self.context.recorded.outputs[look.output].tensor.dtype, expected, found, tolerance)
    }

    /// Returns true if an element differs from the recorded one, or if the recorded one cannot be read. Returns false
    /// for conjugate and negative tensors, because these are compared only slot by slot.
    fn is_not_the_recorded(&self, look: &Look, found: &[u8]) -> bool {
        let tensor = &self.context.recorded.outputs[look.output].tensor;
        if tensor.conjugate || tensor.negative {
            return false;
        }
        let mut expected = [0; WIDEST_ELEMENT];
        let at = tensor.byte_range().start + look.offset;
        let read = self.context.recorded.capture.read_range(tensor.storage, at, &mut expected[..look.width]);
        read.is_err() || self.differs(look, &expected, found, 1)
    }
}

pub(super) fn stop(context: &Context<'_>, status: Status, detail: String) -> Stop {
    Stop::Failed(Box::new(failure::entry_failure(context.recorded, status, detail)))
}

/// Returns the failure for an output that was right in verification and is wrong in a timed call. The result depends on
/// the number or the time of the calls, so this is not reported as a numerical error.
pub(super) fn wrong_in_time(context: &Context<'_>, mismatch: Box<Mismatch>, slot: u32, calls: u32) -> Stop {
    let Mismatch { output, elements, failed, .. } = &*mismatch;
    let what = match failed {
        0 => format!("each element of `{output}` is within its tolerance, but the output as a whole is not"),
        _ => format!("{failed} of {elements} elements of `{output}` differ"),
    };
    let detail = format!("verified, then wrong in timed call {} of a block of {calls}: {what}", slot + 1);
    let mut failure = failure::entry_failure(context.recorded, Status::Nondeterministic, detail);
    failure.mismatch = Some(*mismatch);
    Stop::Failed(Box::new(failure))
}

/// Returns a block's time without the hand-off.
pub(super) fn net(block: &Block, session: &mut dyn Session) -> Duration {
    block.elapsed.saturating_sub(session.clock().handoff())
}
