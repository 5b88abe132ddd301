//! Tests of what a locked-down compiler can and cannot do.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use opt_shared::units::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{Confinement, Descriptors, ProcessLimit, SandboxKind, lock_down};
use super::candidate::answer_io;
use super::scenario::{WORKER_FD, as_every_user, confinement, folder, inherited, start};
use crate::sandbox::handle::End;
use crate::sandbox::spawn::Namespaces;

const EXPECTED: &[(&str, &str)] = &[
    ("built", "ok"),
    ("moved", "ok"),
    ("built_elsewhere", "refused"),
    ("shell", "refused"),
    ("write_source", "EACCES"),
    // These calls seem to succeed, but change nothing.
    ("mode_outside", "ok"),
    ("times_outside", "ok"),
    ("read_outside", "EACCES"),
    ("read_shadow", "EACCES"),
    ("socket", "EPERM"),
    ("shell_socket", "EPERM"),
    ("namespace", "EPERM"),
    ("ptrace", "EPERM"),
    ("large_file", "EFBIG"),
    ("kill_worker", "EPERM"),
];

#[test]
fn compiler_writes_only_to_its_scratch_folder() {
    as_every_user(|| {
        for namespaces in [Namespaces::ALL, Namespaces::NONE] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            for name in ["sources", "scratch", "outside"] {
                let path = folder.path().join(name);
                std::fs::create_dir(&path).expect("the folder is writable");
                // This stands for a user's private folder.
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700))
                    .expect("the folder is writable");
            }
            let text = "#include <stdio.h>\nint answer(void) { return puts(\"\") + 42; }";
            std::fs::write(folder.path().join("sources/kernel.c"), text).expect("the folder is writable");
            std::fs::write(folder.path().join("outside/secret"), "secret").expect("the folder is writable");
            let state = || {
                let secret = std::fs::metadata(folder.path().join("outside/secret")).expect("it exists");
                (secret.mode(), secret.mtime())
            };
            let before = state();
            let (answers, end) = start("compiler", folder.path(), None, namespaces).finish();
            assert_eq!(end, End::Exited { code: 0 }, "{namespaces:?}: {answers:?}");
            for (name, expected) in EXPECTED {
                let answer = answers.get(*name).map_or("nothing", String::as_str);
                assert_eq!(answer, *expected, "{namespaces:?}: {name}: {answers:?}");
            }
            assert_eq!(state(), before, "a file outside keeps its mode and its times");
            assert!(folder.path().join("scratch/kernel.so").exists());
            assert!(!folder.path().join("outside/kernel.so").exists());
            assert!(!folder.path().join("outside/shell").exists());
            let root = rustix::process::geteuid().is_root();
            let process_limit = answers.get("protection process_limit").map(String::as_str);
            assert_eq!(process_limit, Some(if root { "false" } else { "true" }));
            assert_eq!(answers.get("protection no_capabilities").map(String::as_str), Some("true"));
        }
    });
}

fn compiler_confinement() -> Confinement {
    let mut confinement = confinement(SandboxKind::Compiler);
    confinement.file_access.readable = vec![folder().join("sources")];
    confinement.file_access.writable = vec![folder().join("scratch")];
    confinement.limits.data = Bytes::gib(1);
    confinement.limits.processes = Some(ProcessLimit { own: 4096, other_tasks: 0 });
    confinement.limits.stack = Bytes::mib(64);
    confinement
}

fn locked_down() {
    let descriptors = Descriptors { worker: inherited(WORKER_FD), artifact: None, libraries: &[] };
    for protection in lock_down(&compiler_confinement(), &descriptors).expect("the lock-down holds") {
        println!("protection {}={}", protection.name, protection.present);
    }
}

