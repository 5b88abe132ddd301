//! Tests of starting, stopping, continuing and ending runners.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{ConfineError, Descriptors, SandboxKind, lock_down};
use super::candidate::locked_down;
use super::scenario::{
    WORKER_FD, as_every_user, confinement, folder, inherited, socket_pair, start, start_with,
};
use crate::sandbox::handle::{End, Stop};
use crate::sandbox::spawn::{Namespaces, SpawnError, spawn_runner};

const TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn stopped_runner_does_not_run_until_continued() {
    as_every_user(|| {
        for namespaces in [Namespaces::ALL, Namespaces::NONE] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mut running = start("two_spinning_threads", folder.path(), None, namespaces);
            let deadline = Instant::now() + TIMEOUT;
            let score = format!("/proc/{}/oom_score_adj", running.runner.pid());
            while std::fs::read_to_string(&score).expect("the file is in /proc").trim() != "1000" {
                assert!(Instant::now() < deadline, "the runner's oom_score_adj was not raised");
                std::thread::yield_now();
            }
            for _ in 0..3 {
                let before = running.runner.cpu_time().expect("the runner's clock is readable");
                let deadline = Instant::now() + TIMEOUT;
                while running.runner.cpu_time().expect("the runner's clock is readable") <= before {
                    assert!(Instant::now() < deadline, "the runner does not run");
                    std::thread::yield_now();
                }
                assert_eq!(running.runner.stop(TIMEOUT).expect("the runner stops"), Stop::Stopped);
                assert_eq!(running.runner.stop(TIMEOUT).expect("the runner is still stopped"), Stop::Stopped);
                // The clock may still advance by the time that the last context switch takes. After that, it does not
                // change.
                let mut still = (running.runner.cpu_time().expect("the runner's clock is readable"), 0);
                while still.1 < 1000 {
                    assert!(Instant::now() < deadline, "the runner's clock still advances");
                    std::thread::yield_now();
                    let now = running.runner.cpu_time().expect("the runner's clock is readable");
                    still = (now, if now == still.0 { still.1 + 1 } else { 0 });
                }
                assert_eq!(running.runner.peek_end().expect("the runner is our child"), None);
                let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", running.runner.pid()));
                assert_eq!(
                    score.expect("the file is in /proc").trim(),
                    "1000",
                    "Linux kills it first when memory runs out"
                );
                assert!(running.runner.start_time().expect("the file is in /proc") > 0);
                running.runner.cont().expect("the runner continues");
            }
            running.runner.kill().expect("the runner can be killed");
            assert_eq!(
                running.runner.reap().expect("the runner is our child"),
                End::Signalled { signal: libc::SIGKILL }
            );
            assert_eq!(running.runner.stop(TIMEOUT).expect("nothing to stop"), Stop::Ended);
            assert!(running.runner.cpu_time().is_err());
        }
    });
}

/// A process may end by itself at any moment. Until it is reaped, signals to it succeed as if it were alive.
#[test]
fn stop_of_a_runner_that_has_ended_reports_its_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut running = start("waits_until_killed", folder.path(), None, Namespaces::NONE);
    running.runner.kill().expect("the runner can be killed");
    assert!(running.runner.wait_dead(TIMEOUT).expect("the runner is our child"), "the runner ends");
    assert_eq!(running.runner.stop(TIMEOUT).expect("the runner's end is known"), Stop::Ended);
    assert_eq!(
        running.runner.reap().expect("the runner is our child"),
        End::Signalled { signal: libc::SIGKILL }
    );
}

/// A profile reads the CPU clock of a stopped process to detect work that the process does while no call is requested.
#[test]
fn cpu_clock_between_stops_shows_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Each measurement takes the minimum and maximum of many rounds, because a busy machine disturbs some of them.
    let measure = |scenario| {
        let mut running = start(scenario, folder.path(), None, Namespaces::NONE);
        if scenario == "waits_until_killed" {
            let mut line = String::new();
            BufReader::new(&mut running.output).read_line(&mut line).expect("the output is UTF-8");
        }
        assert_eq!(running.runner.stop(TIMEOUT).expect("the runner stops"), Stop::Stopped);
        let mut rounds: Vec<Duration> = (0..40)
            .map(|_| {
                let before = running.runner.cpu_time().expect("the runner's clock is readable");
                running.runner.cont().expect("the runner continues");
                std::thread::sleep(Duration::from_millis(10));
                assert_eq!(running.runner.stop(TIMEOUT).expect("the runner stops"), Stop::Stopped);
                running.runner.cpu_time().expect("the runner's clock is readable") - before
            })
            .collect();
        rounds.sort_unstable();
        (rounds[0], rounds[39])
    };
    let (idle, _) = measure("waits_until_killed");
    let (_, busy) = measure("two_spinning_threads");
    assert!(idle < Duration::from_micros(200), "a sleeping runner used {idle:?}");
    assert!(Duration::from_millis(1) < busy, "a spinning runner used {busy:?}");
}

pub(super) fn two_spinning_threads() {
    locked_down();
    let spin = || loop {
        std::hint::spin_loop();
    };
    std::thread::spawn(spin);
    spin();
}

