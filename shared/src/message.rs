//! What supervisor and worker say to each other, over ipc-channel (postcard on the wire).
//!
//! Owns the protocol's version and its messages. Both ends are trusted: a worker never loads a candidate. Nothing
//! here is ever spoken with a runner; its frames are the worker's own affair.
//!
//! One task at a time per worker; every task ends in exactly one `Finished`, or in the worker's death.

use std::path::PathBuf;
use std::time::Duration;

use ipc_channel::ipc::IpcSender;
use serde::{Deserialize, Serialize};

use crate::arguments::{Form, Signature};
use crate::batch::Share;
use crate::capture::FileIdentity;
use crate::device::Device;
use crate::ids::{EntryId, LeaseId};
use crate::language::Launcher;
use crate::launch::Launch;
use crate::numbers::EntryNumbers;
use crate::outcome::Artifact;
pub use crate::outcome::Report;
pub use crate::protection::Protection;
use crate::settings::{BuildSettings, CandidateSource, LimitSettings, ProfileSettings, VerifySettings};
use crate::stage::Stage;
use crate::units::Bytes;

/// Raised by every change of a message. Both ends are the same file unless somebody mixed builds.
pub const PROTOCOL_VERSION: u32 = 8;

/// The hidden first argument of a worker; its role, the supervisor's pid and the run's device follow.
pub const WORKER_ARGUMENT: &str = "__worker";
/// The hidden first argument of a canary; what it is to try follows.
pub const CANARY_ARGUMENT: &str = "__canary";
/// A canary that is told a name of `[build] python` and a PATH, and says what that means here.
pub const ASK_INTERPRETER: &str = "interpreter";
/// A canary that is told a device, and says whether it is there.
pub const ASK_DEVICE: &str = "device";
/// A canary that is told folders, and says which compiler of kernels without host code a build would find.
pub const ASK_NVRTC: &str = "nvrtc";
/// Environment of a worker: the name of the supervisor's one-shot server, and what to prove itself with.
pub const SERVER_VARIABLE: &str = "OPT_WORKER_SERVER";
pub const NONCE_VARIABLE: &str = "OPT_WORKER_NONCE";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Verifier,
    Profiler,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verifier => "verifier",
            Self::Profiler => "profiler",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Verifier, Self::Profiler].into_iter().find(|role| role.name() == name)
    }
}

/// The first message of a worker, through the one-shot server.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    /// Handed to the worker through its environment; an unexpected one is not our worker.
    pub nonce: String,
    pub pid: u32,
    /// Where the worker listens.
    pub to_worker: IpcSender<ToWorker>,
    /// Where it will speak.
    pub from_worker: ipc_channel::ipc::IpcReceiver<FromWorker>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    Start(Box<Task>),
    /// The supervisor watches this runner through a pidfd of its own; it may be let loose.
    RunnerWatched {
        pid: u32,
    },
    /// The runner's death has been recorded; it may be reaped. `killed` is set when the supervisor ordered it.
    MayReap {
        pid: u32,
        killed: Option<KillReason>,
        peak_owed: Bytes,
    },
    /// End after the task in hand; the channel's end means the same.
    Shutdown,
}

/// Why the supervisor ended a process. Recorded before the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// The runner owed more than its limit.
    RunnerMemory { owed: Bytes, limit: Bytes },
    /// The kernel ended it at the limit of its control group, and counted it there. Seen after its death.
    GroupMemory { limit: Bytes },
    /// The machine's available memory fell below the floor.
    HostFloor { available: Bytes, floor: Bytes },
    /// The whole process tree owed more than its ceiling.
    HostCeiling { owed: Bytes, ceiling: Bytes },
    /// It held more on the device than was reserved for it, and with it the whole process tree more than its ceiling.
    DeviceCeiling { owed: Bytes, ceiling: Bytes },
    /// The device that it works on is lost.
    DeviceLost,
    /// A load, call or build took longer than it may.
    Timeout { limit: Duration },
    /// Somebody outside had stopped it, and it did not go on.
    Stopped,
    /// The task outlived the deadline that the supervisor holds for it.
    Deadline,
    /// The user asked for the end of the run.
    Interrupted,
    /// The worker that held it died, or holds no lease for it.
    Orphaned,
    /// The worker could not be made ready: no hello, a strange one, another version.
    NotReady,
    /// The worker said that it cannot go on.
    WorkerFault,
    /// The run is stopped because the host is in trouble.
    RunStopped,
    /// The user wants this worker replaced at once; what it was doing is done again.
    Requested,
    /// The user has cancelled what it was doing.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub lease: LeaseId,
    pub work: Work,
}

