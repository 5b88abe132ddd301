//! A fixture for runs in which processes are killed. It has a small plan in its own folder, supervisors that can be
//! recognised by a mark, and checks of the folder and the verdicts after the run.
//!
//! The mark is a value of RLIMIT_LOCKS. Linux has ignored this limit for twenty years, and every descendant inherits
//! it, even one that changes its session, parent or environment. The mark therefore identifies the fixture's processes
//! even if they are orphaned, confined or not dumpable.

mod mixed;
mod strike;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opt_nvml_twin::{Device, Script, Twin};
use rustix::process::{Resource, Rlimit, Signal};

pub use self::mixed::{Strike, Struck, draw};
use crate::devices;
use crate::paths::{files_below, repository};
use crate::processes::{Process, pids, read_process, signal_if};
use crate::waiting::{LONG, holds_within};

type Verdicts = &'static [(&'static str, &'static str, Option<&'static str>)];

/// The candidates of the plan, each with the required status and blame.
const VERDICTS: Verdicts = &[
    ("naive", "PASSED", None),
    ("fast", "PASSED", None),
    ("wrong_by_nine_percent", "INCORRECT_NUMERICAL", Some("candidate")),
    ("segfaults", "CRASHED", Some("candidate")),
    ("does_not_compile", "COMPILE_ERROR", Some("candidate")),
];
const KERNELS: &[&str] =
    &["naive.c", "fast.c", "bad/wrong_by_nine_percent.c", "bad/segfaults.c", "bad/softmax_rows.h"];

/// Like `VERDICTS`, for the plan with kernels without host code.
const DEVICE_VERDICTS: Verdicts = &[
    ("naive", "PASSED", None),
    ("wants_a_workspace", "PASSED", None),
    ("wrong_by_nine_percent", "INCORRECT_NUMERICAL", Some("candidate")),
    ("traps", "CRASHED", Some("candidate")),
    ("writes_past_the_end", "OUT_OF_BOUNDS", Some("candidate")),
    ("loops_forever", "TIMEOUT", Some("candidate")),
];

/// Like `DEVICE_VERDICTS`, but for a card, and without the endless kernel, which would take a minute on a card.
const CARD_VERDICTS: Verdicts = &[
    ("naive", "PASSED", None),
    ("wants_a_workspace", "PASSED", None),
    ("wrong_by_nine_percent", "INCORRECT_NUMERICAL", Some("candidate")),
    ("traps", "CRASHED", Some("candidate")),
    ("writes_past_the_end", "OUT_OF_BOUNDS", Some("candidate")),
];

/// The kinds of processes that `kill_during_a_run` can kill.
pub const VICTIMS: [&str; 3] = ["verifier", "profiler", "runner"];

/// The files and folders that the folder of a finished run may contain.
const KEPT: &[&str] = &["run.sqlite", "summary.json", "log.jsonl", "artifacts", "lock", "workers"];

pub struct Fixture {
    pub folder: PathBuf,
    /// The run's folder.
    pub run: PathBuf,
    pub plan: PathBuf,
    binary: PathBuf,
    mark: u64,
    verdicts: Verdicts,
    /// The twin of NVML, if the plan is for a simulated card.
    card: Option<Twin>,
}

impl Process {
    pub fn is_worker(&self, role: &str) -> bool {
        self.has("__worker") && self.has(role)
    }

    pub fn is_runner(&self) -> bool {
        self.has("__runner")
    }

    /// Returns whether this is a runner, a compiler, or a process that a compiler started.
    pub fn is_below_a_worker(&self) -> bool {
        self.is_runner() || !(self.has("__worker") || self.has("run"))
    }

    fn has(&self, argument: &str) -> bool {
        self.arguments.iter().any(|it| it == argument)
    }
}

/// A small random number generator: SplitMix64.
pub struct Chance(pub u64);

