//! The seccomp filter, which denies certain system calls to a sandboxed process, some of them only with certain
//! arguments.
//!
//! Most refused calls fail with EPERM, so that the candidate can handle the error. A few fail with ENOSYS, so that the
//! C library falls back to an older call. If the sandboxed process is a compiler, calls that change attributes of files
//! do nothing but report success. The filter is a deny list, because a newer C library may need calls that an allow
//! list does not contain.
//!
//! The filter consists of two programs. The one from `by_number` refuses calls regardless of their arguments, and kills
//! a process that makes calls through the interface of another architecture. A program built by `seccompiler` refuses
//! calls with certain arguments.

use std::collections::BTreeMap;

use opt_shared::message::Protection;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::by_number;
use super::call_table::{self as table, Call};
use super::{ConfineError, Confinement, SandboxKind, affinity, protection};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;

/// `fcntl` commands that lock a range of a file. They are refused because each lock uses kernel memory and the number
/// of locks is not limited.
const FCNTL_LOCKS: [u64; 4] =
    [libc::F_SETLK as u64, libc::F_SETLKW as u64, libc::F_OFD_SETLK as u64, libc::F_OFD_SETLKW as u64];

/// `fcntl` commands that lease files, enlarge pipes, seal memory files, or make Linux send signals.
const FCNTL_REFUSED: [u64; 7] = [
    libc::F_SETOWN as u64,
    // F_SETSIG and F_SETOWN_EX, which not every C library defines. With them, a candidate could make Linux continue a
    // stopped runner when there is activity on a descriptor.
    10,
    15,
    libc::F_SETLEASE as u64,
    libc::F_NOTIFY as u64,
    libc::F_SETPIPE_SZ as u64,
    // If a candidate sealed its output, the worker's own writes would fail, and the worker would be blamed.
    libc::F_ADD_SEALS as u64,
];

const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
/// The `ioctl` requests that do the same as F_SETOWN and O_ASYNC, and TIOCSTI, which injects input into a terminal.
const IOCTL_REFUSED: [u64; 4] = [FIOSETOWN, SIOCSPGRP, libc::FIOASYNC, libc::TIOCSTI];

/// TCGETS2 for the generic layout of `termios2`. Newer C libraries use this request in `isatty`.
const TCGETS2: u64 = 0x802c_542a;
/// The `ioctl` requests that a candidate without device nodes may make. They are those behind `isatty`, the size of a
/// terminal, the number of unread bytes, non-blocking streams and close-on-exec. This is an allow list, because file
/// systems and newer versions of Linux add requests that change files or allocate kernel memory.
const IOCTL_ALLOWED: [u64; 7] =
    [libc::TCGETS, TCGETS2, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX];

/// `prctl` options that would undo the lock-down, or that affect more than the sandboxed process.
const PRCTL_REFUSED: [u64; 7] = [
    libc::PR_SET_PDEATHSIG as u64,
    libc::PR_SET_DUMPABLE as u64,
    libc::PR_SET_PTRACER as u64,
    libc::PR_SET_MM as u64,
    // Would keep other processes off the other hardware thread of the same core.
    libc::PR_SCHED_CORE as u64,
    // Would make Linux scan and merge the process's memory, even while other candidates are being timed.
    PR_SET_MEMORY_MERGE,
    // Would make Linux allocate up to a gigabyte of kernel memory (since 6.16).
    PR_FUTEX_HASH,
];
const PR_SET_MEMORY_MERGE: u64 = 67;
const PR_FUTEX_HASH: u64 = 78;
const PR_SVE_GET_VL: u64 = 51;
const PR_SME_GET_VL: u64 = 64;

