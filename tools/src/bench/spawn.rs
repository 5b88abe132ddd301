//! Measures the cost of a worker: the time from its start until it is ready, the time of one message round trip, the
//! time from its death until the pool notices, and the time from Shutdown until its memory is free.
//!
//! The pool is that of the product. The worker is this program, started with the product's hidden argument.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use opt_shared::device::Device;
use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::language::Language;
use opt_shared::launch::Launch;
use opt_shared::message::{BuildTask, FromWorker, HiddenPaths, Role, Task, ToWorker, Work};
use opt_shared::settings::{BuildSettings, CandidateSource};
use opt_shared::units::Bytes;
use opt_supervisor::memory::Seen;
use opt_supervisor::memory::procfs::ProcessSampler;
use opt_supervisor::pool::{Pool, PoolEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::figures::{Figures, conditions, mib, show};
use super::verify_large::tempdir;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many workers to end in each way: by a kill and by Shutdown
    #[arg(long, default_value_t = 50)]
    runs: u32,
    /// Message round trips with each worker that is killed
    #[arg(long, default_value_t = 20)]
    messages: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The limit for every wait.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a worker may take to become idle after it has reported that it is ready.
const REST: Duration = Duration::from_millis(20);
/// The largest amount of memory that an idle worker may owe, in MiB.
const MAX_IDLE: f64 = 8.0;

pub(crate) struct WorkerPool {
    pool: Pool,
    folder: PathBuf,
    next: u32,
    /// Events that arrived while `wait_for` waited for a different one.
    unclaimed: Vec<PoolEvent>,
}

fn children(of: u32) -> Vec<u32> {
    opt_supervisor::memory::tree::children(Path::new("/proc"), of).unwrap_or_default()
}

impl WorkerPool {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempdir()?;
        let pool = Pool::new(Device::Cpu, folder.clone(), children)?;
        Ok(Self { pool, folder, next: 1, unclaimed: Vec::new() })
    }

    /// Starts a worker and waits until it is ready. Returns its id, its pid, and the time until it was ready.
    pub(crate) fn start(&mut self) -> Result<(WorkerId, u32, Duration)> {
        let worker = WorkerId(self.next);
        self.next += 1;
        let began = Instant::now();
        let pid = self.pool.start(worker, Role::Verifier)?;
        self.wait_for(|it| matches!(it, PoolEvent::Ready { worker: of, .. } if *of == worker))?;
        Ok((worker, pid, began.elapsed()))
    }

    /// Sends a task that the worker refuses at once, and waits for the worker's report.
    fn exchange(&mut self, worker: WorkerId, number: u32) -> Result<Duration> {
        let task = Task { lease: LeaseId(number), work: Work::Build(nothing_to_build(&self.folder)) };
        let began = Instant::now();
        self.pool.send(worker, ToWorker::Start(Box::new(task)));
        self.wait_for(|it| {
            matches!(it, PoolEvent::Message { worker: of, message: FromWorker::Finished { .. } } if *of == worker)
        })?;
        Ok(began.elapsed())
    }

    fn kill(&mut self, worker: WorkerId) -> Result<Duration> {
        let began = Instant::now();
        self.pool.kill_worker(worker);
        self.gone(worker)?;
        Ok(began.elapsed())
    }

    /// Shuts a worker down, and waits until it owes no memory.
    pub(crate) fn shut_down(&mut self, worker: WorkerId, memory: &mut ProcessSampler) -> Result<Duration> {
        let began = Instant::now();
        self.pool.send(worker, ToWorker::Shutdown);
        self.gone(worker)?;
        while matches!(memory.sample()?, Seen::Alive(_)) {
            if TIMEOUT < began.elapsed() {
                bail!("{worker} has not freed its memory within {TIMEOUT:?}");
            }
            std::thread::yield_now();
        }
        Ok(began.elapsed())
    }

    fn gone(&mut self, worker: WorkerId) -> Result<()> {
        self.wait_for(|it| matches!(it, PoolEvent::Gone { worker: of, .. } if *of == worker))
    }

    fn wait_for(&mut self, wanted: impl Fn(&PoolEvent) -> bool) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.unclaimed.extend(self.pool.events());
            if let Some(index) = self.unclaimed.iter().position(&wanted) {
                self.unclaimed.swap_remove(index);
                return Ok(());
            }
            let mut polled = vec![PollFd::from_borrowed_fd(self.pool.wake_descriptor(), PollFlags::IN)];
            polled.extend(self.pool.pidfds().map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
            let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
            match poll(&mut polled, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for a worker"),
            }
            if deadline < Instant::now() {
                bail!(
                    "the expected event of a worker did not arrive within {TIMEOUT:?}; received: {:?}",
                    self.unclaimed
                );
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        // Ignore errors: if the removal fails, it leaves only a few logs behind.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns a build task whose prebuilt library does not exist, so that a worker refuses the task.
fn nothing_to_build(folder: &Path) -> BuildTask {
    BuildTask {
        card: None,
        candidate: "nothing".to_owned(),
        source: CandidateSource {
            sources: vec![folder.join("nothing.so")],
            language: Language::So,
            symbol: "run".into(),
        },
        device: Device::Cpu,
        build: BuildSettings {
            cc: "cc".to_owned(),
            cxx: "c++".to_owned(),
            flags: Vec::new(),
            extra_flags: Vec::new(),
            include: Vec::new(),
            link_flags: Vec::new(),
            libraries: Vec::new(),
            library_path: Vec::new(),
            toolchain: Vec::new(),
            python: String::new(),
            env: std::collections::BTreeMap::new(),
            memory: Some(Bytes::gib(1)),
            timeout: Some(TIMEOUT),
            max_artifact: Bytes::mib(1),
        },
        launch: Launch::default(),
        recorded: None,
        memory: Bytes::gib(1),
        artifacts: folder.join("artifacts"),
        artifacts_room: Bytes::mib(1),
        scratch: folder.join("scratch"),
        closed: HiddenPaths { files: Vec::new(), home: folder.to_owned() },
    }
}

pub(crate) fn owed_mib(memory: &mut ProcessSampler) -> Result<f64> {
    let owed = memory
        .sample()?
        .alive()
        .and_then(|sample| sample.owed())
        .context("a worker has ended, or what it owes could not be read")?;
    Ok(mib(owed.get()))
}

pub(crate) fn sampler(pid: u32) -> Result<ProcessSampler> {
    ProcessSampler::open(Path::new("/proc"), pid)?.context("a worker died at once")
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("warm: this program's file has just been read")?;
    let mut pool = WorkerPool::new()?;
    let [mut bare, mut ready, mut message, mut noticed, mut teardown, mut owed] =
        std::array::from_fn(|_| Figures::default());
    pool.start()?;
    for _ in 0..arguments.runs {
        let began = Instant::now();
        Command::new("true").stdin(Stdio::null()).status().context("starting true")?;
        bare.push_us(began.elapsed());

        let (worker, pid, took) = pool.start()?;
        ready.push_us(took);
        std::thread::sleep(REST);
        owed.push(owed_mib(&mut sampler(pid)?)?);
        for number in 0..arguments.messages {
            message.push_us(pool.exchange(worker, number + 1)?);
        }
        noticed.push_us(pool.kill(worker)?);

        let (worker, pid, _) = pool.start()?;
        let mut memory = sampler(pid)?;
        std::thread::sleep(REST);
        teardown.push_us(pool.shut_down(worker, &mut memory)?);
    }
    let ratio = ready.over(&bare);
    let good = owed.max() < MAX_IDLE;
    let sheet = json!({
        "benchmark": "spawn", "conditions": conditions, "runs": arguments.runs, "good": good,
        "bare_process": bare.to_json("us"), "ready": ready.to_json("us"), "ready_over_bare": ratio.to_json("ratio"),
        "message_round_trip": message.to_json("us"), "death_noticed": noticed.to_json("us"),
        "teardown": teardown.to_json("us"), "idle_owed": owed.to_json("MiB"),
    });
    show(arguments.json, &sheet, || {
        println!("| what | runs | median | p95 | most |\n|---|---|---|---|---|");
        for (what, figures, digits) in [
            ("a bare process, `true`, start to end, µs", &bare, 0),
            ("worker: start to ready, µs", &ready, 0),
            ("the same, as a multiple of the bare process's time", &ratio, 2),
            ("a task and its report, round trip, µs", &message, 0),
            ("SIGKILL to the notice of the death, µs", &noticed, 0),
            ("Shutdown to gone, its memory freed, µs", &teardown, 0),
            ("idle worker owes, MiB", &owed, 2),
        ] {
            println!("| {what} | {} | {} |", figures.count(), figures.cells(digits));
        }
    })?;
    Ok(good)
}
