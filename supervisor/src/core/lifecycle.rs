//! Handles the start and the end of workers and runners, and classifies how workers end.
//!
//! The core orders every kill through `kill_worker` or `kill_runner`, and `driver` carries it out. Because the kill of
//! a process is ordered at most once, the first reason is the one that is recorded.

use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::message::{KillReason, Role};
use opt_shared::units::Bytes;

use super::event::{Action, Moment, WorkerEndClass};
use super::ledger::Demand;
use super::worker::{DrainOrder, Orphans, Runner, State, Worker, owed_by};
use super::{Core, DEATH_TIMEOUT, Ending, FAILURE_WINDOW, MAX_FAILURES, START_DEADLINE};

impl Core {
    pub(super) fn start_worker(&mut self, now: Moment, role: Role, spare: bool) {
        if self.backoff.get(&role).is_some_and(|backoff| backoff.until.is_some()) {
            return;
        }
        let worker = WorkerId(self.next_worker);
        self.next_worker += 1;
        self.workers.insert(worker, Worker { spare, ..Worker::new(role, now, now + START_DEADLINE) });
        self.ledger.open(worker, self.spec.idle_worker);
        self.actions.push(Action::StartWorker { worker, role });
    }

    pub(super) fn worker_ready(&mut self, worker: WorkerId) {
        let Some(it) = self.workers.get_mut(&worker) else { return };
        if matches!(it.state, State::Starting { .. }) {
            it.was_ready = true;
            it.state = State::Idle;
            let role = it.role;
            self.backoff.entry(role).or_default().succeeded();
        }
    }

    pub(super) fn worker_not_ready(&mut self, now: Moment, worker: WorkerId, why: &str, alive: bool) {
        if !self.workers.contains_key(&worker) {
            return;
        }
        self.policy("worker_not_ready", why.to_owned(), vec![("worker", u64::from(worker.0))]);
        if alive {
            self.kill_worker(worker, KillReason::NotReady);
        } else {
            self.worker_gone(now, worker, why, false);
        }
    }

    pub(super) fn worker_fault(&mut self, worker: WorkerId, detail: String) {
        if self.workers.contains_key(&worker) {
            self.policy("worker_fault", detail, vec![("worker", u64::from(worker.0))]);
            self.kill_worker(worker, KillReason::WorkerFault);
        }
    }

    /// Orders the kill of a worker, unless it was ordered before. The worker keeps its lease until it reports or is
    /// dead. Until then, the lease stays charged, and a report still counts.
    pub(super) fn kill_worker(&mut self, worker: WorkerId, reason: KillReason) {
        let Some(it) = self.workers.get_mut(&worker) else { return };
        if it.killed.is_some() {
            return;
        }
        it.killed = Some(reason);
        if !matches!(it.state, State::Leased(_)) {
            it.state = State::Terminating;
        }
        self.actions.push(Action::KillWorker { worker, reason });
    }

    /// Starts the timeout (`DEATH_TIMEOUT`) for the worker's death. It does not start earlier, because the signal is
    /// sent only after the reason for the kill has been written to disk.
    pub(super) fn kill_sent(&mut self, now: Moment, worker: WorkerId) {
        if let Some(it) = self.workers.get_mut(&worker) {
            it.killed_at.get_or_insert(now);
        }
    }

    /// Handles the death of a worker. If `left_runners` is set, some of the worker's runners are still alive. They stay
    /// charged until they end.
    pub(super) fn worker_gone(&mut self, now: Moment, worker: WorkerId, how: &str, left_runners: bool) {
        let Some(mut it) = self.workers.remove(&worker) else { return };
        let (class, failed) = classify_end(&it);
        self.actions.push(Action::WorkerEnded {
            worker,
            class,
            recycled: it.drain_order.and_then(|order| order.reason),
            leases: it.leases,
            peak_owed: it.peak_owed,
            peak_device: it.peak_device,
        });
        if class == WorkerEndClass::NotReady {
            self.backoff.entry(it.role).or_default().failed(now);
        }
        self.left_the_device(now, worker, &it);
        let orphans = Orphans {
            role: it.role,
            runners: std::mem::take(&mut it.runners),
            since: now,
            drain_order: it.drain_order,
            overdue: false,
        };
        if left_runners {
            // From now on, the worker is charged only for its runners and for the device memory that is not back yet.
            self.orphans.insert(worker, orphans);
            self.settle_account(worker);
        } else {
            self.tree_is_gone(now, worker, &orphans);
        }
        if let State::Leased(lease) = &it.state {
            self.attempt_lost(now, worker, &it, lease.clone(), how);
        }
        if failed {
            self.count_failure(now, how);
        }
    }

