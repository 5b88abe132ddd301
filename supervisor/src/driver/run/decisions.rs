//! The core with what is on its way to it: events in the order in which they were raised.
//!
//! Carrying out an action may raise an event. It waits here until every action of the same decision has been carried
//! out, so that what the core decided last is never done before what it decided first.

use std::collections::VecDeque;
use std::time::Instant;

use crate::core::Core;
use crate::core::event::{Action, Answer, Event, Moment, StopReason};
use crate::driver::RunError;

/// Events from one look at all units to the next.
const ROSTERS_CHECKED_EVERY: u64 = 1024;

pub(crate) struct Decisions {
    pub(crate) core: Core,
    began: Instant,
    handled: u64,
    raised: VecDeque<Event>,
    /// The core's answer to the current request.
    pub(crate) answer: Option<Answer>,
    /// The core's answers to the current offer.
    pub(crate) reply: Option<Answer>,
    pub(crate) stop: Option<StopReason>,
}

impl Decisions {
    pub(crate) fn new(core: Core) -> Self {
        Self {
            core,
            began: Instant::now(),
            handled: 0,
            raised: VecDeque::new(),
            answer: None,
            reply: None,
            stop: None,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Comes to the core after everything that was raised before it.
    pub(crate) fn raise(&mut self, event: Event) {
        self.raised.push_back(event);
    }

    /// What the core makes of the next event. None where none waits.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<Action>>, RunError> {
        let Some(event) = self.raised.pop_front() else { return Ok(None) };
        let actions = self.core.handle(self.now(), event);
        self.core.check_invariants().map_err(|law| RunError::Law { law })?;
        if self.handled.is_multiple_of(ROSTERS_CHECKED_EVERY) {
            self.core.check_rosters().map_err(|law| RunError::Law { law })?;
        }
        self.handled += 1;
        Ok(Some(actions))
    }
}
