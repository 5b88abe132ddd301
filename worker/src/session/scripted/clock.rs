//! The virtual clock of a scripted session. The script sets the duration of blocks and idle rounds, and nothing else
//! takes time.

use std::time::{Duration, Instant};

use super::{Asked, AskedBlock, AskedInputs, ScriptedSession, done, nth};
use crate::session::{Answer, Block, BlockOrder, Called, Clock, IdleRound, Renew, SessionError, WakeCost};

impl Clock for ScriptedSession<'_> {
    fn now(&self) -> Instant {
        self.started + self.passed
    }

    fn settle_handoff(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn handoff(&self) -> Duration {
        self.script.measured_first.unwrap_or(self.script.handoff).min(self.max_handoff)
    }

    fn forget_handoff(&mut self) {
        self.script.measured_first = None;
    }

    fn limit_handoff(&mut self, max: Duration) {
        self.max_handoff = max;
    }

    fn leaves_room(&self, _: u32, _: f64) -> bool {
        self.script.leaves_room
    }

    fn wait_spinning(&mut self, spin: bool) {
        self.asked.borrow_mut().push(Asked::Spin(spin));
    }

    fn block(&mut self, order: &BlockOrder<'_>, renew: Renew<'_>) -> Result<Answer<Block>, SessionError> {
        assert!(!self.dead, "a dead candidate is timed");
        let before = self.shown(order.entry, 0);
        if let Some(poison) = order.poison {
            (0..order.calls).for_each(|slot| self.fill(order.entry, slot, poison));
        }
        renew()?;
        self.asked.borrow_mut().push(Asked::Block(AskedBlock {
            candidate: self.candidate.to_owned(),
            entry: order.entry,
            calls: order.calls,
            plan: order.plan,
            varied: order.varied,
            cold: order.cold,
            expected: order.expected,
            limit: order.limit,
        }));
        let used = self.shown(order.entry, 0);
        if let (true, Some(before), Some(used)) = (order.varied, before, &used) {
            self.asked.borrow_mut().push(Asked::Inputs(AskedInputs {
                candidate: self.candidate.to_owned(),
                entry: order.entry,
                plan: order.plan,
                before,
                used: used.clone(),
            }));
        }
        let play = nth(&self.script.blocks, self.blocks);
        let elapsed = play.per_call * order.calls + self.script.handoff;
        if !order.plan && order.limit < elapsed {
            self.dead = true;
            return Ok(Answer::Died);
        }
        let mut called = match (order.plan, self.script.plan.clone()) {
            (false, _) => {
                self.blocks += 1;
                done(order.calls)
            }
            (true, Answer::Done(called)) => {
                self.planned = used.unwrap_or_default();
                called
            }
            (true, Answer::Died) => {
                self.dead = true;
                return Ok(Answer::Died);
            }
        };
        for call in (0..order.calls).filter(|_| !order.plan) {
            match self.play(order.entry, call, (play.play)(call), order.varied)? {
                None => return Ok(Answer::Died),
                Some(claimed) if claimed.result != 0 || claimed.returned_value || claimed.calls_done == 0 => {
                    called = Called { calls_done: call, ..claimed };
                    break;
                }
                Some(_) => {}
            }
        }
        self.passed += elapsed;
        called.claimed = (play.per_call * order.calls).mul_f64(play.claim);
        Ok(Answer::Done(Block {
            elapsed,
            called,
            wake: WakeCost { cpu: Duration::from_micros(1), threads: play.threads },
            cpus_busy: 1.0,
            waited: Some(play.waited),
            changed: play.changed,
            on_device: None,
        }))
    }

    fn idle(&mut self, _: usize, renew: Renew<'_>) -> Result<Answer<IdleRound>, SessionError> {
        renew()?;
        self.asked.borrow_mut().push(Asked::Idle(self.candidate.to_owned()));
        let cpu = nth(&self.script.idle, self.rounds);
        self.rounds += 1;
        self.passed += self.script.idle_takes;
        self.dead |= cpu.is_none();
        let wake = WakeCost { cpu: self.script.idle_wake, threads: 1 };
        let elapsed =
            self.script.idle_handoffs.iter().cycle().nth(self.rounds).unwrap_or(&self.script.handoff);
        let round = |cpu| IdleRound { cpu, wake, elapsed: Some(*elapsed), waited: None };
        Ok(cpu.map_or(Answer::Died, |cpu| Answer::Done(round(cpu))))
    }
}
