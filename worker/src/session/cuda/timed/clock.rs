//! The clock of a timed session. It reads the device's clock before and after launches, and the host's clock before and
//! after a whole block.

use std::time::{Duration, Instant};

use opt_shared::outcome::Status;

use super::super::driver::timing::Stamp;
use super::super::driver::{DriverError, Launch, Mark, Queue};
use super::super::fault::{self, During};
use super::super::memory::wait_for;
use super::TimedDevice;
use super::belief::{host_share, is_too_long};
use crate::session::{
    Answer, Block, BlockOrder, Called, Clock, DeviceBlock, DeviceFacts, IdleRound, Renew, SessionError,
    Verdict, WakeCost,
};

/// If calls are shorter than this, all calls of a block are launched as one graph, because the host cannot launch them
/// as fast as they run. (They are launched one by one if the cache is flushed before each, or if the driver has no
/// graphs.)
const SHORT_CALL: Duration = Duration::from_micros(20);
/// The end of a block is polled without pauses for twice its expected duration, plus this time.
const SPIN: Duration = Duration::from_millis(2);
/// The time limit for filling outputs before a block. Filling takes milliseconds.
const FILL_LIMIT: Duration = Duration::from_secs(60);

/// The operation that was not complete after its time limit.
enum Overdue {
    /// The writing of poison to the outputs before a block.
    Fill,
    Block,
}

struct Measured {
    /// The sum of the times between readings of the device's clock.
    device: Duration,
    host: Duration,
    is_graph: bool,
}

impl Clock for TimedDevice<'_> {
    fn now(&self) -> Instant {
        self.inner.driver().lock().now()
    }

    /// There is no hand-off: the device itself reads its clock, right before and after the launches.
    fn settle_handoff(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn handoff(&self) -> Duration {
        Duration::ZERO
    }

    fn limit_handoff(&mut self, _: Duration) {}

    fn leaves_room(&self, _: u32, _: f64) -> bool {
        true
    }

    fn wait_spinning(&mut self, _: bool) {}

    fn device_facts(&self) -> Option<DeviceFacts> {
        Some(self.facts.clone())
    }

    fn block(&mut self, order: &BlockOrder<'_>, renew: Renew<'_>) -> Result<Answer<Block>, SessionError> {
        if self.inner.ended.is_some() {
            return Ok(Answer::Died);
        }
        if let Some(poison) = order.poison {
            self.poison = poison;
            self.fill_slots(order.entry, order.calls, poison)
                .map_err(|source| self.outputs_failed(order.entry, source))?;
        }
        renew()?;
        if order.varied && order.poison.is_some() {
            self.start_from_variants(order.entry, order.calls)
                .map_err(|source| self.outputs_failed(order.entry, source))?;
        }
        let before = self.inner.driver().lock().pace();
        let Some(Measured { device, host, is_graph }) = self.measured(order) else { return Ok(Answer::Died) };
        let pace = before.around(self.inner.driver().lock().pace());
        if is_too_long(device, host) {
            let entry = self.inner.entries[order.entry].as_ref().name.clone();
            return Err(SessionError::DeviceClock { entry, device, host });
        }
        if let Some(died) = self.take_outputs(order) {
            return Ok(died);
        }
        let state = self.inner.backend.state.borrow();
        let flush = state.timing.as_ref().map_or(Duration::ZERO, |it| it.figures.flush);
        let flushes = if order.cold { order.calls } else { 0 };
        Ok(Answer::Done(Block {
            elapsed: device,
            called: Called {
                calls_done: order.calls,
                claimed: host_share(host, flushes, flush),
                elapsed: device,
                ..Called::default()
            },
            wake: WakeCost { cpu: Duration::ZERO, threads: 1 },
            cpus_busy: 0.0,
            waited: None,
            changed: None,
            on_device: Some(DeviceBlock { pace, is_graph }),
        }))
    }

    /// A kernel without host code runs only in launches, and a block ends when all of them are complete. Between blocks
    /// nothing can read new values, so none are written.
    fn idle(&mut self, _: usize, _: Renew<'_>) -> Result<Answer<IdleRound>, SessionError> {
        Ok(Answer::Done(IdleRound {
            cpu: Duration::ZERO,
            wake: WakeCost { cpu: Duration::ZERO, threads: 1 },
            elapsed: None,
            waited: None,
        }))
    }
}

