//! Tests how readings of NVML become decisions of the core. The tests use the NVML twin (a library that answers like
//! NVML, from a script), and real processes that are killed.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use opt_nvml_twin::{Device as ScriptedDevice, Process as ScriptedProcess, Twin, Who};
use opt_shared::ids::{JobId, LeaseId, UnitId};
use opt_shared::message::{KillReason, Role};
use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::core::event::{Action, Offer, Stage};
use crate::core::spec::{StageSpec, Step, UnitSpec};
use crate::core::testkit::plan::{Plan, STAGE, a_job, nothing};
use crate::core::{Ceilings, Core};

const WORKER: Process = Process::Worker(WorkerId(1));
/// NVML's error code for a lost device.
const GPU_IS_LOST: u32 = 15;

/// A child process. Dropping it kills and reaps it.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("300").spawn().expect("sleep starts"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn holds(&self, mib_from_ms: &[(u64, u64)]) -> ScriptedProcess {
        ScriptedProcess {
            who: Who::Pid(self.pid()),
            mib_from_ms: mib_from_ms.to_vec(),
            listed_after_death_ms: 0,
            held_after_death_ms: 0,
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Watched {
    folder: tempfile::TempDir,
    twin: Twin,
    device: RunDevice,
}

fn script(processes: Vec<ScriptedProcess>) -> opt_nvml_twin::Script {
    let device = ScriptedDevice {
        uuid: "GPU-7".to_owned(),
        name: "Twin".to_owned(),
        total_mib: Some(2048),
        held_mib: 50,
        utilisation: Some(3),
        processes,
    };
    opt_nvml_twin::Script { devices: vec![device], ..opt_nvml_twin::Script::default() }
}

impl Watched {
    fn with(script: &opt_nvml_twin::Script) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let twin = Twin::install(folder.path(), script).expect("the twin is beside this test");
        let nvml = Nvml::open_library(twin.library().as_os_str()).expect("it loads");
        let identity = nvml.identity(0).expect("a device");
        let totals = nvml.read(0).expect("a reading").totals;
        let path = folder.path().join("lock");
        let lock = DeviceLock::take_at(&path, &identity, folder.path(), &|| false, Duration::ZERO);
        let found = FoundDevice { nvml, identity, memory: DeviceMemory { totals, is_integrated: false } };
        let mut device = found.watch(lock.expect("the lock is free")).expect("a thread");
        device.watch.set_interval(BUSY);
        Self { folder, twin, device }
    }

    fn play(&self, script: &opt_nvml_twin::Script) {
        self.twin.play(script).expect("written");
    }

    fn event(&mut self, ours: &[(Process, u32)]) -> Event {
        loop {
            let mut polled = [PollFd::from_borrowed_fd(self.device.descriptor(), PollFlags::IN)];
            let limit = opt_shared::wait::timespec(Duration::from_secs(60));
            let ready = poll(&mut polled, Some(&limit)).expect("it can be polled");
            assert_ne!(ready, 0, "no reading in {}", self.folder.path().display());
            if let Some(event) = self.device.event(ours.iter().copied()) {
                return event;
            }
        }
    }

    fn sample(&mut self, ours: &[(Process, u32)]) -> DeviceSample {
        match self.event(ours) {
            Event::DeviceSample(sample) => sample,
            other => panic!("{other:?}"),
        }
    }

    fn sample_that(&mut self, ours: &[(Process, u32)], is: impl Fn(&DeviceSample) -> bool) -> DeviceSample {
        for _ in 0..10_000 {
            let sample = self.sample(ours);
            if is(&sample) {
                return sample;
            }
        }
        panic!("never seen")
    }
}

#[test]
fn memory_is_attributed_to_the_run_its_dead_processes_and_others() {
    let (ours, other) = (Sleeper::start(), Sleeper::start());
    let lingering =
        ScriptedProcess { listed_after_death_ms: 400, held_after_death_ms: 400, ..ours.holds(&[(0, 300)]) };
    let mut watched = Watched::with(&script(vec![lingering, other.holds(&[(0, 200)])]));
    let workers = [(WORKER, ours.pid())];
    let sample = watched.sample(&workers);
    assert_eq!(sample.processes, [(WORKER, Bytes::mib(300))]);
    assert_eq!((sample.others, sample.other_processes), (Bytes::mib(200), 1));
    assert_eq!(sample.unattributed, Some(Bytes::mib(50)));
    assert_eq!((sample.free, sample.utilisation), (Some(Bytes::mib(2048 - 550)), Some(3)));
    drop(ours);
    let listed = watched.sample_that(&[], |sample| !sample.left.is_empty());
    assert_eq!(listed.left, [(WorkerId(1), Bytes::mib(300))]);
    assert_eq!(listed.unattributed, Some(Bytes::mib(50)), "listed memory is attributed");
    let held = watched.sample_that(&[], |sample| sample.left.is_empty());
    assert_eq!(held.unattributed, Some(Bytes::mib(350)));
    watched.sample_that(&[], |sample| sample.unattributed == Some(Bytes::mib(50)));
    assert_eq!(watched.device.latest.peak, Some(Bytes::mib(300)));
}

