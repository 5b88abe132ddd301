//! The sandboxed process of a build, which locks itself down and then becomes the compiler.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;

use nix::sys::signal::{SigSet, Signal};

use super::compile_order::CompilerKind;
use super::frame::{FrameError, Reply, ToRunner, receive_from_worker, send_reply};
use crate::sandbox::confine::{self, Descriptors};
use crate::sandbox::policy;
use crate::sandbox::spawn::SOCKET_FD;

/// Signals that ask a program to end. A service manager may send one of them to all processes of a run at once.
const REQUESTS_TO_END: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Blocks `REQUESTS_TO_END` in the compiler and, unless they set a mask of their own, in the programs that it starts.
/// The supervisor and the worker can still end these processes, with SIGKILL, which cannot be blocked.
///
/// If a compiler got one of the blocked signals, it would remove its temporary files and then send the signal to
/// itself, which has no effect on the first process of a namespace. The compiler would therefore continue without its
/// files, and fail as if the source were wrong.
fn block_requests_to_end() -> std::io::Result<()> {
    Ok(REQUESTS_TO_END.into_iter().collect::<SigSet>().thread_block()?)
}

/// Locks this process down, and then becomes the compiler, or runs NVRTC or the recorder.
pub fn main() -> i32 {
    // SAFETY: the worker that started us put the socket here, and no other code uses it.
    let socket = unsafe { BorrowedFd::borrow_raw(SOCKET_FD) };
    let text = match become_compiler(socket) {
        Ok(code) => return code,
        Err(text) => text,
    };
    let _ = send_reply(socket, &Reply::Failed { text });
    2
}

/// Runs the compiler. If the compiler is not a program, returns the exit code. If it is a program, it replaces this
/// process's code, so this function returns only after an error.
fn become_compiler(socket: BorrowedFd<'_>) -> Result<i32, String> {
    let order = match receive_from_worker(socket) {
        Ok((ToRunner::Compile(order), _)) => order,
        Ok(_) => return Err("the first frame is not a compile order".to_owned()),
        Err(FrameError::Closed) => return Err("the worker is gone".to_owned()),
        Err(error) => return Err(opt_shared::causes::chain(&error)),
    };
    std::env::set_current_dir(&order.work).map_err(|error| format!("entering the work folder: {error}"))?;
    let descriptors = Descriptors { worker: socket, artifact: None, libraries: &[] };
    confine::lock_down(&policy::add_present_usage(order.confinement), &descriptors)
        .map_err(|error| opt_shared::causes::chain(&error))?;
    match order.kind {
        CompilerKind::Program => {}
        CompilerKind::Nvrtc => return super::nvrtc::compile(&order.program, &order.arguments),
        CompilerKind::Recorder => {
            let order = super::recorder::Order::read(&order.arguments)?;
            // The candidate runs in this process from here on. It must not speak to the worker, which would believe that
            // our own code has failed.
            // SAFETY: no code uses the descriptor after this; the function returns no error any more.
            drop(unsafe { OwnedFd::from_raw_fd(SOCKET_FD) });
            return Ok(order.record().unwrap_or_else(|text| {
                eprintln!("{text}");
                2
            }));
        }
    }
    // The compiler must not inherit the socket.
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| format!("marking the socket as close-on-exec: {errno}"))?;
    let mut compiler = std::process::Command::new(&order.program);
    compiler.args(&order.arguments);
    // SAFETY: the closure only changes the signal mask of this process, in which no other thread runs.
    unsafe { compiler.pre_exec(block_requests_to_end) };
    let error = compiler.exec();
    Err(format!("starting {}: {error}", order.program.as_os_str().as_bytes().escape_ascii()))
}
