//! Calls a candidate with an entry and judges the outputs of each call. All stages that judge outputs use this code.

use opt_shared::causes::chain;
use opt_shared::outcome::{EntryFailure, Mismatch, Status};
use opt_shared::settings::VerifySettings;

use super::failure::{self, CallKind};
use crate::judge::check::{OutputCheck, is_capture_fault};
use crate::judge::{BytesSource, Tolerance};
use crate::recorded::Recorded;
use crate::session::{Answer, Called, Session, SessionError, StrayWrite, describe_stray_write};

/// Makes the calls of one entry, and collects the numerical errors of their outputs.
pub(crate) struct EntryCalls<'a> {
    pub(crate) settings: &'a VerifySettings,
    pub(crate) recorded: &'a Recorded,
    pub(crate) tolerances: &'a [Tolerance],
    /// The entry's index in the session.
    pub(crate) number: usize,
    pub(crate) checked: Checked,
    /// True if a call returned its outputs.
    pub(crate) returned_outputs: bool,
    /// The judge's description of the first wrong output.
    wrong: Option<String>,
}

#[derive(Default)]
pub(crate) struct Checked {
    pub(crate) max_absolute_error: f64,
    pub(crate) max_relative_error: f64,
    /// The output with the largest relative L2 error, and that error.
    pub(crate) worst: Option<(String, f64)>,
}

/// The reason why no further calls of an entry are made.
#[derive(Debug)]
pub(crate) enum EntryEnd {
    Failed(Box<EntryFailure>),
    /// The candidate's process died. The verdict is found when its session ends.
    Died,
}

pub(crate) enum CallEnd {
    Right(Called),
    Wrong(Box<Mismatch>),
    Ended(EntryEnd),
}

impl<'a> EntryCalls<'a> {
    pub(crate) fn new(
        settings: &'a VerifySettings,
        recorded: &'a Recorded,
        tolerances: &'a [Tolerance],
        number: usize,
    ) -> Self {
        Self {
            settings,
            recorded,
            tolerances,
            number,
            checked: Checked::default(),
            returned_outputs: false,
            wrong: None,
        }
    }

    pub(crate) fn plan(&self, session: &mut dyn Session) -> Result<Option<EntryEnd>, SessionError> {
        let planned = session.plan(self.number, self.settings.call_timeout)?;
        Ok(self.done(planned, CallKind::Planned).err())
    }

    /// Fills the output slot `slot` with `poison`, makes one call that writes into it, and judges the result.
    pub(crate) fn call(
        &mut self,
        session: &mut dyn Session,
        slot: u32,
        poison: u8,
    ) -> Result<CallEnd, SessionError> {
        let answer = session.call(self.number, slot, poison, self.settings.call_timeout)?;
        self.returned_outputs |= matches!(&answer, Answer::Done(called) if called.returned_outputs);
        let called = match self.done(answer, CallKind::Verified) {
            Ok(called) => called,
            Err(over) => return Ok(CallEnd::Ended(over)),
        };
        if let Some(stray_write) = session.damage(self.number, slot, poison)? {
            return Ok(CallEnd::Ended(self.end_for_stray_write(stray_write)));
        }
        Ok(match self.compare(session, slot, poison)? {
            Ok(None) => CallEnd::Right(called),
            Ok(Some(mismatch)) => CallEnd::Wrong(mismatch),
            Err(failure) => CallEnd::Ended(EntryEnd::Failed(failure)),
        })
    }

    /// Compares every output with the recorded one, and returns the first mismatch. If an output cannot be compared
    /// because of the recorded data, the failure blames the capture.
    pub(crate) fn compare(
        &mut self,
        session: &dyn Session,
        slot: u32,
        poison: u8,
    ) -> Result<Result<Option<Box<Mismatch>>, Box<EntryFailure>>, SessionError> {
        self.compare_with(session, slot, poison, None)
    }

    /// Compares every output with the output that `oracle`, another session, computed from the same inputs. The
    /// tolerance is doubled, because both outputs may have errors.
    pub(crate) fn compare_sessions(
        &mut self,
        session: &dyn Session,
        slot: u32,
        poison: u8,
        oracle: &dyn Session,
    ) -> Result<Option<Box<Mismatch>>, SessionError> {
        // This reads no recorded data, so the capture cannot be to blame.
        Ok(self.compare_with(session, slot, poison, Some(oracle))?.unwrap_or_default())
    }

