//! Lists the steps with their time limits, and runs each step in a separate process.
//!
//! A step that hangs is killed together with its descendants. A step that crashes does not affect the other steps. In
//! both cases, the rows that the step has already sent are kept.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::Arguments;
use crate::row::Row;

/// The maximum length of a step's error message, in characters. Longer messages are cut.
const ERROR_CHARS: usize = 400;
const POLL: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Step {
    Embedding,
    Linear,
    LayerNorm,
    Softmax,
    Gelu,
    Relu,
    ReluF16,
    Matmul,
    Digest,
    PastTheEnd,
    IllegalAddress,
    Misaligned,
    Trap,
    Assert,
    Endless,
    OutOfMemory,
    Cap,
    Context,
    Pool,
    Pinned,
    Reads,
    Nvml,
    Kill,
    Confined,
    BusCopies,
    DeviceCopies,
    Launches,
    Timer,
}

/// Every step with its title and its time limit in seconds on a card, in the order in which the steps run.
pub(crate) const STEPS: [(Step, &str, u64); 28] = [
    (Step::Embedding, "kernels of embedding", 15),
    (Step::Linear, "kernels of linear", 15),
    (Step::LayerNorm, "kernels of layer_norm", 15),
    (Step::Softmax, "kernels of softmax", 15),
    (Step::Gelu, "kernels of gelu", 15),
    (Step::Relu, "kernels of relu", 15),
    (Step::ReluF16, "kernels of relu with 16-bit floats", 15),
    (Step::Matmul, "kernels of matmul", 15),
    (Step::Digest, "our own digest kernel", 15),
    (Step::PastTheEnd, "a store past the end", 15),
    (Step::IllegalAddress, "an illegal address", 15),
    (Step::Misaligned, "a misaligned load", 15),
    (Step::Trap, "a trap", 15),
    (Step::Assert, "a failed assert", 15),
    (Step::Endless, "an endless kernel", 20),
    (Step::OutOfMemory, "too little memory", 15),
    (Step::Cap, "the cap of a lease", 15),
    (Step::Context, "context", 15),
    (Step::Pool, "pool", 8),
    (Step::Pinned, "pinned memory", 20),
    (Step::Reads, "reads into pinned memory", 25),
    (Step::Nvml, "NVML", 15),
    (Step::Kill, "SIGKILL", 20),
    (Step::Confined, "confinement", 25),
    (Step::BusCopies, "copies over the bus", 20),
    (Step::DeviceCopies, "copies on the device", 20),
    (Step::Launches, "launches", 20),
    (Step::Timer, "event timer", 20),
];

impl Step {
    /// Returns the name that selects the step in `--steps`.
    pub(crate) fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) rows: Vec<Row>,
    pub(crate) took: Duration,
}

/// Returns the command that runs this program again, for a part of its work.
pub(crate) fn own_command(arguments: &Arguments) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this program's file")?);
    command.arg("--device").arg(arguments.device.to_string()).arg("--dir").arg(&arguments.dir);
    if arguments.dry_run {
        command.arg("--dry-run");
    }
    Ok(command)
}

pub(crate) fn run(step: Step, title: &str, limit: Duration, arguments: &Arguments) -> Ended {
    let started = Instant::now();
    let result = own_command(arguments).and_then(|mut command| {
        command.arg("--run-step").arg(step.name());
        collect(command, limit)
    });
    let took = started.elapsed();
    let (mut rows, trouble) = match result {
        Ok((rows, trouble)) => (rows, trouble),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    if let Some(trouble) = trouble {
        rows.push(Row::no_answer(title, trouble));
    } else if rows.is_empty() {
        rows.push(Row::no_answer(title, "the step reported nothing"));
    }
    Ended { rows, took }
}

/// Runs a step. Returns its rows and, if the step did not end as it should, the reason.
fn collect(mut command: Command, limit: Duration) -> Result<(Vec<Row>, Option<String>)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().context("starting the step")?;
    let rows = child.stdout.take().map(|out| {
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(std::result::Result::ok);
            lines.filter_map(|line| Row::received(&line)).collect::<Vec<Row>>()
        })
    });
    let errors = child.stderr.take().map(|mut out| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = out.read_to_end(&mut text);
            String::from_utf8_lossy(&text).trim().to_owned()
        })
    });
    let status = wait(&mut child, limit)?;
    // Kill the step's descendants, which would keep the pipes open. An error means that there is nothing to kill: the
    // group no longer exists if the step has been reaped and left no process behind.
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = match status {
        Some(status) => Some(status),
        None => {
            child.wait().context("reaping the step")?;
            None
        }
    };
    let stderr_text = joined(errors);
    let trouble = match status {
        None => Some(format!("hung: killed after {} s", limit.as_secs())),
        Some(status) if status.success() => None,
        Some(status) => Some(format!("{}: {}", ended(status), shortened(&stderr_text))),
    };
    Ok((joined(rows), trouble))
}

fn joined<T: Default>(thread: Option<JoinHandle<T>>) -> T {
    thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Waits for a child. Returns `None` if it runs longer than `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("waiting for a child")? {
            return Ok(Some(status));
        }
        if limit < started.elapsed() {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("crashed: ended by signal {signal}"),
        // The step panicked, for example because the driver lacks a function.
        (_, Some(101)) => "crashed".to_owned(),
        (_, Some(code)) => format!("failed with exit code {code}"),
        _ => "failed".to_owned(),
    }
}

fn shortened(text: &str) -> String {
    let text = text.replace('\n', " ");
    match text.char_indices().nth(ERROR_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_steps_add_up_to_less_than_eight_minutes() {
        let seconds: u64 = STEPS.iter().map(|(_, _, limit)| limit).sum();
        assert!(seconds < 8 * 60, "{seconds} s");
    }

    #[test]
    fn every_step_is_listed_once() {
        use clap::ValueEnum as _;
        let listed: Vec<Step> = STEPS.iter().map(|(step, _, _)| *step).collect();
        assert_eq!(listed, Step::value_variants());
    }

    #[test]
    fn rows_of_a_step_that_crashes_or_hangs_are_kept() {
        let row = Row::measured("one", "two", "three");
        let script = |end: &str| {
            let mut command = Command::new("sh");
            let line = serde_json::to_string(&row).unwrap();
            command.arg("-c").arg(format!("echo '{line}'; echo why >&2; {end}"));
            command
        };
        let (rows, trouble) = collect(script("kill -SEGV $$"), Duration::from_secs(60)).unwrap();
        assert_eq!((rows, trouble.as_deref()), (vec![row.clone()], Some("crashed: ended by signal 11: why")));
        let (rows, trouble) = collect(script("sleep 1000"), Duration::from_secs(1)).unwrap();
        assert_eq!((rows, trouble.as_deref()), (vec![row.clone()], Some("hung: killed after 1 s")));
        let (rows, trouble) = collect(script("exit 0"), Duration::from_secs(60)).unwrap();
        assert_eq!((rows, trouble), (vec![row], None));
    }
}
