//! Tests whether a context starts under the protections of a runner: under each of three protections alone, and under
//! all.
//!
//! The product's own code applies the protections. Unlike those for a candidate on the CPU, the Landlock rules allow
//! access to the device nodes, `/proc` and `/sys`.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use opt_shared::units::Bytes;
use opt_worker::sandbox::confine::{
    Confinement, Descriptors, FileAccess, ResourceLimits, SandboxKind, lock_down, restrict_calls,
    restrict_files,
};

use crate::Arguments;
use crate::cuda::{Device, load_driver};
use crate::row::{Row, mib};
use crate::steps::{own_command, wait};

/// The limits of private memory to try, in bytes. The check reports under which of them a context starts.
const DATA_LIMITS: [u64; 3] = [256 << 20, 1 << 30, 4 << 30];
const LIMIT_VARIABLE: &str = "GPU_CHECK_DATA_LIMIT";
/// The time limit for each child process. With this limit, all six children together stay within the limit of the step.
const CHILD_LIMIT: Duration = Duration::from_secs(3);

/// The protections under which a child starts a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Under {
    DataLimit,
    FileRules,
    CallFilter,
    All,
}

impl Under {
    const fn name(self) -> &'static str {
        match self {
            Self::DataLimit => "data-limit",
            Self::FileRules => "file-rules",
            Self::CallFilter => "call-filter",
            Self::All => "all",
        }
    }
}

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let command = |under: Under| -> Result<Command> {
        let mut command = own_command(arguments)?;
        command.args(["--under", under.name()]);
        Ok(command)
    };
    let mut rows = Vec::new();
    for limit in DATA_LIMITS {
        let mut command = command(Under::DataLimit)?;
        command.env(LIMIT_VARIABLE, limit.to_string());
        let question = format!("does a context start under RLIMIT_DATA = {}?", mib(limit));
        rows.push(row(&question, command, arguments.limit(CHILD_LIMIT)));
    }
    for (under, name) in [
        (Under::FileRules, "the Landlock rules"),
        (Under::CallFilter, "the seccomp deny list"),
        (Under::All, "the whole lock-down of a candidate"),
    ] {
        let question = format!("does a context start under {name}?");
        rows.push(row(&question, command(under)?, arguments.limit(CHILD_LIMIT)));
    }
    Ok(rows)
}

fn row(question: &str, mut command: Command, limit: Duration) -> Row {
    let mut run = || -> Result<(String, String)> {
        // The child needs a socket like the one between a runner and its worker. If the other end were closed, the
        // child would conclude that its worker is dead.
        let (ours, theirs) = UnixStream::pair().context("making a pair of sockets")?;
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("starting a child")?;
        if wait(&mut child, limit)?.is_none() {
            child.kill().context("ending a child")?;
            child.wait().context("reaping a child")?;
            return Ok(("no".to_owned(), format!("it hung for {} s", limit.as_secs())));
        }
        let output = child.wait_with_output().context("reading a child")?;
        drop(ours);
        let description = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let trouble = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(if output.status.success() {
            ("yes".to_owned(), description)
        } else {
            ("no".to_owned(), format!("{}: {trouble}", output.status))
        })
    };
    Row::of(question, run())
}

/// The work of the child: applies the protections, creates a context and briefly uses it.
pub(crate) fn start_under(under: Under, arguments: &Arguments) -> Result<()> {
    // As in a runner, load the library before the rules apply, because the library can be in any folder.
    load_driver()?;
    let stdin = std::io::stdin();
    let kept = Descriptors { worker: stdin.as_fd(), artifact: None, libraries: &[] };
    match under {
        Under::DataLimit => {
            let limit: u64 = std::env::var(LIMIT_VARIABLE).context(LIMIT_VARIABLE)?.parse()?;
            let both = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
            rustix::process::setrlimit(rustix::process::Resource::Data, both)
                .context("setting RLIMIT_DATA")?;
        }
        Under::FileRules => {
            restrict_files(&confinement(), &kept)?;
        }
        Under::CallFilter => {
            restrict_calls(&confinement())?;
        }
        Under::All => {
            lock_down(&confinement(), &kept)?;
        }
    }
    let started = Instant::now();
    let open = Device::open(arguments)?;
    let memory = open.allocate(16 << 20)?;
    open.upload(&memory, &vec![7; 1 << 20])?;
    open.release(memory)?;
    println!("{:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

fn confinement() -> Confinement {
    let present = |paths: Vec<PathBuf>| paths.into_iter().filter(|path| path.exists()).collect();
    let devices = std::fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path());
    let nodes = devices
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvidia")));
    Confinement {
        kind: SandboxKind::Candidate,
        limits: ResourceLimits {
            data: Bytes::new(DATA_LIMITS[2]),
            address_space: None,
            file_size: Bytes::mib(1),
            open_files: 256,
            processes: None,
            stack: Bytes::mib(8),
            locked_memory: Bytes::mib(64),
        },
        user_number: 0,
        file_access: FileAccess {
            readable: present(vec!["/proc".into(), "/sys".into()]),
            writable: nodes.collect(),
            ..FileAccess::default()
        },
    }
}
