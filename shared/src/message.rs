//! Defines the messages between supervisor and worker, which are sent over ipc-channel (encoded with postcard), and the
//! reasons for killing a process, with their wording.
//!
//! Both sender and receiver are trusted, because a worker never loads a candidate's host code. The messages between a
//! worker and its runners are defined in the worker's crate.
//!
//! A worker has one task at a time. A task ends with one `Finished`, or with the worker's death.

use std::path::PathBuf;
use std::time::Duration;

use ipc_channel::ipc::IpcSender;
use serde::{Deserialize, Serialize};

use crate::arguments::{Form, Signature};
use crate::batch::Share;
use crate::capture::FileIdentity;
use crate::device::{CardShape, Device};
use crate::formula;
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

/// The version of the messages, to be raised with every change. Supervisor and worker have different versions only if
/// they come from different builds.
pub const PROTOCOL_VERSION: u32 = 12;

/// The hidden first argument of a worker, followed by its role, the supervisor's pid and the run's device.
pub const WORKER_ARGUMENT: &str = "__worker";
/// The hidden first argument of a canary process. It is followed by the part of the sandbox to test (such as
/// `confine`), or by one of the questions below.
pub const CANARY_ARGUMENT: &str = "__canary";
/// Asks a canary to resolve `[build] python` with a given PATH and to describe the interpreter.
pub const ASK_INTERPRETER: &str = "interpreter";
/// Like `ASK_INTERPRETER`, but only for the interpreter's path.
pub const ASK_EXECUTABLE: &str = "executable";
/// Asks a canary which card a device number stands for, and whether the card shares its memory with the CPU.
pub const ASK_DEVICE: &str = "device";
/// In the answer to `ASK_DEVICE`, `INTEGRATED` means that the card shares its memory with the CPU, and `DISCRETE` that
/// it has its own.
pub const INTEGRATED: &str = "integrated";
pub const DISCRETE: &str = "discrete";
/// Asks a canary which compiler of device code a build would find in the given folders.
pub const ASK_NVRTC: &str = "nvrtc";
/// Like `ASK_NVRTC`, for CUDA with host code.
pub const ASK_NVCC: &str = "nvcc";
/// The environment variable that tells a worker the name of the supervisor's one-shot server.
pub const SERVER_VARIABLE: &str = "OPT_WORKER_SERVER";
/// The environment variable that contains the nonce by which the supervisor recognises its worker.
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

#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    /// The worker's nonce, from its environment. A process that sends another nonce is not the worker that was started.
    pub nonce: String,
    pub pid: u32,
    pub to_worker: IpcSender<ToWorker>,
    pub from_worker: ipc_channel::ipc::IpcReceiver<FromWorker>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    Start(Box<Task>),
    /// The supervisor now watches this runner through a pidfd, so the runner may begin.
    RunnerWatched {
        pid: u32,
    },
    /// The supervisor no longer uses the dead runner's pid, so the runner may be reaped. `killed` is set if the
    /// supervisor killed the runner, or if Linux ended it at the limit of its control group. `tasks_refused` is true
    /// if, while the runner ran, a control group above the runner's own refused to start a process or thread.
    /// `peak_owed` is the largest amount of owed memory that the supervisor measured for the runner.
    MayReap {
        pid: u32,
        killed: Option<KillReason>,
        tasks_refused: bool,
        peak_owed: Bytes,
    },
    /// Sent to an idle worker, which then ends. Closing the channel has the same effect.
    Shutdown,
}

/// The reason why a process was ended. Except for `GroupMemory`, the supervisor tries to record it before it sends the
/// signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillReason {
    /// The runner owed more than its limit.
    RunnerMemory { owed: Bytes, limit: Bytes },
    /// Linux killed the process at the limit of its control group, as the group's counters show.
    GroupMemory { limit: Bytes },
    /// The machine's available memory fell below the floor.
    HostFloor { available: Bytes, floor: Bytes },
    /// The whole process tree owed more than its ceiling.
    HostCeiling { owed: Bytes, ceiling: Bytes },
    /// The process tree held more device memory than its ceiling.
    DeviceCeiling { owed: Bytes, ceiling: Bytes },
    /// The device that the process used is lost.
    DeviceLost,
    /// A load, call or build exceeded its time limit.
    Timeout { limit: Duration },
    /// The process was still running when this much time had passed since it was sent SIGSTOP.
    WouldNotStop { limit: Duration },
    /// Something other than its worker stopped the process.
    Stopped,
    /// The attempt took longer than the supervisor's deadline for it.
    Deadline,
    /// The run is ending, because a user stopped it or its work is done.
    Interrupted,
    /// The worker of the process died, or has no lease for it.
    Orphaned,
    /// The worker did not send its hello in time, or sent an invalid one or one of another version.
    NotReady,
    /// The worker reported that it cannot continue.
    WorkerFault,
    /// The run was stopped because of a problem with the host.
    RunStopped,
    /// A user asked for this worker to be replaced at once. Its task is repeated.
    Requested,
    /// A user cancelled the task of the process.
    Cancelled,
}