impl TimedDevice<'_> {
    /// Times a block. Returns `None` if the session ended.
    fn measured(&mut self, order: &BlockOrder<'_>) -> Option<Measured> {
        let calls: Vec<Vec<Launch>> = (0..order.calls)
            .map(|call| self.launches(order.entry, call, order.varied, order.limit))
            .collect();
        match self.try_block(order, &calls) {
            Ok(Ok(measured)) => Some(measured),
            Ok(Err(overdue)) => {
                // A kernel can be stopped only by ending its context.
                self.inner.context_failed = true;
                let verdict = match overdue {
                    Overdue::Block => fault::overdue(&self.during(order.entry), order.limit),
                    // No code of the candidate was running.
                    Overdue::Fill => Verdict {
                        status: Status::InfraError,
                        detail: format!(
                            "the device had not filled the outputs of a block after {FILL_LIMIT:?}"
                        ),
                    },
                };
                let _: Answer<()> = self.inner.end(verdict);
                None
            }
            Err(error) => {
                let during = self.during(order.entry);
                let buffers: Vec<_> = self.inner.calls[order.entry].buffers().cloned().collect();
                let _: Answer<()> = self.inner.fail(&error, &during, &buffers);
                None
            }
        }
    }

    /// The operation that is blamed for an error in a block: the first launch, because a device does not report which
    /// one failed.
    fn during(&self, entry: usize) -> During {
        let steps = self.inner.calls[entry].resolved.steps.iter().enumerate();
        let first =
            steps.filter(|(_, step)| !step.is_empty()).map(|(number, step)| (number, &step.symbol)).next();
        first.map_or(During::Ours("timing the candidate's calls"), |(number, symbol)| During::Launch {
            number: number + 1,
            symbol: symbol.clone(),
        })
    }

    fn try_block(
        &self,
        order: &BlockOrder<'_>,
        calls: &[Vec<Launch>],
    ) -> Result<Result<Measured, Overdue>, DriverError> {
        let shared = self.inner.driver();
        let filled = shared.lock().mark(Queue::Calls)?;
        if !wait_for(shared, filled, FILL_LIMIT)? {
            return Ok(Err(Overdue::Fill));
        }
        let is_short = !order.expected.is_zero() && order.expected < SHORT_CALL * order.calls;
        let state = self.inner.backend.state.borrow();
        let flush = state.timing.as_ref().filter(|_| order.cold);
        let (graph, started, stamps, end) = {
            let mut driver = shared.lock();
            let driver = &mut **driver;
            driver.clear_stamps();
            let graph = if flush.is_none() && is_short && 1 < calls.len() {
                driver.graph(&calls.concat())?
            } else {
                None
            };
            let mut stamps: Vec<(Stamp, Stamp)> = Vec::with_capacity(calls.len());
            let started = driver.now();
            if let Some(graph) = graph {
                let start = driver.stamp()?;
                driver.launch_graph(graph)?;
                stamps.push((start, driver.stamp()?));
            } else if let Some(flush) = flush {
                for call in calls {
                    flush.flush(driver)?;
                    let start = driver.stamp()?;
                    call.iter().try_for_each(|launch| driver.launch(launch))?;
                    stamps.push((start, driver.stamp()?));
                }
            } else {
                let start = driver.stamp()?;
                calls.iter().flatten().try_for_each(|launch| driver.launch(launch))?;
                stamps.push((start, driver.stamp()?));
            }
            (graph, started, stamps, driver.mark(Queue::Calls)?)
        };
        let is_over = self.wait(end, order)?;
        let mut driver = shared.lock();
        let host = driver.now().saturating_duration_since(started);
        if !is_over {
            return Ok(Err(Overdue::Block));
        }
        if let Some(graph) = graph {
            driver.drop_graph(graph);
        }
        let mut device = Duration::ZERO;
        for (start, end) in stamps {
            device += driver.between(start, end)?;
        }
        Ok(Ok(Measured { device, host, is_graph: graph.is_some() }))
    }

    /// Polls without pauses at first, so that the host notices the end at once. Returns false after the time limit.
    fn wait(&self, end: Mark, order: &BlockOrder<'_>) -> Result<bool, DriverError> {
        let (shared, started) = (self.inner.driver(), Instant::now());
        let spin = (order.expected * 2 + SPIN).min(order.limit);
        while started.elapsed() < spin {
            if shared.lock().is_over(end)? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        wait_for(shared, end, order.limit.saturating_sub(spin))
    }

    /// Copies the outputs of a block to the host, and checks bands and inputs. Returns the answer if the session ended.
    fn take_outputs(&mut self, order: &BlockOrder<'_>) -> Option<Answer<Block>> {
        if !self.in_turns {
            self.kept.iter_mut().enumerate().filter(|(at, _)| *at != order.entry).for_each(|(_, kept)| {
                *kept = super::KeptOutputs::default();
            });
        }
        let kept = {
            let mut driver = self.inner.driver().lock();
            self.layouts[order.entry].keep(&mut **driver, self.ring, order.calls, &mut self.kept[order.entry])
        };
        // The workspaces are filled again, because the next session must not find in them what this one has computed
        // from the same inputs.
        let checked = kept.and_then(|()| {
            let found = self.inner.check_bands_and_inputs(order.entry, self.poison)?;
            self.inner.poison_all(order.entry, self.poison)?;
            Ok(found)
        });
        match checked {
            Ok(None) => None,
            Ok(Some(verdict)) => {
                self.inner.spoiled = true;
                Some(self.inner.end(verdict))
            }
            Err(error) => {
                Some(self.inner.fail(&error, &During::Ours("reading the candidate's outputs"), &[]))
            }
        }
    }
}
