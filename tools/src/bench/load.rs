//! Keeps CPUs busy with processes that only spin, each in a separate session.
//!
//! Linux may divide the CPUs among sessions first (autogroups), and every worker and runner has a session of its own.
//! If all spinning processes were in one session, they would together get only as much CPU time as one runner, however
//! many they are.

use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

/// The first command line argument that makes this program spin.
pub(crate) const ARGUMENT: &str = "__spin";

/// Spins until the process is killed or its parent ends.
pub(crate) fn main() -> ExitCode {
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || setsid().is_err() {
        return ExitCode::FAILURE;
    }
    loop {
        std::hint::spin_loop();
    }
}

/// Processes that spin. Dropping this value ends them.
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