    fn compare_with(
        &mut self,
        session: &dyn Session,
        slot: u32,
        poison: u8,
        oracle: Option<&dyn Session>,
    ) -> Result<Result<Option<Box<Mismatch>>, Box<EntryFailure>>, SessionError> {
        let mut first = None;
        let recorded = self.recorded;
        for (index, output) in recorded.outputs.iter().enumerate() {
            let tolerance = self.tolerances[index];
            let check = OutputCheck {
                path: &output.path,
                tensor: &output.tensor,
                settings: self.settings,
                tolerance: if oracle.is_some() { tolerance.doubled() } else { tolerance },
                // An argument that the call changes contained its recorded value before the call, not the poison.
                poison: output.arguments.is_empty().then_some(poison),
                expected_written: oracle.is_some(),
            };
            let mut actual = session.output(self.number, index, slot);
            let mut expected: Box<dyn BytesSource + '_> = match oracle {
                Some(oracle) => oracle.output(self.number, index, slot),
                None => Box::new(recorded.expected(&output.tensor)),
            };
            let found = check.run(&mut *expected, &mut *actual).and_then(|found| match oracle {
                // Outputs for new inputs can have a different scale than the recorded ones, so the tolerance is
                // adapted.
                Some(_) if !found.passed => {
                    check.at_the_scale_of(&mut *expected)?.run(&mut *expected, &mut *actual)
                }
                _ => Ok(found),
            });
            let comparison = match found {
                Ok(comparison) => comparison,
                Err(source) if oracle.is_none() && is_capture_fault(&source) => {
                    return Ok(Err(self.failure(Status::CaptureError, chain(&source))));
                }
                Err(source) => {
                    return Err(SessionError::Compare { entry: self.recorded.name.clone(), source });
                }
            };
            let checked = &mut self.checked;
            checked.max_absolute_error = checked.max_absolute_error.max(comparison.max_absolute_error);
            checked.max_relative_error = checked.max_relative_error.max(comparison.max_relative_error);
            if checked.worst.as_ref().is_none_or(|(_, worst)| *worst < comparison.relative_l2) {
                checked.worst = Some((output.path.clone(), comparison.relative_l2));
            }
            if !comparison.passed && first.is_none() {
                self.wrong = self.wrong.take().or_else(|| comparison.detail());
                first = comparison.mismatch.map(Box::new);
            }
        }
        Ok(Ok(first))
    }

    /// Returns the end of an entry whose only fault is an output with wrong values.
    pub(crate) fn incorrect(&self, mismatch: Box<Mismatch>) -> EntryEnd {
        let detail = self.wrong.clone().unwrap_or_default();
        self.mismatched(Status::IncorrectNumerical, detail, mismatch)
    }

    /// Returns the end of an entry that has an output with wrong values and another fault. The other fault determines
    /// `status` and `detail`.
    pub(crate) fn mismatched(&self, status: Status, detail: String, mismatch: Box<Mismatch>) -> EntryEnd {
        let mut failure = self.failure(status, detail);
        failure.mismatch = Some(*mismatch);
        EntryEnd::Failed(failure)
    }

    fn done(&self, answer: Answer<Called>, kind: CallKind) -> Result<Called, EntryEnd> {
        let Answer::Done(called) = answer else { return Err(EntryEnd::Died) };
        match failure::verdict_of_calls(&called, 1, kind) {
            None => Ok(called),
            Some(verdict) => Err(EntryEnd::Failed(self.failure(verdict.status, verdict.detail))),
        }
    }

    fn end_for_stray_write(&self, StrayWrite { output, past }: StrayWrite) -> EntryEnd {
        let path = &self.recorded.outputs[output].path;
        let detail = describe_stray_write(&format!("`{path}`"), past);
        EntryEnd::Failed(self.failure(Status::OutOfBounds, detail))
    }

    fn failure(&self, status: Status, detail: String) -> Box<EntryFailure> {
        Box::new(failure::entry_failure(self.recorded, status, detail))
    }
}
