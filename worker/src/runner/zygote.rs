//! A zygote: an interpreter with torch in it that waits, and of which runners are copies.
//!
//! ```text
//! main ── Host ──▶ import torch ──▶ Ready ── Clone ──▶ a copy, which is a runner from its first step on
//!                                     ▲───── Cloned ──┘
//! ```
//!
//! Importing takes a second or two, a copy milliseconds. Nothing of a candidate ever runs here: it speaks with its worker
//! alone, over a socket that no copy keeps, and has a single thread, without which it could not be copied. It ends with its
//! worker.

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use opt_shared::causes::chain;
use opt_shared::message::Protection;
use rustix::process::DumpableBehavior::{Dumpable, NotDumpable};
use rustix::process::set_dumpable_behavior;
use serde::{Deserialize, Serialize};

use super::frame::{FrameError, Python, receive_frame, send_frame};
use super::python::{self, Interpreter};
use super::serve;
use crate::sandbox::confine;
use crate::sandbox::sibling::{Sibling, clone_sibling};
use crate::sandbox::spawn::{Namespaces, SOCKET_FD, gaps_between};

/// What comes with a `Clone`: a runner's standard streams, its socket and its control page, in the order of their numbers.
pub(crate) const RUNNER_DESCRIPTORS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToZygote {
    /// First.
    Host(Python),
    /// A runner is wanted, with the descriptors that come along.
    Clone { namespaces: Namespaces },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromZygote {
    /// It can be copied.
    Ready,
    /// It cannot, and ends.
    Trouble { text: String },
    /// The pidfd comes along. `pid` is as the worker sees it.
    Cloned { pid: u32, namespaces: Namespaces, protections: Vec<Protection> },
    /// No copy was made.
    Refused { text: String },
}

/// The entry point behind the hidden argument. Returns the process's exit code.
pub fn main() -> i32 {
    // SAFETY: the worker that started us opened this descriptor for us, and no other code uses it.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET_FD) };
    if let Err(error) = confine::tie_to_worker(socket) {
        return trouble(socket, &chain(&error));
    }
    match receive_frame(socket) {
        Ok((ToZygote::Host(python), _)) => python::host(
            &python,
            Box::new(move |interpreter| match interpreter {
                Ok(interpreter) => wait(socket, interpreter),
                Err(text) => trouble(socket, &text),
            }),
        ),
        Ok(_) => trouble(socket, "the first frame named no interpreter"),
        Err(FrameError::Closed) => 0,
        Err(error) => trouble(socket, &chain(&error)),
    }
}

fn trouble(socket: BorrowedFd<'_>, text: &str) -> i32 {
    // Of no use to a worker that is gone.
    let _ = send_frame(socket, &FromZygote::Trouble { text: text.to_owned() }, &[]);
    2
}

/// Copies itself as often as it is told to. Returns in each copy too, when that runner's life is over.
fn wait(socket: BorrowedFd<'static>, interpreter: Interpreter) -> i32 {
    let threads = confine::threads();
    if 1 < threads {
        return trouble(
            socket,
            &format!("importing torch left {threads} threads, and only one survives a clone"),
        );
    }
    let mut answer = FromZygote::Ready;
    let mut pidfd: Option<OwnedFd> = None;
    loop {
        let told = send_frame(socket, &answer, pidfd.as_ref().map(AsFd::as_fd).as_slice());
        // A copy would have it, too.
        drop(pidfd.take());
        if told.is_err() {
            return 0;
        }
        let (namespaces, descriptors) = match receive_frame(socket) {
            Ok((ToZygote::Clone { namespaces }, descriptors)) if descriptors.len() == RUNNER_DESCRIPTORS => {
                (namespaces, descriptors)
            }
            Ok(_) => return trouble(socket, "a frame out of order"),
            Err(FrameError::Closed) => return 0,
            Err(error) => return trouble(socket, &chain(&error)),
        };
        // Until it locks itself down, a runner may be looked into by its worker, and a copy begins as we are.
        let _ = set_dumpable_behavior(Dumpable);
        // SAFETY: one thread, see above: no code has run since but this. What the copy shares with us it gives up below.
        let cloned = unsafe {
            interpreter
                .around_clone(|| clone_sibling(namespaces), |cloned| matches!(cloned, Ok(Sibling::Copy)))
        };
        (answer, pidfd) = match cloned {
            Ok(Sibling::Copy) => {
                take_places(descriptors);
                take_name();
                return serve::begin(Some(interpreter));
            }
            Ok(Sibling::Original(runner)) => (
                FromZygote::Cloned {
                    pid: runner.pid,
                    namespaces: runner.namespaces_used,
                    protections: runner.protections,
                },
                Some(runner.pidfd),
            ),
            Err(error) => (FromZygote::Refused { text: chain(&error) }, None),
        };
        let _ = set_dumpable_behavior(NotDumpable);
    }
}

/// In a copy: these descriptors become numbers 0 to 4, and no other stays open. The zygote's own socket is among those.
fn take_places(descriptors: Vec<OwnedFd>) {
    let places = 0..RUNNER_DESCRIPTORS;
    // From here on they are numbers: one that was received may have the number that is another's place.
    let received: Vec<RawFd> = descriptors.into_iter().map(IntoRawFd::into_raw_fd).collect();
    let kept: Vec<RawFd> = places.filter_map(|place| RawFd::try_from(place).ok()).collect();
    // SAFETY: descriptors of a process that has just begun, by number. Whatever the zygote had open is of no use here, and
    // nothing that owns any of it is used or dropped: this function's caller never returns to it.
    unsafe {
        let lifted: Vec<RawFd> = received
            .iter()
            .map(|&fd| {
                libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, RawFd::try_from(RUNNER_DESCRIPTORS).unwrap_or(0))
            })
            .collect();
        for (&from, &place) in lifted.iter().zip(&kept) {
            libc::dup3(from, place, 0);
        }
        for (first, last) in gaps_between(kept) {
            libc::syscall(libc::SYS_close_range, first, last, 0_u32);
        }
    }
}

unsafe extern "C" {
    /// The C library's pointer to the first of this process's arguments, behind which the others lie.
    static mut program_invocation_name: *mut u8;
}

/// Its own arguments, as those have it who list processes.
const OWN_NAME: &[u8] = b"opt-zygote\0__zygote\0";
/// As long.
const RUNNERS_NAME: &[u8; OWN_NAME.len()] = b"opt-runner\0__runner\0";

/// In a copy: it is listed as the runner that it is.
fn take_name() {
    // SAFETY: the arguments of a process that our worker started with exactly these; they stay where they are, and whoever
    // reads them again finds words of the same length.
    unsafe {
        let name = program_invocation_name;
        if !name.is_null() && std::slice::from_raw_parts(name, OWN_NAME.len()) == OWN_NAME {
            std::ptr::copy_nonoverlapping(RUNNERS_NAME.as_ptr(), name, RUNNERS_NAME.len());
        }
    }
}
