//! The messages between supervisor and worker, sent over ipc-channel (postcard on the wire).
//!
//! This file has the messages and the version of the protocol. Both ends are trusted, because a worker never loads a
//! candidate's host code. Runners use other messages, which the worker defines.
//!
//! A worker has one task at a time. Every task ends with exactly one `Finished`, or with the worker's death.

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

/// The version of the messages. Raise it with every change. The two ends differ only if builds were mixed.
pub const PROTOCOL_VERSION: u32 = 11;

/// The hidden first argument of a worker, followed by its role, the supervisor's pid and the run's device.
pub const WORKER_ARGUMENT: &str = "__worker";
/// The hidden first argument of a canary, followed by the name of its attempt.
pub const CANARY_ARGUMENT: &str = "__canary";
/// A canary that resolves `[build] python` with a given PATH and reports the interpreter.
pub const ASK_INTERPRETER: &str = "interpreter";
/// A canary that resolves an interpreter in the same way, and reports only its path.
pub const ASK_EXECUTABLE: &str = "executable";
/// A canary that reports which card a given device is, and whether the card shares its memory with the CPU.
pub const ASK_DEVICE: &str = "device";
/// In an answer to `ASK_DEVICE`, this word or `DISCRETE` says whether the card shares its memory with the CPU.
pub const INTEGRATED: &str = "integrated";
pub const DISCRETE: &str = "discrete";
/// A canary that looks in given folders and reports which compiler of device code a build would find.
pub const ASK_NVRTC: &str = "nvrtc";
/// Like `ASK_NVRTC`, for CUDA with host code.
pub const ASK_NVCC: &str = "nvcc";
/// The environment variable with the name of the supervisor's one-shot server.
pub const SERVER_VARIABLE: &str = "OPT_WORKER_SERVER";
/// The environment variable with the nonce with which a worker proves its identity.
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
    /// A number that the worker got through its environment. A process with another nonce is not our worker.
    pub nonce: String,
    pub pid: u32,
    /// The sender of the channel on which the worker receives messages.
    pub to_worker: IpcSender<ToWorker>,
    /// The receiver of the channel on which the worker sends its messages.
    pub from_worker: ipc_channel::ipc::IpcReceiver<FromWorker>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    Start(Box<Task>),
    /// The supervisor has opened a pidfd of this runner. The runner may now start its work.
    RunnerWatched {
        pid: u32,
    },
    /// The supervisor no longer uses the dead runner's pid, so the runner may be reaped. `killed` is set if the
    /// supervisor ordered its death, or if Linux ended it at the limit of its control group. `tasks_refused` is
    /// true if, while it ran, a control group above its own refused a process or thread.
    MayReap {
        pid: u32,
        killed: Option<KillReason>,
        tasks_refused: bool,
        peak_owed: Bytes,
    },
    /// Sent to an idle worker, which then ends. Closing the channel means the same.
    Shutdown,
}

/// The reason why a process was ended. It is recorded before the signal is sent, except for `GroupMemory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// The runner owed more than its limit.
    RunnerMemory { owed: Bytes, limit: Bytes },
    /// Linux killed it at the limit of its control group. The group's counters show this afterwards.
    GroupMemory { limit: Bytes },
    /// The machine's available memory fell below the floor.
    HostFloor { available: Bytes, floor: Bytes },
    /// The whole process tree owed more than its ceiling.
    HostCeiling { owed: Bytes, ceiling: Bytes },
    /// It held more device memory than was reserved for it, which took the whole process tree above its ceiling.
    DeviceCeiling { owed: Bytes, ceiling: Bytes },
    /// The device that it was using is lost.
    DeviceLost,
    /// A load, call or build exceeded its time limit.
    Timeout { limit: Duration },
    /// It was still running this long after SIGSTOP.
    WouldNotStop { limit: Duration },
    /// It was stopped from outside and did not continue.
    Stopped,
    /// The task exceeded the supervisor's deadline for it.
    Deadline,
    /// The run is ending, because the user stopped it or its work is done.
    Interrupted,
    /// Its worker died, or has no lease for it.
    Orphaned,
    /// The worker did not become ready: its hello was missing, invalid or of another version.
    NotReady,
    /// The worker reported that it cannot continue.
    WorkerFault,
    /// The run was stopped because of a problem of the host.
    RunStopped,
    /// The user requested that this worker be replaced at once. Its task is repeated.
    Requested,
    /// The user cancelled its task.
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
    /// The device on which the artifact will run.
    pub device: Device,
    pub build: BuildSettings,
    /// The plan's launches of the artifact, for a compiler that needs them. Empty for other languages.
    pub launch: Launch,
    /// The call whose arguments have the types that the artifact is compiled for. Set if `launch` is.
    pub first: Option<FirstCall>,
    /// The compiler's memory limit: `build.memory`, or less if the run's ceiling leaves less.
    pub memory: Bytes,
    /// The folder to which the artifact is copied. The copy is named after its digest.
    pub artifacts: PathBuf,
    /// The total size that the run's further artifacts may have.
    pub artifacts_room: Bytes,
    /// The folder for temporary files. The worker removes what it put there. The supervisor empties the folder whenever
    /// the run is started again.
    pub scratch: PathBuf,
    /// The paths that stay hidden from the compiler.
    pub closed: HiddenPaths,
}

/// The first entry of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstCall {
    pub path: PathBuf,
    pub signature: Signature,
}

/// Paths that neither builds nor runners can read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenPaths {
    /// Captures, results and the plan. They are hidden even if they are in a folder that the plan names.
    pub files: Vec<PathBuf>,
    /// The plan's folder. It is hidden even if it is in a system folder, but paths in it that the plan names can be
    /// read.
    pub home: PathBuf,
}

