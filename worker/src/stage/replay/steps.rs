//! Runs the steps of a replay in order: for each step, compares its uses with the schedule, waits for the pool, and
//! makes the call.
//!
//! This file also measures the times of a replay. A replay has a result only if every step matched the schedule and
//! nothing failed.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use opt_shared::replay::{Need, Recording, Step};

use super::cursor::{Cursor, Disagreement};
use super::planner::MovePlan;
use super::pool::{ConstantReader, Moved, Pool, PoolError, Ready, ReadySlot};
use crate::residency::device::Device;
use crate::session::KernelLaunch;

#[derive(Debug, thiserror::Error)]
pub enum StepsError<E: std::error::Error + 'static> {
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    #[error("step {step}: its tensors could not be loaded into the pool")]
    Pool {
        step: usize,
        #[source]
        source: PoolError,
    },
    #[error("step {step}")]
    Call {
        step: usize,
        #[source]
        source: E,
    },
    #[error("starting the pool's thread")]
    Thread(#[source] std::io::Error),
}

/// The kernel launches of a step. Both lists are empty if the candidate has host code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// The launches that the plan file describes.
    pub planned: Vec<KernelLaunch>,
    /// The launches that the device's driver received.
    pub actual: Vec<KernelLaunch>,
}

/// Reads the headers of entries and calls kernels.
pub trait Caller {
    type Error: std::error::Error + 'static;

    /// Returns the step's name and the tensors that its entry needs, as stated in the headers of the entry's capture.
    /// Returns `None` after the last step.
    fn needs(&mut self, step: usize) -> Result<Option<(Step, Vec<Need>)>, Self::Error>;

    /// Makes the step's call, and returns its launches. `slots` are the slots of the needed tensors, in the order in
    /// which `needs` returned them.
    fn call(&mut self, step: usize, slots: &[ReadySlot]) -> Result<Launches, Self::Error>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// The time from the end of the previous step to the end of this one.
    pub whole: Duration,
    /// The part of `whole` that was spent waiting for tensors.
    pub stall: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub steps: Vec<StepTime>,
    pub whole: Duration,
    pub moved: Moved,
}

pub fn replay<C: Caller, D: Device + Send, S: ConstantReader>(
    recording: &Recording,
    plan: &MovePlan,
    pool: Pool<'_, D, S>,
    caller: &mut C,
) -> Result<Done, StepsError<C::Error>> {
    let (step_done, done_steps) = channel();
    let (ready_sender, ready) = channel::<Ready>();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let queue = std::thread::Builder::new()
            .name("pool".to_owned())
            .spawn_scoped(scope, move || pool.serve(&done_steps, &ready_sender))
            .map_err(StepsError::Thread)?;
        let mut cursor = Cursor::new(recording);
        let mut steps = Vec::with_capacity(plan.steps.len());
        let mut before = started;
        let walked = (|| {
            for step in 0.. {
                if 0 < step {
                    // This fails if the pool has ended. The reason is then received below in place of the slots.
                    let _ = step_done.send(());
                }
                let needs_of_step = caller.needs(step).map_err(|source| StepsError::Call { step, source })?;
                let Some((name, needs)) = needs_of_step else { break };
                let constants = cursor.step(&name, &needs)?;
                let waiting_since = Instant::now();
                let slots = ready.recv().unwrap_or(Err(PoolError::Ended));
                let stall = waiting_since.elapsed();
                let slots = slots.map_err(|source| StepsError::Pool { step, source })?;
                if !slots.iter().map(|slot| slot.constant).eq(constants) {
                    return Err(StepsError::Pool { step, source: PoolError::Plan });
                }
                let launches =
                    caller.call(step, &slots).map_err(|source| StepsError::Call { step, source })?;
                cursor.launches(&launches.planned, &launches.actual)?;
                let now = Instant::now();
                steps.push(StepTime { whole: now - before, stall });
                before = now;
            }
            cursor.finish()?;
            Ok(())
        })();
        let whole = started.elapsed();
        // Closing the channels makes the pool's thread end.
        drop(step_done);
        drop(ready);
        let moved = queue.join();
        walked?;
        let moved = moved.map_err(|_| StepsError::Pool { step: steps.len(), source: PoolError::Ended })?;
        Ok(Done { steps, whole, moved })
    })
}

#[cfg(test)]
mod tests;
