//! The disk of the simulated machine: a database that accepts no rows for a while, and room for builds that runs short.

use std::time::Duration;

use opt_shared::room::Room;
use opt_shared::units::Bytes;
use opt_supervisor::core::event::{Event, Moment};

use super::tape::Tape;

pub(crate) const NO_ROOM: Room = Room { disk: Some(Bytes::mib(1)), inodes: Some(1 << 20), pids: None };
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

/// The event that there is room for builds again, some time after `at`; `None` if there never is.
pub(crate) fn room_again(at: Moment, tape: &mut Tape) -> Option<(Moment, Event)> {
    lasts(tape).map(|time| (at + time, Event::Room(ROOM)))
}

fn some_time(tape: &mut Tape) -> Moment {
    Duration::from_millis(u64::from(tape.byte()) * 40)
}

fn lasts(tape: &mut Tape) -> Option<Duration> {
    tape.pick(&[Some(1), Some(9), Some(100), Some(5_000), None]).map(Duration::from_secs)
}