impl Task {
    pub fn stage(&self) -> Stage {
        match self.work {
            Work::Build(_) => Stage::Build,
            Work::Verify(_) => Stage::Verify,
            Work::Profile(_) => Stage::Profile,
            Work::Replay(_) => Stage::Replay,
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "a task is made once per attempt, and boxed in `Start`")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Work {
    Build(BuildTask),
    Verify(VerifyTask),
    Profile(ProfileTask),
    Replay(ReplayTask),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildTask {
    pub candidate: String,
    pub source: CandidateSource,
    /// What the artifact is to run on.
    pub device: Device,
    pub build: BuildSettings,
    /// What the compiler may owe: the limit of `build.memory`, or less where the run's ceiling leaves less.
    pub memory: Bytes,
    /// The artifact is copied here under its digest.
    pub artifacts: PathBuf,
    /// What the run's artifacts may still take together.
    pub artifacts_room: Bytes,
    /// Work files; emptied by the worker, and at the next start.
    pub scratch: PathBuf,
    /// What no build may see, although it may lie in a folder that builds are given: captures, results, the plan.
    pub hidden: Vec<PathBuf>,
    /// The plan's folder: closed, even where it lies in a folder of the system.
    pub home: PathBuf,
}

/// One recorded call, as a worker finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryRef {
    pub id: EntryId,
    /// File stem: `entry_000123`.
    pub name: String,
    pub path: PathBuf,
    /// The file as it was when its headers were read.
    pub identity: Option<FileIdentity>,
    /// Number of entries alike in shapes, dtypes and scalars.
    pub weight: u64,
    /// Arguments that hold the same values in other entries, by path.
    pub repeated: Vec<String>,
    pub numbers: EntryNumbers,
}

impl EntryRef {
    pub fn share(&self) -> Share<'_> {
        self.numbers.share()
    }
}

/// How an artifact is called, and within which limits. Same for verification and profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Callee {
    pub candidate: String,
    pub artifact: Artifact,
    /// How it comes to run.
    pub launcher: Launcher,
    /// What a runner looks up. Launches name their own.
    pub symbol: String,
    /// How it is called where the worker launches it; empty elsewhere.
    pub launch: Launch,
    pub signature: Signature,
    pub limits: LimitSettings,
    /// Folders of shared libraries that the artifact needs.
    pub library_path: Vec<PathBuf>,
    /// `[build] python`, for what an interpreter runs.
    pub python: String,
    /// The form of an interpreter's calls. As recorded: it is the recorded function that is called, and `symbol` is its name.
    pub form: Form,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyTask {
    pub callee: Callee,
    /// In the order they are to be run.
    pub entries: Vec<EntryRef>,
    pub verify: VerifySettings,
    /// Entries next to each other share a runner as long as their U + O together stay within this; zero is a runner an
    /// entry.
    pub shared_runner: Bytes,
    /// Leave no page of the captures in the cache that was not there before.
    pub drop_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileTask {
    pub callee: Callee,
    /// Paired with the candidate, if the job has one that passed.
    pub baseline: Option<Callee>,
    pub entries: Vec<EntryRef>,
    pub verify: VerifySettings,
    pub profile: ProfileSettings,
    pub depth: Depth,
    /// Parameters that are the same in every timed call, whatever `profile.vary` says.
    pub constant: Vec<String>,
    /// Leave no page of the captures in the cache that was not there before each batch.
    pub drop_cache: bool,
    /// Seeds block order, slot choice, poisons and new inputs. Of this candidate and stage alone.
    pub seed: [u8; 32],
}

/// How much of its time a profile takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One process of each side, a few pairs.
    Screen,
    /// Until the figures are as narrow as asked for, or time is up.
    Full,
}

/// `[[replay]]`: recorded calls in order, their tensors in a pool of `budget`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayTask {
    pub name: String,
    pub steps: Vec<ReplayCall>,
    /// What steps are done by; each at least once.
    pub callees: Vec<ReplayCallee>,
    pub budget: Bytes,
    /// Names of tensors that never leave the pool.
    pub pin: Vec<String>,
    /// How many steps ahead of the running one are fetched.
    pub prefetch: u32,
    /// Catalog and schedule: made if it is not there, else relied upon.
    pub recording: PathBuf,
    /// Leave no page of the captures in the cache that was not there before.
    pub drop_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCall {
    /// Place among the callees.
    pub callee: u32,
    pub entry: EntryRef,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCallee {
    pub job: String,
    pub callee: Callee,
    pub verify: VerifySettings,
}

/// What a runner may take along into its control group, beside what it may owe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    /// Bytes of files, for the page cache that the kernel charges to whoever touches it first: it is given back on demand, but
    /// must not be thrown out of a group while its owner is being timed.
    pub files: Bytes,
    /// Threads and processes.
    pub tasks: u32,
    /// It starts processes of its own: what it owes is what its tree owes.
    pub tree: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// A runner was started and waits. The supervisor opens a pidfd and answers `RunnerWatched`.
    RunnerStarted {
        lease: LeaseId,
        pid: u32,
        /// Field 22 of `/proc/PID/stat`, so that a reused pid is noticed.
        start_time: u64,
        /// What this runner may owe; the supervisor kills above it.
        limit: Bytes,
        /// Size of every memfd that it maps: owed by the tree once, whatever the maps count.
        shared: Bytes,
        /// Bytes of memory files that it maps and its worker holds: owed by the worker.
        of_worker: Bytes,
        /// Private memory that it has in common with its zygote until it writes there: owed by that one.
        inherited: Bytes,
        pack: Pack,
    },
    /// A process of this worker's in which no candidate runs, and of which some of its runners are copies. It takes the place
    /// of a former one.
    ZygoteStarted {
        pid: u32,
        start_time: u64,
    },
    /// Why runners start their own interpreter.
    NoZygote {
        why: String,
    },
    /// The size of what the worker holds in memory files that no runner is charged for.
    Holds {
        bytes: Bytes,
    },
    /// The runner has to be ended. The supervisor writes the intent down, then kills it through its own pidfd.
    KillWanted {
        pid: u32,
        reason: KillReason,
    },
    /// The runner is dead and not yet reaped. The supervisor answers `MayReap`.
    RunnerDied {
        pid: u32,
    },
    /// What the first runner of this worker could enforce on itself, and what not.
    Enforced {
        protections: Vec<Protection>,
    },
    Progress {
        lease: LeaseId,
        done: u32,
        total: u32,
        bytes: Bytes,
    },
    Finished {
        lease: LeaseId,
        report: Box<Report>,
    },
    /// The worker itself cannot go on; it ends after this.
    Fault {
        lease: Option<LeaseId>,
        detail: String,
    },
}