impl Chance {
    pub fn from_clock() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(u64::from(now.subsec_nanos()) ^ now.as_secs() << 32 ^ u64::from(std::process::id()))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit.max(1)
    }

    pub fn moment(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Fixture {
    /// Creates a fixture with kernels in C. `binary` is the built program.
    pub fn create(binary: PathBuf) -> Result<Self, String> {
        Self::with(binary, VERDICTS, Self::prepare)
    }

    /// Creates a fixture with kernels without host code, on the emulated device.
    pub fn on_the_emulated_device(binary: PathBuf) -> Result<Self, String> {
        Self::with(binary, DEVICE_VERDICTS, Self::prepare_for_a_device)
    }

    /// Creates a fixture with kernels without host code, on a simulated card.
    pub fn on_a_card(binary: PathBuf) -> Result<Self, String> {
        Self::with(binary, CARD_VERDICTS, Self::prepare_for_a_card)
    }

    fn with(
        binary: PathBuf,
        verdicts: Verdicts,
        prepare: fn(&mut Self) -> std::io::Result<()>,
    ) -> Result<Self, String> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Do not use TMPDIR, because its path may be long. The folder contains sockets, whose paths may have at most
        // 107 bytes.
        let folder = PathBuf::from(format!("/tmp/opt-storm-{}-{number}", std::process::id()));
        let (run, plan) = (folder.join("run"), folder.join("plan.toml"));
        let mark = u64::from(std::process::id()) << 20 | number;
        let mut fixture = Self { folder, run, plan, binary, mark, verdicts, card: None };
        prepare(&mut fixture).map_err(|error| format!("making {}: {error}", fixture.folder.display()))?;
        Ok(fixture)
    }

    fn make_folders(&self) -> std::io::Result<()> {
        ["kernels", "runtime", "temporary"]
            .iter()
            .try_for_each(|folder| fs::create_dir_all(self.folder.join(folder)))
    }

    fn prepare_for_a_device(&mut self) -> std::io::Result<()> {
        self.make_folders()?;
        self.write_plan_for("emulated")
    }

    fn prepare_for_a_card(&mut self) -> std::io::Result<()> {
        self.make_folders()?;
        let processes = vec![devices::with_context(&[(0, 300)])];
        let card = Script { devices: vec![Device { processes, ..devices::device() }], ..Script::default() };
        self.card = Some(Twin::install(&self.folder, &card)?);
        self.write_plan_for("cuda:0")
    }

    fn write_plan_for(&self, device: &str) -> std::io::Result<()> {
        let kernels = self.verdicts.iter().map(|&(kernel, ..)| match kernel {
            "naive" => (kernel, "relu.ptx"),
            _ => (kernel, "bad.ptx"),
        });
        let kernels: Vec<(&str, &str)> = kernels.collect();
        fs::write(&self.plan, devices::plan(device, &kernels))
    }

    fn prepare(&mut self) -> std::io::Result<()> {
        self.make_folders()?;
        for kernel in KERNELS {
            let source = repository().join("configs/demo/softmax").join(kernel);
            let name = Path::new(kernel).file_name().unwrap_or_default();
            fs::copy(source, self.folder.join("kernels").join(name))?;
        }
        fs::write(self.folder.join("kernels/does_not_compile.c"), "#error on purpose\n")?;
        let captures = repository().join("tests/data/demo/torch_nn_functional_softmax");
        fs::write(
            &self.plan,
            format!(
                "[run]\nname = \"storm\"\ndevice = \"cpu\"\n\
                 [build]\nflags = [\"-O2\"]\nextra_flags = [\"-fopenmp-simd\"]\nlibraries = [\"m\"]\n\
                 [verify]\nstop_after = 1\ncall_timeout = \"60s\"\n\
                 [profile]\nentry_timeout = \"200ms\"\n\
                 [limits]\nthreads = 1\n\
                 [[job]]\nname = \"softmax\"\ncaptures = {:?}\n\
                 baseline = \"kernels/naive.c\"\n\
                 candidates = [\"kernels/{{fast,wrong_by_nine_percent,segfaults,does_not_compile}}.c\"]\n",
                captures.display().to_string()
            ),
        )
    }

    /// Starts a supervisor that has the mark, for the run folder. Its output goes to files of the fixture.
    pub fn start(&self, more: &[&str]) -> Result<Child, String> {
        let file = |name: &str| {
            fs::File::options()
                .create(true)
                .append(true)
                .open(self.folder.join(name))
                .map_err(|error| format!("opening {name}: {error}"))
        };
        let mark = self.mark;
        let mut command = self.command();
        command
            .arg("run")
            .arg(&self.plan)
            .arg("--dir")
            .arg(&self.run)
            .args(more)
            .stdout(file("stdout")?)
            .stderr(file("stderr")?);
        // SAFETY: between fork and exec, the closure makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                let maximum = rustix::process::getrlimit(Resource::Locks).maximum;
                rustix::process::setrlimit(Resource::Locks, Rlimit { current: Some(mark), maximum })
                    .map_err(Into::into)
            });
        }
        command.spawn().map_err(|error| format!("starting {}: {error}", self.binary.display()))
    }

    /// Starts a supervisor that has the mark, with `--resume` if there is a run to resume.
    pub fn resume(&self) -> Result<Child, String> {
        let begun = fs::read_dir(&self.run).is_ok_and(|mut entries| entries.next().is_some());
        self.start(if begun { &["--resume"] } else { &[] })
    }

    /// Waits until a supervisor ends.
    pub fn end(&self, child: &mut Child) -> Result<ExitStatus, String> {
        let mut status = None;
        self.until("the supervisor's end", || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        })?;
        status.ok_or_else(|| "the supervisor ended without an exit status".to_owned())
    }

    /// Waits until a supervisor ends, and checks its exit code.
    pub fn run_to(&self, mut child: Child, code: i32) -> Result<(), String> {
        let status = self.end(&mut child)?;
        if status.code() == Some(code) {
            return Ok(());
        }
        Err(format!(
            "the supervisor must end with exit code {code}, but ended with {status}\n{}",
            self.state()
        ))
    }

    pub fn until(&self, what: &str, holds: impl FnMut() -> bool) -> Result<(), String> {
        if holds_within(LONG, holds) {
            return Ok(());
        }
        Err(format!("timed out after {LONG:?} waiting for: {what}\n{}", self.state()))
    }

    /// Returns the live processes that have this fixture's mark.
    pub fn marked(&self) -> Vec<Process> {
        pids().filter(|&pid| has_mark(pid, self.mark)).filter_map(read_process).collect()
    }

    pub fn kill(&self, process: &Process) -> bool {
        self.signal(process, Signal::KILL)
    }

    fn signal(&self, process: &Process, signal: Signal) -> bool {
        signal_if(process.pid, signal, || has_mark(process.pid, self.mark))
    }

    /// A command that runs the program with its own folders for sockets, locks and temporary files, and with the
    /// fixture's card, if there is one.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .env("XDG_RUNTIME_DIR", self.folder.join("runtime"))
            .env("OPT_SUPERVISOR_RUNTIME_DIR", self.folder.join("runtime/opt-supervisor"))
            .env("OPT_SUPERVISOR_LOCK_DIR", &self.folder)
            .env("TMPDIR", self.folder.join("temporary"))
            .stdin(Stdio::null());
        if let Some(twin) = &self.card {
            devices::with_card(&self.folder, twin, &mut command);
        }
        command
    }

    pub fn no_process_is_left(&self) -> Result<(), String> {
        self.until("every process has ended", || self.marked().is_empty())
    }

    /// Checks that the run folder, the runtime folder and the temporary folder contain nothing that only a
    /// running supervisor needs.
    pub fn no_file_is_left(&self) -> Result<(), String> {
        let mut leftover_files = files_below(&self.folder.join("runtime"));
        // Supervisors leave the empty lock file of their folders in place.
        leftover_files.retain(|path| !path.ends_with("opt-supervisor/w/gate"));
        leftover_files.extend(files_below(&self.folder.join("temporary")));
        for path in names(&self.run).into_iter().map(|name| self.run.join(name)) {
            if !KEPT.iter().any(|kept| path.ends_with(kept)) {
                leftover_files.push(path);
            }
        }
        leftover_files.extend(
            names(&self.run.join("artifacts"))
                .into_iter()
                .filter(|name| name.starts_with('.'))
                .map(|name| self.run.join("artifacts").join(name)),
        );
        if leftover_files.is_empty() {
            Ok(())
        } else {
            Err(format!("files were left behind: {leftover_files:?}\n{}", self.state()))
        }
    }

    pub fn summary(&self) -> Result<serde_json::Value, String> {
        let text = fs::read_to_string(self.run.join("summary.json"))
            .map_err(|error| format!("reading the summary: {error}\n{}", self.state()))?;
        serde_json::from_str(&text).map_err(|error| format!("summary.json is not valid JSON: {error}"))
    }

    /// Checks that every candidate has the required verdict, and that no attempt failed in another way, unless the
    /// attempt was repeated because of the machine.
    pub fn verdicts_are_right(&self) -> Result<(), String> {
        self.verdicts_are_right_except(&[])
    }

    /// Like `verdicts_are_right`, but the candidates in `cancelled` may also be SKIPPED.
    fn verdicts_are_right_except(&self, cancelled: &[&str]) -> Result<(), String> {
        let summary = self.summary()?;
        let mut found = BTreeMap::new();
        let mut wrong = Vec::new();
        let empty = Vec::new();
        for candidate in summary["jobs"][0]["candidates"].as_array().unwrap_or(&empty) {
            let name = candidate["name"].as_str().unwrap_or_default();
            let (status, blame) = (candidate["status"].as_str(), candidate["blame"].as_str());
            found.insert(name, (status, blame));
            let statuses = ["PASSED", "INFRA_ERROR"].into_iter().map(Some).chain([status]);
            let statuses: BTreeSet<Option<&str>> = statuses.collect();
            for attempt in candidate["attempts"].as_array().unwrap_or(&empty) {
                if !statuses.contains(&attempt["status"].as_str()) {
                    wrong.push(format!("an attempt of {name}: {attempt}"));
                }
            }
        }
        for &(name, status, blame) in self.verdicts {
            let verdict = found.remove(name);
            let is_skipped = cancelled.contains(&name) && verdict == Some((Some("SKIPPED"), Some("plan")));
            if verdict != Some((Some(status), blame)) && !is_skipped {
                wrong.push(format!("{name}: found {verdict:?}, expected {:?}", (status, blame)));
            }
        }
        wrong.extend(found.keys().map(|name| format!("{name} is not in the plan")));
        if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:#?}\n{}\n{summary:#}", self.state())) }
    }

    /// Returns the number of attempts that ended as INFRA_ERROR. A run repeats such attempts within limits.
    pub fn repeated_attempts(&self) -> Result<usize, String> {
        let summary = self.summary()?;
        let empty = Vec::new();
        let candidates = summary["jobs"][0]["candidates"].as_array().unwrap_or(&empty);
        Ok(candidates
            .iter()
            .flat_map(|candidate| candidate["attempts"].as_array().unwrap_or(&empty))
            .filter(|attempt| attempt["status"] == "INFRA_ERROR")
            .count())
    }

    /// Describes the run's state, for failure messages.
    pub fn state(&self) -> String {
        let tail = |path: PathBuf| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(20)..].join("\n")
        };
        format!(
            "fixture {}\nprocesses: {:?}\nrun folder: {:?}\nstderr: {}\nlog: {}",
            self.folder.display(),
            self.marked(),
            names(&self.run),
            tail(self.folder.join("stderr")),
            tail(self.run.join("log.jsonl")),
        )
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for process in self.marked() {
            self.kill(&process);
        }
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn has_mark(pid: u32, mark: u64) -> bool {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"));
    line.and_then(|line| line.split_ascii_whitespace().next()).is_some_and(|it| it == mark.to_string())
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
