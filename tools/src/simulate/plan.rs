//! Generates the plans that run on the simulated machine: one to three small jobs, many of them with limits low enough
//! to be reached, and up to three replays after the jobs.

use std::sync::Arc;
use std::time::Duration;

use opt_shared::ids::{JobId, UnitId};
use opt_shared::outcome::Status;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;
use opt_supervisor::core::spec::{Resumed, StageSpec};
use opt_supervisor::core::testkit::plan::{self, Candidate, Plan, a_job, a_replay, nothing};

use super::tape::Tape;

/// The state of a unit that an earlier part of the run has already finished.
const ENDED: Resumed =
    Resumed::Ended { status: Status::Passed, verified: true, speedup: None, failed_beside: false };

const STAGE: StageSpec = StageSpec { deadline: Duration::from_secs(10), ..plan::STAGE };

pub(crate) fn sample_candidate() -> Candidate {
    let one: Arc<[StageSpec]> = plan::one_way(STAGE);
    Candidate {
        build: vec![STAGE],
        verify: vec![STAGE],
        profile: one.clone(),
        paired: one,
        ..plan::a_candidate()
    }
}

/// Returns either one way to run a stage, or three ways, each of which needs less memory than the one before.
fn ways(tape: &mut Tape, device: Bytes) -> Arc<[StageSpec]> {
    let way = |mib| StageSpec { reserved: Bytes::mib(mib), batch: Some(Bytes::mib(mib)), device, ..STAGE };
    if tape.pick(&[false, true]) { [300, 150, 60].map(way).into() } else { [way(100)].into() }
}

/// Returns a plan with one to three jobs, each with one to four candidates, and up to three replays, each in its own
/// job.
pub(crate) fn random_plan(tape: &mut Tape) -> Plan {
    let mut plan = nothing();
    plan.ceilings.host = Bytes::mib(tape.pick(&[4096, 400, 200, 160, 600]));
    plan.ceilings.unified = tape.seldom();
    let device = tape.pick(&[0, 0, 1024, 500]);
    plan.ceilings.device = Bytes::mib(device);
    plan.verifiers = tape.pick(&[1, 1, 2, 4]);
    plan.spare = tape.pick(&[true, false]);
    plan.own_swap = !tape.seldom();
    plan.floor = tape.pick(&[Bytes::ZERO, Bytes::mib(512)]);
    plan.verify = !tape.seldom();
    plan.profile = !tape.seldom();
    for number in 0..u32::from(tape.byte() % 3) + 1 {
        let mut job = a_job(JobId(number));
        job.recycle.before_profile =
            tape.pick(&[BeforeProfile::Large, BeforeProfile::Always, BeforeProfile::Never]);
        job.recycle.large_job = tape.pick(&[Bytes::mib(150), Bytes::ZERO, Bytes::gib(1)]);
        job.recycle.after_leases = tape.pick(&[64, 0, 1, 3]);
        job.recycle.growth = tape.pick(&[Bytes::mib(256), Bytes::ZERO]);
        job.recycle.max_age = tape.pick(&[Duration::from_secs(3600), Duration::ZERO]);
        job.timed = !tape.seldom();
        job.contest = tape.pick(&[false, true]);
        job.budget = tape.pick(&[Duration::from_secs(300), Duration::ZERO]);
        job.broken = tape.seldom().then(|| "simulated".to_owned());
        for _ in 0..=tape.byte() % 4 {
            job.candidates.push(next_unit(&plan));
            // A candidate uses no device, fits on devices of either size, or fits only on the larger one.
            let on_device = if device == 0 { 0 } else { tape.pick(&[200, 0, 400, 800]) };
            let on_device = Bytes::mib(on_device);
            let reserved = Bytes::mib(tape.pick(&[100, 20, 180, 500]));
            let verify = StageSpec { reserved, device: on_device, ..STAGE };
            let smaller = tape.pick(&[None, Some(StageSpec { reserved: Bytes::mib(15), ..verify })]);
            plan.candidates.push(Candidate {
                partial: tape.seldom(),
                verify: std::iter::once(verify).chain(smaller).collect(),
                profile: ways(tape, on_device),
                paired: ways(tape, on_device),
                resumed: tape.pick(&[None, None, None, None, None, None, Some(Resumed::Built), Some(ENDED)]),
                ..sample_candidate()
            });
        }
        job.baseline = (!tape.seldom()).then_some(job.candidates[0]);
        plan.jobs.push(job);
    }
    add_replays(&mut plan, tape);
    plan
}

fn add_replays(plan: &mut Plan, tape: &mut Tape) {
    let before: Vec<JobId> = plan.jobs.iter().map(|job| job.id).collect();
    for _ in 0..tape.pick(&[0, 1, 2, 3]) {
        let mut job = a_job(JobId(u32::try_from(plan.jobs.len()).unwrap_or(u32::MAX)));
        job.recycle = plan.jobs[0].recycle.clone();
        job.after.clone_from(&before);
        job.candidates.push(next_unit(plan));
        let reserved = Bytes::mib(tape.pick(&[100, 20, 300, 1500]));
        plan.candidates.push(a_replay(StageSpec { reserved, ..STAGE }));
        plan.jobs.push(job);
    }
}

fn next_unit(plan: &Plan) -> UnitId {
    UnitId(u32::try_from(plan.candidates.len()).unwrap_or(u32::MAX))
}
