//! Tests of a run whose database does not accept rows: what the core grants, kills and waits for during the stall.

use std::time::Duration;

use opt_shared::message::KillReason;
use opt_shared::outcome::Status;

use super::harness::{Harness, kills, plan};
use crate::core::control::Mode;
use crate::core::event::{Action, Control, Event, StopReason};

const MINUTE: Duration = Duration::from_secs(60);

fn stalled(harness: &mut Harness) -> Vec<Action> {
    harness.feed(Event::StoreStalled { why: "locked".to_owned(), rows: 3 })
}

fn is_back(harness: &mut Harness) -> Vec<Action> {
    harness.feed(Event::StoreBack { samples_dropped: 2 })
}

#[test]
fn nothing_is_granted_while_the_database_accepts_no_rows() {
    let mut harness = Harness::new(plan(1));
    let first = harness.lease();
    stalled(&mut harness);
    stalled(&mut harness);
    assert_eq!(harness.policies("store_stalled").len(), 1);
    assert!(harness.policies("store_stalled")[0].reason.contains("locked"));
    harness.finish(first, Status::Passed);
    for _ in 0..5 {
        harness.answer();
        harness.pass_time(MINUTE);
    }
    assert!(harness.try_lease().is_none(), "its row could not be written");
    assert_eq!(harness.stopped(), None);
    is_back(&mut harness);
    let row = harness.policies("store_back")[0].clone();
    assert!(row.numbers.iter().any(|&(name, ms)| name == "stalled_ms" && 300_000 <= ms), "{row:?}");
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 V0 P0");
}

#[test]
fn worker_whose_kill_waits_for_its_row_does_not_count_as_stuck() {
    let mut harness = Harness::new(plan(1));
    harness.acknowledges = false;
    let first = harness.lease();
    stalled(&mut harness);
    assert_eq!(kills(&harness.pass_time(MINUTE)), [(first.worker, None, KillReason::Deadline)]);
    harness.pass_time(MINUTE * 10);
    assert!(harness.policies("worker_not_gone").is_empty(), "no signal was sent yet");
    harness.feed(Event::KillSent { worker: first.worker });
    is_back(&mut harness);
    harness.gone(first.worker);
    harness.acknowledges = true;
    assert_eq!(harness.pass_the_rest(), StopReason::Finished);
    assert_eq!(harness.orders(), "B0 B0#2 V0 P0");
}

#[test]
fn database_that_never_comes_back_ends_the_run() {
    let mut harness = Harness::new(plan(1));
    harness.acknowledges = false;
    harness.lease();
    stalled(&mut harness);
    harness.pass_time(MINUTE * 59);
    assert_eq!(harness.stopped(), None);
    harness.pass_time(MINUTE);
    assert_eq!(harness.stopped(), None, "there is a short time for the last reasons");
    let deadline = harness.core.next_deadline().expect("the wait has a limit");
    harness.pass_time(deadline.saturating_sub(harness.now));
    let Some(StopReason::HostFailure { why }) = harness.stopped() else { panic!("{:#?}", harness.log) };
    assert!(why.contains("no rows"), "{why}");
}

#[test]
fn second_interrupt_ends_a_run_whose_database_accepts_no_rows() {
    let mut harness = Harness::new(plan(1));
    harness.acknowledges = false;
    let first = harness.lease();
    stalled(&mut harness);
    harness.feed(Event::Control(Control::Shutdown { mode: Mode::Drain }));
    assert_eq!(harness.stopped(), None, "running attempts may finish");
    assert_eq!(kills(&harness.feed(Event::Interrupt)), [(first.worker, None, KillReason::Interrupted)]);
    harness.pass_time(Duration::from_secs(5));
    assert_eq!(harness.stopped(), None);
    harness.pass_time(Duration::from_secs(5));
    assert_eq!(harness.stopped(), Some(StopReason::Interrupted));
}