pub(super) fn builds_and_leaves_its_folder() {
    let worker_pid = rustix::process::getppid();
    locked_down();
    let scratch = folder().join("scratch");
    let built = |target: &std::path::Path| {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-pipe", "-o"])
            .arg(target)
            .arg(folder().join("sources/kernel.c"));
        cc.env("TMPDIR", &scratch).stderr(Stdio::null());
        if cc.status().is_ok_and(|status| status.success()) { "ok" } else { "refused" }
    };
    println!("built={}", built(&scratch.join("part.so")));
    answer_io("moved", std::fs::rename(scratch.join("part.so"), scratch.join("kernel.so")));
    println!("built_elsewhere={}", built(&folder().join("outside/kernel.so")));
    let shell = |script: String| Command::new("/bin/sh").args(["-c", &script]).stderr(Stdio::null()).status();
    let outside = folder().join("outside");
    let wrote = shell(format!("cat {0}/secret; echo stray > {0}/shell", outside.display()));
    println!("shell={}", if wrote.is_ok_and(|status| status.success()) { "ok" } else { "refused" });
    answer_io("write_source", File::options().write(true).open(folder().join("sources/kernel.c")));
    let secret = outside.join("secret");
    answer_io("mode_outside", std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o666)));
    let now = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    let flags = rustix::fs::AtFlags::empty();
    answer_io(
        "times_outside",
        rustix::fs::utimensat(rustix::fs::CWD, &secret, &times, flags).map_err(Into::into),
    );
    answer_io("read_outside", File::open(secret));
    answer_io("read_shadow", File::open("/etc/shadow"));
    answer_io("socket", std::net::UdpSocket::bind("127.0.0.1:0"));
    // Calls that the compiler may not make are refused in its children too. SAFETY: plain system calls in a child that
    // ends at once.
    unsafe {
        match libc::fork() {
            0 => {
                let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
                println!(
                    "shell_socket={}",
                    if socket < 0 { format!("{:?}", Errno::last()) } else { "ok".to_owned() }
                );
                libc::_exit(0);
            }
            child => libc::waitpid(child, std::ptr::null_mut(), 0),
        };
        let flags = i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
        answer_io(
            "namespace",
            Errno::result(libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0)).map_err(Into::into),
        );
        answer_io("ptrace", Errno::result(libc::ptrace(libc::PTRACE_TRACEME)).map_err(Into::into));
    }
    match worker_pid {
        Some(pid) => answer_io("kill_worker", rustix::process::test_kill_process(pid).map_err(Into::into)),
        // In a PID namespace, there is no pid to send the signal to.
        None => println!("kill_worker=EPERM"),
    }
    // SAFETY: this ignores a signal, so that exceeding the limit is reported as an error.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let file = File::create(scratch.join("large")).expect("the scratch folder is writable");
    answer_io("large_file", file.set_len(65 << 20));
}

#[test]
fn processes_left_by_a_compiler_die_with_it() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["sources", "scratch"] {
            std::fs::create_dir(folder.path().join(name)).expect("the folder is writable");
        }
        let mut running = start("straggler", folder.path(), None, Namespaces::ALL);
        if !running.runner.namespaces().pid {
            // Without a PID namespace, the processes may survive, and the protection is then reported as missing.
            assert!(
                running
                    .runner
                    .protections()
                    .iter()
                    .any(|protection| protection.name == "pid_namespace" && !protection.present)
            );
            return;
        }
        assert_eq!(running.runner.reap().expect("the runner is our child"), End::Exited { code: 0 });
        // When the pipe is closed, every process that had it open is dead.
        let mut ends = [PollFd::new(&running.output, PollFlags::empty())];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut ends, Some(&timeout)).expect("a poll"), 1, "a child process is still alive");
    });
}

/// Starts a child that leaves our session, keeps our output open, and waits for at most a minute.
pub(super) fn leaves_a_straggler() {
    locked_down();
    // SAFETY: the child only changes its session and waits.
    unsafe {
        if libc::fork() == 0 {
            libc::setsid();
            libc::close(2);
            libc::alarm(60);
            loop {
                libc::pause();
            }
        }
    }
}
