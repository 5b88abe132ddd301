//! Shortages on the simulated machine: no room for builds, no more processes, or a database that accepts no rows.

use std::time::Duration;

use opt_shared::room::Room;
use opt_shared::units::Bytes;
use opt_supervisor::core::event::{Event, Moment, Stage};

use super::tape::Tape;

pub(crate) const NO_ROOM: Room = Room { disk: Some(Bytes::mib(1)), inodes: Some(1 << 20), pids: None };
/// The room that an attempt reports if Linux has refused it a process or thread.
pub(crate) const NO_TASKS: Room = Room { disk: None, inodes: None, pids: Some(0) };
const ROOM: Room = Room { disk: Some(Bytes::gib(1)), inodes: Some(1 << 20), pids: Some(1000) };

pub(crate) fn events(tape: &mut Tape) -> Vec<(Moment, Event)> {
    let mut events = Vec::new();
    if tape.seldom() {
        let at = some_time(tape);
        events.push((at, Event::StoreStalled { why: "simulated".to_owned(), rows: 1 }));
        events.extend(lasts(tape).map(|time| (at + time, Event::StoreBack { samples_dropped: 0 })));
    }
    if tape.seldom() {
        let at = some_time(tape);
        events.push((at, Event::Room(NO_ROOM)));
        events.extend(room_again(at, tape));
    }
    events
}

/// Chooses the cause of a failure for which the host is to blame. Returns the room that the attempt lacked, if any; a
/// name for the cause; and, if the shortage of room for builds ends later, the event that ends it.
pub(crate) fn cause(
    stage: Stage,
    at: Moment,
    tape: &mut Tape,
) -> (Option<Room>, &'static str, Option<(Moment, Event)>) {
    if !tape.byte().is_multiple_of(4) {
        (Some(NO_TASKS), "without_tasks", None)
    } else if stage == Stage::Build {
        (Some(NO_ROOM), "build_without_room", room_again(at, tape))
    } else {
        (None, "host_failure_without_cause", None)
    }
}

/// Returns the event that ends a shortage of room for builds some time after `at`, or `None` if the shortage never
/// ends.
fn room_again(at: Moment, tape: &mut Tape) -> Option<(Moment, Event)> {
    lasts(tape).map(|time| (at + time, Event::Room(ROOM)))
}

fn some_time(tape: &mut Tape) -> Moment {
    Duration::from_millis(u64::from(tape.byte()) * 40)
}

fn lasts(tape: &mut Tape) -> Option<Duration> {
    tape.pick(&[Some(1), Some(9), Some(100), Some(5_000), None]).map(Duration::from_secs)
}
