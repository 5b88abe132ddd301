//! Tests of the operations that a locked-down candidate is refused, and of those that still work.

use std::fs::File;
use std::os::fd::AsFd;

use nix::errno::Errno;
use opt_shared::protection::PROTECTIONS;

use super::super::{Descriptors, SandboxKind, lock_down};
use super::scenario::{
    ARTIFACT_FD, WORKER_FD, as_every_user, confinement, folder, inherited, library, start,
};
use crate::sandbox::canary::attempts;
use crate::sandbox::handle::End;
use crate::sandbox::spawn::Namespaces;

/// The attempts that are not in `PROTECTIONS`, each with the answers that are accepted. `ok` marks what must keep
/// working.
const EXPECTED: &[(&str, &[&str])] = &[
    ("clone3", &["ENOSYS"]),
    ("mremap", &["EPERM"]),
    ("ptrace", &["EPERM"]),
    ("io_uring", &["EPERM"]),
    ("userfaultfd", &["EPERM"]),
    ("unshare", &["EPERM"]),
    ("timer_create", &["EPERM"]),
    ("signal_on_input", &["EPERM"]),
    ("seal", &["EPERM"]),
    ("own_thread_priority", &["ok"]),
    ("priority_of_worker", &["EPERM"]),
    ("chmod", &["EPERM"]),
    ("lower_limit", &["EPERM"]),
    ("read_limit", &["ok"]),
    ("drop_death_signal", &["EPERM"]),
    ("become_dumpable", &["EPERM"]),
    ("kill_worker", &["EPERM"]),
    ("kill_all", &["EPERM"]),
    ("kill_self", &["EPERM"]),
    ("x32", &["ENOSYS"]),
    ("read_neighbour", &["EACCES"]),
    ("read_own_memory", &["EACCES"]),
    ("read_init_environment", &["EACCES"]),
    ("write_neighbour", &["EPERM"]),
    ("thread", &["ok"]),
    ("affinity", &["ok"]),
    ("shared_map", &["EPERM"]),
    ("vmsplice", &["EPERM"]),
    ("splice", &["EPERM"]),
    ("tee", &["EPERM"]),
    ("sendfile", &["EPERM"]),
    ("flock", &["EPERM"]),
    ("lock", &["EPERM"]),
    ("lock_of_description", &["EPERM"]),
    ("inotify", &["EPERM"]),
    ("own_rules", &["EPERM"]),
    ("own_filter", &["EPERM"]),
    ("own_filter_by_prctl", &["EPERM"]),
    ("timerfd", &["EPERM"]),
    ("readahead", &["EPERM"]),
    ("willneed", &["EPERM"]),
    ("grows_down", &["EPERM"]),
    ("shadow_stack", &["EPERM"]),
    ("futex_hash", &["EPERM"]),
    ("merge_memory", &["EPERM"]),
    ("mergeable", &["EPERM"]),
    ("unknown_option", &["EPERM"]),
    ("thread_name", &["ok"]),
    ("own_descriptors", &["EPERM"]),
    ("close_range", &["ok"]),
    ("thread_with_own_descriptors", &["EPERM"]),
    ("thread_that_is_waited_for", &["EPERM"]),
    ("own_scheduling", &["EPERM"]),
    ("file_flags", &["EPERM"]),
    ("unread_bytes", &["ok"]),
    ("sync", &["EPERM"]),
    ("syncfs", &["EPERM"]),
    ("realloc", &["ok"]),
    ("libm", &["ok"]),
    ("artifact", &["42"]),
    ("send_to_worker", &["ok"]),
];

/// Protections whose attempts are refused with and without namespaces.
const WITHOUT_NAMESPACES_TOO: &[&str] =
    &["no_capabilities", "not_dumpable", "no_new_privileges", "files", "no_tcp", "system_calls"];

