//! Provides a small plan of jobs with their candidates, from which tests get the run's spec and the offers of its
//! sources.

use std::sync::Arc;
use std::time::Duration;

use opt_shared::ids::{JobId, UnitId};
use opt_shared::message::Role;
use opt_shared::settings::{BeforeProfile, RecycleSettings};
use opt_shared::units::Bytes;

use crate::core::Ceilings;
use crate::core::event::Stage;
use crate::core::spec::{JobSpec, Resumed, RunSpec, StageSpec, Step, UnitSpec};

/// The reservation and the deadline of every stage for which a test does not choose others.
pub const STAGE: StageSpec = StageSpec {
    predicted: Bytes::mib(10),
    reserved: Bytes::mib(100),
    device: Bytes::ZERO,
    device_cap: Bytes::ZERO,
    deadline: Duration::from_secs(60),
    batch: None,
};

#[derive(Clone, Debug)]
pub struct Plan {
    pub ceilings: Ceilings,
    pub floor: Bytes,
    pub idle_worker: Bytes,
    pub supervisor: Bytes,
    pub verifiers: u32,
    pub spare: bool,
    pub own_swap: bool,
    pub verify: bool,
    pub profile: bool,
    pub jobs: Vec<Job>,
    /// The candidates of all jobs, indexed by the ids in `jobs`.
    pub candidates: Vec<Candidate>,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub id: JobId,
    pub baseline: Option<UnitId>,
    /// The candidates, in the order in which they are offered.
    pub candidates: Vec<UnitId>,
    pub recycle: RecycleSettings,
    pub broken: Option<String>,
    /// Whether the job has an entry to time.
    pub timed: bool,
    /// The jobs that must be over before this one begins.
    pub after: Vec<JobId>,
    pub budget: Duration,
    /// Whether candidates are screened first, and the best are confirmed.
    pub contest: bool,
}

#[derive(Clone, Debug)]
pub struct Candidate {
    pub partial: bool,
    pub build: Vec<StageSpec>,
    pub verify: Vec<StageSpec>,
    pub profile: Arc<[StageSpec]>,
    /// The ways to profile the candidate beside the baseline.
    pub paired: Arc<[StageSpec]>,
    /// The unit's only step if it is a replay. `None` if it is a candidate.
    pub replay: Option<StageSpec>,
    pub resumed: Option<Resumed>,
}

pub fn one_way(spec: StageSpec) -> Arc<[StageSpec]> {
    Arc::from([spec])
}

pub fn a_candidate() -> Candidate {
    Candidate {
        partial: false,
        build: vec![STAGE],
        verify: vec![STAGE],
        profile: one_way(STAGE),
        paired: one_way(STAGE),
        replay: None,
        resumed: None,
    }
}

pub fn a_replay(stage: StageSpec) -> Candidate {
    Candidate { replay: Some(stage), ..a_candidate() }
}

/// Returns a job whose limits for recycling workers are generous.
pub fn a_job(id: JobId) -> Job {
    Job {
        id,
        baseline: None,
        candidates: Vec::new(),
        recycle: RecycleSettings {
            before_profile: BeforeProfile::Never,
            large_job: Bytes::gib(1),
            after_leases: 1000,
            growth: Bytes::mib(256),
            max_age: Duration::from_secs(36_000),
        },
        broken: None,
        timed: true,
        after: Vec::new(),
        budget: Duration::from_secs(300),
        contest: false,
    }
}

/// Returns a plan without jobs, under a generous ceiling.
pub fn nothing() -> Plan {
    Plan {
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

impl Plan {
    pub fn spec(&self) -> RunSpec {
        let job = |job: &Job| JobSpec {
            id: job.id,
            recycle: job.recycle.clone(),
            broken: job.broken.clone(),
            after: job.after.clone(),
            budget: job.budget,
        };
        RunSpec {
            ceilings: self.ceilings,
            floor: self.floor,
            idle_worker: self.idle_worker,
            supervisor: self.supervisor,
            verifiers: self.verifiers,
            spare: self.spare,
            own_swap: self.own_swap,
            jobs: self.jobs.iter().map(job).collect(),
        }
    }

    /// Returns all candidates of a job, numbered from `first`.
    pub fn offers(&self, job: JobId, first: usize) -> Vec<UnitSpec> {
        let Some(planned) = self.jobs.get(job.index()) else { return Vec::new() };
        let mut next = first;
        let offer = |&in_plan: &UnitId| {
            let id = UnitId(u32::try_from(next).unwrap_or(u32::MAX));
            next += 1;
            let is_baseline = planned.baseline == Some(in_plan);
            let candidate = &self.candidates[in_plan.index()];
            let contest = planned.contest && !is_baseline;
            UnitSpec { is_baseline, ..self.unit(id, candidate, planned.timed, contest) }
        };
        planned.candidates.iter().map(offer).collect()
    }

    /// Returns the spec of a unit, with those steps that the plan includes.
    pub fn unit(&self, id: UnitId, candidate: &Candidate, timed: bool, contest: bool) -> UnitSpec {
        let step = |stage, role, ways: &[StageSpec]| {
            let ways: Arc<[StageSpec]> = Arc::from(ways);
            Step { stage, role, exclusive: role == Role::Profiler, ways, paired: None }
        };
        let route = match candidate.replay {
            Some(replay) => vec![step(Stage::Replay, Role::Profiler, &[replay])],
            None => {
                let mut route = vec![step(Stage::Build, Role::Verifier, &candidate.build)];
                if self.verify {
                    route.push(step(Stage::Verify, Role::Verifier, &candidate.verify));
                }
                if self.verify && self.profile && timed {
                    let paired = Some(candidate.paired.clone());
                    let profile = |stage| {
                        let step = step(stage, Role::Profiler, &candidate.profile);
                        Step { paired: paired.clone(), ..step }
                    };
                    if contest && !candidate.partial {
                        route.push(profile(Stage::Screen));
                    }
                    route.push(profile(Stage::Profile));
                    if contest {
                        route.push(profile(Stage::Confirm));
                    }
                }
                route
            }
        };
        let (partial, resumed) = (candidate.partial, candidate.resumed);
        UnitSpec { id, route: route.into(), is_baseline: false, partial, resumed: resumed.map(Box::new) }
    }
}
