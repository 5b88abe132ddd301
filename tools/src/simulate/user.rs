//! The user of the simulated machine: what is asked, when, and what has to follow from the answers.

use std::collections::BTreeSet;
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId, WorkerId};
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use opt_supervisor::core::control::{Mode, Which};
use opt_supervisor::core::event::{Answer, Control, Moment};
use opt_supervisor::core::spec::RunSpec;

use super::plan::a_candidate;
use super::tape::Tape;

/// After every run of these sizes has done all it can.
const LONG_AFTER: Duration = Duration::from_secs(2_000);

/// What the user knows.
#[derive(Debug, Default)]
pub(crate) struct User {
    asked: Option<Control>,
    pub(crate) open: bool,
    pub(crate) shut: bool,
    paused: bool,
    pub(crate) recycled_at_once: u32,
    cancelled: BTreeSet<CandidateId>,
}

impl User {
    pub(crate) fn asks(&mut self, request: &Control) {
        self.asked = Some(request.clone());
    }

    pub(crate) fn answered(&mut self, answer: &Answer, spec: &mut RunSpec) -> Result<(), String> {
        let Some(request) = self.asked.take() else {
            return Err("an answer that nobody asked for".to_owned());
        };
        if !matches!(answer, Answer::Done(_)) {
            return Ok(());
        }
        match request {
            Control::StayOpen => self.open = true,
            Control::Recycle { mode, .. } => self.recycled_at_once += u32::from(mode == Mode::Now),
            Control::Pause => self.paused = true,
            Control::Resume => self.paused = false,
            Control::Cancel { job, candidate } => match candidate {
                Some(candidate) => {
                    self.cancelled.insert(candidate);
                }
                None => self.cancelled.extend(&spec.jobs[job.index()].candidates),
            },
            Control::SetCeiling { ceiling } => spec.ceilings.host = ceiling,
            Control::Submit { candidate } => {
                spec.jobs[candidate.job.index()].candidates.push(candidate.id);
                spec.candidates.push(*candidate);
            }
            Control::Shutdown { .. } => self.shut = true,
        }
        Ok(())
    }

    pub(crate) fn may_start(&self, candidate: CandidateId) -> Result<(), &'static str> {
        match () {
            () if self.asked.is_some() => Err("a request has no answer"),
            () if self.paused => Err("the run is paused"),
            () if self.shut => Err("the run was shut down"),
            () if self.cancelled.contains(&candidate) => Err("it was cancelled"),
            () => Ok(()),
        }
    }
}

pub(crate) fn requests(tape: &mut Tape) -> Vec<(Moment, Control)> {
    let mut all = Vec::new();
    if tape.seldom() {
        all.push((Duration::ZERO, Control::StayOpen));
        all.push((LONG_AFTER, Control::Shutdown { mode: tape.pick(&[Mode::Drain, Mode::Now]) }));
    }
    for _ in 0..6 {
        if !tape.seldom() {
            continue;
        }
        let at = Duration::from_millis(u64::from(tape.byte()) * 20);
        let mode = tape.pick(&[Mode::Drain, Mode::Now]);
        let some = u32::from(tape.byte());
        let request = match tape.byte() % 12 {
            0 | 1 => Control::Recycle { which: Which::Role(Role::Verifier), mode },
            2 => Control::Recycle { which: Which::Role(Role::Profiler), mode },
            3 => Control::Recycle { which: Which::Worker(WorkerId(some % 8)), mode },
            4 | 5 => {
                all.push((at + Duration::from_secs(1), Control::Resume));
                Control::Pause
            }
            6 => Control::Cancel { job: JobId(some % 4), candidate: None },
            7 => Control::Cancel { job: JobId(some % 2), candidate: Some(CandidateId(some % 5)) },
            8 => Control::SetCeiling { ceiling: Bytes::mib(u64::from(some) * 8) },
            9 | 10 => Control::Submit { candidate: Box::new(a_candidate(CandidateId(0), JobId(some % 4))) },
            _ => Control::Shutdown { mode },
        };
        all.push((at, request));
    }
    all
}

/// A submission takes the next free place.
pub(crate) fn as_it_is_now(mut request: Control, spec: &RunSpec) -> Control {
    if let Control::Submit { candidate } = &mut request {
        candidate.id = CandidateId(u32::try_from(spec.candidates.len()).unwrap_or(u32::MAX));
    }
    request
}

pub(crate) fn name(answer: &Answer) -> &'static str {
    match answer {
        Answer::Done(_) => "answered",
        Answer::Already(_) => "already",
        Answer::Refused(_) => "refused",
        Answer::Unknown(_) => "nothing_like_it",
    }
}