    pub(super) fn orphans_ended(&mut self, now: Moment, worker: WorkerId) {
        if let Some(orphans) = self.orphans.remove(&worker) {
            self.tree_is_gone(now, worker, &orphans);
        }
    }

    /// Charges a dead worker only for the memory that its runners owe and for the device memory that is not back yet.
    /// Ends the charge if there is neither.
    pub(super) fn settle_account(&mut self, worker: WorkerId) {
        let host = self.orphans.get(&worker).map(|it| owed_by(&it.runners));
        let device = self.device.unreturned_by(worker);
        if host.is_none() && device.is_none() {
            return self.ledger.close(worker);
        }
        self.ledger.release(worker, Bytes::ZERO);
        let measured = Demand { host: host.unwrap_or_default(), device: device.unwrap_or_default() };
        self.ledger.measure(worker, measured);
    }

    /// Settles the account of a dead worker whose runners are dead too. If the worker was recycled, also reports how
    /// much memory its end has freed.
    fn tree_is_gone(&mut self, now: Moment, worker: WorkerId, orphans: &Orphans) {
        let before = self.ledger.charged();
        self.settle_account(worker);
        if let Some(DrainOrder { at, reason: Some(reason), owed }) = orphans.drain_order {
            let took = now.saturating_sub(at).as_millis();
            self.policy(
                "recycled",
                format!("{} {worker} is gone ({})", orphans.role.name(), reason.name()),
                vec![
                    ("worker", u64::from(worker.0)),
                    ("owed_before_bytes", owed.get()),
                    ("owed_after_bytes", self.ledger.owed().sum().get()),
                    ("charged_before_bytes", before.sum().get()),
                    ("charged_after_bytes", self.ledger.charged().sum().get()),
                    ("took_ms", u64::try_from(took).unwrap_or(u64::MAX)),
                ],
            );
        }
    }

