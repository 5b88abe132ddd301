//! Starts a scenario in a runner, and reads back the scenario's output.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use opt_shared::units::Bytes;

use super::super::{Confinement, FileAccess, ResourceLimits, SandboxKind};
use super::{candidate, compiler, missing_protections, start_and_stop};
use crate::sandbox::handle::{End, RunnerHandle};
use crate::sandbox::spawn::{Namespaces, spawn_runner};

/// The environment variable with the name of the scenario to run. It is unset in the test process itself.
const SCENARIO: &str = "OPT_CANARY_SCENARIO";
/// An environment variable that is set in a test process that has already become an ordinary user.
const ORDINARY: &str = "OPT_CANARY_ORDINARY";
/// The environment variable with the path of a folder that the scenario may use.
pub(super) const FOLDER: &str = "OPT_CANARY_FOLDER";

/// The user `nobody`.
const ORDINARY_USER: u32 = 65_534;

pub(super) const WORKER_FD: i32 = 3;
pub(super) const ARTIFACT_FD: i32 = 4;

#[used]
#[unsafe(link_section = ".init_array")]
static RUN_BEFORE_TEST_HARNESS: extern "C" fn() = run_scenario_if_requested;

extern "C" fn run_scenario_if_requested() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let run: fn() = match scenario.as_str() {
        "candidate" => candidate::attempt_forbidden_operations,
        "abort" => candidate::abort,
        "deep_recursion" => candidate::deep_recursion,
        "too_much_data" => candidate::too_much_data,
        "one_cpu" => candidate::one_cpu,
        #[cfg(target_arch = "x86_64")]
        "32_bit_call" => candidate::make_32_bit_call,
        "old_linux" => missing_protections::on_an_old_linux,
        "no_namespaces" => missing_protections::worker_without_namespaces,
        "sealed" => missing_protections::sealed,
        "compiler" => compiler::builds_and_leaves_its_folder,
        "straggler" => compiler::leaves_a_straggler,
        #[cfg(target_env = "gnu")]
        "refusals" => super::refusals::refused_in_every_way,
        "two_spinning_threads" => start_and_stop::two_spinning_threads,
        "orphan" => start_and_stop::orphan,
        "waits_until_killed" => start_and_stop::waits_until_killed,
        "worker_with_two_runners" => start_and_stop::worker_with_two_runners,
        "descriptors" => start_and_stop::descriptors,
        other => panic!("there is no scenario `{other}`"),
    };
    run();
    std::process::exit(0);
}

/// Runs `test` in this process. If this process is root, runs the same test again in a process of an ordinary user.
pub(super) fn as_every_user<Test: FnOnce()>(test: Test) {
    // A closure's type name begins with the names of its crate and its function.
    let name = std::any::type_name::<Test>();
    let path = name.split_once("::").map_or(name, |(_, path)| path).trim_end_matches("::{{closure}}");
    test();
    if !rustix::process::geteuid().is_root() || std::env::var_os(ORDINARY).is_some() {
        return;
    }
    // The executable is started by its descriptor, because an ordinary user may not be able to enter the folders above
    // it.
    let output = Command::new("/proc/self/exe")
        .args(["--exact", path, "--nocapture"])
        .env(ORDINARY, "1")
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .gid(ORDINARY_USER)
        .uid(ORDINARY_USER)
        .output()
        .expect("the test executable starts as an ordinary user");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "as an ordinary user: {stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A scenario that is running in a runner, with our ends of its descriptors.
pub(super) struct RunningScenario {
    pub(super) runner: RunnerHandle,
    pub(super) output: File,
    /// Our end of the runner's socket. Dropping it tells the runner that the worker is gone.
    pub(super) worker: OwnedFd,
}

pub(super) fn start(
    scenario: &str,
    folder: &Path,
    artifact: Option<BorrowedFd<'_>>,
    namespaces: Namespaces,
) -> RunningScenario {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let null = File::open("/dev/null").expect("/dev/null opens");
    let (worker, socket) = socket_pair();
    let stderr = std::io::stderr();
    let mut inherited =
        vec![(null.as_fd(), 0), (write.as_fd(), 1), (stderr.as_fd(), 2), (socket.as_fd(), WORKER_FD)];
    inherited.extend(artifact.map(|artifact| (artifact, ARTIFACT_FD)));
    let runner = start_with(scenario, folder, &inherited, namespaces);
    RunningScenario { runner, output: File::from(read), worker }
}

/// Returns a socket pair like that between a worker and its runner. In contrast to datagram sockets, each end reports a
/// hang-up when the other end is closed.
pub(super) fn socket_pair() -> (OwnedFd, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair")
}

pub(super) fn start_with(
    scenario: &str,
    folder: &Path,
    inherited: &[(BorrowedFd<'_>, i32)],
    namespaces: Namespaces,
) -> RunnerHandle {
    let executable = File::open("/proc/self/exe").expect("our own executable opens");
    let environment = [
        format!("{SCENARIO}={scenario}"),
        format!("{FOLDER}={}", folder.display()),
        "PATH=/usr/bin:/bin".to_owned(),
    ]
    .map(|text| CString::new(text).expect("no zero byte"));
    let arguments: [&CStr; 1] = [c"runner"];
    spawn_runner(executable.as_fd(), &arguments, &environment, inherited, namespaces)
        .expect("a runner starts")
        .into()
}

impl RunningScenario {
    /// Waits for the scenario's end. Returns its output, parsed from `name=answer` lines, and how it ended.
    pub(super) fn finish(mut self) -> (BTreeMap<String, String>, End) {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("the output is UTF-8");
        let answers = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, answer)| (name.to_owned(), answer.to_owned()))
            .collect();
        (answers, self.runner.reap().expect("the runner can be reaped"))
    }
}

/// Returns generous limits, except for those that a scenario tests.
pub(super) fn confinement(kind: SandboxKind) -> Confinement {
    Confinement {
        kind,
        limits: ResourceLimits {
            data: Bytes::mib(256),
            address_space: Some(Bytes::gib(4)),
            file_size: if kind == SandboxKind::Candidate { Bytes::ZERO } else { Bytes::mib(64) },
            open_files: 64,
            processes: None,
            stack: Bytes::mib(1),
            locked_memory: Bytes::ZERO,
        },
        user_number: std::process::id(),
        file_access: FileAccess::default(),
    }
}

pub(super) fn folder() -> PathBuf {
    std::env::var_os(FOLDER).expect("`start_with` sets it").into()
}

/// Borrows the descriptor with this number, which the scenario has inherited.
pub(super) fn inherited(number: i32) -> BorrowedFd<'static> {
    // SAFETY: `start_with` put the descriptor there before exec. A scenario that tests whether the lock-down has closed
    // the descriptor makes only this call with it, which fails without harm.
    unsafe { BorrowedFd::borrow_raw(number) }
}

pub(super) fn library(folder: &Path, text: &str) -> OwnedFd {
    let source = folder.join("candidate.c");
    let artifact = folder.join("candidate.so");
    std::fs::write(&source, text).expect("the folder is writable");
    // Not every compiler has OpenMP.
    let built = ["-fopenmp", "-w"].iter().any(|flag| {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", flag, "-o"]).arg(&artifact).arg(&source);
        cc.status().expect("cc is needed for these tests").success()
    });
    assert!(built);
    File::open(artifact).expect("cc wrote the library").into()
}