impl KillReason {
    /// The reason in words. `None` for reasons that include numbers, and for reasons whose wording depends on the
    /// killed process: callers describe these themselves.
    pub fn words(&self) -> Option<&'static str> {
        match self {
            Self::RunnerMemory { .. }
            | Self::GroupMemory { .. }
            | Self::HostFloor { .. }
            | Self::HostCeiling { .. }
            | Self::DeviceCeiling { .. }
            | Self::Timeout { .. }
            | Self::Stopped => None,
            Self::DeviceLost => Some("the device was lost"),
            Self::WouldNotStop { .. } => Some("it was still running after SIGSTOP"),
            Self::Deadline => Some("the attempt did not finish in time"),
            Self::Interrupted => Some("the run is ending"),
            Self::Orphaned => Some("its worker had died, or had no lease for it"),
            Self::NotReady => Some("its worker sent no valid hello in time"),
            Self::WorkerFault => Some("its worker could not continue"),
            Self::RunStopped => Some("a problem with the host stopped the run"),
            Self::Requested => Some("a user had its worker replaced"),
            Self::Cancelled => Some("a user cancelled the task"),
        }
    }
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
    pub device: Device,
    /// The run's card; `None` on another device.
    pub card: Option<CardShape>,
    pub build: BuildSettings,
    /// The launches, if the compiler must be given them; otherwise empty.
    pub launch: Launch,
    /// The recorded calls, if the compiler must be given them; otherwise `None`.
    pub recorded: Option<RecordedCalls>,
    /// The compiler's memory limit: `build.memory`, or less if the run's ceiling leaves less.
    pub memory: Bytes,
    /// The folder to which the artifact is copied, under a name that contains the artifact's digest.
    pub artifacts: PathBuf,
    /// The number of bytes that artifacts of this run may still take.
    pub artifacts_room: Bytes,
    /// The folder for temporary files. The worker removes the files that it made, and a new or resumed run empties the
    /// folder.
    pub scratch: PathBuf,
    pub closed: HiddenPaths,
}

/// The calls for which a compiler makes the artifact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedCalls {
    /// The captures: all entries of the job, or only the first.
    pub entries: Vec<PathBuf>,
    pub signature: Signature,
    /// The name of the recorded function, if the compiler compiles that function instead of sources.
    pub function: Option<String>,
    /// The number of threads that a call uses.
    pub threads: u32,
}