#[test]
fn runner_dies_with_its_worker() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The worker must not have a PID namespace of its own, because the end of that namespace would end the runners
        // anyway.
        let mut worker = start("worker_with_two_runners", folder.path(), None, Namespaces::NONE);
        let mut output = BufReader::new(worker.output);
        let mut line = String::new();
        // Each locked-down runner reports through the pipe that it shares with the worker.
        for _ in 0..2 {
            while !line.ends_with("ready\n") {
                line.clear();
                assert_ne!(
                    output.read_line(&mut line).expect("the output is UTF-8"),
                    0,
                    "the worker ended before its runners reported"
                );
            }
            line.clear();
        }
        worker.runner.kill().expect("the runner can be killed");
        worker.runner.reap().expect("the runner is our child");
        // The pipe is closed when the last process that can write to it is dead.
        let pipe = output.into_inner();
        let mut ends = [PollFd::new(&pipe, PollFlags::empty())];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut ends, Some(&timeout)).expect("a poll"), 1, "a runner outlived its worker");
    });
}

/// Starts two runners, one in namespaces and one without. Both keep our output open.
pub(super) fn worker_with_two_runners() {
    let runners = [Namespaces::ALL, Namespaces::NONE].map(|namespaces| {
        let stdout = std::io::stdout();
        let null = File::open("/dev/null").expect("/dev/null opens");
        let (worker, socket) = socket_pair();
        let inherited =
            [(null.as_fd(), 0), (stdout.as_fd(), 1), (null.as_fd(), 2), (socket.as_fd(), WORKER_FD)];
        (start_with("waits_until_killed", &folder(), &inherited, namespaces), worker)
    });
    std::thread::park();
    drop(runners);
}

pub(super) fn waits_until_killed() {
    locked_down();
    println!("ready");
    // If the test fails, nothing else would end this process.
    let deadline = Instant::now() + 3 * TIMEOUT;
    while Instant::now() < deadline {
        std::thread::park_timeout(TIMEOUT);
    }
}

#[test]
fn lock_down_fails_if_the_worker_is_gone() {
    for namespaces in [Namespaces::ALL, Namespaces::NONE] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (worker, socket) = socket_pair();
        drop(worker);
        let mut runner = start_with("orphan", folder.path(), &[(socket.as_fd(), WORKER_FD)], namespaces);
        assert_eq!(runner.reap().expect("the runner is our child"), End::Exited { code: ORPHAN_STATUS });
    }
}

/// The scenario's exit status if the lock-down reports that the process has lost its parent.
const ORPHAN_STATUS: i32 = 17;

pub(super) fn orphan() {
    let descriptors = Descriptors { worker: inherited(WORKER_FD), artifact: None, libraries: &[] };
    let outcome = lock_down(&confinement(SandboxKind::Candidate), &descriptors);
    std::process::exit(if matches!(outcome, Err(ConfineError::WorkerGone)) { ORPHAN_STATUS } else { 1 });
}

#[test]
fn dropped_handle_leaves_no_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut running = start("two_spinning_threads", folder.path(), None, Namespaces::ALL);
    let pid = running.runner.pid();
    drop(running.runner);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let mut rest = Vec::new();
    running.output.read_to_end(&mut rest).expect("the pipe has ended");
}

#[test]
fn runner_gets_exactly_the_given_descriptors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let mut files = Vec::new();
    for name in ["a", "b"] {
        let path = folder.path().join(name);
        File::create(&path)
            .and_then(|mut file| file.write_all(name.as_bytes()))
            .expect("the folder is writable");
        files.push(File::open(path).expect("just written"));
    }
    // Each of the two files gets the number that the other file has in this process.
    let (a, b) = (files[0].as_raw_fd(), files[1].as_raw_fd());
    let inherited = [(write.as_fd(), 1), (files[0].as_fd(), b), (files[1].as_fd(), a)];
    let mut runner = start_with("descriptors", folder.path(), &inherited, Namespaces::NONE);
    drop(write);
    let mut output = String::new();
    File::from(read).read_to_string(&mut output).expect("the output is UTF-8");
    assert_eq!(runner.reap().expect("the runner is our child"), End::Exited { code: 0 });
    let mut expected = [(1, "pipe"), (a, "b"), (b, "a")];
    expected.sort_unstable();
    let expected: Vec<String> = expected.iter().map(|(number, name)| format!("{number}:{name}")).collect();
    assert_eq!(output.trim(), expected.join(" "));
}

pub(super) fn descriptors() {
    let mut found = Vec::new();
    for number in 0..1024 {
        let Ok(target) = std::fs::read_link(format!("/proc/self/fd/{number}")) else { continue };
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push(format!("{number}:{}", if name.starts_with("pipe") { "pipe" } else { &name }));
    }
    println!("{}", found.join(" "));
}

#[test]
fn file_that_is_not_a_program_is_reported() {
    let null = File::open("/dev/null").expect("/dev/null opens");
    match spawn_runner(null.as_fd(), &[c"runner"], &[], &[], Namespaces::ALL) {
        Err(SpawnError::Child { step, source }) => {
            assert!(step.starts_with("execveat"), "{step}");
            assert_eq!(source.raw_os_error(), Some(libc::EACCES));
        }
        other => panic!("{other:?}"),
    }
}