/// The C source of a library that starts threads with OpenMP, if the compiler supports it.
const LIBRARY: &str = r"
int answer(void) {
    int sum = 0;
    #pragma omp parallel for num_threads(4) reduction(+ : sum)
    for (int i = 0; i < 42; i++) sum += 1;
    return sum;
}
";

#[test]
fn candidate_is_refused_every_forbidden_operation() {
    as_every_user(|| {
        for namespaces in [Namespaces::ALL, Namespaces::NONE] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            std::fs::write(folder.path().join("neighbour"), "secret").expect("the folder is writable");
            let artifact = library(folder.path(), LIBRARY);
            let running = start("candidate", folder.path(), Some(artifact.as_fd()), namespaces);
            let worker = running.worker.try_clone().expect("a descriptor");
            let (answers, end) = running.finish();
            let mut frame = [0; 16];
            let received = rustix::net::recv(&worker, &mut frame[..], rustix::net::RecvFlags::empty());
            assert_eq!(received.expect("the runner sent a frame").0, 5);
            assert_eq!(end, End::Exited { code: 0 }, "{namespaces:?}: {answers:?}");
            let of_protections =
                PROTECTIONS.iter().filter(|kind| WITHOUT_NAMESPACES_TOO.contains(&kind.name));
            for (name, allowed) in of_protections.flat_map(|kind| kind.attempts).chain(EXPECTED) {
                if *name == "x32" && cfg!(not(target_arch = "x86_64")) {
                    continue;
                }
                let answer = answers.get(*name).map_or("nothing", String::as_str);
                assert!(
                    allowed.contains(&answer),
                    "{namespaces:?}: {name} answered {answer}, not {allowed:?}"
                );
            }
            let root = rustix::process::geteuid().is_root();
            let own_user = answers.get("protection own_user").map(String::as_str);
            assert_eq!(own_user, Some(if root { "true" } else { "false" }));
            for name in [
                "session",
                "dies_with_worker",
                "no_capabilities",
                "no_new_privileges",
                "not_dumpable",
                "memory_limit",
                "address_space_limit",
                "system_calls",
            ] {
                assert_eq!(
                    answers.get(&format!("protection {name}")).map(String::as_str),
                    Some("true"),
                    "{name}"
                );
            }
        }
    });
}

fn answer(name: &str, result: i64) {
    if result < 0 { println!("{name}={:?}", Errno::last()) } else { println!("{name}=ok") }
}

pub(super) fn answer_io<T>(name: &str, result: std::io::Result<T>) {
    match result {
        Ok(_) => println!("{name}=ok"),
        Err(error) => println!("{name}={:?}", Errno::from_raw(error.raw_os_error().unwrap_or(0))),
    }
}

pub(super) fn locked_down() {
    let descriptors = Descriptors {
        worker: inherited(WORKER_FD),
        artifact: rustix::io::fcntl_getfd(inherited(ARTIFACT_FD)).is_ok().then(|| inherited(ARTIFACT_FD)),
        libraries: &[],
    };
    let protections =
        lock_down(&confinement(SandboxKind::Candidate), &descriptors).expect("the lock-down holds");
    for protection in protections {
        println!("protection {}={}", protection.name, protection.present);
    }
}

