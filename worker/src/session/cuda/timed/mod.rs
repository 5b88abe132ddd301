//! A session whose calls are timed with the device's clock.
//!
//! ```text
//! poison: ring, workspaces ──▶ block: new inputs ──▶ [flush, reading, launches, reading] × calls ──▶ outputs to the host
//!                                                     the host's clock bounds all of it            ──▶ digests of inputs
//! ```
//!
//! Every call has its own slot of the ring and, if inputs vary, its own inputs. Only in a cold block is the L2 cache
//! flushed before each call; the flushes are not part of the block's time. In a warm block, the device's clock is read
//! only twice: before the first launch and after the last one.

mod belief;
mod clock;
pub(super) mod memory;
mod ring;
pub(super) mod variants;

use std::io;
use std::time::Duration;

use opt_shared::arguments::ArgumentValue;
use opt_shared::capture::Tensor;
use opt_shared::launch::Pointer;
use opt_shared::units::Bytes;

use self::memory::{TimingMemory, flush_bytes};
use self::ring::{KeptOutputs, Layout};
use self::variants::DeviceVariants;
use super::CudaBackend;
use super::buffers::{Bands, DeviceBuffer};
use super::candidate::DeviceCode;
use super::driver::{DriverError, Launch, Queue};
use super::entry_call::{Outputs, params};
use super::fault::During;
use super::placed::OnDevice;
use super::session::DeviceSession;
use crate::judge::BytesSource;
use crate::recorded::{Recorded, allocated_bytes};
use crate::residency::ledger::Kind;
use crate::residency::load::Load;
use crate::session::{
    Answer, Called, Clock, DeviceFacts, Ending, Loaded, Session, SessionError, StrayWrite, TimedSession,
    Variants, Varied,
};

/// The size of the pieces in which bytes are copied by way of the host, if the driver has no copies within the card.
const COPY_PIECE: Bytes = Bytes::kib(256);

const ONLY_BLOCKS: &str = "a timed session makes calls only in blocks";

pub(super) struct TimedDevice<'b> {
    inner: DeviceSession<'b>,
    varied: Option<Varied<'b, DeviceVariants>>,
    /// For each entry and argument, the index of its variants; `None` if it does not vary.
    variants_of: Vec<Vec<Option<usize>>>,
    layouts: Vec<Layout>,
    ring: u64,
    /// The outputs of each entry's last block. If entries are not called in turns, only those of the entry that was
    /// called last are kept.
    kept: Vec<KeptOutputs>,
    in_turns: bool,
    /// The byte with which workspaces and their bands are filled.
    poison: u8,
    facts: DeviceFacts,
}

impl<'b> TimedDevice<'b> {
    pub(super) fn start(
        backend: &'b CudaBackend<'b>,
        candidate: &'b DeviceCode,
        entries: &'b [OnDevice],
        varied: Option<Varied<'b, DeviceVariants>>,
        how: TimedSession,
    ) -> Result<Self, SessionError> {
        let lacking = backend.driver().lock().cannot_time();
        if let Some(why) = lacking {
            return Err(SessionError::Run {
                candidate: candidate.callee.candidate.clone(),
                source: format!("calls cannot be timed: {why}").into(),
            });
        }
        let inner = DeviceSession::start(backend, candidate, entries, Outputs::Elsewhere)?;
        let layouts: Vec<Layout> =
            entries.iter().map(|entry| Layout::of(entry.as_ref(), how.in_turns)).collect();
        let variants_of = entries.iter().enumerate().map(|(number, entry)| {
            let variants = varied.as_ref().and_then(|varied| varied.entries.get(number));
            variants.map_or_else(Vec::new, |variants| variants_of(entry.as_ref(), variants))
        });
        let mut session = Self {
            inner,
            varied,
            variants_of: variants_of.collect(),
            ring: 0,
            kept: layouts.iter().map(|_| KeptOutputs::default()).collect(),
            layouts,
            in_turns: how.in_turns,
            poison: 0,
            facts: DeviceFacts::default(),
        };
        if session.inner.ended.is_none() {
            session.place_ring()?;
        }
        Ok(session)
    }

