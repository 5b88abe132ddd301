//! Keeps CPUs busy with processes that only spin, each in a separate session.
//!
//! Linux may first divide the CPUs among sessions (autogroups), and every worker and runner has a separate one. Load in
//! a single session would get the share of one runner, however many threads it had.

use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

/// The first command line argument that makes this program spin.
pub(crate) const ARGUMENT: &str = "__spin";

/// Spins until the process is killed, or its parent ends.
pub(crate) fn main() -> ExitCode {
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || setsid().is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        std::hint::spin_loop();
    }
}

/// Spinning processes. They end when this is dropped.
pub(crate) struct Load(Vec<Child>);

impl Load {
    pub(crate) fn of(processes: u32) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let mut load = Self(Vec::new());
        for _ in 0..processes {
            let child = Command::new(&program).arg(ARGUMENT).stdin(Stdio::null()).spawn();
            load.0.push(child.context("starting a process that spins")?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
