//! Finds Python interpreters for tests, which are skipped if the interpreter is missing, and imitates a machine that
//! does not allow copies of a zygote (`refuse_copies`).

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::repository;

/// Returns an interpreter that can import `modules` (names separated by commas). It prefers the interpreter of the
/// virtual environment `target/ENVIRONMENT`, which `.ci/run` creates, to `python3`. Returns `None` if neither can
/// import the modules.
pub fn python_with(modules: &str, environment: &str) -> Option<PathBuf> {
    let made = repository().join("target").join(environment).join("bin/python3");
    [made, PathBuf::from("python3")].into_iter().find(|python| {
        let mut command = Command::new(python);
        let tried =
            command.args(["-c", &format!("import {modules}")]).stdout(Stdio::null()).stderr(Stdio::null());
        tried.status().is_ok_and(|status| status.success())
    })
}

/// Makes `PR_GET_TID_ADDRESS` fail for the command and all its descendants, as on a Linux without checkpoint support.
pub fn refuse_copies(command: &mut Command) {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let (load, jump_if_equal, return_action) = (0x20, 0x15, 0x06);
    // The filter's input has the number of the system call at offset 0, and the call's first argument at offset 16.
    let filter = [
        statement(load, 0, 0, 0),
        statement(jump_if_equal, 0, 3, u32::try_from(libc::SYS_prctl).expect("a number")),
        statement(load, 0, 0, 16),
        statement(jump_if_equal, 0, 1, u32::try_from(libc::PR_GET_TID_ADDRESS).expect("a number")),
        statement(return_action, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EINVAL.cast_unsigned()),
        statement(return_action, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: 6, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the second call only reads the program, which lives until the call returns.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec, the closure makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(install) };
}
