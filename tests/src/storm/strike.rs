//! Runs in which one process is killed, asked to end, or stopped.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::{Chance, Fixture};
use crate::processes::Process;
use crate::summary::list;

/// The pause between two requests to replace a worker.
const PAUSE: Duration = Duration::from_millis(100);

/// The time for which a process stays stopped.
const STOP: Duration = Duration::from_millis(300);

impl Fixture {
    /// Runs the plan once and kills one process of the kind `victim` at the given moment. If there is no such process
    /// then, kills the first one after that moment; if there are several, picks one at random. The kind `runner`
    /// includes compilers. Returns the process, or `None` if the run ended first.
    pub fn kill_during_a_run(
        &self,
        victim: &str,
        moment: Duration,
        chance: &mut Chance,
    ) -> Result<Option<Process>, String> {
        self.strike_during_a_run(victim, moment, chance, |process| self.kill(process))
    }

    /// Like `kill_during_a_run`, but sends SIGSTOP to a worker, and then asks the run to replace the worker.
    pub fn hang_during_a_run(
        &self,
        role: &str,
        moment: Duration,
        chance: &mut Chance,
    ) -> Result<Option<Process>, String> {
        self.strike_during_a_run(role, moment, chance, |process| self.signal(process, Signal::STOP))
    }

    /// Like `kill_during_a_run`, but sends SIGTERM, which a process may ignore.
    pub fn terminate_during_a_run(
        &self,
        victim: &str,
        moment: Duration,
        chance: &mut Chance,
    ) -> Result<Option<Process>, String> {
        self.strike_during_a_run(victim, moment, chance, |process| self.signal(process, Signal::TERM))
    }

    /// Like `kill_during_a_run`, but stops the process, and continues it after `STOP`.
    pub fn stop_during_a_run(
        &self,
        victim: &str,
        moment: Duration,
        chance: &mut Chance,
    ) -> Result<Option<Process>, String> {
        self.strike_during_a_run(victim, moment, chance, |process| {
            let is_stopped = self.signal(process, Signal::STOP);
            std::thread::sleep(STOP);
            is_stopped && self.signal(process, Signal::CONT)
        })
    }

    fn strike_during_a_run(
        &self,
        victim: &str,
        moment: Duration,
        chance: &mut Chance,
        strike: impl Fn(&Process) -> bool,
    ) -> Result<Option<Process>, String> {
        let mut child = self.start(&[])?;
        let started = Instant::now();
        let mut struck: Option<Process> = None;
        self.until("the run with a killed or stopped process has ended", || {
            match &struck {
                None if moment <= started.elapsed() => {
                    let mut found = self.marked();
                    found.retain(|it| match victim {
                        "runner" => it.is_below_a_worker(),
                        role => it.is_worker(role),
                    });
                    let at = usize::try_from(chance.below(found.len() as u64)).unwrap_or(0);
                    struck = found.get(at).filter(|it| strike(it)).cloned();
                }
                Some(process) if self.is_stopped(process) => self.replace(process),
                _ => {}
            }
            !matches!(child.try_wait(), Ok(None))
        })?;
        self.run_to(child, 0)?;
        Ok(struck)
    }

    fn is_stopped(&self, process: &Process) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            && self.marked().iter().any(|it| it.pid == process.pid)
    }

    /// Asks the run to replace a worker at once. Errors are ignored, because the run may not list the worker yet, or
    /// may be about to end.
    fn replace(&self, process: &Process) {
        let ctl = |arguments: &[&str]| {
            let run = self.run.as_os_str();
            let mut command = self.command();
            command
                .args(["ctl".as_ref(), "--run".as_ref(), run])
                .args(arguments)
                .stderr(Stdio::null())
                .output()
        };
        let Ok(answer) = ctl(&["workers", "--json"]) else { return };
        let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        let known = list(&answer["workers"]).iter().find(|it| it["pid"] == process.pid);
        if let Some(id) = known.and_then(|it| it["id"].as_u64()) {
            let _ = ctl(&["recycle", &id.to_string(), "--mode", "now"]);
        }
        std::thread::sleep(PAUSE);
    }
}
