//! Ends idle workers, either to make room for a lease or because the run ends.
//!
//! `pressure` decides what to do if a limit on memory is exceeded or Linux reports memory pressure.

use opt_shared::ids::WorkerId;
use opt_shared::message::KillReason;
use opt_shared::units::Bytes;

use super::event::{Action, Moment, Order, StopReason};
use super::ledger::{Demand, Refusal};
use super::recycle::RecycleReason;
use super::worker::{DrainOrder, State, Worker};
use super::{Core, DRAIN_DEADLINE, Ending, Waiting};

impl Core {
    fn send_drain_order(&mut self, now: Moment, worker: WorkerId, reason: Option<RecycleReason>) {
        let owed = self.ledger.owed().sum();
        if let Some(it) = self.workers.get_mut(&worker) {
            it.drain_order = Some(DrainOrder { at: now, reason, owed });
            it.state = State::Draining { deadline: now + DRAIN_DEADLINE };
            self.actions.push(Action::Shutdown { worker });
        }
    }

    pub(super) fn recycle(&mut self, now: Moment, worker: WorkerId, reason: RecycleReason) {
        let Some(it) = self.workers.get(&worker) else { return };
        let numbers = vec![
            ("worker", u64::from(worker.0)),
            ("leases", u64::from(it.leases)),
            ("owed_bytes", it.tree_owed().get()),
            ("validated_bytes", it.validated.get()),
            ("validated_by_all_bytes", self.validated_by_verifiers().get()),
        ];
        let text = format!("{} {worker}: {}", it.role.name(), reason.name());
        self.policy("recycle", text, numbers);
        self.send_drain_order(now, worker, Some(reason));
    }

    /// Returns the idle workers in the order in which they are ended: spares first.
    pub(super) fn dispensable(&self) -> Vec<WorkerId> {
        let mut idle = self.idle(|_| true);
        idle.sort_by_key(|worker| self.workers.get(worker).is_some_and(|it| !it.is_spare()));
        idle
    }

    /// Handles a lease that the ledger refused. Ends as many idle workers as needed to make room for the lease, spares
    /// first. If ending all of them would not be enough, ends none. The lease waits in any case.
    pub(super) fn refused(
        &mut self,
        now: Moment,
        worker: WorkerId,
        order: Order,
        demand: Demand,
        refusal: Refusal,
    ) {
        let Order { unit, stage, .. } = order;
        let before = self.waiting.filter(|it| (it.unit, it.stage) == (unit, stage));
        let is_news = before.is_none();
        let (since, is_told) = before.map_or((now, false), |waiting| (waiting.since, waiting.is_told));
        self.waiting = Some(Waiting { since, refusal, unit, stage, is_told });
        if is_news {
            let reason = match refusal {
                Refusal::Ceiling { .. } => "the lease does not fit under the ceiling now",
                Refusal::Floor { .. } => "the machine would fall below its floor",
                Refusal::DeviceInUse { .. } => "other processes hold device memory that the lease needs",
            };
            self.policy("wait", reason.to_owned(), refusal.numbers());
        }
        let others = self.dispensable().into_iter().filter(|&other| other != worker);
        // The missing memory, and the memory that each worker would free.
        let (missing, held): (Bytes, Vec<(WorkerId, Bytes)>) = match refusal {
            Refusal::Ceiling { scope, charged, wanted, ceiling } => {
                let part = |demand| scope.part_of(demand);
                let mut held: Vec<_> = others.map(|it| (it, part(self.ledger.charge(it)))).collect();
                // The worker that would get this lease may have kept more memory than the lease demands. A worker that
                // has held no lease is not replaced, because its successor would owe the same.
                if self.workers.get(&worker).is_some_and(|it| 0 < it.leases) {
                    held.push((worker, part(self.ledger.measured(worker)) - part(demand)));
                }
                (charged + wanted - ceiling, held)
            }
            Refusal::Floor { available, wanted, floor } => {
                let held = others.map(|it| (it, self.ledger.measured(it).sum())).collect();
                (floor + wanted - available, held)
            }
            Refusal::DeviceInUse { free, wanted } => {
                let held = others.map(|it| (it, self.ledger.measured(it).device)).collect();
                (wanted - free, held)
            }
        };
        let mut freed = self.memory_being_freed(&refusal);
        let mut victims = Vec::new();
        for (other, bytes) in held {
            if missing <= freed {
                break;
            }
            freed += bytes;
            victims.push(other);
        }
        if missing <= freed {
            for other in victims {
                self.recycle(now, other, RecycleReason::MakeRoom);
            }
        } else if !is_told && !matches!(refusal, Refusal::Ceiling { .. }) {
            self.tell_of_idle_wait(&refusal);
        }
    }

    /// Tells the user that nothing is running, if a lease waits for memory that other processes hold and no other lease
    /// is held.
    fn tell_of_idle_wait(&mut self, refusal: &Refusal) {
        if self.workers.values().any(|it| it.lease().is_some()) {
            return;
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.is_told = true;
        }
        let reason = format!("nothing runs until there is more memory: {refusal}");
        self.policy("idle_wait", reason, refusal.numbers());
    }

    /// Returns the memory that will be freed without further orders, by workers that are ending and by runners that
    /// dead workers left behind.
    fn memory_being_freed(&self, refusal: &Refusal) -> Bytes {
        let leaving = self.workers.iter().filter(|(_, it)| !it.stays()).map(|(&id, _)| id);
        let orphans = self.orphans.iter().filter(|(_, it)| !it.overdue).map(|(&id, _)| id);
        let freed_by = |worker| match refusal {
            Refusal::Ceiling { scope, .. } => scope.part_of(self.ledger.charge(worker)),
            Refusal::Floor { .. } => self.ledger.measured(worker).sum(),
            Refusal::DeviceInUse { .. } => self.ledger.measured(worker).device,
        };
        leaving.chain(orphans).map(freed_by).sum()
    }

    /// Tells idle workers to end, and kills those that are starting. The run stops when each worker has ended or its
    /// timeout has expired.
    pub(super) fn wind_down(&mut self, now: Moment, reason: StopReason) {
        if self.all_have_ended() {
            self.stop(reason);
            return;
        }
        for worker in self.idle(|_| true) {
            self.send_drain_order(now, worker, None);
        }
        let starting: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, it)| matches!(it.state, State::Starting { .. }))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in starting {
            self.kill_worker(worker, KillReason::Interrupted);
        }
    }

    /// Returns whether all workers and their runners have ended. Processes whose timeout has expired are ignored.
    pub(super) fn all_have_ended(&self) -> bool {
        self.workers.values().all(|it| it.overdue) && self.orphans.values().all(|it| it.overdue)
    }

    pub(super) fn stop(&mut self, reason: StopReason) {
        self.ending = Ending::Stopped;
        self.actions.push(Action::Stop { reason });
    }

    /// Returns the spare workers that have not been needed yet.
    pub(super) fn spares(&self) -> Vec<WorkerId> {
        self.idle(Worker::is_spare)
    }
}
