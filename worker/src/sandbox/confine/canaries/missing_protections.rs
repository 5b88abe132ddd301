//! Tests that on a machine that lacks a protection, it is reported as missing and the others work.
//!
//! In each test, some system calls fail, as in an older version of Linux or in a container.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use opt_shared::units::Bytes;

use super::super::SandboxKind;
use super::super::by_number;
use super::super::calls::install;
use super::super::seal::seal_map;
use super::candidate::{answer_io, locked_down};
use super::scenario::{WORKER_FD, as_every_user, confinement, folder, inherited, start, start_with};
use crate::sandbox::handle::End;
use crate::sandbox::spawn::Namespaces;

/// The number of `close_range`, which is the same on both architectures.
const SYS_CLOSE_RANGE: i64 = 436;

/// Makes these calls fail with ENOSYS, as in a version of Linux that lacks them.
fn pretend_missing(calls: &[i64]) {
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    let program = by_number::program(calls.iter().map(|number| (*number, libc::ENOSYS)));
    install(&program).expect("a filter can be installed");
}

#[test]
fn missing_landlock_is_reported_and_nothing_can_be_written() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("neighbour"), "secret").expect("the folder is writable");
        let (answers, end) = start("old_linux", folder.path(), None, Namespaces::ALL).finish();
        assert_eq!(end, End::Exited { code: 0 }, "{answers:?}");
        for (name, expected) in [
            ("protection files", "false"),
            ("protection no_tcp", "false"),
            ("protection signals_scoped", "false"),
            ("protection system_calls", "true"),
            ("stray_descriptor", "EBADF"),
            ("write_neighbour", "EPERM"),
            ("create_file", "EPERM"),
            ("remove_neighbour", "EPERM"),
        ] {
            assert_eq!(answers.get(name).map(String::as_str), Some(expected), "{name}");
        }
    });
}

pub(super) fn on_an_old_linux() {
    const STRAY: i32 = 50;
    pretend_missing(&[libc::SYS_landlock_create_ruleset, SYS_CLOSE_RANGE]);
    // SAFETY: duplicates a descriptor that stays open.
    assert_eq!(unsafe { libc::dup2(WORKER_FD, STRAY) }, STRAY);
    locked_down();
    answer_io("stray_descriptor", rustix::io::fcntl_getfd(inherited(STRAY)).map_err(Into::into));
    let neighbour = folder().join("neighbour");
    answer_io("write_neighbour", File::options().write(true).open(&neighbour));
    answer_io("create_file", File::create(neighbour.with_file_name("new")));
    answer_io("remove_neighbour", std::fs::remove_file(neighbour));
}

#[test]
fn refused_namespaces_are_reported_and_the_runner_starts() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (answers, end) = start("no_namespaces", folder.path(), None, Namespaces::NONE).finish();
        assert_eq!(end, End::Exited { code: 0 }, "{answers:?}");
        for name in ["pid_namespace", "ipc_namespace"] {
            assert_eq!(answers.get(name).map(String::as_str), Some("false"), "{name}");
        }
        assert_eq!(answers.get("end").map(String::as_str), Some("Signalled { signal: 6 }"));
    });
}

/// Runs under a compiler's filter, which refuses namespaces, as containers do.
pub(super) fn worker_without_namespaces() {
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    super::super::calls::restrict(&confinement(SandboxKind::Compiler)).expect("a filter can be installed");
    let null = File::open("/dev/null").expect("/dev/null opens");
    // The socket at `WORKER_FD` comes from `start`, because the filter does not let this process create one.
    let inherited =
        [(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2), (inherited(WORKER_FD), WORKER_FD)];
    let mut runner = start_with("abort", &folder(), &inherited, Namespaces::ALL);
    assert_eq!(runner.namespaces(), Namespaces::NONE);
    for protection in runner.protections() {
        println!("{}={}", protection.name, protection.present);
    }
    println!("end={:?}", runner.reap().expect("the runner is our child"));
}

#[test]
fn sealed_map_stays_or_the_protection_is_missing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (answers, end) = start("sealed", folder.path(), None, Namespaces::ALL).finish();
    assert_eq!(end, End::Exited { code: 0 }, "{answers:?}");
    if answers.get("sealed_inputs").map(String::as_str) == Some("true") {
        for name in ["unmap", "make_writable", "replace"] {
            assert_eq!(answers.get(name).map(String::as_str), Some("EPERM"), "{name}");
        }
    }
    assert_eq!(answers.get("without_the_call").map(String::as_str), Some("Unsupported"));
}

pub(super) fn sealed() {
    let page = rustix::param::page_size();
    // SAFETY: this is our own mapping, at an address that Linux chooses, and nothing else points into it.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = libc::mmap(std::ptr::null_mut(), page, libc::PROT_READ, flags, -1, 0);
        let start = NonNull::new(map.cast::<u8>()).expect("a map");
        let outcome = seal_map(start, Bytes::from(page));
        println!("sealed_inputs={}", outcome.is_ok());
        // Makes a second `mseal` (462) fail. The filter must be installed before the lock-down, which refuses further
        // filters.
        pretend_missing(&[462]);
        locked_down();
        answer_io("unmap", Errno::result(libc::munmap(map, page)).map_err(Into::into));
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        answer_io("make_writable", Errno::result(libc::mprotect(map, page, writable)).map_err(Into::into));
        let replaced = libc::mmap(map, page, writable, flags | libc::MAP_FIXED, -1, 0);
        println!(
            "replace={}",
            if replaced == libc::MAP_FAILED { format!("{:?}", Errno::last()) } else { "ok".into() }
        );
        let outcome = seal_map(start, Bytes::from(page));
        let kind = outcome.as_ref().map_err(std::io::Error::kind).expect_err("the call is missing");
        println!("without_the_call={kind:?}");
    }
}
