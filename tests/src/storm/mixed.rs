//! Runs in which several strikes occur at random moments: a process is killed, every process is asked to end, a worker
//! is replaced, or a candidate is cancelled.

use std::fmt;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Chance, Fixture};
use crate::processes::Process;
use crate::summary::list;
use crate::waiting::{LONG, holds_within};

/// The largest number of strikes in one run.
const MAX_STRIKES: u64 = 3;
/// The exit codes of `run` that this file distinguishes.
const GOOD: i32 = 0;
const NONE_PASSED: i32 = 1;
const HOST: i32 = 3;
const INTERRUPTED: i32 = 4;
/// The only candidate, apart from the baseline, that counts as a success.
const ONLY_SUCCESS: &str = "fast";

/// An event that disturbs a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strike {
    KillVerifier,
    KillProfiler,
    /// Kills a runner, a compiler, or a process that a compiler started.
    KillRunner,
    /// Kills the supervisor. The run is then resumed.
    KillSupervisor,
    /// Sends SIGTERM to every process of the run at once. If this ends the run early, the run is resumed.
    TerminateEverything,
    /// Replaces a worker over the control socket, at once or after its lease.
    Recycle,
    /// Cancels a candidate other than the baseline over the control socket.
    Cancel,
}

pub const STRIKES: [Strike; 7] = [
    Strike::KillVerifier,
    Strike::KillProfiler,
    Strike::KillRunner,
    Strike::KillSupervisor,
    Strike::TerminateEverything,
    Strike::Recycle,
    Strike::Cancel,
];

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KillVerifier => "kill a verifier",
            Self::KillProfiler => "kill a profiler",
            Self::KillRunner => "kill a runner or compiler",
            Self::KillSupervisor => "kill the supervisor",
            Self::TerminateEverything => "SIGTERM to everything",
            Self::Recycle => "recycle a worker",
            Self::Cancel => "cancel a candidate",
        })
    }
}

/// Draws up to three strikes and their moments. The moments are before `span`, and in ascending order.
pub fn draw(chance: &mut Chance, span: Duration) -> Vec<(Duration, Strike)> {
    let mut drawn: Vec<(Duration, Strike)> = (0..=chance.below(MAX_STRIKES))
        .filter_map(|_| {
            let at = usize::try_from(chance.below(STRIKES.len() as u64)).ok()?;
            // Draw a fraction of the span, so that a seed gives the same strikes on a slower machine.
            let part = u32::try_from(chance.below(1000)).ok()?;
            Some((span * part / 1000, *STRIKES.get(at)?))
        })
        .collect();
    drawn.sort();
    drawn
}

/// What happened in one run.
#[derive(Default)]
pub struct Struck {
    /// The strikes that took effect. Other strikes found no process of their kind, or came too late.
    pub strikes: Vec<Strike>,
    /// The candidates, with their attempts, that had no verdict even after the run had tried them a second time. The
    /// run was then resumed.
    pub without_verdict: Vec<String>,
}

