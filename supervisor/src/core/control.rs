//! Handles the requests that users make during a run. Each request is one event and gets exactly one answer.
//!
//! Some requests have effects that last beyond the answer: a pause, workers to replace after their leases, and running
//! units to end. `PendingRequests` keeps track of these.

mod view;

use std::collections::BTreeSet;

use opt_shared::ids::{JobId, UnitId, WorkerId};
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

pub use self::view::{LeaseView, RunView, RunnerView, UnitView, WorkerView};
use super::event::{Action, Answer, AttemptEnd, Control, Moment, StopReason};
use super::recycle::RecycleReason;
pub use super::request::{Mode, Which};
use super::unit::Progress;
use super::worker::{DrainOrder, Lease, State};
use super::{Core, Ending};

/// The reason that is recorded for a unit that a user cancelled.
pub const CANCELLED: &str = "cancelled by the user";
/// The reason that is recorded for an attempt whose worker a user recycled.
const RECYCLED: &str = "the worker was recycled by the user during the attempt";

/// The requests that were accepted but are not completed yet.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingRequests {
    paused: bool,
    /// Whether the run waits for submissions when all jobs are over.
    stays_open: bool,
    /// Workers to replace after their current lease.
    recycle: BTreeSet<WorkerId>,
    /// Running units that were cancelled. They end with their current attempt.
    cancelled: BTreeSet<UnitId>,
}

impl Core {
    pub(super) fn control(&mut self, now: Moment, request: Control) {
        let answer = match request {
            Control::StayOpen => {
                self.pending.stays_open = true;
                Answer::Done("the run stays open".to_owned())
            }
            _ if self.ending != Ending::No && !matches!(request, Control::Shutdown { .. }) => {
                Answer::Refused("the run is ending".to_owned())
            }
            Control::Recycle { which, mode } => self.recycle_by_user(now, which, mode),
            Control::Pause => self.pause(),
            Control::Resume => self.resume(),
            Control::Cancel { job, unit } => self.cancel(job, unit),
            Control::SetCeiling { ceiling } => self.set_ceiling(ceiling),
            Control::Shutdown { mode } => self.shut_down(now, mode),
        };
        self.actions.push(Action::Answered(answer));
    }

