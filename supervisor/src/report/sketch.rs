//! Builds a timeline for tests. In it, a verifier has a runner that is killed, and is later recycled itself, and a
//! profiler has two runners.

use opt_shared::ids::WorkerId;
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use crate::record::Stage;
use crate::record::timeline::{Assembly, Block, Mark, MarkKind, PhaseSpan, Point, Timeline, Track};

/// The start of the run, in milliseconds since 1970.
const START: u64 = 1_777_636_800_000;

pub(super) fn timeline() -> Timeline {
    let (verifier, profiler) = (WorkerId(1), WorkerId(2));
    let mut block = Block::new(1);
    for step in 0..=1000 {
        let at = START + step * 10;
        let mut sum = Bytes::mib(9);
        let mut owes = |track, mib: u64| {
            let owed = Bytes::mib(mib);
            sum += owed;
            block.push(track, Point { at, first: owed, second: Bytes::mib(1) });
        };
        if step < 500 {
            owes(Track::Worker { worker: verifier, pid: 10 }, 2);
        } else {
            owes(Track::Worker { worker: profiler, pid: 20 }, 3);
        }
        match step {
            100..300 => owes(Track::Runner { worker: verifier, pid: 11 }, step),
            700..900 => {
                owes(Track::Runner { worker: profiler, pid: 21 }, 180);
                owes(Track::Runner { worker: profiler, pid: 22 }, 208);
            }
            _ => {}
        }
        let point = |first, second| Point { at, first, second };
        block.push(Track::Supervisor, point(Bytes::mib(9), Bytes::ZERO));
        block.push(Track::Tree, point(sum, Bytes::mib(2)));
        block.push(Track::Machine, point(Bytes::gib(20) - sum, Bytes::ZERO));
    }
    let roles = [(verifier, Role::Verifier), (profiler, Role::Profiler)].into();
    let mut assembly = Assembly::new(roles, START, START + 10_000, 2000);
    assembly.take(&block);
    let phase = |worker, stage, from, to| PhaseSpan {
        worker,
        stage,
        job: "embedding".to_owned(),
        candidate: Some("fast.c".to_owned()),
        started: START + from,
        ended: START + to,
    };
    let mark =
        |at, kind, reason: &str| Mark { at: START + at, worker: verifier, kind, reason: reason.to_owned() };
    Timeline {
        ceiling: Some(Bytes::mib(1000)),
        predicted: Some(Bytes::mib(420)),
        phases: vec![
            phase(verifier, Stage::Build, 100, 900),
            phase(verifier, Stage::Verify, 1000, 3000),
            phase(profiler, Stage::Profile, 7000, 9000),
        ],
        marks: vec![
            mark(2990, MarkKind::KilledRunner, "runner_memory"),
            mark(4990, MarkKind::Recycled, "large_job"),
        ],
        ..assembly.finish()
    }
}
