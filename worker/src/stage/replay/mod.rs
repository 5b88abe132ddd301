//! Replays recorded calls in order, with a limit on memory. The calls' tensors stay on disk, and a pool of limited size
//! contains only the tensors that are needed next.
//!
//! This file carries out the stage, from its task to its report. `planner` decides when each tensor is loaded and
//! evicted, `cursor` compares the actual uses of tensors with the recorded schedule, `pool` makes the copies, and
//! `calls` makes the calls. A report has a result only if every step succeeded and matched the schedule.

mod calls;
mod captures;
mod cursor;
pub mod planner;
pub mod pool;
pub mod steps;
#[cfg(test)]
mod tests;

use std::time::Duration;

use opt_shared::causes::{chain, is_shortage};
use opt_shared::message::ReplayTask;
use opt_shared::outcome::{Head, ReplayResult, Replayed, Status};
use opt_shared::replay::Recording;
use opt_shared::units::Bytes;

use self::calls::{Calls, StepError};
use self::captures::{CaptureSource, CapturesError, FileError, Locations};
use self::planner::{BelowFloor, MovePlan, Wanted};
use self::pool::{Pool, PoolError};
use self::steps::{Done, StepsError};
use crate::residency::device::DeviceError;
use crate::session::{Backend, SessionError};
use crate::stage::Progress;