    fn place_ring(&mut self) -> Result<(), SessionError> {
        let (backend, driver) = (self.inner.backend, self.inner.driver());
        let wanted = self.layouts.iter().map(Layout::bytes).max().unwrap_or_default().max(Bytes::new(1));
        let flush = flush_bytes(driver.lock().card().l2);
        let mut state = backend.state.borrow_mut();
        let mut former = state.timing.take();
        let mut after = Vec::new();
        if former.as_ref().is_none_or(|it| it.ring.bytes() < wanted) {
            after.push((Kind::Output, wanted));
        }
        if let Some(former) = former.as_mut().filter(|_| !after.is_empty()) {
            // A smaller ring belongs to an earlier group, whose sessions have ended. If it cannot be released now, it
            // is released with the engine.
            let _ = state.residency(backend).release(Kind::Output, former.take_ring());
        }
        if former.is_none() {
            after.push((Kind::Workspace, flush));
        }
        let load = Load { storages: &[], tensors: &[], after: &after, instead_of: &[] };
        let placed = state.residency(backend).load(&load);
        let mut placed = match placed {
            Ok(placed) => placed.into_iter(),
            Err(error) => {
                drop(state);
                return Err(self.inner.not_placed(error));
            }
        };
        let timing = match (former, placed.next(), placed.next()) {
            (Some(former), None, _) => Ok(former),
            (Some(mut former), Some(ring), _) => {
                former.ring = ring;
                Ok(former)
            }
            (None, Some(ring), Some(flush)) => TimingMemory::new(driver, ring, flush),
            (None, ..) => return Ok(()),
        };
        let timing = match timing {
            Ok(timing) => timing,
            Err(error) => {
                drop(state);
                let _: Answer<()> = self.inner.fail(&error, &During::Ours("measuring the device"), &[]);
                return Ok(());
            }
        };
        self.ring = timing.ring.address();
        self.facts.copy_rate = timing.figures.copy_rate;
        state.timing = Some(timing);
        drop(state);
        let mut driver = driver.lock();
        self.facts.lacks = driver.lacks().into_iter().map(str::to_owned).collect();
        if driver.pace().clock_mhz.is_none() {
            let why = "no blocks are discarded for a low clock: NVML does not report the card's clock";
            self.facts.lacks.push(why.to_owned());
        }
        drop(driver);
        for (number, layout) in self.layouts.iter().enumerate() {
            let outputs = self.inner.entries[number].as_ref().outputs.iter().enumerate();
            self.inner.calls[number].outputs = outputs
                .map(|(output, it)| DeviceBuffer {
                    name: format!("the output `{}`", it.path),
                    address: self.ring + layout.at(output, 0),
                    bands: Bands { front: 0, bytes: allocated_bytes(&it.tensor), back: 0 },
                })
                .collect();
        }
        Ok(())
    }

    /// Returns the address that a pointer stands for in the call with this number.
    fn address(&self, entry: usize, pointer: Pointer, call: u32, varied: bool) -> u64 {
        let outputs = &self.inner.entries[entry].as_ref().outputs;
        match pointer {
            Pointer::Output(output) => self.ring + self.layouts[entry].at(output, call),
            Pointer::Argument(argument) => {
                let changed = outputs.iter().position(|output| output.arguments.contains(&argument));
                if let Some(changed) = changed {
                    return self.ring + self.layouts[entry].at(changed, call);
                }
                let own = self.variants_of[entry].get(argument).copied().flatten().filter(|_| varied);
                let variant = own.zip(self.varied.as_ref()).and_then(|(own, varied)| {
                    let input = varied.entries.get(entry)?.inputs.get(own)?;
                    Some(varied.memory.address + input.at(call))
                });
                let captured = || {
                    self.inner.calls[entry].address(&self.inner.entries[entry], Pointer::Argument(argument))
                };
                variant.unwrap_or_else(captured)
            }
            Pointer::Workspace(_) => self.inner.calls[entry].address(&self.inner.entries[entry], pointer),
        }
    }

    /// Returns the launches of one call. Launches with an empty grid are left out.
    fn launches(&self, entry: usize, call: u32, varied: bool, limit: Duration) -> Vec<Launch> {
        let it = &self.inner.calls[entry];
        let steps = it.resolved.steps.iter().zip(&it.functions).filter(|(step, _)| !step.is_empty());
        steps
            .map(|(step, &function)| Launch {
                function,
                grid: step.grid,
                block: step.block,
                shared_bytes: step.shared_mem,
                params: params(step, |pointer| self.address(entry, pointer, call, varied)),
                limit,
            })
            .collect()
    }

