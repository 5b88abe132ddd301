//! A run in the background, and a simple client of its control socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use opt_tests::waiting::until;
use opt_tests::{Outcome, Scenario, Summary};
use serde_json::{Value, json};

/// The longest wait for a line. A line normally arrives within seconds, but a busy machine may need longer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A run of `plan.toml` in the background.
pub struct LiveRun<'s> {
    scenario: &'s Scenario,
    child: Child,
    folder: PathBuf,
    arguments: Vec<String>,
}

impl<'s> LiveRun<'s> {
    /// Starts the run and waits for its socket.
    pub fn start(scenario: &'s Scenario, more: &[&str]) -> Self {
        Self::start_as(scenario, more, |_| {})
    }

    /// Like `start`, but lets `modify` change the command first.
    pub fn start_as(scenario: &'s Scenario, more: &[&str], modify: impl FnOnce(&mut Command)) -> Self {
        let arguments: Vec<String> =
            ["run", "plan.toml"].iter().chain(more).map(|it| (*it).to_owned()).collect();
        let runs = scenario.path().join("runs");
        // Take the first free name, as the program does.
        let folder = (1..)
            .map(|number| runs.join(if number == 1 { "plan".to_owned() } else { format!("plan-{number}") }))
            .find(|folder| !folder.exists())
            .expect("a free name");
        let mut command = scenario.command(&arguments);
        modify(&mut command);
        let child = command.spawn().expect("the program starts");
        let run = Self { scenario, child, folder, arguments };
        until("the control socket exists", || run.folder.join("control.sock").exists());
        run
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> PathBuf {
        std::fs::read_link(self.folder.join("control.sock")).expect("a link to the socket")
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// Runs `ctl` on this run, unless the arguments name a run with `--run`.
    pub fn ctl(&self, arguments: &[&str]) -> Outcome {
        let folder = self.folder.to_str().expect("UTF-8");
        let mut all = vec!["ctl", "--run", folder];
        if arguments.contains(&"--run") {
            all.truncate(1);
        }
        all.extend(arguments);
        self.scenario.run(&all)
    }

    /// Returns the sum of these fields of the supervisor's `/proc/PID/status`, in KiB.
    pub fn kib(&self, names: &[&str]) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the supervisor lives");
        let of = |name: &&str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        names.iter().map(of).sum()
    }

    /// Waits until the run has ended. Checks its exit code and that nothing is left behind.
    pub fn finish(self, code: i32) -> (Outcome, Summary) {
        let outcome = self.scenario.finish(self.child, &self.arguments).expect_exit(code);
        let summary = Summary::read(&self.folder, &outcome);
        outcome.expect_clean(&self.folder, &self.scenario.runtime());
        (outcome, summary)
    }

    /// Waits until the run has ended, with any exit code.
    pub fn finish_any(self) -> Outcome {
        self.scenario.finish(self.child, &self.arguments)
    }

    /// Kills the supervisor with SIGKILL, and checks that its processes die too.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        let outcome = self.scenario.finish(self.child, &self.arguments);
        let remaining = opt_tests::processes::left(outcome.pid, &self.folder);
        assert!(remaining.is_empty(), "its processes must die with it, but these remain: {remaining:?}");
    }
}

pub struct Client {
    reader: BufReader<UnixStream>,
    id: u64,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        socket.set_read_timeout(Some(TIMEOUT)).expect("a time limit");
        Self { reader: BufReader::new(socket), id: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    /// Returns the next line, or `None` if the connection is closed.
    pub fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Sends a request and returns the result. On failure, returns the stable code of the error, `closed`, or the text
    /// of an I/O error.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, String> {
        self.id += 1;
        let mut line =
            json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params }).to_string();
        line.push('\n');
        self.send(line.as_bytes()).map_err(|error| error.to_string())?;
        loop {
            let answer = self.line().ok_or_else(|| "closed".to_owned())?;
            if answer["id"] == self.id {
                return match answer["error"]["data"]["code"].as_str() {
                    Some(code) => Err(code.to_owned()),
                    None => Ok(answer["result"].clone()),
                };
            }
        }
    }

    pub fn events_to_the_end(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.line())
            .filter(|message| message["method"] == "event")
            .map(|message| message["params"].clone())
            .collect()
    }
}
