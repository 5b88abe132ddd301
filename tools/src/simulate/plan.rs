//! The plans that are run on the simulated machine: one to three small jobs under settings that bite.

use std::sync::Arc;
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId};
use opt_shared::outcome::Status;
use opt_shared::settings::{BeforeProfile, RecycleSettings};
use opt_shared::units::Bytes;
use opt_supervisor::core::Ceilings;
use opt_supervisor::core::spec::{CandidateSpec, JobSpec, Resumed, RunSpec, StageSpec};

use super::tape::Tape;

const STAGE: StageSpec = StageSpec {
    predicted: Bytes::mib(10),
    reserved: Bytes::mib(100),
    device: Bytes::ZERO,
    deadline: Duration::from_secs(10),
    batch: None,
};

fn nothing() -> RunSpec {
    RunSpec {
        ceilings: Ceilings::host(Bytes::gib(4)),
        floor: Bytes::ZERO,
        idle_worker: Bytes::mib(8),
        supervisor: Bytes::mib(20),
        verifiers: 1,
        spare: true,
        own_swap: true,
        verify: true,
        profile: true,
        jobs: Vec::new(),
        candidates: Vec::new(),
    }
}

fn a_job(id: JobId) -> JobSpec {
    JobSpec {
        id,
        baseline: None,
        candidates: Vec::new(),
        recycle: RecycleSettings {
            before_profile: BeforeProfile::Large,
            large_job: Bytes::gib(1),
            after_leases: 64,
            growth: Bytes::mib(256),
            max_age: Duration::from_secs(3600),
        },
        broken: None,
        timed: true,
    }
}

/// An easy one.
pub(crate) fn a_candidate(id: CandidateId, job: JobId) -> CandidateSpec {
    CandidateSpec {
        id,
        job,
        partial: false,
        build: STAGE,
        verify: STAGE,
        profile: [STAGE].into(),
        paired: [STAGE].into(),
        replay: None,
        resumed: None,
    }
}

/// One way to do it, or three that take less and less.
fn steps(tape: &mut Tape) -> Arc<[StageSpec]> {
    let step = |mib| StageSpec { reserved: Bytes::mib(mib), batch: Some(Bytes::mib(mib)), ..STAGE };
    if tape.pick(&[false, true]) { [300, 150, 60].map(step).into() } else { [step(100)].into() }
}

/// One to three jobs of one to four candidates under settings that bite.
pub(crate) fn a_plan(tape: &mut Tape) -> RunSpec {
    let mut spec = nothing();
    spec.ceilings.host = Bytes::mib(tape.pick(&[4096, 400, 200, 160, 600]));
    spec.ceilings.unified = tape.seldom();
    spec.verifiers = tape.pick(&[1, 1, 2, 4]);
    spec.spare = tape.pick(&[true, false]);
    spec.own_swap = !tape.seldom();
    spec.floor = tape.pick(&[Bytes::ZERO, Bytes::mib(512)]);
    spec.verify = !tape.seldom();
    spec.profile = !tape.seldom();
    for number in 0..u32::from(tape.byte() % 3) + 1 {
        let id = JobId(number);
        let mut job = a_job(id);
        job.recycle.before_profile =
            tape.pick(&[BeforeProfile::Large, BeforeProfile::Always, BeforeProfile::Never]);
        job.recycle.large_job = tape.pick(&[Bytes::mib(150), Bytes::ZERO, Bytes::gib(1)]);
        job.recycle.after_leases = tape.pick(&[64, 0, 1, 3]);
        job.recycle.growth = tape.pick(&[Bytes::mib(256), Bytes::ZERO]);
        job.recycle.max_age = tape.pick(&[Duration::from_secs(3600), Duration::ZERO]);
        job.timed = !tape.seldom();
        job.broken = tape.seldom().then(|| "simulated".to_owned());
        for _ in 0..=tape.byte() % 4 {
            let id = CandidateId(u32::try_from(spec.candidates.len()).unwrap_or(u32::MAX));
            job.candidates.push(id);
            let verify = StageSpec { reserved: Bytes::mib(tape.pick(&[100, 20, 180, 500])), ..STAGE };
            spec.candidates.push(CandidateSpec {
                partial: tape.seldom(),
                verify,
                profile: steps(tape),
                paired: steps(tape),
                resumed: tape.seldom().then_some(Resumed::Done { status: Status::Passed, may_profile: true }),
                ..a_candidate(id, JobId(number))
            });
        }
        job.baseline = (!tape.seldom()).then_some(job.candidates[0]);
        spec.jobs.push(job);
    }
    spec
}
