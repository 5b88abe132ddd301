//! Workers, runners and compilers, which are the processes that carry out what the supervisor decides.
//!
//! A worker (verifier or profiler) is trusted: it opens captures, compares outputs, reads the clock, and never loads a
//! candidate's host code. A runner is a separate process for one candidate. A compiler also runs in a sandboxed process
//! of its own. All of these processes start with the same executable, and a hidden first argument selects the role.

mod graphs;
pub mod heap;
mod interpreter;
pub mod judge;
mod launches;
mod link;
mod machine;
mod memfd;
mod oom;
mod page_cache;
mod recorded;
pub mod residency;
pub mod runner;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod stage;
mod toolchain;
mod wire;

use std::ffi::CStr;

/// Hidden first arguments of the processes that a worker starts.
pub const RUNNER_ARGUMENT: &CStr = c"__runner";
pub const COMPILER_ARGUMENT: &CStr = c"__compiler";
pub const ZYGOTE_ARGUMENT: &CStr = c"__zygote";

pub use runner::compiler::main as compiler_main;
pub use runner::serve::main as runner_main;
pub use runner::zygote::main as zygote_main;
pub use session::cuda::trial;
pub use session::host::read_ahead;

/// The entry point of canaries, which are short processes that test or query the machine before a run. A canary that
/// queries the machine prints one line: `yes` and a description, or `no` and the reason.
pub fn canary_main(arguments: &[String]) -> i32 {
    match arguments {
        [verb, named, path, launcher @ ..] if verb == opt_shared::message::ASK_INTERPRETER => {
            println!("{}", interpreter::describe(named, path.as_ref(), launcher == ["triton"]));
            0
        }
        [verb, named, path] if verb == opt_shared::message::ASK_EXECUTABLE => {
            println!("{}", interpreter::locate(named, path.as_ref()));
            0
        }
        [verb, device] if verb == opt_shared::message::ASK_DEVICE => {
            println!("{}", session::cuda::tell_card(device));
            0
        }
        [verb, folders @ ..] if verb == opt_shared::message::ASK_NVRTC => {
            let folders: Vec<std::path::PathBuf> = folders.iter().map(Into::into).collect();
            println!("{}", toolchain::nvrtc::describe(&folders));
            0
        }
        [verb, folders @ ..] if verb == opt_shared::message::ASK_NVCC => {
            let folders: Vec<std::path::PathBuf> = folders.iter().map(Into::into).collect();
            println!("{}", toolchain::cuda::describe(&folders));
            0
        }
        _ => sandbox::canary::main(arguments),
    }
}
