//! The sandboxed process of a canary. It runs in a candidate's sandbox, and attempts what a candidate must not be able
//! to do.
//!
//! It prints `name=answer` for every attempt, and `protection …` for every protection that the lock-down reports. It
//! ends by overflowing its stack. `PROTECTIONS` lists the expected answers.

use std::os::fd::BorrowedFd;

use opt_shared::units::Bytes;

use super::attempts::{self, answer};
use crate::sandbox::confine::{self, Confinement, Descriptors, FileAccess, ResourceLimits, SandboxKind};
use crate::sandbox::policy;
use crate::sandbox::spawn::SOCKET_FD;

/// The descriptor of a memory file without seals, so that only the limit on file sizes stops its growth.
pub(super) const GROWING_FD: i32 = 2;
const FILE_SIZE: Bytes = Bytes::kib(64);
const DATA: Bytes = Bytes::mib(8);
const ADDRESS_SPACE: Bytes = Bytes::mib(48);
const STACK: Bytes = Bytes::kib(512);
/// The number of tasks that are allowed in addition to the existing tasks of the process's user.
const MORE_TASKS: u32 = 8;

/// Returns a confinement like that of a candidate, but with low limits, so that a canary can exceed them with little
/// memory.
fn confinement() -> Confinement {
    Confinement {
        kind: SandboxKind::Candidate,
        limits: ResourceLimits {
            data: DATA,
            address_space: Some(ADDRESS_SPACE),
            file_size: FILE_SIZE,
            open_files: 64,
            processes: Some(policy::process_limit(MORE_TASKS)),
            stack: STACK,
            locked_memory: Bytes::ZERO,
        },
        user_number: policy::user_number(),
        file_access: FileAccess::default(),
    }
}

/// Makes all attempts, and returns the exit code. `segment` is the id of a System V segment, and `parent` is the pid of
/// the process that started this one.
pub(super) fn run(segment: i32, parent: i32) -> i32 {
    // The standard library would turn the overflow at the end into an abort.
    // SAFETY: the default action of a signal needs no handler.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    // SAFETY: as above; a write beyond the limit on file sizes should be an error, not a signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    attempts::before_the_lock_down(segment);
    let confinement = confinement();
    let tasks = confinement.limits.processes.map_or(0, |it| it.own.saturating_add(it.other_tasks));
    // SAFETY: `proof` put the socket there, and nothing closes it.
    let worker = unsafe { BorrowedFd::borrow_raw(SOCKET_FD) };
    let descriptors = Descriptors { worker, artifact: None, libraries: &[] };
    match confine::lock_down(&policy::add_present_usage(confinement), &descriptors) {
        Ok(protections) => {
            for protection in protections {
                println!("protection {}", protection.line());
            }
        }
        Err(error) => {
            println!("error={}", opt_shared::causes::chain(&error).replace('\n', " "));
            return 1;
        }
    }
    attempts::memory(DATA, ADDRESS_SPACE, FILE_SIZE);
    attempts::isolation(parent);
    attempts::threads(tasks);
    println!("overflow=begins");
    println!("depth={}", descend(std::hint::black_box(1 << 40)));
    0
}

#[inline(never)]
fn descend(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if depth == 0 { 0 } else { descend(depth - 1) + frame[63] }
}

pub(super) fn print_answer(name: &str, result: i64) {
    println!("{name}={}", answer(result));
}