/// The `prctl` options that a candidate may use. This is an allow list, because newer versions of Linux add options
/// that allocate kernel memory or affect other processes.
const PRCTL_ALLOWED: [u64; 15] = [
    libc::PR_GET_PDEATHSIG as u64,
    libc::PR_GET_DUMPABLE as u64,
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_GET_SECCOMP as u64,
    libc::PR_CAPBSET_READ as u64,
    libc::PR_SET_TIMERSLACK as u64,
    libc::PR_GET_TIMERSLACK as u64,
    libc::PR_SET_NO_NEW_PRIVS as u64,
    libc::PR_GET_NO_NEW_PRIVS as u64,
    libc::PR_SET_THP_DISABLE as u64,
    libc::PR_GET_THP_DISABLE as u64,
    // Queries for the length of vector registers, which libraries make on aarch64.
    PR_SVE_GET_VL,
    PR_SME_GET_VL,
    // Sets the name of a mapping, as some allocators do. This takes at most 80 bytes for each mapping.
    libc::PR_SET_VMA as u64,
];

/// The flags of mmap that determine the kind of a mapping.
const MAP_KIND: u64 = (libc::MAP_TYPE | libc::MAP_ANONYMOUS) as u64;
/// The kind of a shared anonymous mapping. The memory of such a mapping can stay allocated after it has been unmapped,
/// and samples of resident memory then miss it.
const MAP_SHARED_ANONYMOUS: u64 = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;

/// The flag of a mapping that grows like a stack. Linux does not count such mappings towards the limit on private
/// memory.
const MAP_GROWSDOWN: u64 = libc::MAP_GROWSDOWN as u64;

/// The flag with which `close_range` gives the calling thread a descriptor table of its own. It is refused because the
/// limit on descriptors applies to each table separately.
const CLOSE_RANGE_UNSHARE: u64 = 2;

