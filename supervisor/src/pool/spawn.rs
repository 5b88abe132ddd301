//! Starts a worker from this program's executable. The executable is opened when the run starts, so replacing the file
//! on disk during the run does no harm.
//!
//! The set-up that a worker needs takes place in its `main`. It is not done in `pre_exec`, because the standard library
//! would then fork, at a cost that grows with the supervisor's memory.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use ipc_channel::ipc::IpcOneShotServer;
use opt_shared::device::Device;
use opt_shared::message::{Hello, NONCE_VARIABLE, Role, SERVER_VARIABLE, WORKER_ARGUMENT};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The file of the running program. Processes are started through its descriptor.
pub struct Executable {
    pub(super) file: OwnedFd,
}

impl Executable {
    pub fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/self/exe")?.into() })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("creating the socket to which a worker connects, in {}", std::env::temp_dir().display())]
    Server(#[source] io::Error),
    #[error("opening the worker's log {path}")]
    Log { path: String, source: io::Error },
    #[error("starting a worker")]
    Exec(#[source] io::Error),
    #[error("opening a pidfd for a worker")]
    Pidfd(#[source] rustix::io::Errno),
    #[error("generating a nonce")]
    Nonce(#[source] rustix::io::Errno),
}

/// A worker that was just started, and whose handshake has not taken place yet.
pub(super) struct Spawned {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) server: (IpcOneShotServer<Hello>, String),
    pub(super) nonce: String,
}

pub(super) fn start_worker(
    executable: &Executable,
    role: Role,
    device: Device,
    log: &Path,
) -> Result<Spawned, SpawnError> {
    let server = IpcOneShotServer::<Hello>::new().map_err(SpawnError::Server)?;
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(SpawnError::Nonce)?;
    let nonce = hex::encode(bytes);
    let stderr = File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|source| SpawnError::Log { path: log.display().to_string(), source })?;
    // During exec, the child finds the executable through this descriptor. Afterwards the executable is the child's
    // standard input, and the child moves it to another descriptor.
    let path = format!("/proc/self/fd/{}", executable.file.as_raw_fd());
    let input = executable.file.as_fd().try_clone_to_owned().map_err(SpawnError::Exec)?;
    let child = Command::new(path)
        .arg(WORKER_ARGUMENT)
        .arg(role.name())
        .arg(std::process::id().to_string())
        .arg(device.to_string())
        .env_clear()
        .envs(kept(KEPT_VARIABLES))
        .envs(if matches!(device, Device::Cuda(_)) { driver_variables() } else { Vec::new() })
        .env(SERVER_VARIABLE, &server.1)
        .env(NONCE_VARIABLE, &nonce)
        .stdin(Stdio::from(input))
        .stdout(Stdio::null())
        .stderr(Stdio::from(stderr))
        .spawn()
        .map_err(SpawnError::Exec)?;
    let pid = child.id();
    let raw =
        i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(SpawnError::Pidfd(rustix::io::Errno::SRCH))?;
    // Opening the pidfd after the start is not a race, because a child keeps its pid until it is reaped. `child` can be
    // dropped, because the worker is reaped through its pidfd.
    let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(SpawnError::Pidfd)?;
    Ok(Spawned { pid, pidfd, server, nonce })
}

/// The variables of the user's environment that every worker inherits.
const KEPT_VARIABLES: &[&str] =
    &["PATH", "TMPDIR", "HOME", "LANG", "LC_ALL", "RUST_BACKTRACE", "RUST_LOG", "CUDA_HOME", "CUDA_PATH"];

/// The environment variables that determine where a card's driver is, which cards it shows, and in which order. Workers
/// on a card and the canary that queries the driver get them, because `cuda:1` must mean the same card to both. Runners
/// and compilers never get their values.
const DRIVER_VARIABLES: &[&str] = &["LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// Returns those of the variables in `names` that are set in this process's environment, with their values.
fn kept(names: &[&str]) -> Vec<(OsString, OsString)> {
    names.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?))).collect()
}

/// Returns those of `DRIVER_VARIABLES` that are set in this process's environment, with their values.
pub(super) fn driver_variables() -> Vec<(OsString, OsString)> {
    kept(DRIVER_VARIABLES)
}