/// One recorded call, and its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryRef {
    pub id: EntryId,
    /// The file stem: `entry_000123`.
    pub name: String,
    pub path: PathBuf,
    /// Identifies the file as it was when its headers were read.
    pub identity: Option<FileIdentity>,
    /// The number of entries that this one stands for: those of its signature class or, if a profile times every entry,
    /// 1.
    pub weight: u64,
    /// The paths of arguments that have the same values in other entries.
    pub repeated: Vec<String>,
    pub numbers: EntryNumbers,
}

impl EntryRef {
    pub fn share(&self) -> Share<'_> {
        self.numbers.share()
    }
}

/// The way in which an artifact is called, and its limits. Verification and profile use the same one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Callee {
    pub candidate: String,
    pub artifact: Artifact,
    /// The way in which it is started.
    pub launcher: Launcher,
    /// The symbol that a runner looks up. Launches name their own symbols.
    pub symbol: String,
    /// The launches by the worker. Empty if the artifact has host code.
    pub launch: Launch,
    pub signature: Signature,
    pub limits: LimitSettings,
    /// Folders with shared libraries that the artifact needs.
    pub library_path: Vec<PathBuf>,
    pub closed: HiddenPaths,
    /// `[build] python`: the interpreter for launchers that need one.
    pub python: String,
    /// The form of an interpreter's calls. With `Form::Recorded`, the recorded function is called and `symbol` is its
    /// name.
    pub form: Form,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyTask {
    pub callee: Callee,
    /// The entries, in the order in which they are run.
    pub entries: Vec<EntryRef>,
    pub verify: VerifySettings,
    /// The largest total size of the unmapped inputs and the outputs of consecutive entries that share a runner. With
    /// zero, every entry has its own runner.
    pub shared_runner: Bytes,
    /// The most memory that may be on the device at once, if the worker launches the candidate itself.
    pub device_cap: Bytes,
    /// True if pages of the captures that the task brought into the page cache are dropped afterwards.
    pub drop_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileTask {
    pub callee: Callee,
    /// The baseline that the candidate is paired with, if the job has one that passed.
    pub baseline: Option<Callee>,
    pub entries: Vec<EntryRef>,
    pub verify: VerifySettings,
    pub profile: ProfileSettings,
    pub depth: Depth,
    /// The most memory that may be allocated on a device. Zero on the CPU.
    pub device_cap: Bytes,
    /// Parameters that keep their values in every timed call, regardless of `profile.vary`.
    pub constant: Vec<String>,
    /// True if pages of the captures that a batch brought into the page cache are dropped afterwards.
    pub drop_cache: bool,
    /// The seed of block order, slot choice, poisons and new inputs. It is different for every candidate and stage.
    pub seed: [u8; 32],
}

/// The thoroughness of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One process for each side, and a few pairs.
    Screen,
    /// As many processes and pairs as it takes to get intervals as narrow as the plan asks for, or as the time allows.
    Full,
}

/// `[[replay]]`: recorded calls in order, with their tensors in a pool of `budget`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayTask {
    pub name: String,
    pub steps: Vec<ReplayCall>,
    /// The callees of the steps, each used at least once.
    pub callees: Vec<ReplayCallee>,
    pub budget: Bytes,
    /// Names of tensors that never leave the pool.
    pub pin: Vec<String>,
    /// The number of steps beyond the running one whose tensors are fetched in advance.
    pub prefetch: u32,
    /// The file with catalog and schedule. An existing file is used; otherwise it is created.
    pub recording: PathBuf,
    /// True if pages of the captures that the task brought into the page cache are dropped afterwards.
    pub drop_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCall {
    /// An index into the callees.
    pub callee: u32,
    pub entry: EntryRef,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCallee {
    pub job: String,
    pub callee: Callee,
    pub verify: VerifySettings,
}

/// The limits of a runner's control group in addition to its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// The size of its mapped files. Linux charges page cache to the group that touches it first. These pages are
    /// reclaimable, but must not be evicted while the runner is being timed.
    pub files: Bytes,
    /// Threads and processes.
    pub tasks: u32,
    /// True if the runner starts processes. The memory of its whole tree then counts.
    pub tree: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// A runner was started and is waiting. The supervisor opens a pidfd and answers `RunnerWatched`.
    RunnerStarted {
        lease: LeaseId,
        pid: u32,
        /// Field 22 of `/proc/PID/stat`, with which a reused pid is detected.
        start_time: u64,
        /// The memory that this runner may owe. The supervisor kills it above this limit.
        limit: Bytes,
        /// The size of all memory files that it maps. The tree owes them once, however often they are mapped.
        shared: Bytes,
        /// The size of the memory files that it maps but that its worker holds. The worker owes them.
        of_worker: Bytes,
        /// The private memory that it shares with its zygote until it writes to it. The zygote owes it.
        inherited: Bytes,
        group_limits: GroupLimits,
    },
    /// The worker has started a zygote, which replaces the previous one. A zygote runs no candidate; some runners are
    /// copies of it.
    ZygoteStarted {
        pid: u32,
        start_time: u64,
    },
    /// There is no zygote, so every runner starts its own interpreter.
    NoZygote {
        why: String,
    },
    /// The size of the worker's memory files for which no runner is charged.
    Holds {
        bytes: Bytes,
    },
    /// The runner must be killed. The supervisor records the reason, then kills it through its own pidfd.
    KillWanted {
        pid: u32,
        reason: KillReason,
    },
    /// The runner is dead but not yet reaped. The supervisor answers `MayReap`.
    RunnerDied {
        pid: u32,
    },
    /// The protections that this worker's first runner could enforce on itself, and those that it could not.
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
    /// The worker cannot continue, and ends after this message.
    Fault {
        lease: Option<LeaseId>,
        detail: String,
    },
}