impl Fixture {
    /// Runs the plan and carries out the strikes. If a strike ends the run early, resumes the run. Checks the exit code
    /// and the verdicts, and that nothing is left behind.
    pub fn run_through(&self, strikes: &[(Duration, Strike)], chance: &mut Chance) -> Result<Struck, String> {
        let mut struck = Struck::default();
        let mut cancelled: Vec<&str> = Vec::new();
        let mut child = self.start(&[])?;
        let started = Instant::now();
        for &(moment, strike) in strikes {
            let ended = holds_within(moment.saturating_sub(started.elapsed()), || has_ended(&mut child));
            if ended || has_ended(&mut child) {
                break;
            }
            let took_effect = match strike {
                Strike::KillVerifier => self.kill_one(&mut child, chance, |it| it.is_worker("verifier")),
                Strike::KillProfiler => self.kill_one(&mut child, chance, |it| it.is_worker("profiler")),
                Strike::KillRunner => self.kill_one(&mut child, chance, Process::is_below_a_worker),
                Strike::KillSupervisor => {
                    child.kill().map_err(|error| format!("killing the supervisor: {error}"))?;
                    self.end(&mut child)?;
                    child = self.resume()?;
                    true
                }
                Strike::TerminateEverything => {
                    for process in self.marked() {
                        self.signal(&process, Signal::TERM);
                    }
                    let status = self.end(&mut child)?;
                    match status.code() {
                        Some(INTERRUPTED) => child = self.resume()?,
                        // The run was about to end anyway.
                        _ if status.code() == Some(GOOD) || status.code() == Some(NONE_PASSED) => {}
                        // SIGTERM killed the supervisor, because it did not handle signals yet.
                        None => child = self.resume()?,
                        Some(code) => {
                            return Err(format!("exit code {code} after SIGTERM\n{}", self.state()));
                        }
                    }
                    true
                }
                Strike::Recycle => {
                    let role = ["verifier", "profiler"][usize::from(chance.below(2) == 1)];
                    let mode = ["now", "drain"][usize::from(chance.below(2) == 1)];
                    self.ctl(&["recycle", role, "--mode", mode]).is_some_and(|it| it.status.success())
                }
                Strike::Cancel => {
                    let others = &self.verdicts[1..];
                    let at = usize::try_from(chance.below(others.len() as u64)).unwrap_or(0);
                    let (name, ..) = others[at];
                    let done = self.ctl(&["cancel", &format!("softmax/{name}")]);
                    // The run may have received the request even if it sent no answer.
                    cancelled.push(name);
                    done.is_some_and(|it| it.status.success())
                }
            };
            if took_effect {
                struck.strikes.push(strike);
            }
        }
        struck.without_verdict = self.ends_right(child, &cancelled)?;
        self.no_process_is_left()?;
        self.no_file_is_left()?;
        self.verdicts_are_right_except(&cancelled)?;
        Ok(struck)
    }

    /// Waits for the end of the run. If candidates have no verdict, resumes the run once. Returns these candidates.
    fn ends_right(&self, mut child: Child, cancelled: &[&str]) -> Result<Vec<String>, String> {
        let mut code = self.end(&mut child)?.code();
        let mut without_verdict = Vec::new();
        if code == Some(HOST) {
            let summary = self.summary()?;
            let candidates = list(&summary["jobs"][0]["candidates"]);
            let has_none = |candidate: &&serde_json::Value| candidate["status"] == "INFRA_ERROR";
            without_verdict = candidates
                .iter()
                .filter(has_none)
                .map(|it| format!("{}: {}\n{:#}", it["name"], it["detail"], it["attempts"]))
                .collect();
            if without_verdict.is_empty() {
                return Err(format!("exit code {HOST}, but every candidate has a verdict\n{}", self.state()));
            }
            code = self.end(&mut self.resume()?)?.code();
        }
        match code {
            Some(GOOD) => Ok(without_verdict),
            Some(NONE_PASSED) if cancelled.contains(&ONLY_SUCCESS) => Ok(without_verdict),
            code => Err(format!("the run ended unexpectedly, with exit code {code:?}\n{}", self.state())),
        }
    }

    /// Kills one process of the given kind as soon as there is one. Returns false if the run ends first.
    fn kill_one(
        &self,
        supervisor: &mut Child,
        chance: &mut Chance,
        is_victim: impl Fn(&Process) -> bool,
    ) -> bool {
        let draw = chance.below(u64::MAX);
        let mut killed = false;
        let done = holds_within(LONG, || {
            let mut found = self.marked();
            found.retain(&is_victim);
            let at = usize::try_from(draw % (found.len() as u64).max(1)).unwrap_or(0);
            killed = found.get(at).is_some_and(|process| self.kill(process));
            killed || has_ended(supervisor)
        });
        done && killed
    }

    /// Sends a command to the run over its control socket. A client that does not end in time is killed, and its status
    /// is then not a success. Returns `None` if the client cannot be started.
    fn ctl(&self, arguments: &[&str]) -> Option<Output> {
        let mut command = self.command();
        command
            .args(["ctl".as_ref(), "--run".as_ref(), self.run.as_os_str()])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        if !holds_within(LONG, || has_ended(&mut child)) {
            let _ = child.kill();
        }
        child.wait_with_output().ok()
    }
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}
