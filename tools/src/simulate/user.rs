//! The user of the simulated machine: makes requests at random times, and checks the laws that follow from the answers.

use std::collections::BTreeSet;
use std::time::Duration;

use opt_shared::ids::{JobId, UnitId, WorkerId};
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use opt_supervisor::core::control::{Mode, Which};
use opt_supervisor::core::event::{Answer, Control, Event, Moment};
use opt_supervisor::core::spec::{RunSpec, UnitSpec};

use super::sources::random_submission;
use super::tape::Tape;

/// A time at which a simulated run has no more work.
const LONG_AFTER: Duration = Duration::from_secs(6_000);

#[derive(Debug, Default)]
pub(crate) struct User {
    /// The request that has not been answered yet.
    asked: Option<Control>,
    pub(crate) open: bool,
    pub(crate) shut: bool,
    paused: bool,
    /// The number of granted requests to recycle a worker at once. Each of them may cost an attempt.
    pub(crate) recycled_at_once: u32,
    cancelled: BTreeSet<UnitId>,
}

impl User {
    pub(crate) fn asks(&mut self, request: &Control) {
        self.asked = Some(request.clone());
    }

    pub(crate) fn answered(
        &mut self,
        answer: &Answer,
        spec: &mut RunSpec,
        units: &[(JobId, UnitSpec)],
    ) -> Result<(), String> {
        let Some(request) = self.asked.take() else {
            return Err("an answer without a request".to_owned());
        };
        if !matches!(answer, Answer::Done(_)) {
            return Ok(());
        }
        match request {
            Control::StayOpen => self.open = true,
            Control::Recycle { mode, .. } => self.recycled_at_once += u32::from(mode == Mode::Now),
            Control::Pause => self.paused = true,
            Control::Resume => self.paused = false,
            Control::Cancel { job, unit } => match unit {
                Some(unit) => {
                    self.cancelled.insert(unit);
                }
                None => {
                    let of_job = units.iter().filter(|(of, _)| *of == job);
                    self.cancelled.extend(of_job.map(|(_, unit)| unit.id));
                }
            },
            Control::SetCeiling { ceiling } => spec.ceilings.host = ceiling,
            Control::Shutdown { .. } => (self.shut, self.paused) = (true, false),
        }
        Ok(())
    }

    /// Records an interrupt. An interrupt also ends a pause.
    pub(crate) fn interrupts(&mut self) {
        self.paused = false;
    }

    /// Checks that the user's requests allow a unit to start. `after` is true for a replay, because replays run after
    /// the jobs. A replay may still start when an open run that has no other work is shut down.
    pub(crate) fn may_start(&self, unit: UnitId, after: bool) -> Result<(), &'static str> {
        match () {
            () if self.asked.is_some() => Err("a request has no answer"),
            () if self.paused => Err("the run is paused"),
            () if self.shut && !(self.open && after) => Err("the run was shut down"),
            () if self.cancelled.contains(&unit) => Err("it was cancelled"),
            () => Ok(()),
        }
    }
}

pub(crate) fn requests(tape: &mut Tape) -> Vec<(Moment, Event)> {
    let mut all = Vec::new();
    if tape.seldom() {
        all.push((Duration::ZERO, Event::Control(Control::StayOpen)));
        let mode = tape.pick(&[Mode::Drain, Mode::Now]);
        all.push((LONG_AFTER, Event::Control(Control::Shutdown { mode })));
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
                all.push((at + Duration::from_secs(1), Event::Control(Control::Resume)));
                Control::Pause
            }
            6 => Control::Cancel { job: JobId(some % 4), unit: None },
            7 => Control::Cancel { job: JobId(some % 2), unit: Some(UnitId(some % 5)) },
            8 => Control::SetCeiling { ceiling: Bytes::mib(u64::from(some) * 8) },
            9 | 10 => {
                let submission = random_submission(JobId(some % 4), tape);
                all.push((at, submission));
                continue;
            }
            _ => Control::Shutdown { mode },
        };
        all.push((at, Event::Control(request)));
    }
    all
}

pub(crate) fn name(answer: &Answer) -> &'static str {
    match answer {
        Answer::Done(_) => "answered",
        Answer::Already(_) => "already",
        Answer::Refused(_) => "refused",
        Answer::Unknown(_) => "unknown_target",
    }
}