    fn fill_slots(&self, entry: usize, calls: u32, poison: u8) -> io::Result<()> {
        let (layout, driver) = (&self.layouts[entry], self.inner.driver());
        let recorded: &Recorded = self.inner.entries[entry].as_ref();
        self.inner.poison_all(entry, poison).map_err(io::Error::other)?;
        for (number, output) in recorded.outputs.iter().enumerate() {
            let used = layout.used(number, calls);
            if output.arguments.is_empty() {
                if used != Bytes::ZERO {
                    let start = self.ring + layout.at(number, 0);
                    driver.lock().fill(Queue::Calls, start, poison, used).map_err(io::Error::other)?;
                }
                continue;
            }
            for call in 0..calls {
                let start = self.ring + layout.at(number, call);
                recorded.before(output, |at, bytes| {
                    driver.lock().write(start + at, bytes).map_err(io::Error::other)
                })?;
            }
        }
        Ok(())
    }

    /// For each argument that the call changes, copies its variants into the slots of a block. The calls then change
    /// these copies.
    fn start_from_variants(&self, entry: usize, calls: u32) -> io::Result<()> {
        let Some(varied) = &self.varied else { return Ok(()) };
        let recorded: &Recorded = self.inner.entries[entry].as_ref();
        let inputs = varied.entries.get(entry).map_or(&[][..], |variants| &variants.inputs);
        for (input, output) in inputs.iter().filter_map(|input| Some((input, input.output?))) {
            let bytes = Bytes::new(allocated_bytes(&recorded.outputs[output].tensor));
            for call in 0..calls {
                let (to, from) = (
                    self.ring + self.layouts[entry].at(output, call),
                    varied.memory.address + input.at(call),
                );
                self.copy(to, from, bytes).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, bytes: Bytes) -> Result<(), DriverError> {
        let mut driver = self.inner.driver().lock();
        if driver.copy(to, from, bytes)? {
            return Ok(());
        }
        let mut buffer = vec![0; bytes.min(COPY_PIECE).to_usize()];
        let mut at = 0;
        while at < bytes.get() {
            let piece = &mut buffer[..Bytes::new(bytes.get() - at).min(COPY_PIECE).to_usize()];
            driver.read(from + at, piece)?;
            driver.write(to + at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn outputs_failed(&self, entry: usize, source: io::Error) -> SessionError {
        SessionError::Outputs { entry: self.inner.entries[entry].as_ref().name.clone(), source }
    }
}

/// For each argument, the index of its variants in `variants.inputs`; `None` if it does not vary. A tensor that is
/// passed twice has the same variants both times.
fn variants_of(recorded: &Recorded, variants: &Variants) -> Vec<Option<usize>> {
    let tensor = |value: &ArgumentValue| match value {
        ArgumentValue::Tensor(tensor) => Some(std::sync::Arc::clone(tensor)),
        ArgumentValue::Plain(_) => None,
    };
    let tensors: Vec<_> = recorded.arguments.iter().filter_map(|it| tensor(&it.value)).collect();
    let varies = |it: &Tensor| {
        variants.inputs.iter().position(|input| {
            tensors
                .get(input.tensor)
                .is_some_and(|varied| varied.storage == it.storage && varied.byte_range() == it.byte_range())
        })
    };
    recorded.arguments.iter().map(|it| tensor(&it.value).and_then(|tensor| varies(&tensor))).collect()
}

impl Session for TimedDevice<'_> {
    fn load(&mut self, limit: Duration) -> Result<Answer<Loaded>, SessionError> {
        self.inner.load(limit)
    }

    fn plan(&mut self, entry: usize, limit: Duration) -> Result<Answer<Called>, SessionError> {
        self.inner.plan(entry, limit)
    }

    fn call(&mut self, _: usize, _: u32, _: u8, _: Duration) -> Result<Answer<Called>, SessionError> {
        let candidate = self.inner.candidate.callee.candidate.clone();
        Err(SessionError::Run { candidate, source: ONLY_BLOCKS.into() })
    }

    fn slots(&self, entry: usize) -> u32 {
        self.layouts[entry].slots
    }

    fn output(&self, entry: usize, output: usize, slot: u32) -> Box<dyn BytesSource + '_> {
        Box::new(self.layouts[entry].source(&self.kept[entry], output, slot))
    }

    fn damage(&self, _: usize, _: u32, _: u8) -> Result<Option<StrayWrite>, SessionError> {
        Ok(None)
    }

    fn clock(&mut self) -> &mut dyn Clock {
        self
    }

    fn finish(self: Box<Self>) -> Result<Ending, SessionError> {
        Box::new(self.inner).finish()
    }
}