    fn accept(&mut self, verb: &'static str, what: String, numbers: Vec<(&'static str, u64)>) -> Answer {
        self.policy(verb, format!("by the user: {what}"), numbers);
        Answer::Done(what)
    }

    // Requests about workers.

    fn recycle_by_user(&mut self, now: Moment, which: Which, mode: Mode) -> Answer {
        let workers: Vec<WorkerId> = match which {
            Which::Worker(worker) if !self.workers.contains_key(&worker) => {
                return Answer::Unknown(format!("{worker} is not alive"));
            }
            Which::Worker(worker) => vec![worker],
            Which::Role(role) => {
                self.workers.iter().filter(|(_, it)| it.role == role).map(|(&id, _)| id).collect()
            }
        };
        let (mut done, mut unneeded) = (Vec::new(), Vec::new());
        for worker in workers {
            match self.recycle_one(now, worker, mode) {
                Ok(what) => done.push(what),
                Err(why) => unneeded.push(why),
            }
        }
        match (done.is_empty(), unneeded.is_empty()) {
            (false, _) => Answer::Done(done.join("; ")),
            (true, false) => Answer::Already(unneeded.join("; ")),
            (true, true) => {
                Answer::Already("no worker with this role is alive; the next one will be new".to_owned())
            }
        }
    }

    /// Replaces one worker, at once or after its lease. If there is nothing to do, returns the reason as the error.
    fn recycle_one(&mut self, now: Moment, worker: WorkerId, mode: Mode) -> Result<String, String> {
        let Some(it) = self.workers.get(&worker) else { return Err(format!("{worker} is gone")) };
        let name = format!("{} {worker}", it.role.name());
        match &it.state {
            _ if it.killed.is_some() => Err(format!("{name} is being ended")),
            State::Starting { .. } => Err(format!("{name} is still starting")),
            State::Terminating => Err(format!("{name} is being ended")),
            State::Draining { .. } if mode == Mode::Drain => Err(format!("{name} is being ended")),
            State::Draining { .. } => {
                self.kill_worker(worker, KillReason::Requested);
                Ok(format!("{name} is being killed"))
            }
            State::Idle => {
                self.recycle(now, worker, RecycleReason::Requested);
                Ok(format!("{name} is being replaced"))
            }
            State::Leased(lease) if mode == Mode::Drain => {
                let what = format!("{name} will be replaced after {}", lease.id);
                if self.pending.recycle.insert(worker) { Ok(what) } else { Err(what) }
            }
            State::Leased(lease) => {
                let (id, lease) = (lease.id, u64::from(lease.id.0));
                let owed = self.ledger.owed().sum();
                self.policy(
                    "recycle",
                    format!("{name}: {}, at once", RecycleReason::Requested.name()),
                    vec![("worker", u64::from(worker.0)), ("lease", lease), ("owed_bytes", owed.get())],
                );
                if let Some(it) = self.workers.get_mut(&worker) {
                    it.drain_order =
                        Some(DrainOrder { at: now, reason: Some(RecycleReason::Requested), owed });
                }
                self.kill_runners(worker, KillReason::Requested);
                self.kill_worker(worker, KillReason::Requested);
                Ok(format!("{name} is being killed; the attempt of {id} will be repeated"))
            }
        }
    }

    /// Replaces those workers that a user asked to replace and whose leases have ended by now. Call this function
    /// before granting any lease.
    pub(super) fn carry_out_requests(&mut self, now: Moment) {
        let requested = std::mem::take(&mut self.pending.recycle);
        for worker in requested {
            let Some(it) = self.workers.get(&worker) else { continue };
            match it.state {
                State::Idle => self.recycle(now, worker, RecycleReason::Requested),
                State::Leased(_) => {
                    self.pending.recycle.insert(worker);
                }
                // The worker is already ending for another reason.
                _ => {}
            }
        }
    }

    /// Handles an attempt that a user ended, which does not count as a loss. Returns false if the attempt ended for
    /// another reason.
    pub(super) fn ended_by_user(&mut self, lease: &Lease, killed: Option<KillReason>) -> bool {
        let id = lease.order.unit;
        if self.pending.cancelled.remove(&id) {
            let ended = AttemptEnd::GivenUp { why: CANCELLED.to_owned(), blame: Blame::Plan };
            self.attempt_ended(lease, ended);
            self.unit_done(id, Status::Skipped, Some(Blame::Plan), CANCELLED.to_owned());
            return true;
        }
        if killed == Some(KillReason::Requested) {
            self.change(id, |unit| unit.progress = Progress::Waiting { attempt: lease.attempt + 1 });
            self.attempt_ended(lease, AttemptEnd::Retried { why: RECYCLED.to_owned(), blame: Blame::Host });
            return true;
        }
        false
    }

    // Requests about the granting of leases.

    fn pause(&mut self) -> Answer {
        if self.pending.paused {
            return Answer::Already("the run is already paused".to_owned());
        }
        self.pending.paused = true;
        // Nothing waits for memory during a pause, so the timeout for memory must not expire.
        self.waiting = None;
        let running = self.workers.values().filter(|it| it.lease().is_some()).count() as u64;
        let what = format!("no further leases are granted; attempts that are still running: {running}");
        self.accept("pause", what, vec![("leases", running)])
    }

    fn resume(&mut self) -> Answer {
        if !self.pending.paused {
            return Answer::Already("the run is not paused".to_owned());
        }
        self.pending.paused = false;
        self.accept("resume", "leases are granted again".to_owned(), Vec::new())
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pending.paused
    }

    pub(super) fn stays_open(&self) -> bool {
        self.pending.stays_open
    }

    fn set_ceiling(&mut self, ceiling: Bytes) -> Answer {
        let before = self.ledger.ceilings().host;
        let min_ceiling = self.spec.supervisor + self.spec.idle_worker;
        if ceiling == before {
            return Answer::Already(format!("the ceiling is already {ceiling}"));
        }
        if ceiling < min_ceiling {
            return Answer::Refused(format!(
                "{ceiling} is less than this program alone may owe ({min_ceiling}: the supervisor and an idle worker)"
            ));
        }
        self.spec.ceilings.host = ceiling;
        self.ledger.set_host_ceiling(ceiling);
        let charged = self.ledger.charged().host;
        let numbers = vec![
            ("before_bytes", before.get()),
            ("ceiling_bytes", ceiling.get()),
            ("charged_bytes", charged.get()),
        ];
        self.accept(
            "set_ceiling",
            format!("the ceiling is now {ceiling} (it was {before}), and {charged} are charged"),
            numbers,
        )
    }

    // Requests about units.

    fn cancel(&mut self, job: JobId, unit: Option<UnitId>) -> Answer {
        let Some(units_of_job) = self.jobs.get(job.index()).map(|job| job.units.clone()) else {
            return Answer::Unknown(format!("there is no {job}"));
        };
        let ids = match unit {
            None => units_of_job,
            Some(id) if units_of_job.contains(&id) => vec![id],
            Some(id) => return Answer::Unknown(format!("{job} has no {id}")),
        };
        let (mut waiting, mut running) = (Vec::new(), Vec::new());
        for id in ids {
            match self.unit(id).progress {
                Progress::Waiting { .. } => waiting.push(id),
                Progress::Running { .. } => {
                    if self.pending.cancelled.insert(id) {
                        running.push(id);
                    }
                }
                Progress::Done(_) => {}
            }
        }
        if waiting.is_empty() && running.is_empty() {
            return Answer::Already("all of these candidates have ended or are being ended".to_owned());
        }
        let numbers = vec![
            ("job", u64::from(job.0)),
            ("waiting", waiting.len() as u64),
            ("running", running.len() as u64),
        ];
        let what = format!("ended {} waiting and killed {} running candidates", waiting.len(), running.len());
        let answer = self.accept("cancel", what, numbers);
        for &id in &running {
            let holder = self
                .workers
                .iter()
                .find(|(_, it)| it.lease().is_some_and(|lease| lease.order.unit == id))
                .map(|(&worker, _)| worker);
            if let Some(worker) = holder {
                self.kill_runners(worker, KillReason::Cancelled);
                self.kill_worker(worker, KillReason::Cancelled);
            }
        }
        for id in waiting {
            self.unit_done(id, Status::Skipped, Some(Blame::Plan), CANCELLED.to_owned());
        }
        answer
    }

    // Requests about the run.

    fn shut_down(&mut self, now: Moment, mode: Mode) -> Answer {
        let what = match (&self.ending, mode) {
            (Ending::No, Mode::Drain) if self.is_at_rest() => "the replays are run, then the run ends",
            (Ending::No, Mode::Drain) => "running attempts may finish, then the run ends",
            (Ending::No | Ending::Drain(_), Mode::Now) => "everything is killed",
            (Ending::Drain(_), Mode::Drain) | (Ending::Kill(_) | Ending::Stopped, _) => {
                return Answer::Already("the run is already ending".to_owned());
            }
        };
        let answer = self.accept("shutdown", what.to_owned(), Vec::new());
        match mode {
            Mode::Drain => self.drain(now),
            Mode::Now => self.end(now, Ending::Kill(self.reason_to_end())),
        }
        answer
    }

    /// Ends the run after its running attempts. An open run whose jobs are done first runs the replays that follow
    /// them.
    pub(super) fn drain(&mut self, now: Moment) {
        if self.is_at_rest() {
            (self.pending.stays_open, self.pending.paused) = (false, false);
        } else {
            self.end(now, Ending::Drain(self.reason_to_end()));
        }
    }

    /// Returns whether the run is open, and has unfinished jobs that all come after other jobs.
    fn is_at_rest(&self) -> bool {
        let mut jobs = self.spec.jobs.iter().zip(&self.jobs);
        self.pending.stays_open
            && !self.every_job_is_done()
            && jobs.all(|(spec, job)| job.done || !spec.after.is_empty())
    }

    /// Returns the reason to record if the run ends now. An open run that has nothing left to do is recorded as
    /// finished, not as interrupted.
    pub(super) fn reason_to_end(&self) -> StopReason {
        match &self.ending {
            Ending::Drain(reason) | Ending::Kill(reason) => reason.clone(),
            Ending::No | Ending::Stopped => {
                let done = self.every_job_is_done() && self.pending.stays_open;
                if done { StopReason::Finished } else { StopReason::Interrupted }
            }
        }
    }
}
