//! A zygote is an interpreter that has imported torch and waits, so that runners can be copied from it.
//!
//! ```text
//! main ── Host ──▶ import torch ──▶ Ready ── Clone ──▶ a copy, which becomes a runner
//!                                     ▲───── Cloned ──┘
//! ```
//!
//! Making a copy takes milliseconds, whereas an import of torch takes more than a second. The zygote never runs a
//! candidate's code. It communicates only with its worker, over a socket that the copies close, and it ends when its
//! worker ends. It has a single thread, because only the calling thread survives a clone.

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use opt_shared::causes::chain;
use opt_shared::message::Protection;
use rustix::process::DumpableBehavior::{Dumpable, NotDumpable};
use rustix::process::set_dumpable_behavior;
use serde::{Deserialize, Serialize};

use super::frame::{FrameError, Python, receive_frame, send_frame};
use super::huge_pages::HugePages;
use super::python::{self, Interpreter};
use super::serve;
use crate::sandbox::confine;
use crate::sandbox::sibling::{Sibling, clone_sibling};
use crate::sandbox::spawn::{Namespaces, SOCKET_FD, gaps_between};

/// The number of descriptors that come with a `Clone` message: a runner's standard streams, its socket and its control
/// page, in the order of their final numbers.
pub(crate) const RUNNER_DESCRIPTORS: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToZygote {
    /// The first message. It names the interpreter to host.
    Host(Python),
    /// Orders a copy, which gets the descriptors of this message.
    Clone { namespaces: Namespaces, start: Start },
    /// Orders the zygote to move some of its memory into huge pages. The zygote sends no answer.
    UseHugePages,
}

/// The moment at which a copy becomes a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Start {
    AtOnce,
    /// The copy becomes a runner when the worker has sent `Wake` over the runner's socket. A candidate may be running
    /// until then, so no other process may read or trace the copy. The copy answers with `Awake`.
    WhenWoken,
}

/// The frames that a worker and a copy that was made in advance exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ahead {
    Wake,
    Awake,
}

/// A zygote's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromZygote {
    /// The zygote is ready to be copied.
    Ready,
    /// The zygote cannot be copied, so it ends.
    Failed { text: String },
    /// A copy was made, and its pidfd is attached. `pid` is valid in the worker's namespace.
    Cloned { pid: u32, namespaces: Namespaces, protections: Vec<Protection> },
    /// No copy was made.
    Refused { text: String },
}

pub fn main() -> i32 {
    // SAFETY: the worker that started us opened this descriptor for us, and no other code uses it.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET_FD) };
    if let Err(error) = confine::tie_to_worker(socket) {
        return failure(socket, &chain(&error));
    }
    match receive_frame(socket) {
        Ok((ToZygote::Host(python), _)) => python::host(
            &python,
            Box::new(move |interpreter| match interpreter {
                Ok(interpreter) => wait(socket, interpreter),
                Err(text) => failure(socket, &text),
            }),
        ),
        Ok(_) => failure(socket, "the first frame does not name an interpreter"),
        Err(FrameError::Closed) => 0,
        Err(error) => failure(socket, &chain(&error)),
    }
}

fn failure(socket: BorrowedFd<'_>, text: &str) -> i32 {
    // If this fails, the worker is gone and needs no message.
    let _ = send_frame(socket, &FromZygote::Failed { text: text.to_owned() }, &[]);
    2
}