#[test]
fn unified_memory_has_only_the_figures_of_processes() {
    let ours = Sleeper::start();
    let mut script = script(vec![ours.holds(&[(0, 300)])]);
    (script.devices[0].total_mib, script.devices[0].utilisation) = (None, None);
    let sample = Watched::with(&script).sample(&[(WORKER, ours.pid())]);
    let expected = DeviceSample { processes: vec![(WORKER, Bytes::mib(300))], ..DeviceSample::default() };
    assert_eq!(sample, expected);
}

#[test]
fn lost_card_raises_an_event_and_a_failed_reading_does_not() {
    let script = script(Vec::new());
    let mut watched = Watched::with(&script);
    let failing = |code: u32| {
        let fails = [("nvmlDeviceGetMemoryInfo_v2".to_owned(), code)].into();
        opt_nvml_twin::Script { fails, ..script.clone() }
    };
    watched.play(&failing(999));
    // Failed readings raise no events, so the next event comes from the next script.
    watched.device.watch.sample_now();
    watched.play(&failing(GPU_IS_LOST));
    let event =
        std::iter::repeat_with(|| watched.event(&[])).find(|it| !matches!(it, Event::DeviceSample(_)));
    let Some(Event::DeviceLost { why }) = event else { panic!("{event:?}") };
    assert!(why.contains("lost"), "{why}");
}

/// Returns a core whose only unit has a lease of 400 MiB on a device with a ceiling of 1 GiB.
fn leased() -> Core {
    let mut plan = Plan { ceilings: Ceilings { device: Bytes::gib(1), ..nothing().ceilings }, ..nothing() };
    plan.jobs.push(a_job(JobId(0)));
    let stage = StageSpec { device: Bytes::mib(400), ..STAGE };
    let ways: Arc<[StageSpec]> = Arc::from([stage]);
    let step = Step { stage: Stage::Verify, role: Role::Verifier, exclusive: false, ways, paired: None };
    let unit = UnitSpec {
        id: UnitId(0),
        route: Arc::from([step]),
        is_baseline: false,
        partial: false,
        resumed: None,
    };
    let mut core = Core::new(plan.spec(), WorkerId(1), LeaseId(1));
    let now = Duration::ZERO;
    core.handle(now, Event::Tick);
    core.handle(now, Event::Offered { job: JobId(0), units: vec![unit], by: Offer::Asked { more: false } });
    let actions = core.handle(now, Event::WorkerReady { worker: WorkerId(1) });
    assert!(core.device_is_leased(), "{actions:#?}");
    core
}

#[test]
fn growth_past_the_ceiling_ends_the_worker_at_the_first_sample_that_shows_it() {
    let (ours, other) = (Sleeper::start(), Sleeper::start());
    let grows = ours.holds(&[(0, 100), (300, 1100)]);
    let mut watched = Watched::with(&script(vec![grows, other.holds(&[(0, 900)])]));
    let mut core = leased();
    loop {
        let event = watched.event(&[(WORKER, ours.pid())]);
        let Event::DeviceSample(sample) = &event else { panic!("{event:?}") };
        let is_over = sample.processes.iter().any(|(_, bytes)| Bytes::gib(1) < *bytes);
        let actions = core.handle(Duration::from_secs(1), event);
        let row =
            actions.iter().position(|it| matches!(it, Action::Policy(row) if row.decision == "kill_worker"));
        let kill = actions.iter().position(|it| matches!(it, Action::KillWorker { .. }));
        if !is_over {
            assert_eq!((row, kill), (None, None), "{actions:#?}");
            continue;
        }
        let (Some(row), Some(kill)) = (row, kill) else { panic!("{actions:#?}") };
        assert!(row < kill, "its reason comes first: {actions:#?}");
        let reason = KillReason::DeviceCeiling { owed: Bytes::mib(1100), ceiling: Bytes::gib(1) };
        assert_eq!(actions[kill], Action::KillWorker { worker: WorkerId(1), reason });
        return;
    }
}