pub(super) fn attempt_forbidden_operations() {
    let neighbour = folder().join("neighbour");
    let worker_pid = rustix::process::getppid().map_or(0, |pid| i64::from(pid.as_raw_nonzero().get()));
    locked_down();
    attempts::isolation(rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()));
    // SAFETY: each of these is a plain system call that should be refused. Those that are allowed get valid memory.
    unsafe {
        answer("clone3", libc::syscall(libc::SYS_clone3, 0, 0));
        answer("mremap", libc::mremap(std::ptr::null_mut(), 4096, 8192, 0) as i64);
        answer("ptrace", libc::ptrace(libc::PTRACE_TRACEME));
        answer("io_uring", libc::syscall(libc::SYS_io_uring_setup, 1, 0));
        answer("userfaultfd", libc::syscall(libc::SYS_userfaultfd, 0));
        answer("unshare", libc::unshare(libc::CLONE_NEWNS).into());
        let mut timer: libc::timer_t = std::ptr::null_mut();
        answer(
            "timer_create",
            libc::timer_create(libc::CLOCK_MONOTONIC, std::ptr::null_mut(), &raw mut timer).into(),
        );
        answer("signal_on_input", libc::fcntl(0, 10, libc::SIGCONT).into());
        answer("seal", libc::fcntl(ARTIFACT_FD, libc::F_ADD_SEALS, libc::F_SEAL_WRITE).into());
        answer("own_thread_priority", libc::setpriority(libc::PRIO_PROCESS, 0, 5).into());
        let other_process = libc::id_t::try_from(worker_pid.max(2)).unwrap_or(2);
        answer("priority_of_worker", libc::setpriority(libc::PRIO_PROCESS, other_process, 5).into());
        answer("chmod", libc::fchmod(0, 0o777).into());
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        answer("read_limit", libc::getrlimit(libc::RLIMIT_CPU, &raw mut limit).into());
        limit.rlim_cur = 1;
        answer(
            "lower_limit",
            libc::prlimit(1, libc::RLIMIT_CPU, &raw const limit, std::ptr::null_mut()).into(),
        );
        answer("drop_death_signal", libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0).into());
        answer("become_dumpable", libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0).into());
        answer("kill_worker", libc::syscall(libc::SYS_kill, worker_pid, 0));
        answer("kill_all", libc::kill(-1, libc::SIGTERM).into());
        answer("kill_self", libc::kill(libc::getpid(), libc::SIGKILL).into());
        answer("x32", libc::syscall(0x4000_0000 + libc::SYS_getpid));
        let mut processors: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&processors), &raw mut processors);
        answer(
            "affinity",
            libc::sched_setaffinity(0, size_of_val(&processors), &raw const processors).into(),
        );
        use_unlimited_memory();
        evade_limits();
        // The block is so large that glibc gives it its own mapping, and would grow this mapping with mremap.
        let memory = libc::malloc(1 << 20);
        let grown = libc::realloc(memory, 8 << 20);
        println!("realloc={}", if grown.is_null() { "null" } else { "ok" });
        let libm = libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW);
        println!("libm={}", if libm.is_null() { "null" } else { "ok" });
        let path = format!("/proc/self/fd/{ARTIFACT_FD}\0");
        let artifact = libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW);
        if artifact.is_null() {
            println!("artifact={:?}", std::ffi::CStr::from_ptr(libc::dlerror()));
        } else {
            let symbol = libc::dlsym(artifact, c"answer".as_ptr());
            let call: extern "C" fn() -> libc::c_int = std::mem::transmute(symbol);
            println!("artifact={}", call());
        }
    }
    answer_io("read_neighbour", File::open(&neighbour));
    answer_io("read_own_memory", File::open("/proc/self/mem"));
    answer_io("read_init_environment", File::open("/proc/1/environ"));
    answer_io("write_neighbour", File::options().write(true).open(&neighbour));
    println!("thread={}", std::thread::spawn(|| "ok").join().expect("the thread ends well"));
    let sent = rustix::net::send(inherited(WORKER_FD), b"frame", rustix::net::SendFlags::empty());
    answer_io("send_to_worker", sent.map_err(std::io::Error::from));
}

