//! A run whose database does not accept rows: what is granted, killed and awaited during the stall.

use std::time::Duration;

use opt_shared::message::KillReason;
use opt_shared::outcome::Status;

use super::desk::{Desk, kills, plan};
use crate::core::control::Mode;
use crate::core::event::{Action, Control, Event, StopReason};

const MINUTE: Duration = Duration::from_secs(60);

fn stalled(desk: &mut Desk) -> Vec<Action> {
    desk.feed(Event::StoreStalled { why: "locked".to_owned(), rows: 3 })
}

fn is_back(desk: &mut Desk) -> Vec<Action> {
    desk.feed(Event::StoreBack { samples_dropped: 2 })
}

#[test]
fn nothing_is_granted_while_the_database_accepts_no_rows() {
    let mut desk = Desk::new(plan(1));
    let first = desk.lease();
    stalled(&mut desk);
    stalled(&mut desk);
    assert_eq!(desk.policies("store_stalled").len(), 1);
    assert!(desk.policies("store_stalled")[0].reason.contains("locked"));
    desk.finish(first, Status::Passed);
    for _ in 0..5 {
        desk.answer();
        desk.pass_time(MINUTE);
    }
    assert!(desk.try_lease().is_none(), "its row could not be written");
    assert_eq!(desk.stopped(), None);
    is_back(&mut desk);
    let row = desk.policies("store_back")[0].clone();
    assert!(row.numbers.iter().any(|&(name, ms)| name == "stalled_ms" && 300_000 <= ms), "{row:?}");
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 V0 P0");
}

#[test]
fn worker_whose_kill_waits_for_its_row_does_not_count_as_stuck() {
    let mut desk = Desk::new(plan(1));
    desk.acknowledges = false;
    let first = desk.lease();
    stalled(&mut desk);
    assert_eq!(kills(&desk.pass_time(MINUTE)), [(first.worker, None, KillReason::Deadline)]);
    desk.pass_time(MINUTE * 10);
    assert!(desk.policies("worker_not_gone").is_empty(), "no signal was sent yet");
    desk.feed(Event::KillSent { worker: first.worker });
    is_back(&mut desk);
    desk.gone(first.worker);
    desk.acknowledges = true;
    assert_eq!(desk.pass_the_rest(), StopReason::Finished);
    assert_eq!(desk.orders(), "B0 B0#2 V0 P0");
}

#[test]
fn database_that_never_comes_back_ends_the_run() {
    let mut desk = Desk::new(plan(1));
    desk.acknowledges = false;
    desk.lease();
    stalled(&mut desk);
    desk.pass_time(MINUTE * 59);
    assert_eq!(desk.stopped(), None);
    desk.pass_time(MINUTE);
    assert_eq!(desk.stopped(), None, "there is a short time for the last reasons");
    let deadline = desk.core.next_deadline().expect("the wait has a limit");
    desk.pass_time(deadline.saturating_sub(desk.now));
    let Some(StopReason::HostFailure { why }) = desk.stopped() else { panic!("{:#?}", desk.log) };
    assert!(why.contains("no rows"), "{why}");
}

#[test]
fn second_interrupt_ends_a_run_whose_database_accepts_no_rows() {
    let mut desk = Desk::new(plan(1));
    desk.acknowledges = false;
    let first = desk.lease();
    stalled(&mut desk);
    desk.feed(Event::Control(Control::Shutdown { mode: Mode::Drain }));
    assert_eq!(desk.stopped(), None, "running attempts may finish");
    assert_eq!(kills(&desk.feed(Event::Interrupt)), [(first.worker, None, KillReason::Interrupted)]);
    desk.pass_time(Duration::from_secs(5));
    assert_eq!(desk.stopped(), None);
    desk.pass_time(Duration::from_secs(5));
    assert_eq!(desk.stopped(), Some(StopReason::Interrupted));
}
