//! Wraps the core in a queue of the events that it has not handled yet.
//!
//! Carrying out an action may raise an event. The event is queued until all actions of the same decision have been
//! carried out, so decisions are carried out in the order in which they were made.

use std::collections::VecDeque;
use std::time::Instant;

use crate::core::Core;
use crate::core::event::{Action, Answer, Event, Moment, StopReason};
use crate::driver::RunError;

/// The number of events after which the rosters of all units are checked again.
const ROSTERS_CHECKED_EVERY: u64 = 1024;

/// The core of a run, and the events that wait for it.
pub(crate) struct Decisions {
    pub(crate) core: Core,
    began: Instant,
    /// The number of events that the core has handled.
    handled: u64,
    raised: VecDeque<Event>,
    /// The core's answer to the current request.
    pub(crate) answer: Option<Answer>,
    /// The core's answer to the current offer.
    pub(crate) offer_answer: Option<Answer>,
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
            offer_answer: None,
            stop: None,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Queues an event behind those that were raised before it.
    pub(crate) fn raise(&mut self, event: Event) {
        self.raised.push_back(event);
    }

    /// Handles the next event and returns the core's actions. Returns `None` if the queue is empty.
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