/// Attempts to use kernel memory that is not subject to any limit, and to disturb other processes.
fn use_unlimited_memory() {
    // SAFETY: each of these is a plain system call that should be refused; pointers are null or point to our memory.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let map = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        answer("shared_map", if map == libc::MAP_FAILED { -1 } else { 0 });
        let mut ends = [0; 2];
        libc::pipe(ends.as_mut_ptr());
        let page = libc::iovec { iov_base: libc::malloc(64), iov_len: 64 };
        answer("vmsplice", libc::vmsplice(ends[1], &raw const page, 1, 0) as i64);
        let null = std::ptr::null_mut();
        answer("splice", libc::splice(ARTIFACT_FD, null, ends[1], null, 64, 0) as i64);
        answer("tee", libc::tee(ends[0], ends[1], 64, libc::SPLICE_F_NONBLOCK) as i64);
        answer("sendfile", libc::sendfile(ends[1], ARTIFACT_FD, std::ptr::null_mut(), 64) as i64);
        answer("flock", libc::flock(ARTIFACT_FD, libc::LOCK_SH).into());
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = 0;
        answer("lock", libc::fcntl(ARTIFACT_FD, libc::F_SETLK, &raw const lock).into());
        answer("lock_of_description", libc::fcntl(ARTIFACT_FD, libc::F_OFD_SETLK, &raw const lock).into());
        answer("inotify", libc::inotify_init1(0).into());
        // This only asks for Landlock's version. Landlock itself always returns it, so only the filter can refuse this
        // call.
        answer("own_rules", libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, 1));
        let allow = libc::sock_filter { code: 6, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
        let filter = libc::sock_fprog { len: 1, filter: (&raw const allow).cast_mut() };
        let install = libc::SECCOMP_SET_MODE_FILTER;
        answer("own_filter", libc::syscall(libc::SYS_seccomp, install, 0, &raw const filter));
        let mode = libc::SECCOMP_MODE_FILTER;
        answer(
            "own_filter_by_prctl",
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, 0, 0).into(),
        );
        answer("timerfd", libc::timerfd_create(libc::CLOCK_MONOTONIC, 0).into());
        answer("readahead", libc::readahead(ARTIFACT_FD, 0, 1) as i64);
        answer("willneed", libc::madvise(std::ptr::null_mut(), 0, libc::MADV_WILLNEED).into());
        answer("sync", libc::syscall(libc::SYS_sync));
        answer("syncfs", libc::syncfs(ARTIFACT_FD).into());
    }
}

/// Attempts to get memory and descriptors in ways that the limits on them do not count.
fn evade_limits() {
    const MERGEABLE: libc::c_int = 12;
    const SET_MEMORY_MERGE: libc::c_int = 67;
    const FUTEX_HASH: libc::c_int = 78;
    /// An option that no version of Linux has.
    const UNKNOWN: libc::c_int = 0x7fff_0001;
    const SET_SLOTS: libc::c_ulong = 1;
    const GET_FLAGS: libc::c_ulong = 0x8008_6601;
    let null = std::ptr::null_mut();
    let mut word: libc::c_long = 0;
    // SAFETY: each of these is a plain system call that should be refused; allowed ones get our memory. If a clone were
    // allowed, two threads would share a stack, and the test would fail.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN;
        let map = libc::mmap(null, 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        answer("grows_down", if map == libc::MAP_FAILED { -1 } else { 0 });
        answer("shadow_stack", libc::syscall(453, 0, 4096, 0));
        answer("futex_hash", libc::prctl(FUTEX_HASH, SET_SLOTS, 1024_usize, 0, 0).into());
        answer("merge_memory", libc::prctl(SET_MEMORY_MERGE, 1, 0, 0, 0).into());
        answer("mergeable", libc::madvise(null, 0, MERGEABLE).into());
        answer("unknown_option", libc::prctl(UNKNOWN, 0, 0, 0, 0).into());
        answer("thread_name", libc::prctl(libc::PR_SET_NAME, c"kernel".as_ptr(), 0, 0, 0).into());
        // No descriptor has these numbers, so nothing would be closed.
        answer("own_descriptors", libc::syscall(libc::SYS_close_range, 1 << 20, 1 << 21, 2));
        answer("close_range", libc::syscall(libc::SYS_close_range, 1 << 20, 1 << 21, 0));
        let flags = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
        answer("thread_with_own_descriptors", libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0));
        let flags = flags | libc::CLONE_FILES | libc::CLONE_VFORK;
        answer("thread_that_is_waited_for", libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0));
        answer("own_scheduling", libc::syscall(libc::SYS_sched_setattr, 0, null, 0));
        answer("file_flags", libc::ioctl(ARTIFACT_FD, GET_FLAGS, &raw mut word).into());
        let mut ends = [0; 2];
        libc::pipe(ends.as_mut_ptr());
        answer("unread_bytes", libc::ioctl(ends[0], libc::FIONREAD, &raw mut word).into());
    }
}