/// Paths that neither compilers nor runners can read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenPaths {
    /// Captures, results and the plan. They stay hidden even if the plan names a folder that contains them.
    pub files: Vec<PathBuf>,
    /// The folder that contains the plan. It stays hidden even if it is in a system folder, except for paths in this
    /// folder that the plan names.
    pub home: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryRef {
    pub id: EntryId,
    /// The name of the capture's file without its suffix, such as `entry_000123`.
    pub name: String,
    pub path: PathBuf,
    /// The identity that the file had when its headers were read, by which later changes are noticed.
    pub identity: Option<FileIdentity>,
    /// The number of entries that this one represents: the size of its signature class or, if a profile times every
    /// entry, 1.
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

/// A candidate that a worker is to call, with its artifact, its limits, and how to call it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Callee {
    pub candidate: String,
    pub artifact: Artifact,
    pub launcher: Launcher,
    /// The symbol that a runner looks up. The steps of a launch name their own symbols.
    pub symbol: String,
    /// The launches that the worker makes for each call. Empty if the artifact has host code, which makes its own.
    pub launch: Launch,
    pub signature: Signature,
    pub limits: LimitSettings,
    /// Folders with shared libraries that the artifact needs.
    pub library_path: Vec<PathBuf>,
    pub closed: HiddenPaths,
    /// `[build] python`, for launchers that need an interpreter.
    pub python: String,
    /// The form in which an interpreter passes the arguments of a call. With `Form::Recorded`, `symbol` names the
    /// recorded function.
    pub form: Form,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyTask {
    pub callee: Callee,
    /// The entries, in the order in which they are called.
    pub entries: Vec<EntryRef>,
    pub verify: VerifySettings,
    /// The largest sum of unmapped inputs and outputs (U + O) over consecutive entries that share a runner. If it is
    /// zero, every entry has its own runner.
    pub shared_runner: Bytes,
    /// The most device memory that the worker may use at once, if it launches the candidate itself.
    pub device_cap: Bytes,
    /// True if pages of captures that this task brought into the page cache are to be dropped afterwards.
    pub drop_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileTask {
    pub callee: Callee,
    /// The baseline that is timed beside the candidate, if the job has one that passed.
    pub baseline: Option<Callee>,
    pub entries: Vec<EntryRef>,
    pub verify: VerifySettings,
    pub profile: ProfileSettings,
    pub depth: Depth,
    /// The most device memory that may be allocated at once. Zero on the CPU.
    pub device_cap: Bytes,
    /// The parameters, or paths of arguments, that must keep their captured values in every timed call, regardless of
    /// `profile.vary`.
    pub constant: Vec<String>,
    /// True if pages of captures that a batch brought into the page cache are to be dropped afterwards.
    pub drop_cache: bool,
    /// The seed for the order of blocks, the choice of slots, the poison and the new inputs. Every candidate has a
    /// different seed in every stage.
    pub seed: [u8; 32],
}

impl ProfileTask {
    fn is_on_card(&self) -> bool {
        self.device_cap != Bytes::ZERO
    }

    /// The largest total size of those inputs of one call that may vary.
    pub fn largest_varied(&self) -> Bytes {
        formula::largest_varied(self.is_on_card(), self.profile.cache_state)
    }

    /// The largest V (memory for varied inputs) of any entry.
    pub fn varied(&self) -> Bytes {
        let of_entry = |numbers: &EntryNumbers| {
            if self.is_on_card() { numbers.varied_on_card } else { numbers.varied }
        };
        self.entries.iter().map(|entry| of_entry(&entry.numbers)).max().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Depth {
    /// One process for each side, and few pairs.
    Screen,
    /// As many processes and pairs as are needed until the intervals are as narrow as the plan requires, or until the
    /// time is up.
    Full,
}

/// Recorded calls to be replayed in order, with their tensors in a pool of `budget` (`[[replay]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayTask {
    pub name: String,
    pub steps: Vec<ReplayCall>,
    /// The callees of the steps, each used at least once.
    pub callees: Vec<ReplayCallee>,
    pub budget: Bytes,
    /// The most device memory that the worker may use at once, if it launches the candidates itself. Zero on the CPU.
    pub device_cap: Bytes,
    /// Names of tensors that never leave the pool.
    pub pin: Vec<String>,
    /// The number of steps for which tensors are fetched in advance, counted from the step after the running one.
    pub prefetch: u32,
    /// The file that contains the replay's catalog and schedule. It is created if it does not exist.
    pub recording: PathBuf,
    /// True if pages of captures that this task brought into the page cache are to be dropped afterwards.
    pub drop_cache: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCall {
    pub callee: u32,
    pub entry: EntryRef,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayCallee {
    pub job: String,
    pub callee: Callee,
    pub verify: VerifySettings,
}

/// The numbers that, together with a runner's memory limit, determine the limits of the runner's control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// The size of the files that the runner maps. It is added to the group's memory limit, because Linux charges
    /// cached pages to the group that touches them first, and these pages must not be evicted while the runner is
    /// timed.
    pub files: Bytes,
    /// The largest number of threads and processes.
    pub tasks: u32,
    /// True for a compiler. As a compiler starts further processes, the memory of its whole process tree is counted.
    pub tree: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// The worker has started a process that may become a runner later. Until then, the process runs only our own code.
    RunnerAhead {
        pid: u32,
        start_time: u64,
    },
    /// A runner has started, and waits until the supervisor has opened its pidfd and answered with `RunnerWatched`. In
    /// these messages, a compiler is called a runner too.
    RunnerStarted {
        lease: LeaseId,
        pid: u32,
        /// Field 22 of `/proc/PID/stat`, by which a reused pid is detected.
        start_time: u64,
        /// The memory that this runner may owe before the supervisor kills it.
        limit: Bytes,
        /// The total size of the memory files that are charged to it, such as its outputs and its printed output. The
        /// process tree owes each of them only once, even if several processes map it.
        shared: Bytes,
        /// The total size of its mappings of memory files that its worker keeps open and owes. They are not part of
        /// `shared`.
        of_worker: Bytes,
        /// The copy-on-write memory that it shares with its zygote. The zygote owes this memory until the runner writes
        /// to it.
        inherited: Bytes,
        group_limits: GroupLimits,
    },
    /// The worker has started a zygote, which replaces any earlier one. Runners can be copied from a zygote, which
    /// itself runs no candidate.
    ZygoteStarted {
        pid: u32,
        start_time: u64,
    },
    /// There is no zygote, so every runner starts its own interpreter.
    NoZygote {
        why: String,
    },
    /// The size of those memory files of the worker that are not charged to any runner.
    Holds {
        bytes: Bytes,
    },
    /// The worker asks the supervisor to kill a runner. The supervisor records the reason, then kills it through its
    /// own pidfd.
    KillWanted {
        pid: u32,
        reason: KillReason,
    },
    /// The runner is dead but not yet reaped. The supervisor answers `MayReap`.
    RunnerDied {
        pid: u32,
    },
    /// The protections, each with the information whether this worker's first runner could enforce it on itself.
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