/// The `clone` flags that create a namespace, or that create a sibling instead of a child.
const CLONE_REFUSED: [u64; 8] = [
    libc::CLONE_NEWNS as u64,
    libc::CLONE_NEWCGROUP as u64,
    libc::CLONE_NEWUTS as u64,
    libc::CLONE_NEWIPC as u64,
    libc::CLONE_NEWUSER as u64,
    libc::CLONE_NEWPID as u64,
    libc::CLONE_NEWNET as u64,
    libc::CLONE_PARENT as u64,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filter's programs for the rest of the process's life. Requires no_new_privs.
pub(super) fn restrict(confinement: &Confinement) -> Result<Protection, ConfineError> {
    let programs =
        programs(confinement, std::process::id()).map_err(|source| ConfineError::Filter { source })?;
    let mut instructions = 0;
    // The program from `by_number` comes last. For a candidate, it refuses `seccomp`, so no program could be installed
    // after it.
    for program in &programs {
        install(program)?;
        instructions += program.len();
    }
    Ok(protection("system_calls", true, format!("{instructions} instructions")))
}

fn programs(confinement: &Confinement, own_pid: u32) -> Result<Vec<BpfProgram>, BackendError> {
    let mut refused = Refusals::default();
    for group in
        [table::NETWORK, table::MEMORY, table::CHANNELS, table::OTHER_PROCESSES, table::ADMINISTRATION]
    {
        refused.always(group);
    }
    for option in PRCTL_REFUSED {
        refused.when(table::PRCTL, &[(0, equals(option))])?;
    }
    for request in IOCTL_REFUSED {
        refused.when(table::IOCTL, &[(1, equals(request))])?;
    }
    for option in FCNTL_REFUSED {
        refused.when(table::FCNTL, &[(1, equals(option))])?;
    }
    // A message with an address could reach another socket. Without one, it can only go through the inherited socket.
    refused.when(table::SENDTO, &[(4, differs_wide(0))])?;
    // Pid 0 means the calling process.
    refused.when(table::PRLIMIT64, &[(0, differs(0))])?;

    // A filter cannot read the arguments of `clone3` and `openat2`, because they are behind a pointer. These calls fail
    // with ENOSYS, which makes the C library fall back to the older calls.
    refused.always_with(&[table::CLONE3], libc::ENOSYS);
    match confinement.kind {
        SandboxKind::Candidate => {
            add_candidate_refusals(&mut refused, own_pid)?;
            // A candidate with device nodes must be able to open them for writing. So in this case, only Landlock
            // restricts which files it can open.
            if confinement.file_access.writable.is_empty() {
                refuse_opening_for_writing(&mut refused)?;
                // A candidate with device nodes may make shared anonymous mappings, because a driver shares memory with
                // its device.
                refused.when(table::MMAP, &[(3, masked(MAP_KIND, MAP_SHARED_ANONYMOUS))])?;
                refused.always_with(&[table::OPENAT2], libc::ENOSYS);
                // With device nodes, only `IOCTL_REFUSED` applies, because drivers define their own requests.
                refused.unless(table::IOCTL, 1, &IOCTL_ALLOWED)?;
            }
        }
        SandboxKind::Compiler => {
            for flag in CLONE_REFUSED {
                refused.when(table::CLONE, &[(0, has(flag))])?;
            }
            // A compiler runs as the supervisor's user and may execute the source (`triton-device`), so these calls
            // must change nothing. They seem to succeed, because linkers and scripts set modes and times.
            refused.always_with(table::FILE_ATTRIBUTES, 0);
        }
    }

    Ok(vec![compile(refused.rules, libc::EPERM)?, by_number::program(refused.always.into_iter())])
}

fn add_candidate_refusals(refused: &mut Refusals, own_pid: u32) -> Result<(), BackendError> {
    for group in [
        table::PROCESSES,
        table::TIMERS_AND_LIMITS,
        table::UNLIMITED_MEMORY_CALLS,
        table::DISTURBANCES,
        table::FILE_CHANGES,
        table::FILE_ATTRIBUTES,
    ] {
        refused.always(group);
    }
    refused.unless(table::PRCTL, 0, &PRCTL_ALLOWED)?;
    // For a mapping of a file, MADV_WILLNEED does the same as `readahead`. With MADV_MERGEABLE, Linux would scan the
    // memory, even while other processes are timed.
    for advice in [libc::MADV_WILLNEED, libc::MADV_MERGEABLE] {
        refused.when(table::MADVISE, &[(2, equals(word(advice)))])?;
    }
    refused.when(table::MMAP, &[(3, has(MAP_GROWSDOWN))])?;
    refused.when(table::CLOSE_RANGE, &[(2, has(CLOSE_RANGE_UNSHARE))])?;
    for option in FCNTL_LOCKS {
        refused.when(table::FCNTL, &[(1, equals(option))])?;
    }
    if affinity::can_gain_cpus() {
        refused.always(&[table::SCHED_SETAFFINITY]);
    }
    // A thread may be created only if it shares its creator's table of descriptors, because the limit on descriptors
    // applies to each table separately.
    for flag in [libc::CLONE_THREAD, libc::CLONE_FILES] {
        refused.when(table::CLONE, &[(0, lacks(word(flag)))])?;
    }
    // A thread that waits for its clone cannot be stopped before the clone ends, so the clone could keep working after
    // the worker has stopped the process and the clock.
    refused.when(table::CLONE, &[(0, has(word(libc::CLONE_VFORK)))])?;
    // Reading a limit is allowed. Setting one is not, because RLIMIT_CPU could cause a SIGKILL that looks as if the
    // worker had sent it.
    refused.when(table::PRLIMIT64, &[(2, differs_wide(0))])?;
    let own_pid = u64::from(own_pid);
    for call in [table::KILL, table::TKILL, table::TGKILL, table::RT_SIGQUEUEINFO, table::RT_TGSIGQUEUEINFO] {
        refused.when(call, &[(0, differs(own_pid))])?;
    }
    // A candidate cannot send SIGKILL, SIGSTOP or SIGCONT to itself. So if it gets one of them, it came from outside.
    for (call, argument) in [
        (table::KILL, 1),
        (table::TKILL, 1),
        (table::TGKILL, 2),
        (table::RT_SIGQUEUEINFO, 1),
        (table::RT_TGSIGQUEUEINFO, 2),
    ] {
        for signal in [libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT] {
            refused.when(call, &[(argument, equals(word(signal)))])?;
        }
    }
    // Unless each runner has its own user, a candidate runs as the same user as the runner of its baseline, and could
    // change the priority of that runner.
    refused.when(table::SETPRIORITY, &[(0, differs(libc::PRIO_PROCESS.into()))])?;
    refused.when(table::SETPRIORITY, &[(1, differs(0))])?;
    refused.when(table::IOPRIO_SET, &[(1, differs(0))])?;
    for call in [table::SCHED_SETPARAM, table::SCHED_SETSCHEDULER] {
        refused.when(call, &[(0, differs(0))])?;
    }
    Ok(())
}

/// Adds rules that refuse to open files for writing. These rules work even where Landlock is missing.
fn refuse_opening_for_writing(refused: &mut Refusals) -> Result<(), BackendError> {
    for (call, argument) in [(table::OPEN, 1), (table::OPENAT, 2)] {
        for flag in [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC] {
            refused.when(call, &[(argument, has(word(flag)))])?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Refusals {
    /// The calls that are refused regardless of their arguments, with their errors.
    always: BTreeMap<i64, i32>,
    /// The calls that are refused if their arguments match.
    rules: Rules,
}

/// A comparison with an argument: its width, its operator, and the value to compare with.
type Test = (SeccompCmpArgLen, SeccompCmpOp, u64);

/// Zero-extends a C `int` argument. Only its lower 32 bits are compared.
fn word(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}

const fn equals(value: u64) -> Test {
    (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

const fn differs(value: u64) -> Test {
    (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

/// Requires that an argument differs from `value`. Compares all 64 bits, because pointers have that many.
const fn differs_wide(value: u64) -> Test {
    (SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, value)
}

const fn has(flag: u64) -> Test {
    masked(flag, flag)
}

const fn lacks(flag: u64) -> Test {
    masked(flag, 0)
}

const fn masked(flags: u64, value: u64) -> Test {
    (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(flags), value)
}

impl Refusals {
    fn always(&mut self, calls: &[Call]) {
        self.always_with(calls, libc::EPERM);
    }

    fn always_with(&mut self, calls: &[Call], errno: i32) {
        self.always.extend(calls.iter().filter_map(Call::number).map(|number| (number, errno)));
    }

    /// Adds a rule that refuses the call if all tests match. A call that has several rules is refused if one of them
    /// matches.
    fn when(&mut self, call: Call, tests: &[(u8, Test)]) -> Result<(), BackendError> {
        let Some(number) = call.number() else { return Ok(()) };
        let conditions = tests
            .iter()
            .map(|(argument, (length, operator, value))| {
                SeccompCondition::new(*argument, length.clone(), operator.clone(), *value)
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.rules.entry(number).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    }

    /// Refuses the call unless an argument has one of the allowed values. Only the lower 32 bits are compared.
    fn unless(&mut self, call: Call, argument: u8, allowed: &[u64]) -> Result<(), BackendError> {
        let tests: Vec<(u8, Test)> = allowed.iter().map(|&value| (argument, differs(value))).collect();
        self.when(call, &tests)
    }
}

fn compile(rules: Rules, errno: i32) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno.cast_unsigned()),
        ARCHITECTURE,
    )?
    .try_into()
}

/// Installs a program for this thread and everything that it starts.
pub(super) fn install(program: &BpfProgram) -> Result<(), ConfineError> {
    // `seccompiler::apply_filter` does not set this flag. Before Linux 5.16, a filter without it also turns on
    // mitigations against speculative execution for the process, which would slow down the code that is timed.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let header = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: Linux only reads memory here. It copies `len` instructions from `filter`. They belong to `program`, which
    // outlives the call, and `sock_filter` has the layout of the C struct.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const header) };
    if result == 0 { Ok(()) } else { Err(ConfineError::last_os("filtering system calls")) }
}