    /// Reports killed workers that have not died within `DEATH_TIMEOUT`. Ends the run, unless everything is being
    /// killed already. Such a worker is probably in uninterruptible sleep, so this run cannot get its memory back.
    pub(super) fn death_overdue(&mut self, now: Moment) {
        let overdue: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, it)| !it.overdue && it.dead_by().is_some_and(|by| by <= now))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in overdue {
            let owed = self.ledger.measured(worker).sum();
            let Some(it) = self.workers.get_mut(&worker) else { continue };
            it.overdue = true;
            let why =
                format!("{} {worker} was killed {DEATH_TIMEOUT:?} ago and is still alive", it.role.name());
            let numbers = vec![("worker", u64::from(worker.0)), ("owed_bytes", owed.get())];
            self.policy("worker_not_gone", why.clone(), numbers.clone());
            if matches!(self.ending, Ending::No | Ending::Drain(_)) {
                self.stop_for_the_host(now, why, numbers);
            }
        }
    }

    /// Reports, once for each dead worker, that some of its runners are still alive after `DEATH_TIMEOUT`. The runners
    /// stay charged until they are gone.
    pub(super) fn orphans_overdue(&mut self, now: Moment) {
        let overdue: Vec<WorkerId> = self
            .orphans
            .iter()
            .filter(|(_, it)| !it.overdue && it.since + DEATH_TIMEOUT <= now)
            .map(|(&worker, _)| worker)
            .collect();
        for worker in overdue {
            let owed = self.ledger.measured(worker).sum();
            let Some(it) = self.orphans.get_mut(&worker) else { continue };
            it.overdue = true;
            let text = format!(
                "{} {worker} died {DEATH_TIMEOUT:?} ago, but some of its runners are still alive and stay charged",
                it.role.name()
            );
            let numbers = vec![
                ("worker", u64::from(worker.0)),
                ("runners", it.runners.len() as u64),
                ("owed_bytes", owed.get()),
            ];
            self.policy("memory_not_returned", text, numbers);
        }
    }

    fn count_failure(&mut self, now: Moment, how: &str) {
        self.failures_in_a_row += 1;
        self.failures.push_back(now);
        while self.failures.front().is_some_and(|&at| at + FAILURE_WINDOW < now) {
            self.failures.pop_front();
        }
        if self.ending != Ending::No {
            return;
        }
        let (within, failures) = if MAX_FAILURES <= self.failures.len() {
            (format!("within {FAILURE_WINDOW:?}"), self.failures.len())
        } else if MAX_FAILURES <= self.failures_in_a_row {
            ("and no attempt finished in between".to_owned(), self.failures_in_a_row)
        } else {
            return;
        };
        let why = format!("{MAX_FAILURES} workers were lost {within}, the last one: {how}");
        self.stop_for_the_host(now, why, vec![("failures", failures as u64)]);
    }

    // The start and end of runners.

    pub(super) fn runner_started(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        pid: u32,
        limit: Bytes,
        shared: Bytes,
    ) {
        let stopping = self.reason_for_killing_all();
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let is_current_lease = it.lease().is_some_and(|held| held.id == lease);
        let kill_reason = it.killed.or(stopping);
        let (owed, peak_owed, device) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        it.runners.insert(pid, Runner { limit, shared, owed, peak_owed, device, killed: None });
        match kill_reason {
            Some(reason) => self.kill_runner(worker, pid, reason),
            None if is_current_lease => self.actions.push(Action::AllowRunner { worker, pid }),
            None => self.kill_runner(worker, pid, KillReason::Orphaned),
        }
    }

    pub(super) fn kill_runner(&mut self, worker: WorkerId, pid: u32, reason: KillReason) {
        let Some(runner) = self.workers.get_mut(&worker).and_then(|it| it.runners.get_mut(&pid)) else {
            return;
        };
        if runner.killed.is_none() {
            runner.killed = Some(reason);
            self.actions.push(Action::KillRunner { worker, pid, reason });
            if let KillReason::RunnerMemory { .. }
            | KillReason::DeviceCeiling { .. }
            | KillReason::HostFloor { .. }
            | KillReason::HostCeiling { .. } = reason
                && let Some(State::Leased(lease)) = self.workers.get_mut(&worker).map(|it| &mut it.state)
            {
                lease.short_of_memory = Some(reason);
            }
        }
    }

    pub(super) fn kill_runners(&mut self, worker: WorkerId, reason: KillReason) {
        let Some(it) = self.workers.get(&worker) else { return };
        let pids: Vec<u32> = it.runners.keys().copied().collect();
        for pid in pids {
            self.kill_runner(worker, pid, reason);
        }
    }

    pub(super) fn runner_died(&mut self, worker: WorkerId, pid: u32) {
        if let Some(it) = self.orphans.get_mut(&worker) {
            it.runners.remove(&pid);
            return self.settle_account(worker);
        }
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let runner = it.runners.remove(&pid);
        self.ledger.measure(worker, it.demand());
        let (killed, peak_owed) =
            runner.map_or((None, Bytes::ZERO), |runner| (runner.killed, runner.peak_owed));
        self.actions.push(Action::MayReap { worker, pid, killed, peak_owed });
    }
}

/// Returns the class of a worker's end, and whether it counts towards `MAX_FAILURES`.
fn classify_end(it: &Worker) -> (WorkerEndClass, bool) {
    match it.killed {
        // The worker was healthy.
        Some(
            KillReason::Interrupted
            | KillReason::RunStopped
            | KillReason::Requested
            | KillReason::Cancelled
            | KillReason::HostFloor { .. }
            | KillReason::HostCeiling { .. }
            | KillReason::DeviceCeiling { .. }
            | KillReason::DeviceLost,
        ) => (WorkerEndClass::Killed, false),
        _ if !it.was_ready => (WorkerEndClass::NotReady, true),
        Some(_) => (WorkerEndClass::Killed, it.drain_order.is_none()),
        None if it.drain_order.is_some() => (WorkerEndClass::Ended, false),
        None => (WorkerEndClass::Unknown, true),
    }
}
