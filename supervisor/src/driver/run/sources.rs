//! Converts the messages of workers and the ends of processes to events for the core.

use std::time::Instant;

use opt_shared::causes::chain;
use opt_shared::ids::WorkerId;
use opt_shared::message::FromWorker;

use super::Run;
use super::machine::Announced;
use super::sample::MemoryFiles;
use crate::core::event::{Event, PolicyRow, Process};
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::pool::{PoolEvent, Unwatched};

impl Run<'_> {
    pub(super) fn handle_pool_event(&mut self, event: PoolEvent) -> Result<(), RunError> {
        match event {
            PoolEvent::Ready { worker, pid } => {
                let ready = self.machine.ready_after(worker);
                self.records.writer.write(move |store| store.worker_ready(worker, ready));
                self.endpoints.notify(|| notifications::worker_ready(worker, ready));
                match self.machine.sampler.watch(
                    Process::Worker(worker),
                    pid,
                    None,
                    MemoryFiles::default(),
                    false,
                ) {
                    Ok(()) => self.feed(Event::WorkerReady { worker }),
                    Err(error) => {
                        let why = format!("it could not be watched: {}", chain(&error));
                        self.feed(Event::WorkerNotReady { worker, why, alive: true })
                    }
                }
            }
            PoolEvent::NotReady { worker, why } => {
                self.feed(Event::WorkerNotReady { worker, why, alive: true })
            }
            PoolEvent::Gone { worker, how, left_runners } => {
                if self.decisions.core.lease_of(worker).is_some() {
                    self.records.evidence.phase_ended();
                }
                self.machine.forget_dead_worker(worker, left_runners);
                tracing::debug!(%worker, how, left_runners, "worker gone");
                self.sample_now()?;
                self.feed(Event::WorkerGone { worker, how, left_runners })
            }
            PoolEvent::OrphansEnded { worker } => {
                self.machine.sampler.forget_runners(worker);
                self.sample_now()?;
                self.feed(Event::OrphansEnded { worker })
            }
            PoolEvent::Message { worker, message } => self.handle_message(worker, message),
        }
    }

    fn handle_message(&mut self, worker: WorkerId, message: FromWorker) -> Result<(), RunError> {
        match message {
            FromWorker::RunnerAhead { pid, start_time } => {
                // The message of a worker that has ended may arrive after the news of its end.
                if self.machine.pool.pid(worker).is_some() {
                    self.machine.leaves.enclose_ahead(worker, pid, start_time);
                }
                Ok(())
            }
            FromWorker::RunnerStarted {
                lease,
                pid,
                start_time,
                limit,
                shared,
                of_worker,
                inherited,
                group_limits,
            } => {
                let files = MemoryFiles { own: shared, of_worker, inherited };
                let runner = Announced { worker, pid, start_time, limit, files, group_limits };
                match self.machine.watch_runner(runner) {
                    Ok(()) => {}
                    // The worker will report the runner's end.
                    Err(Unwatched::Gone) => {
                        tracing::debug!(%worker, pid, "a runner ended before it could be watched")
                    }
                    // If a runner cannot be watched, it must not begin, because nothing would enforce its limit.
                    Err(Unwatched::Short(why) | Unwatched::Failed(why)) => {
                        let detail = format!("its runner {pid} could not be watched: {why}");
                        return self.feed(Event::WorkerFault { worker, detail });
                    }
                }
                self.feed(Event::RunnerStarted { worker, lease, pid, limit, shared })
            }
            FromWorker::ZygoteStarted { pid, start_time } => {
                self.machine.watch_zygote(worker, pid, start_time);
                Ok(())
            }
            FromWorker::NoZygote { why } => {
                let numbers = vec![("worker", u64::from(worker.0))];
                self.policy(&PolicyRow { decision: "no_zygote", reason: why, numbers });
                Ok(())
            }
            FromWorker::Holds { bytes } => {
                self.machine.sampler.set_held(worker, bytes);
                Ok(())
            }
            FromWorker::KillWanted { pid, reason } => self.feed(Event::KillWanted { worker, pid, reason }),
            FromWorker::RunnerDied { pid } => {
                self.machine.sampler.forget(Process::Runner(worker, pid));
                self.feed(Event::RunnerDied { worker, pid })
            }
            FromWorker::Enforced { protections } => {
                self.machine.confirm_protections(protections);
                self.write_host();
                Ok(())
            }
            FromWorker::Progress { lease, done, total, bytes } => {
                if let Some(attempt) = self.attempts.running.get_mut(&lease) {
                    (attempt.done, attempt.total, attempt.bytes) = (done, total, bytes);
                }
                self.endpoints.progress.update(lease, done, total, bytes);
                Ok(())
            }
            FromWorker::Finished { lease, report } => {
                self.records.evidence.phase_ended();
                self.sample_now()?;
                // When an attempt fails, the worker reaps its runners without reporting each one.
                self.machine.forget_runners(worker);
                self.feed(Event::Finished { worker, lease, report })?;
                // The worker's remaining memory is measured now, so that the next phase does not have to wait for the
                // next sample.
                self.sample_now()
            }
            FromWorker::Fault { lease: _, detail } => {
                tracing::warn!(%worker, "a worker cannot continue: {detail}");
                self.feed(Event::WorkerFault { worker, detail })
            }
        }
    }

    /// Takes a sample now. Besides the regular samples, one is taken when an attempt or a worker ends, so that the next
    /// decision (recycle, grant) and its record use current figures.
    fn sample_now(&mut self) -> Result<(), RunError> {
        (self.before_each_sample)();
        self.machine.sampler.longest_turn = self.watchdog.longest_turn();
        let sample = self.machine.sample(self.decisions.now());
        self.records.memory_sample(&self.machine.sampler.latest);
        self.records.write_postponed_summary(self.machine.sampler.totals);
        self.feed(Event::Sample(sample))
    }

    pub(super) fn sample_if_due(&mut self) -> Result<(), RunError> {
        if self.machine.sampler.due() <= Instant::now() { self.sample_now() } else { Ok(()) }
    }
}
