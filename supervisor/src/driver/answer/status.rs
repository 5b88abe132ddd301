//! Answers the requests `status`, `workers`, `result` and `why` on the control socket. The numbers come from the core,
//! and the names from the plan. This file only reads.

use opt_shared::ids::{CandidateId, WorkerId};
use opt_shared::units::Bytes;
use serde_json::{Map, Value, json};

use super::View;
use super::questions::{Found, Question};
use crate::control::{Code, Refusal, Reply, WhyParams};
use crate::core::control::{LeaseView, UnitView, WorkerView};
use crate::record::{CandidateRecord, PolicyRecord};

/// The longest record in an answer, in bytes. A longer one is sent without its timed entries, which are in
/// `summary.json`.
const MAX_RECORD: usize = 384 << 10;

impl View<'_> {
    pub(crate) fn status(&self) -> Value {
        let view = self.decisions.core.run_view();
        let now = self.decisions.now();
        let leases: Vec<Value> = self
            .decisions
            .core
            .worker_views(now)
            .iter()
            .filter_map(|it| Some(self.lease(it.lease.as_ref()?)))
            .collect();
        json!({
            "run": {
                "name": self.agenda.plan.run.name,
                "plan": self.agenda.plan.source_path,
                "folder": self.agenda.folder.path(),
                "pid": std::process::id(),
                "version": env!("CARGO_PKG_VERSION"),
                "elapsed_s": now.as_secs_f64(),
                "paused": view.paused,
                "open": view.stays_open,
                "ending": view.ending,
                "metrics": self.endpoints.responder.as_ref().map(|it| it.address().to_string()),
            },
            "pace": self.pace(),
            "jobs": self.agenda.plan.jobs.iter().map(|job| self.job(job)).collect::<Vec<_>>(),
            "replays": self.replay_states(),
            "leases": leases,
            "waiting": view.waiting.map(|(since, for_what)| json!({
                "seconds": now.saturating_sub(since).as_secs_f64(), "for": for_what
            })),
            "memory": {
                "host_ceiling_bytes": view.ceiling,
                "host_floor_bytes": view.floor,
                "charged_bytes": view.charged,
                "owed_bytes": view.owed,
                "reclaimable_bytes": self.machine.sampler.latest.reclaimable,
                "available_bytes": self.machine.sampler.latest.available,
                "peak_owed_bytes": self.machine.sampler.totals.peak_owed_bytes,
            },
            "device": self.device(),
            "room": { "disk_bytes": view.room.disk, "inodes": view.room.inodes, "pids": view.room.pids },
        })
    }

    /// Returns the state of the device, or null if the run uses no card.
    fn device(&self) -> Value {
        let Some(device) = &self.machine.device else { return Value::Null };
        let (identity, latest) = (device.identity(), &device.latest);
        let ceilings = self.decisions.core.ceilings();
        json!({
            "name": identity.name,
            "uuid": identity.uuid,
            "state": self.decisions.core.device_state().name(),
            "unified": ceilings.unified,
            "device_ceiling_bytes": ceilings.device,
            "device_owed_bytes": latest.ours,
            "device_peak_bytes": latest.peak,
            "device_others_bytes": latest.others,
            "device_unattributed_bytes": latest.unattributed,
            "device_used_bytes": latest.totals.map(|totals| totals.used),
            "device_total_bytes": latest.totals.map(|totals| totals.total),
            "utilisation": latest.utilisation,
        })
    }

    fn job(&self, job: &crate::plan::JobPlan) -> Value {
        let (mut waiting, mut running, mut passed, mut not_passed) = (0, 0, 0, 0);
        for candidate in &job.candidates {
            match self.state_of_candidate(candidate.id) {
                Some(UnitView::Waiting { .. }) | None => waiting += 1,
                Some(UnitView::Running { .. }) => running += 1,
                Some(UnitView::Done(opt_shared::outcome::Status::Passed)) => passed += 1,
                Some(UnitView::Done(_)) => not_passed += 1,
            }
        }
        json!({
            "name": job.name, "candidates": job.candidates.len(), "waiting": waiting, "running": running,
            "passed": passed, "not_passed": not_passed
        })
    }

    fn lease(&self, lease: &LeaseView) -> Value {
        let attempt = self.attempts.running.get(&lease.id);
        json!({
            "id": lease.id,
            "candidate": self.agenda.unit_name(lease.unit),
            "stage": lease.stage.name(),
            "attempt": lease.attempt,
            "seconds": lease.held.as_secs_f64(),
            "deadline_in_s": lease.left.as_secs_f64(),
            "entries_done": attempt.map(|it| it.done),
            "entries": attempt.map(|it| it.total),
            "bytes_done": attempt.map(|it| it.bytes),
        })
    }

    pub(crate) fn workers(&self) -> Value {
        let worker = |it: WorkerView| {
            json!({
                "id": it.id,
                "role": it.role,
                "state": it.state,
                "pid": self.machine.pool.pid(it.id),
                "age_s": it.age.as_secs_f64(),
                "leases": it.leases,
                "lease": it.lease.as_ref().map(|lease| self.lease(lease)),
                "runners": it.runners.iter().map(|runner| self.runner(it.id, runner)).collect::<Vec<_>>(),
                "owed_bytes": it.owed,
                "peak_owed_bytes": it.peak_owed,
                "charged_bytes": it.charged,
                "validated_bytes": it.validated,
                "asked_to_go": it.asked_to_go,
            })
        };
        json!({ "workers": self.decisions.core.worker_views(self.decisions.now()).into_iter().map(worker).collect::<Vec<_>>() })
    }

    /// Finds a candidate by the name `JOB/CANDIDATE`, or by the candidate's name alone if only one job has such a
    /// candidate.
    pub(crate) fn candidate_named(&self, wanted: &str) -> Result<CandidateId, Refusal> {
        let in_job = |job: &str, name: &str| {
            let job = self.agenda.plan.jobs.iter().find(|it| it.name == job)?;
            job.candidates.iter().find(|it| it.name == name).map(|it| it.id)
        };
        if let Some(id) = wanted.split_once('/').and_then(|(job, name)| in_job(job, name)) {
            return Ok(id);
        }
        let all: Vec<CandidateId> =
            self.agenda.plan.candidates().filter(|it| it.name == wanted).map(|it| it.id).collect();
        match all.as_slice() {
            [one] => Ok(*one),
            [] => Err(Refusal::new(Code::NotFound, format!("the run has no candidate `{wanted}`"))),
            several => Err(Refusal::new(
                Code::NotFound,
                format!("{} jobs have a candidate `{wanted}`: name it JOB/CANDIDATE", several.len()),
            )),
        }
    }

    /// Returns the state of a candidate. Once the candidate has ended, this is its whole record, unless the record is
    /// longer than `MAX_RECORD`.
    pub(crate) fn result(&self, id: CandidateId, record: Option<Box<CandidateRecord>>) -> Value {
        let mut answer = Map::new();
        answer.insert("candidate".to_owned(), json!(self.agenda.full_name(id)));
        let view = self.state_of_candidate(id);
        let done = self.agenda.candidate_facts.get(id.index()).is_some_and(|it| it.status.is_some());
        answer.insert("done".to_owned(), json!(done));
        if let (false, Some(UnitView::Waiting { stage, .. } | UnitView::Running { stage, .. })) = (done, view)
        {
            let running = matches!(view, Some(UnitView::Running { .. }));
            answer.insert("stage".to_owned(), json!(stage.name()));
            answer.insert("running".to_owned(), json!(running));
            return Value::Object(answer);
        }
        let Some(mut record) = record else { return Value::Object(answer) };
        if MAX_RECORD < length(&record)
            && let Some(profile) = &mut record.profile
        {
            profile.entries.clear();
        }
        if let Ok(Value::Object(fields)) = serde_json::to_value(record) {
            answer.extend(fields);
        }
        Value::Object(answer)
    }

    pub(crate) fn why(&self, params: &WhyParams) -> Result<Question, Refusal> {
        match (params.worker, &params.candidate) {
            (Some(worker), _) => Ok(Question::WhyWorker(WorkerId(worker))),
            (None, Some(name)) => self.candidate_named(name).map(Question::WhyCandidate),
            (None, None) => Err(Refusal::new(Code::InvalidParams, "name a `worker` or a `candidate`")),
        }
    }

    pub(super) fn why_worker(&self, id: WorkerId, found: &Found) -> Reply {
        let view = self.decisions.core.worker_views(self.decisions.now()).into_iter().find(|it| it.id == id);
        let latest = &found.decisions;
        let why = match view {
            Some(it) => self.description_of(&it, latest.first()),
            None => match &found.worker {
                Some(record) => {
                    let class = record.end_class.as_deref().unwrap_or("unknown");
                    let reason = record
                        .recycled_because
                        .as_deref()
                        .map_or_else(|| "not recycled".to_owned(), |why| format!("recycled ({why})"));
                    let peak = record.peak_owed_bytes.unwrap_or_default();
                    let mut why = format!(
                        "{} {id} ended {}: {class}, {reason}, after {}; it owed at most {peak}",
                        record.role.name(),
                        record.ended.map_or_else(|| "at an unknown time".to_owned(), |at| format!("at {at}")),
                        counted(record.leases, "lease"),
                    );
                    why.push_str(&self.latest_decision(latest.first()));
                    why
                }
                None => return Err(Refusal::new(Code::NotFound, format!("the run never had a {id}"))),
            },
        };
        let decisions: Vec<Value> = latest.iter().map(|row| self.decision(row)).collect();
        Ok(json!({ "worker": id, "why": why, "decisions": decisions }))
    }

    fn description_of(&self, it: &WorkerView, latest: Option<&PolicyRecord>) -> String {
        let doing = match &it.lease {
            Some(lease) => format!(
                "has held {} ({} of {}, attempt {}) for {:.1} s and will count as stuck in {:.0} s",
                lease.id,
                lease.stage.name(),
                self.agenda.unit_name(lease.unit),
                lease.attempt,
                lease.held.as_secs_f64(),
                lease.left.as_secs_f64()
            ),
            None => format!("is {}", it.state),
        };
        let goes = match (it.asked_to_go, it.lease.is_some()) {
            (false, _) => "",
            (true, true) => ", and ends after this lease at the latest",
            (true, false) => ", and is ending",
        };
        format!(
            "{} {} {doing}{goes}. {} are charged for it, and it owes {} (peak {}). It is {:.0} s old, has had {}, and has verified {} of captures{}",
            it.role.name(),
            it.id,
            it.charged,
            it.owed,
            it.peak_owed,
            it.age.as_secs_f64(),
            counted(it.leases, "lease"),
            it.validated,
            self.latest_decision(latest)
        )
    }

    pub(super) fn why_candidate(&self, id: CandidateId, found: Found) -> Value {
        let name = self.agenda.full_name(id);
        let Found { decisions: latest, candidate: record, .. } = found;
        let unit = self.agenda.units.of_candidate(id);
        let (core, now) = (&self.decisions.core, self.decisions.now());
        let why = match self.state_of_candidate(id) {
            Some(UnitView::Waiting { stage, attempt }) => {
                let name_of = |other| self.agenda.unit_name(other);
                let what = unit.and_then(|unit| core.wait_reason(now, unit, name_of)).unwrap_or_default();
                format!("{name} waits for stage `{}` (attempt {attempt}): {what}", stage.name())
            }
            Some(UnitView::Running { stage, attempt }) => {
                let holder = core
                    .worker_views(now)
                    .into_iter()
                    .find(|it| it.lease.is_some_and(|lease| Some(lease.unit) == unit));
                match holder {
                    Some(it) => {
                        format!("{name} is in stage `{}`: {}", stage.name(), self.description_of(&it, None))
                    }
                    None => format!("{name} is in stage `{}` (attempt {attempt})", stage.name()),
                }
            }
            Some(UnitView::Done(status)) => {
                let detail = record.as_ref().and_then(|it| it.detail.clone()).unwrap_or_default();
                let attempts =
                    record.as_ref().map_or(0, |it| u32::try_from(it.attempts.len()).unwrap_or(u32::MAX));
                let attempts = counted(attempts, "attempt");
                let faster = record.and_then(|it| it.speedup).map_or_else(String::new, |it| {
                    format!(", {:.2}x [{:.2}-{:.2}] against the baseline", it.value, it.ci_low, it.ci_high)
                });
                let colon = if detail.is_empty() { "" } else { ": " };
                format!("{name} ended as {status} after {attempts}{faster}{colon}{detail}")
            }
            None => format!("{name} waits for its job to begin"),
        };
        let decisions: Vec<Value> = latest.iter().map(|row| self.decision(row)).collect();
        json!({ "candidate": name, "why": why, "decisions": decisions })
    }

    fn latest_decision(&self, latest: Option<&PolicyRecord>) -> String {
        latest.map_or_else(String::new, |row| {
            let numbers: Vec<String> = row
                .numbers
                .iter()
                .map(|(name, number)| match (name.strip_suffix("_bytes"), number.as_u64()) {
                    (Some(name), Some(bytes)) => format!("{name} {}", Bytes::new(bytes)),
                    _ => format!(
                        "{name} {}",
                        self.agenda.name_of(name, number).unwrap_or_else(|| number.to_string())
                    ),
                })
                .collect();
            format!("; latest decision: {} ({}; {})", row.decision, row.reason, numbers.join(", "))
        })
    }

    /// Returns a decision together with the names that belong to the ids among its numbers.
    pub(crate) fn decision(&self, row: &PolicyRecord) -> Value {
        let mut answer = json!(row);
        answer["names"] = self.agenda.names_in(&row.numbers);
        answer
    }
}

fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the length of a record's JSON, in bytes, without building the text.
fn length(record: &CandidateRecord) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // Writing to a counter cannot fail, and every value of a record has a JSON form.
    let _ = serde_json::to_writer(&mut counter, record);
    counter.0
}
