//! Measures the peak memory of a read method, by sampling a separate process that does the reading.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use opt_shared::stream::ReadMethod;
use opt_supervisor::memory::procfs::ProcessSampler;

/// The first command line argument that makes this program a reader.
pub(crate) const ARGUMENT: &str = "__stream";
/// The sampling interval. It is short enough, because the buffers of a reader exist from its first chunk to its last.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

pub(super) fn command(path: &Path, bytes: u64, method: ReadMethod, readers: usize) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ARGUMENT).arg(path).args([bytes.to_string(), method.name().to_owned(), readers.to_string()]);
    Ok(command)
}

pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> = arguments.filter_map(|it| it.into_string().ok()).collect();
    match read(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stream: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn read(arguments: &[String]) -> Result<()> {
    let [path, bytes, method, readers] = arguments else { bail!("a reader takes four arguments") };
    let method = ReadMethod::ALL.into_iter().find(|it| it.name() == method).context("no such read method")?;
    super::streams::by_method(Path::new(path), bytes.parse()?, method, readers.parse()?)
}

/// Samples a process until it ends, and returns the largest amount of memory that it owed.
pub(super) fn peak(mut command: Command) -> Result<u64> {
    let mut child = command.stdin(Stdio::null()).spawn().context("starting a reader")?;
    let mut most = 0;
    if let Some(mut memory) = ProcessSampler::open(Path::new("/proc"), child.id())? {
        while child.try_wait()?.is_none() {
            let seen = memory.sample()?.alive().and_then(|sample| sample.owed());
            most = most.max(seen.map_or(0, |owed| owed.get()));
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "a reader ended with {status}");
    ensure!(0 < most, "a reader ended before it was sampled (pass a larger --gib)");
    Ok(most)
}
