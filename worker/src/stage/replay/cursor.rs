//! Compares what a replay does with what was expected: the uses of tensors with the recorded schedule, and the kernel
//! launches with those in the plan.
//!
//! The first difference is final. It is reported with its index and with what was expected and found, and every later
//! call returns the same difference. The caller determines the actual uses from the entries. This file does no I/O.

use std::collections::HashMap;

use opt_shared::replay::{Key, Need, Recording, Step};

use crate::session::KernelLaunch;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disagreement {
    #[error(
        "the schedule differs from the actual uses at use {}: expected {}, actual {} (if the captures were changed, remove the recording: the next run makes a new one)",
        .0.index, .0.expected, .0.actual
    )]
    Use(Difference),
    #[error("in step {step}, launch {} differs from the plan's: expected {}, actual {}", .difference.index + 1, .difference.expected, .difference.actual)]
    Launch { step: u32, difference: Difference },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The position of the use in the schedule, or of the launch in its step, counted from 0.
    pub index: u32,
    pub expected: String,
    pub actual: String,
}

impl Disagreement {
    pub fn difference(&self) -> &Difference {
        match self {
            Self::Use(difference) | Self::Launch { difference, .. } => difference,
        }
    }
}

/// An event of a replay, as it was scheduled or as it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ScheduleEvent {
    Use {
        id: u32,
        step: u32,
        epoch: u32,
        name: String,
        key: Option<Key>,
        bytes: u64,
    },
    Begins {
        step: u32,
        job: String,
        entry: String,
    },
    /// The step has no more uses.
    StepEnds {
        step: u32,
    },
    Over,
}

impl std::fmt::Display for ScheduleEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Use { id, step, epoch, name, key, bytes } => {
                write!(f, "use {id} in step {step}: `{name}`, {bytes} bytes, epoch {epoch}, ")?;
                match key {
                    Some(key) => write!(f, "key {key:?}"),
                    None => f.write_str("of no constant"),
                }
            }
            Self::Begins { step, job, entry } => write!(f, "step {step}, {entry} of {job}"),
            Self::StepEnds { step } => write!(f, "the end of step {step}"),
            Self::Over => f.write_str("the end"),
        }
    }
}

pub struct Cursor<'a> {
    recording: &'a Recording,
    at: usize,
    step: u32,
    /// The number of uses of each constant so far, counted independently of the schedule. This number is the epoch of
    /// the constant's next use.
    epochs: HashMap<Key, u32>,
    disagreement: Option<Disagreement>,
}

impl<'a> Cursor<'a> {
    pub fn new(recording: &'a Recording) -> Self {
        Self { recording, at: 0, step: 0, epochs: HashMap::new(), disagreement: None }
    }

    /// Checks that the schedule continues with this step, and that the step uses these tensors in this order. Returns
    /// the numbers of their constants.
    pub fn step(&mut self, name: &Step, needs: &[Need]) -> Result<Vec<u32>, Disagreement> {
        let begins = |it: &Step| ScheduleEvent::Begins {
            step: self.step,
            job: it.job.clone(),
            entry: it.entry.clone(),
        };
        let expected = self.recording.steps.get(self.step as usize).map_or(ScheduleEvent::Over, begins);
        let actual = begins(name);
        self.compare(expected, actual)?;
        let mut constants = Vec::with_capacity(needs.len());
        for need in needs {
            let epoch = self.epochs.get(&need.key).copied().unwrap_or(0);
            let actual = ScheduleEvent::Use {
                id: u32::try_from(self.at).unwrap_or(u32::MAX),
                step: self.step,
                epoch,
                name: need.name.clone(),
                key: Some(need.key),
                bytes: need.bytes.get(),
            };
            self.compare(self.expected(), actual)?;
            constants.extend(self.recording.uses.get(self.at).map(|it| it.constant));
            self.epochs.insert(need.key, epoch + 1);
            self.at += 1;
        }
        let expected = match self.recording.uses.get(self.at) {
            // If the next use belongs to another step, that step's check will compare it.
            Some(it) if it.step == self.step => self.expected(),
            _ => ScheduleEvent::StepEnds { step: self.step },
        };
        self.compare(expected, ScheduleEvent::StepEnds { step: self.step })?;
        self.step += 1;
        Ok(constants)
    }

    /// Checks the launches of the step that was passed to `step` last. They must be the planned ones, in the same order
    /// and with the same constants.
    pub fn launches(
        &mut self,
        planned: &[KernelLaunch],
        actual: &[KernelLaunch],
    ) -> Result<(), Disagreement> {
        if let Some(disagreement) = &self.disagreement {
            return Err(disagreement.clone());
        }
        let all = planned.len().max(actual.len());
        let Some(index) = (0..all).find(|&index| planned.get(index) != actual.get(index)) else {
            return Ok(());
        };
        let describe = |launch: Option<&KernelLaunch>| match launch {
            None => "the end of the step".to_owned(),
            Some(KernelLaunch { symbol, constants }) => {
                let constants = constants.iter();
                let constants =
                    constants.map(|(at, number)| format!(", constant {number} as argument {}", at + 1));
                format!("`{symbol}`{}", constants.collect::<String>())
            }
        };
        let step = self.step.saturating_sub(1);
        let (expected, actual) = (describe(planned.get(index)), describe(actual.get(index)));
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.disagree(Disagreement::Launch { step, difference: Difference { index, expected, actual } })
    }

    /// Checks that the schedule has no further step and no further use.
    pub fn finish(&mut self) -> Result<(), Disagreement> {
        if let Some(left) = self.recording.steps.get(self.step as usize) {
            let (job, entry) = (left.job.clone(), left.entry.clone());
            self.compare(ScheduleEvent::Begins { step: self.step, job, entry }, ScheduleEvent::Over)?;
        }
        self.compare(self.expected(), ScheduleEvent::Over)
    }

    fn compare(&mut self, expected: ScheduleEvent, actual: ScheduleEvent) -> Result<(), Disagreement> {
        if let Some(disagreement) = &self.disagreement {
            return Err(disagreement.clone());
        }
        if expected == actual {
            return Ok(());
        }
        let index = u32::try_from(self.at).unwrap_or(u32::MAX);
        let (expected, actual) = (expected.to_string(), actual.to_string());
        self.disagree(Disagreement::Use(Difference { index, expected, actual }))
    }

    fn disagree(&mut self, disagreement: Disagreement) -> Result<(), Disagreement> {
        self.disagreement = Some(disagreement.clone());
        Err(disagreement)
    }

    fn expected(&self) -> ScheduleEvent {
        let Some(it) = self.recording.uses.get(self.at) else { return ScheduleEvent::Over };
        let constant = self.recording.constants.get(it.constant as usize);
        let name = self.recording.names.get(it.name as usize).cloned().unwrap_or_default();
        // If the sizes differ, this is not a use of the constant.
        let key = constant.filter(|constant| constant.bytes == it.bytes).map(|constant| constant.key);
        ScheduleEvent::Use { id: it.id, step: it.step, epoch: it.epoch, name, key, bytes: it.bytes.get() }
    }
}
