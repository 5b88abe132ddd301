//! Decides which protections are present, by what the canary's sandboxed process could do. A protection is present if
//! its attempts had the expected answers, and neither the lock-down nor the start of the process reported it as
//! missing.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;

use opt_shared::message::CANARY_ARGUMENT;
use opt_shared::protection::{PROTECTIONS, Protection, ProtectionKind};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::confined::GROWING_FD;
use crate::sandbox::handle::{End, RunnerHandle};
use crate::sandbox::spawn::SOCKET_FD;
use crate::sandbox::spawn::{Namespaces, spawn_runner};

const MAX_OUTPUT: u64 = 64 << 10;

/// The sandboxed process's output and the way it ended.
#[derive(Debug, Default)]
struct CanaryOutput {
    /// The answer to each attempt, by the attempt's name.
    answers: BTreeMap<String, String>,
    /// The protections that the lock-down and the start of the process reported as present or missing.
    claims: Vec<Protection>,
}

/// Runs a canary, and returns every protection that attempts can test. If the canary cannot be run, all of them count
/// as missing.
pub(super) fn protections() -> Vec<Protection> {
    match run_canary() {
        Ok(canary) => judge(&canary),
        Err(why) => PROTECTIONS
            .iter()
            .filter(|kind| !kind.attempts.is_empty())
            .map(|kind| Protection::new(kind.name, false, format!("the canary could not be run: {why}")))
            .collect(),
    }
}

/// Decides, for every protection that attempts can test, whether it is present.
fn judge(canary: &CanaryOutput) -> Vec<Protection> {
    let provable = PROTECTIONS.iter().filter(|kind| !kind.attempts.is_empty());
    let protections = provable.map(|ProtectionKind { name, attempts, .. }| {
        let claim = canary.claims.iter().find(|claim| claim.name == *name);
        if let Some(absent) = claim.filter(|claim| !claim.present) {
            return absent.clone();
        }
        let unexpected = attempts.iter().find_map(|(attempt, allowed)| {
            let answer = canary.answers.get(*attempt).map_or("nothing", String::as_str);
            (!allowed.contains(&answer))
                .then(|| format!("the attempt `{attempt}` was answered with {answer}, not {}", allowed[0]))
        });
        match unexpected {
            Some(unexpected) => {
                let error = canary.answers.get("error").map_or(unexpected, Clone::clone);
                Protection::new(name, false, error)
            }
            None => Protection::new(name, true, claim.map(|claim| claim.detail.clone()).unwrap_or_default()),
        }
    });
    protections.collect()
}

fn run_canary() -> Result<CanaryOutput, String> {
    let text = |action: &'static str| move |error: rustix::io::Errno| format!("{action}: {error}");
    let executable =
        File::open("/proc/self/exe").map_err(|error| format!("opening our executable: {error}"))?;
    let null = File::open("/dev/null").map_err(|error| format!("opening /dev/null: {error}"))?;
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(text("opening a pipe"))?;
    let (_ours, socket) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(text("opening a socket"))?;
    let growing = memfd_create("opt-canary", MemfdFlags::CLOEXEC).map_err(text("creating a memory file"))?;
    let segment = Segment::create();
    let arguments = [
        CANARY_ARGUMENT.to_owned(),
        "attempt".to_owned(),
        segment.id.to_string(),
        std::process::id().to_string(),
    ]
    .map(|text| CString::new(text).unwrap_or_default());
    let mut all = vec![c"opt-canary"];
    all.extend(arguments.iter().map(CString::as_c_str));
    let mut runner: RunnerHandle = spawn_runner(
        executable.as_fd(),
        &all,
        &[],
        &[(null.as_fd(), 0), (write.as_fd(), 1), (growing.as_fd(), GROWING_FD), (socket.as_fd(), SOCKET_FD)],
        Namespaces::ALL,
    )
    .map_err(|error| opt_shared::causes::chain(&error))?
    .into();
    drop((write, socket));
    let mut output = String::new();
    File::from(read)
        .take(MAX_OUTPUT)
        .read_to_string(&mut output)
        .map_err(|error| format!("reading the canary's output: {error}"))?;
    let end = runner.reap().map_err(|error| opt_shared::causes::chain(&error))?;
    let mut canary = parse_output(&output, end);
    canary.claims.extend(runner.protections().iter().cloned());
    Ok(canary)
}

fn parse_output(output: &str, end: End) -> CanaryOutput {
    let mut canary = CanaryOutput::default();
    for line in output.lines() {
        if let Some(protection) = line.strip_prefix("protection ").and_then(Protection::from_line) {
            canary.claims.push(protection);
        } else if let Some((name, answer)) = line.split_once('=') {
            canary.answers.insert(name.to_owned(), answer.to_owned());
        }
    }
    // The overflow is the last attempt, and this line announces it. If the process died before that, the line is
    // missing.
    if let Some(overflow) = canary.answers.get_mut("overflow") {
        *overflow = match end {
            End::Signalled { signal: libc::SIGSEGV } => "SIGSEGV".to_owned(),
            other => format!("{other:?}"),
        };
    }
    canary
}

/// A System V segment. Linux removes it when the last process that has it attached, which is this one, ends.
struct Segment {
    id: i32,
}

impl Segment {
    fn create() -> Self {
        // SAFETY: our own segment, attached at an address that Linux chooses and not used.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, 1, 0o600);
            libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            Self { id }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "map_within=ok\nmap_beyond=ENOMEM\nheap_beyond=ENOMEM\nreserve_beyond=ENOMEM\n\
        protection +memory_limit: 9.00 MiB\nprotection -own_user: not root\nbecome_root=EPERM\noverflow=begins\n";

    fn protection(output: &str, end: End, name: &str) -> Protection {
        judge(&parse_output(output, end))
            .into_iter()
            .find(|protection| protection.name == name)
            .expect("a protection that is tried")
    }

    #[test]
    fn protection_is_present_if_attempts_to_break_it_failed() {
        let segv = End::Signalled { signal: libc::SIGSEGV };
        assert_eq!(
            protection(OUTPUT, segv, "memory_limit"),
            Protection::new("memory_limit", true, "9.00 MiB")
        );
        let broken = OUTPUT.replace("heap_beyond=ENOMEM", "heap_beyond=ok");
        let it = protection(&broken, segv, "memory_limit");
        assert!(!it.present && it.detail.contains("`heap_beyond` was answered with ok"), "{it:?}");
        assert_eq!(protection(OUTPUT, segv, "own_user"), Protection::new("own_user", false, "not root"));
        assert!(!protection(OUTPUT, segv, "session").present, "the output does not mention it");
        assert!(protection(OUTPUT, segv, "stack_limit").present);
        assert!(!protection(OUTPUT, End::Exited { code: 0 }, "stack_limit").present, "it survived");
        assert!(!protection("", segv, "stack_limit").present, "it died before the attempt");
        assert!(protection("error=no filter\n", segv, "files").detail.contains("no filter"));
    }
}
