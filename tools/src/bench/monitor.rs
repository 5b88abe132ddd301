//! Measures the cost of sampling: the product's sampler reads idle workers and one process with a memory limit. By
//! default, it reads sixteen workers ten times a second.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use opt_shared::units::Bytes;
use opt_supervisor::core::event::Process;
use opt_supervisor::driver::run::sample::{MemoryFiles, Sampler};
use opt_supervisor::memory::procfs::ProcessSampler;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::figures::{Figures, conditions, mib, show};
use super::filler::Filler;
use super::spawn::{WorkerPool, owed_mib, sampler};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many idle workers to sample
    #[arg(long, default_value_t = 16)]
    workers: u32,
    /// Samples per second
    #[arg(long, default_value_t = 10)]
    rate: u32,
    /// How long to sample
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Print JSON instead of Markdown
    #[arg(long)]
    json: bool,
}

/// The allowed CPU time of the sampler, as a share of one core.
const ALLOWED_SHARE: f64 = 0.005;
/// The allowed resident memory of the sampling process, in MiB.
const ALLOWED_RESIDENT: f64 = 20.0;
/// The largest amount of memory that an idle worker may owe, in MiB.
const ALLOWED_IDLE: f64 = 8.0;
const LIMIT: Bytes = Bytes::mib(600);

/// Returns the CPU time of this thread, in user and kernel mode.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let conditions = conditions("no files are read")?;
    let mut pool = WorkerPool::new()?;
    let mut watch = Sampler::new(Bytes::gib(1));
    let mut workers = Vec::new();
    for _ in 0..arguments.workers {
        let (worker, pid, _) = pool.start()?;
        watch.watch(Process::Worker(worker), pid, None, MemoryFiles::default(), false)?;
        workers.push((worker, sampler(pid)?));
    }
    // The filler only waits, because `go` is never called. Its CPU time does not count, because `cpu` measures only
    // this thread.
    let runner = Filler::start(LIMIT.get(), None, false)?;
    let first = workers.first().context("no workers")?.0;
    watch.watch(
        Process::Runner(first, runner.child.id()),
        runner.child.id(),
        Some(LIMIT),
        MemoryFiles::default(),
        false,
    )?;

    let mut sampling = Figures::default();
    let interval = Duration::from_secs(1) / arguments.rate.max(1);
    let (began, before) = (Instant::now(), cpu());
    for number in 1..=arguments.rate * arguments.seconds {
        std::thread::sleep((began + interval * number).saturating_duration_since(Instant::now()));
        let start = cpu();
        let sample = watch.sample();
        sampling.push_us(cpu() - start);
        anyhow::ensure!(sample.processes.len() > workers.len(), "a process died: {sample:?}");
    }
    let (used, took) = (cpu() - before, began.elapsed());
    let share = used.as_secs_f64() / took.as_secs_f64();

    let mut owed = Figures::default();
    for (_, memory) in &mut workers {
        owed.push(owed_mib(memory)?);
    }
    let own_memory =
        ProcessSampler::open(Path::new("/proc"), std::process::id())?.context("this process is gone")?;
    let resident = resident_mib(own_memory)?;
    drop(runner);
    for (worker, mut memory) in workers {
        pool.shut_down(worker, &mut memory)?;
    }
    let good = share < ALLOWED_SHARE && resident < ALLOWED_RESIDENT && owed.max() < ALLOWED_IDLE;
    let sheet = json!({
        "benchmark": "monitor", "conditions": conditions, "workers": arguments.workers, "rate": arguments.rate,
        "seconds": arguments.seconds, "cpu_share_of_one_core": share, "sampling": sampling.to_json("us"),
        "resident_mib": resident, "idle_owed": owed.to_json("MiB"), "good": good,
    });
    show(arguments.json, &sheet, || {
        println!("| what | figure | allowed |\n|---|---|---|");
        println!(
            "| CPU of one core, {} workers and a runner at {} Hz | {:.3} % | 0.5 % |",
            arguments.workers,
            arguments.rate,
            share * 100.0
        );
        println!(
            "| sampling all once, CPU µs: median, p95, most | {:.0}, {:.0}, {:.0} | – |",
            sampling.median(),
            sampling.p95(),
            sampling.max()
        );
        println!("| resident memory of the watching process, MiB | {resident:.1} | 20 |");
        println!("| an idle worker owes, MiB: median, most | {:.2}, {:.2} | 8 |", owed.median(), owed.max());
    })?;
    Ok(good)
}

fn resident_mib(mut memory: ProcessSampler) -> Result<f64> {
    let resident = memory.resident()?.alive().context("this process has no memory")?;
    Ok(mib(resident.resident.get()))
}
