//! A scenario, the basis of most tests of the built program: a separate folder, and methods that run the program in
//! that folder and return its complete output.
//!
//! This module builds nothing, and only `run_plan` checks an outcome.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::outcome::Outcome;
use crate::paths::binary;
use crate::processes;
use crate::summary::Summary;

/// The time limit for a command. It is far longer than any command takes on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The folder of one test. Dropping the scenario removes it.
pub struct Scenario {
    folder: tempfile::TempDir,
}

impl Scenario {
    pub fn create() -> Self {
        processes::adopt_orphans();
        // The prefix is short because the path of a socket may have at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("ot").tempdir().expect("a temporary folder");
        let scenario = Self { folder };
        std::fs::create_dir(scenario.runtime()).expect("an empty folder");
        scenario
    }

    /// Creates a scenario with this text as its `plan.toml`.
    pub fn with_plan(plan: &str) -> Self {
        let scenario = Self::create();
        scenario.write("plan.toml", plan);
        scenario
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder for the program's sockets, which the program gets as `XDG_RUNTIME_DIR`.
    pub fn runtime(&self) -> PathBuf {
        self.path().join("xdg")
    }

    /// Writes a file and creates its parent folders. Returns its full path.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(path);
        let folder = path.parent().expect("a path below the scenario");
        std::fs::create_dir_all(folder).expect("folders below the scenario");
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Copies the files of a folder to the folder `to` of the scenario. Returns the full path of `to`.
    pub fn copy_captures(&self, from: &Path, to: &str) -> PathBuf {
        let to = self.path().join(to);
        std::fs::create_dir_all(&to).expect("folders below the scenario");
        for entry in std::fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
            let from = entry.expect("a readable folder").path();
            let name = from.file_name().expect("a file has a name");
            std::fs::copy(&from, to.join(name)).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        }
        to
    }

    /// Returns the command, ready to be started in this folder.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        self.command_of(&binary(), arguments)
    }

    /// Like `command`, for another program or for a copy of the program.
    pub fn command_of<A: AsRef<OsStr>>(&self, program: &Path, arguments: &[A]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.path())
            .env("XDG_RUNTIME_DIR", self.runtime())
            // Hide other live runs on this machine from the test.
            .env("OPT_SUPERVISOR_RUNTIME_DIR", self.runtime().join("opt-supervisor"))
            // Tests that run at the same time have cards with the same UUID, so they must not share the locks of cards.
            .env("OPT_SUPERVISOR_LOCK_DIR", self.path())
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            // Cargo adds the folder of libraries built for tests to this variable. The twin of a card's driver is
            // there.
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program until it ends.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Outcome {
        let mut command = self.command(arguments);
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{} does not start: {error}", binary().display()));
        self.finish(child, arguments)
    }

    /// Waits for a started command and collects its output. If the command does not end in time, all its processes are
    /// killed.
    pub fn finish<A: AsRef<OsStr>>(&self, mut child: Child, arguments: &[A]) -> Outcome {
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let in_time = processes::ends_within(&child, TIMEOUT);
        if !in_time {
            let _ = child.kill();
        }
        let status = child.wait().expect("the child can be waited for");
        if !in_time {
            processes::kill_left(child.id(), self.path());
        }
        Outcome {
            command: std::iter::once("opt-supervisor".to_owned())
                .chain(arguments.iter().map(|it| it.as_ref().to_string_lossy().into_owned()))
                .collect(),
            folder: self.path().to_owned(),
            pid: child.id(),
            code: status.code(),
            signal: status.signal(),
            in_time,
            stdout: stdout.join().expect("a reader thread"),
            stderr: stderr.join().expect("a reader thread"),
        }
    }

    /// The folder that the first run of `plan.toml` creates.
    pub fn run_folder(&self) -> PathBuf {
        self.path().join("runs/plan")
    }

    /// Runs `run plan.toml` with more arguments, checks the exit code, checks that nothing is left behind, and reads
    /// the summary.
    pub fn run_plan(&self, code: i32, more: &[&str]) -> (Outcome, Summary) {
        let outcome = self.run(&[&["run", "plan.toml"], more].concat()).expect_exit(code);
        let summary = Summary::read(&self.run_folder(), &outcome);
        outcome.expect_clean(&self.run_folder(), &self.runtime());
        (outcome, summary)
    }
}

fn drain<R: std::io::Read + Send + 'static>(stream: Option<R>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // After an error, return the output read so far.
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
