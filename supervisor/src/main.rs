//! Decides by the first argument what a process of this executable does: it runs the command line for people, or it
//! becomes a worker, runner, zygote, compiler or canary.
//!
//! In this crate, the worker library is used only in this file.

use std::process::ExitCode;

use opt_shared::device::Device;
use opt_shared::message::{CANARY_ARGUMENT, Role, WORKER_ARGUMENT};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    let first = first.as_deref().and_then(|argument| argument.to_str());
    match first {
        Some(argument) if argument == WORKER_ARGUMENT => worker(arguments),
        Some(argument) if Some(argument) == opt_worker::RUNNER_ARGUMENT.to_str().ok() => {
            end(opt_worker::runner_main())
        }
        Some(argument) if Some(argument) == opt_worker::COMPILER_ARGUMENT.to_str().ok() => {
            end(opt_worker::compiler_main())
        }
        Some(argument) if Some(argument) == opt_worker::ZYGOTE_ARGUMENT.to_str().ok() => {
            end(opt_worker::zygote_main())
        }
        Some(argument) if argument == CANARY_ARGUMENT => {
            let arguments: Vec<String> =
                arguments.filter_map(|argument| argument.into_string().ok()).collect();
            end(opt_worker::canary_main(&arguments))
        }
        _ => {
            opt_supervisor::signal::notice_children();
            opt_worker::heap::return_blocks_from(opt_worker::heap::SUPERVISOR);
            opt_worker::heap::share_one_heap();
            ExitCode::from(opt_supervisor::cli::main())
        }
    }
}

fn worker(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let mut text = || arguments.next().and_then(|argument| argument.into_string().ok());
    let role = text().as_deref().and_then(Role::from_name);
    let supervisor = text().and_then(|pid| pid.parse().ok());
    let device = text().as_deref().and_then(Device::from_name);
    // The role is only shown in lists of processes. A worker's work is determined by the tasks that it is sent.
    let (Some(role), Some(supervisor), Some(device)) = (role, supervisor, device) else {
        eprintln!("error: a worker is started by the supervisor, not by hand");
        return ExitCode::from(2);
    };
    let name = match role {
        Role::Verifier => c"opt-verifier",
        Role::Profiler => c"opt-profiler",
    };
    // Without this call, the name would be the number of the descriptor through which the program was started.
    let _ = rustix::thread::set_name(name);
    match opt_worker::serve::main(supervisor, device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is the worker's log in the run folder.
            eprintln!("{:#}", anyhow::Error::new(error));
            ExitCode::FAILURE
        }
    }
}

fn end(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
