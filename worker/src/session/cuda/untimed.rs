//! The clock of a session that verifies, which times nothing.

use std::time::Duration;

use super::session::DeviceSession;
use crate::session::{Answer, Block, BlockOrder, Clock, IdleRound, Renew, SessionError};

const NO_TIMES: &str = "a session for verification has no clock";

impl Clock for DeviceSession<'_> {
    fn settle_handoff(&mut self) -> Result<(), SessionError> {
        Err(self.no_times())
    }

    fn handoff(&self) -> Duration {
        Duration::ZERO
    }

    fn limit_handoff(&mut self, _: Duration) {}

    fn leaves_room(&self, _: u32, _: f64) -> bool {
        false
    }

    fn wait_spinning(&mut self, _: bool) {}

    fn block(&mut self, _: &BlockOrder<'_>, _: Renew<'_>) -> Result<Answer<Block>, SessionError> {
        Err(self.no_times())
    }

    fn idle(&mut self, _: usize, _: Renew<'_>) -> Result<Answer<IdleRound>, SessionError> {
        Err(self.no_times())
    }
}

impl DeviceSession<'_> {
    fn no_times(&self) -> SessionError {
        SessionError::Run { candidate: self.candidate.callee.candidate.clone(), source: NO_TIMES.into() }
    }
}