/// Copies this process each time the worker orders a copy. Returns in the zygote when the zygote must end. Also returns
/// in each copy, after the copy has become a runner and that runner has ended.
fn wait(socket: BorrowedFd<'static>, interpreter: Interpreter) -> i32 {
    let threads = confine::threads();
    if 1 < threads {
        return failure(
            socket,
            &format!("importing torch left {threads} threads, and only one survives a clone"),
        );
    }
    if let Err(text) = interpreter.rehearse() {
        return failure(socket, &format!("the interpreter cannot run a kernel: {text}"));
    }
    let mut huge_pages = HugePages::of_this_process();
    let mut answer = FromZygote::Ready;
    let mut pidfd: Option<OwnedFd> = None;
    loop {
        let sent = send_frame(socket, &answer, pidfd.as_ref().map(AsFd::as_fd).as_slice());
        // The next copy must not inherit the pidfd of this one.
        drop(pidfd.take());
        if sent.is_err() {
            return 0;
        }
        let (namespaces, start, descriptors) = loop {
            match receive_frame(socket) {
                Ok((ToZygote::UseHugePages, _)) => huge_pages.step(),
                Ok((ToZygote::Clone { namespaces, start }, descriptors))
                    if descriptors.len() == RUNNER_DESCRIPTORS =>
                {
                    break (namespaces, start, descriptors);
                }
                Ok(_) => return failure(socket, "the worker sent a frame that does not order a copy"),
                Err(FrameError::Closed) => return 0,
                Err(error) => return failure(socket, &chain(&error)),
            }
        };
        if start == Start::AtOnce {
            // The worker must be able to read a runner's /proc files until the runner locks down, and a copy inherits
            // this setting.
            let _ = set_dumpable_behavior(Dumpable);
        }
        // If the streams were not flushed here, every copy would print again what the modules printed during their
        // import.
        super::stdout::flush();
        // SAFETY: the process has one thread, as was checked above, and only this code has run since then. Below, the
        // copy closes the descriptors that it shares with the zygote.
        let cloned = unsafe {
            interpreter
                .around_clone(|| clone_sibling(namespaces), |cloned| matches!(cloned, Ok(Sibling::Copy)))
        };
        (answer, pidfd) = match cloned {
            Ok(Sibling::Copy) => {
                move_to_final_numbers(descriptors);
                rename_to_runner();
                if start == Start::WhenWoken {
                    // If the rehearsal fails, the candidate only starts more slowly.
                    let _ = interpreter.rehearse();
                    if wait_to_be_woken(socket).is_err() {
                        // The worker has closed the socket, because it has ended or does not need this copy.
                        return 0;
                    }
                }
                return serve::begin(Some(interpreter));
            }
            Ok(Sibling::Original(runner)) => {
                let (pid, namespaces) = (runner.pid, runner.namespaces_used);
                let protections = runner.protections;
                (FromZygote::Cloned { pid, namespaces, protections }, Some(runner.pidfd))
            }
            Err(error) => (FromZygote::Refused { text: chain(&error) }, None),
        };
        let _ = set_dumpable_behavior(NotDumpable);
    }
}

/// In a copy that was made in advance: waits until the copy is needed. The copy's socket has the same number as the
/// zygote's.
fn wait_to_be_woken(socket: BorrowedFd<'_>) -> Result<(), FrameError> {
    let (Ahead::Wake, _) = receive_frame(socket)? else {
        return Err(FrameError::Malformed { what: "order" });
    };
    let _ = set_dumpable_behavior(Dumpable);
    send_frame(socket, &Ahead::Awake, &[])
}

/// In a copy: moves these descriptors to the numbers 0 to 4, and closes all others, including the zygote's socket.
fn move_to_final_numbers(descriptors: Vec<OwnedFd>) {
    let numbers = 0..RUNNER_DESCRIPTORS;
    // The descriptors are first duplicated to numbers above the final ones, because a received descriptor may have a
    // number that another one must get.
    let received: Vec<RawFd> = descriptors.into_iter().map(IntoRawFd::into_raw_fd).collect();
    let kept_descriptors: Vec<RawFd> = numbers.filter_map(|number| RawFd::try_from(number).ok()).collect();
    // SAFETY: this process has just started, and these are its descriptors. The copy needs no other descriptor of the
    // zygote. The owners of the closed descriptors are neither used nor dropped, because this function's caller never
    // returns to the zygote's code.
    unsafe {
        let lifted: Vec<RawFd> = received
            .iter()
            .map(|&fd| {
                libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, RawFd::try_from(RUNNER_DESCRIPTORS).unwrap_or(0))
            })
            .collect();
        for (&from, &number) in lifted.iter().zip(&kept_descriptors) {
            libc::dup3(from, number, 0);
        }
        for (first, last) in gaps_between(kept_descriptors) {
            libc::syscall(libc::SYS_close_range, first, last, 0_u32);
        }
    }
}

unsafe extern "C" {
    /// The C library's pointer to this process's first argument. The other arguments follow this one in memory.
    static mut program_invocation_name: *mut u8;
}

/// The arguments of the zygote, as process listings show them.
const ZYGOTE_ARGUMENTS: &[u8] = b"opt-zygote\0__zygote\0";
/// The arguments that replace the zygote's in a runner. They have the same length.
const RUNNER_ARGUMENTS: &[u8; ZYGOTE_ARGUMENTS.len()] = b"opt-runner\0__runner\0";

/// In a copy: changes the arguments that process listings show to those of a runner.
fn rename_to_runner() {
    // SAFETY: the worker started this process with exactly these arguments, and they are still in place. The new
    // arguments have the same lengths.
    unsafe {
        let name = program_invocation_name;
        if !name.is_null() && std::slice::from_raw_parts(name, ZYGOTE_ARGUMENTS.len()) == ZYGOTE_ARGUMENTS {
            std::ptr::copy_nonoverlapping(RUNNER_ARGUMENTS.as_ptr(), name, RUNNER_ARGUMENTS.len());
        }
    }
}
