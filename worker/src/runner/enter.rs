//! The assembly function through which our code calls the candidate's function, and which no exception can leave.
//!
//! An uncaught C++ exception must end in `std::terminate`, which prints the exception. The search for a handler ends at
//! the frame of this function, because the frame has no unwinding information. Otherwise, the search would reach the
//! frame with which Rust guards `main`, and which prints only that it cannot catch foreign exceptions.

use std::ffi::c_void;

use super::abi::{Any, Function};

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.opt_enter_candidate,\"ax\",@progbits",
    ".hidden opt_enter_candidate",
    ".global opt_enter_candidate",
    ".type opt_enter_candidate, @function",
    "opt_enter_candidate:",
    // The first four arguments stay in their registers, and the fifth is the function. The stack is aligned for a call.
    "push rbp",
    "mov rbp, rsp",
    "call r8",
    "pop rbp",
    "ret",
    ".size opt_enter_candidate, . - opt_enter_candidate",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.opt_enter_candidate,\"ax\",@progbits",
    ".hidden opt_enter_candidate",
    ".global opt_enter_candidate",
    ".type opt_enter_candidate, @function",
    "opt_enter_candidate:",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "blr x4",
    "ldp x29, x30, [sp], #16",
    "ret",
    ".size opt_enter_candidate, . - opt_enter_candidate",
    ".popsection",
);

unsafe extern "C" {
    /// Calls `function` with the four arguments before it.
    ///
    /// # Safety
    /// The requirements for calling `function` apply.
    #[link_name = "opt_enter_candidate"]
    pub(super) fn enter(
        this: *mut c_void,
        arguments: *const Any,
        count: i32,
        returned: *mut Any,
        function: Function,
    ) -> i32;
}