#[test]
fn candidate_stays_on_its_cpus() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (answers, end) = start("one_cpu", folder.path(), None, Namespaces::ALL).finish();
        assert_eq!(end, End::Exited { code: 0 }, "{answers:?}");
        assert_eq!(answers.get("cpus").map(String::as_str), Some("1"), "{answers:?}");
    });
}

pub(super) fn one_cpu() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).expect("the CPU it runs on");
    locked_down();
    let mut all = CpuSet::new();
    for cpu in 0..CpuSet::MAX_CPU {
        all.set(cpu);
    }
    let _ = sched_setaffinity(None, &all);
    println!("cpus={}", sched_getaffinity(None).expect("its own mask").count());
}

#[test]
fn abort_is_reported_as_sigabrt() {
    as_every_user(|| {
        for namespaces in [Namespaces::ALL, Namespaces::NONE] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (_, end) = start("abort", folder.path(), None, namespaces).finish();
            assert_eq!(end, End::Signalled { signal: libc::SIGABRT }, "{namespaces:?}");
        }
    });
}

pub(super) fn abort() {
    locked_down();
    std::process::abort();
}

#[test]
fn stack_and_mappings_end_at_their_limits() {
    as_every_user(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (_, end) = start("deep_recursion", folder.path(), None, Namespaces::ALL).finish();
        assert_eq!(end, End::Signalled { signal: libc::SIGSEGV });
        let (answers, _) = start("too_much_data", folder.path(), None, Namespaces::ALL).finish();
        assert_eq!(answers.get("within").map(String::as_str), Some("ok"));
        assert_eq!(answers.get("beyond").map(String::as_str), Some("ENOMEM"));
        assert_eq!(answers.get("sparse").map(String::as_str), Some("ENOMEM"));
    });
}

pub(super) fn deep_recursion() {
    locked_down();
    println!("depth={}", descend(std::hint::black_box(1_000_000)));
}

#[inline(never)]
fn descend(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if depth == 0 { 0 } else { descend(depth - 1) + frame[63] }
}

pub(super) fn too_much_data() {
    locked_down();
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // `beyond` exceeds the limit on private memory. `sparse` exceeds the limit on address space, which also counts
    // read-only mappings.
    for (name, bytes, access) in [
        ("within", 64_usize << 20, writable),
        ("beyond", 300 << 20, writable),
        ("sparse", 5 << 30, libc::PROT_READ),
    ] {
        // SAFETY: an anonymous mapping at an address that Linux chooses replaces nothing.
        let map = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0)
        };
        answer(name, if map == libc::MAP_FAILED { -1 } else { 0 });
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_the_32_bit_abi_kill_the_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_, end) = start("32_bit_call", folder.path(), None, Namespaces::ALL).finish();
    // The process dies from SIGSEGV if Linux does not support such calls at all.
    assert!([libc::SIGSYS, libc::SIGSEGV].map(|signal| End::Signalled { signal }).contains(&end), "{end:?}");
}

#[cfg(target_arch = "x86_64")]
pub(super) fn make_32_bit_call() {
    const GETPID_32: u64 = 20;
    locked_down();
    // SAFETY: this asks for our pid; Linux changes only the result and these registers.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") GETPID_32 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
}
