//! A hand-written seccomp program that refuses system calls regardless of their arguments.
//!
//! When a program is installed, Linux runs it once for each call number. `seccompiler` needs five instructions for each
//! refused call, but this program needs only two, so runners start faster. Calls through the x32 interface fail with
//! ENOSYS, and a call through the interface of another architecture kills the process.

use seccompiler::{BpfProgram, sock_filter};

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCHITECTURE: u32 = 0xC000_00B7;

/// The bit that marks an x32 call in its number. Such calls have x86-64's architecture word, so without a check of this
/// bit no rule would match them.
const X32_BIT: u32 = 0x4000_0000;

/// Offsets of two words in the data that Linux passes to a program.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;

const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Returns a program that makes each of these calls fail with its error, or seem to succeed if the error is 0. The
/// program allows all other native calls.
pub(super) fn program(refusals: impl Iterator<Item = (i64, i32)>) -> BpfProgram {
    let error = |errno: i32| give(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned());
    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        // `jt` and `jf` are the numbers of instructions to skip if the condition is true or false. The instruction
        // after a jump returns the verdict.
        sock_filter { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: AUDIT_ARCHITECTURE },
        give(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER_OFFSET),
        sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32_BIT },
        error(libc::ENOSYS),
    ];
    for (number, errno) in refusals {
        // Call numbers are small and not negative, so none is skipped here.
        let Ok(number) = u32::try_from(number) else { continue };
        program.push(sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: 1, k: number });
        program.push(error(errno));
    }
    program.push(give(libc::SECCOMP_RET_ALLOW));
    program
}

const fn load(offset: u32) -> sock_filter {
    sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: offset }
}

const fn give(answer: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the four kinds of instructions that occur in the program, as Linux would.
    fn run(program: &[sock_filter], number: u32, architecture: u32) -> u32 {
        let (mut next, mut word) = (0, 0);
        loop {
            let instruction = &program[next];
            next += 1;
            let taken = match instruction.code {
                LOAD_WORD => {
                    word = if instruction.k == NUMBER_OFFSET { number } else { architecture };
                    continue;
                }
                RETURN => return instruction.k,
                JUMP_IF_EQUAL => word == instruction.k,
                JUMP_IF_AT_LEAST => word >= instruction.k,
                other => panic!("instruction {other:#x}"),
            };
            next += usize::from(if taken { instruction.jt } else { instruction.jf });
        }
    }

    #[test]
    fn each_number_gets_its_answer() {
        let program = program([(57, libc::EPERM), (435, libc::ENOSYS), (0, libc::EPERM)].into_iter());
        let error = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
        for (number, architecture, answer) in [
            (57, AUDIT_ARCHITECTURE, error(libc::EPERM)),
            (0, AUDIT_ARCHITECTURE, error(libc::EPERM)),
            (435, AUDIT_ARCHITECTURE, error(libc::ENOSYS)),
            (1, AUDIT_ARCHITECTURE, libc::SECCOMP_RET_ALLOW),
            (434, AUDIT_ARCHITECTURE, libc::SECCOMP_RET_ALLOW),
            (X32_BIT + 1, AUDIT_ARCHITECTURE, error(libc::ENOSYS)),
            (u32::MAX, AUDIT_ARCHITECTURE, error(libc::ENOSYS)),
            (1, 0x4000_0003, libc::SECCOMP_RET_KILL_PROCESS),
        ] {
            assert_eq!(run(&program, number, architecture), answer, "{number} of {architecture:#x}");
        }
    }
}
