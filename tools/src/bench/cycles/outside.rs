//! Samples a running supervisor from outside, once a second: its memory, and the numbers of its descriptors, threads
//! and children.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use opt_supervisor::memory::procfs::ProcessSampler;
use opt_supervisor::memory::tree::children;

use super::{Figures, MEMORY_NOISE_MIB, mib};

const EVERY: Duration = Duration::from_secs(1);
/// The growth of a count that is allowed, because workers start and end at any time. Descriptors and threads may grow
/// by a multiple of this number.
const COMING_AND_GOING: f64 = 1.0;

#[derive(Debug, Default)]
pub(super) struct Outside(Vec<Snapshot>);

#[derive(Clone, Copy, Debug)]
struct Snapshot {
    /// The time of the sample, in milliseconds since 1970.
    at: u64,
    descriptors: usize,
    /// The number of descriptors that refer to files of `memfd_create`.
    memory_files: usize,
    /// The number of files in `/dev/shm`, of any process.
    shared_memory: usize,
    children: usize,
    threads: usize,
    resident: f64,
    owed: f64,
}

/// Runs the plan until it ends, and takes a sample of the supervisor every second.
pub(super) fn watch(program: &Path, plan: &Path) -> Result<Outside> {
    let folder = plan.parent().context("the plan has no folder")?;
    let stderr = fs::File::create(folder.join("stderr"))?;
    let mut child = Command::new(program)
        .args(["run", "--quiet"])
        .arg(plan)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .context("starting opt-supervisor")?;
    let mut snapshots = Vec::new();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // There is no sample if the supervisor has ended in the meantime.
        snapshots.extend(snapshot(child.id()));
        std::thread::sleep(EVERY);
    };
    let stderr = fs::read_to_string(folder.join("stderr"))?;
    ensure!(status.success(), "the run ended with {status}: {stderr}");
    Ok(Outside(snapshots))
}

fn snapshot(pid: u32) -> Option<Snapshot> {
    let process = Path::new("/proc").join(pid.to_string());
    let descriptors: Vec<_> = fs::read_dir(process.join("fd")).ok()?.flatten().collect();
    let is_memory = |path: &Path| path.to_string_lossy().starts_with("/memfd:");
    let memory_files =
        descriptors.iter().filter(|it| fs::read_link(it.path()).is_ok_and(|to| is_memory(&to))).count();
    let sample = ProcessSampler::open(Path::new("/proc"), pid).ok()??.sample().ok()?.alive()?;
    Some(Snapshot {
        at: u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()?,
        descriptors: descriptors.len(),
        memory_files,
        shared_memory: fs::read_dir("/dev/shm").map_or(0, Iterator::count),
        children: children(Path::new("/proc"), pid).ok()?.len(),
        threads: fs::read_dir(process.join("task")).ok()?.count(),
        resident: mib((sample.rss_anon? + sample.rss_file? + sample.rss_shmem?).get()),
        owed: mib(sample.owed()?.get()),
    })
}

impl Outside {
    /// Returns the samples of each figure since `from` (milliseconds since 1970), and the growth of the figure that
    /// counts as noise.
    pub(super) fn since(&self, from: u64) -> [(&'static str, Figures, f64); 7] {
        let of = |which: fn(&Snapshot) -> f64| {
            let mut figures = Figures::default();
            self.0
                .iter()
                .filter(|snapshot| from <= snapshot.at)
                .for_each(|snapshot| figures.push(which(snapshot)));
            figures
        };
        [
            ("descriptors", of(|it| it.descriptors as f64), COMING_AND_GOING * 8.0),
            ("memory_files", of(|it| it.memory_files as f64), COMING_AND_GOING),
            ("shared_memory_files", of(|it| it.shared_memory as f64), COMING_AND_GOING),
            ("children", of(|it| it.children as f64), COMING_AND_GOING),
            ("threads", of(|it| it.threads as f64), COMING_AND_GOING * 2.0),
            ("resident_mib", of(|it| it.resident), MEMORY_NOISE_MIB),
            ("owed_mib", of(|it| it.owed), MEMORY_NOISE_MIB),
        ]
    }
}