#[derive(Debug, thiserror::Error)]
enum ReplayError {
    #[error(transparent)]
    Captures(#[from] CapturesError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    BelowFloor(#[from] BelowFloor),
    #[error("making the pool")]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Steps(#[from] StepsError<StepError>),
}

/// Replays the calls of a task. If this fails, records the error in `head`.
pub(crate) fn run<B: Backend>(
    backend: &B,
    progress: Progress<'_>,
    task: &ReplayTask,
    head: &mut Head,
) -> Replayed {
    let result = try_run(backend, progress, task, head);
    // An error that ends a context, or a panic in the driver, may be noticed only in the pool's thread.
    let pool_failed = matches!(
        result,
        Err(ReplayError::Steps(StepsError::Pool {
            source: PoolError::Device(_) | PoolError::Place(_) | PoolError::Ended,
            ..
        }))
    );
    head.context_lost = is_context_lost(backend.can_start_sessions(), pool_failed, backend.is_device());
    let result = result.map_err(|error| record_error(error, head)).ok();
    Replayed { result: result.map(Box::new) }
}

fn is_context_lost(can_start_sessions: bool, pool_failed: bool, is_device: bool) -> bool {
    !can_start_sessions || (pool_failed && is_device)
}

fn try_run<B: Backend>(
    backend: &B,
    progress: Progress<'_>,
    task: &ReplayTask,
    head: &mut Head,
) -> Result<ReplayResult, ReplayError> {
    let (recording, locations) = read_or_make_recording(progress, task)?;
    let sets = recording.working_sets();
    let grain = backend.pool_grain();
    let slots = recording.slots(grain);
    let pinned = recording.pinned(&task.pin);
    let bytes: Vec<Bytes> = recording.constants.iter().map(|constant| constant.bytes).collect();
    let wanted = Wanted {
        sets: &sets,
        slots: &slots,
        bytes: &bytes,
        pinned: &pinned,
        budget: task.budget,
        depth: task.prefetch,
    };
    let plan = planner::plan(wanted)?;
    let candidates = task.callees.iter().map(|it| backend.open(&it.callee)).collect::<Result<Vec<_>, _>>()?;
    // The pool never needs more memory than all constants together.
    let size = task.budget.min(slots.iter().copied().sum());
    let (device, arena) = backend.pool(size)?;
    let outside =
        CaptureSource { locations: &locations, constants: &recording.constants, drop_cache: task.drop_cache };
    let pool = Pool::new(device, outside, &recording.constants, &plan, &sets);
    let mut calls = Calls {
        backend,
        progress,
        task,
        candidates,
        locations: &locations,
        arena,
        opened: None,
        guards: None,
        steps: Vec::new(),
        outputs_digest: blake3::Hasher::new(),
        peak_owed: Bytes::ZERO,
        output_truncated: false,
    };
    let done = steps::replay(&recording, &plan, pool, &mut calls);
    head.record_peak(calls.peak_owed);
    head.output_truncated = calls.output_truncated;
    let done = done?;
    Ok(result(task, &recording, grain, &plan, done, calls))
}

fn read_or_make_recording(
    progress: Progress<'_>,
    task: &ReplayTask,
) -> Result<(Recording, Locations), ReplayError> {
    let (recorder, locations) = captures::survey(task)?;
    if let Some(known) = captures::read_recording(&task.recording)? {
        return Ok((known, locations));
    }
    let total = u32::try_from(recorder.recording().constants.len()).unwrap_or(u32::MAX);
    let report_progress = |done: usize| {
        progress(u32::try_from(done).unwrap_or(u32::MAX), total, Bytes::ZERO);
    };
    let recording = captures::record(recorder, &locations, task.drop_cache, report_progress)?;
    captures::write_recording(&task.recording, &recording.encode())?;
    Ok((recording, locations))
}

fn result<B: Backend>(
    task: &ReplayTask,
    recording: &Recording,
    grain: Bytes,
    plan: &MovePlan,
    done: Done,
    calls: Calls<'_, B>,
) -> ReplayResult {
    let floor = recording.floor(&task.pin, grain);
    let stall: Duration = done.steps.iter().map(|step| step.stall).sum();
    let mut steps = calls.steps;
    for (step, time) in steps.iter_mut().zip(&done.steps) {
        step.ms = ms(time.whole);
        step.stall_ms = ms(time.stall);
    }
    let moved = done.moved;
    ReplayResult {
        budget_bytes: task.budget,
        floor_bytes: floor.bytes(),
        all_resident_bytes: floor.whole,
        pinned_bytes: floor.pinned,
        peak_pool_bytes: moved.peak,
        bytes_moved: moved.bytes,
        unique_bytes: recording.constants.iter().map(|constant| constant.bytes).sum(),
        constants: recording.constants.len() as u64,
        uses: recording.uses.len() as u64,
        hits: plan.steps.iter().map(|step| u64::from(step.hits)).sum(),
        misses: plan.steps.iter().map(|step| u64::from(step.misses)).sum(),
        evictions: moved.evictions,
        total_ms: ms(done.whole),
        stall_ms: ms(stall),
        compute_ms: ms(done.whole.saturating_sub(stall)),
        copy_ms: ms(moved.busy),
        recording_digest: blake3::hash(&recording.encode()).to_hex().to_string(),
        outputs_digest: calls.outputs_digest.finalize().to_hex().to_string(),
        steps,
        step_count: recording.steps.len() as u64,
    }
}

fn record_error(error: ReplayError, head: &mut Head) {
    head.detail = chain(&error);
    head.status = match error {
        error if is_shortage(&error) => Status::InfraError,
        ReplayError::Captures(_)
        | ReplayError::Steps(
            StepsError::Pool { source: PoolError::Changed { .. }, .. }
            | StepsError::Call { source: StepError::Captures(_), .. },
        ) => Status::CaptureError,
        ReplayError::BelowFloor(_) => Status::DoesNotFit,
        ReplayError::Steps(StepsError::Call { source: StepError::Failed(failed), .. }) => {
            let status = failed.failure.status;
            head.detail =
                format!("step {}, {}: {}", failed.step, failed.failure.entry, failed.failure.detail);
            head.failures.push(failed.failure);
            head.end = failed.end;
            status
        }
        ReplayError::File(_) | ReplayError::Device(_) | ReplayError::Session(_) | ReplayError::Steps(_) => {
            Status::InfraError
        }
    };
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
