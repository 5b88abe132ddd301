//! The attempts of the canary's sandboxed process. Each attempt makes a call that the sandbox should refuse, or a call
//! within its limits, and prints the result.

use std::ptr::{null, null_mut};

use nix::errno::Errno;
use opt_shared::units::Bytes;

use super::confined::{GROWING_FD, print_answer};
use crate::sandbox::confine::seal::seal_map;

const MAX_THREADS: u32 = 64;
const THREAD_STACK: usize = 64 << 10;

/// Describes the result of a raw system call: `ok`, or the name of the error.
pub(super) fn answer(result: i64) -> String {
    if result < 0 { format!("{:?}", Errno::last()) } else { "ok".to_owned() }
}

fn map(bytes: Bytes, protection: i32, flags: i32) -> *mut libc::c_void {
    // SAFETY: an anonymous mapping at an address that Linux chooses replaces nothing.
    unsafe { libc::mmap(null_mut(), bytes.to_usize(), protection, flags | libc::MAP_ANONYMOUS, -1, 0) }
}

fn try_map(name: &str, bytes: Bytes, protection: i32, flags: i32) {
    let got = map(bytes, protection, flags);
    print_answer(name, if got == libc::MAP_FAILED { -1 } else { 0 });
    if got != libc::MAP_FAILED {
        // SAFETY: this is our own mapping, and nothing points into it.
        unsafe { libc::munmap(got, bytes.to_usize()) };
    }
}

/// Before the lock-down, attempts to attach a segment of another IPC namespace, and to change sealed memory.
pub(super) fn before_the_lock_down(segment: i32) {
    let page = rustix::param::page_size();
    let length = i64::try_from(page).unwrap_or(4096);
    // SAFETY: plain calls on our own descriptors and maps; an attached segment is not used.
    unsafe {
        let attached = libc::shmat(segment, null(), 0);
        print_answer("attach_segment", if attached.addr() == usize::MAX { -1 } else { 0 });
        let memory = libc::memfd_create(c"opt-canary".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        libc::ftruncate(memory, length);
        print_answer("write_within", libc::pwrite(memory, b"x".as_ptr().cast(), 1, length - 1) as i64);
        libc::fcntl(memory, libc::F_ADD_SEALS, libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL);
        print_answer("grow", libc::ftruncate(memory, length * 2).into());
        print_answer("shrink", libc::ftruncate(memory, 0).into());
        print_answer("write_beyond", libc::pwrite(memory, b"x".as_ptr().cast(), 1, length) as i64);
        libc::close(memory);
    }
    let input = map(Bytes::from(page), libc::PROT_READ, libc::MAP_PRIVATE);
    let Some(start) = std::ptr::NonNull::new(input.cast::<u8>()) else { return };
    match seal_map(start, Bytes::from(page)) {
        Ok(()) => println!("seal_input=ok"),
        Err(error) => println!("seal_input=mseal: {error}"),
    }
    // SAFETY: this is our own mapping, and nothing points into it.
    unsafe {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        print_answer("make_input_writable", libc::mprotect(input, page, writable).into());
        print_answer("unmap_input", libc::munmap(input, page).into());
    }
}

/// Attempts to use memory and to write to a file, both within the given limits and beyond them.
pub(super) fn memory(data: Bytes, address_space: Bytes, file_size: Bytes) {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let beyond = data.saturating_mul(2);
    try_map("map_within", Bytes::mib(1), both, libc::MAP_PRIVATE);
    try_map("map_beyond", beyond, both, libc::MAP_PRIVATE);
    // SAFETY: this only moves the end of the heap outwards, and nothing uses the added range.
    unsafe {
        let step = isize::try_from(beyond.get()).unwrap_or(isize::MAX);
        let old = libc::sbrk(step);
        print_answer("heap_beyond", if old.addr() == usize::MAX { -1 } else { 0 });
    }
    let reserve = map(beyond, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    // SAFETY: this is our own mapping. If the mapping failed, Linux refuses the call.
    print_answer("reserve_beyond", unsafe { libc::mprotect(reserve, beyond.to_usize(), both) }.into());
    if reserve != libc::MAP_FAILED {
        // SAFETY: our own mapping, which nothing points into.
        unsafe { libc::munmap(reserve, beyond.to_usize()) };
    }
    try_map("share", Bytes::mib(1), both, libc::MAP_SHARED);
    let beyond = address_space.saturating_mul(2);
    try_map("read_beyond", beyond, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    let end = i64::try_from(file_size.get()).unwrap_or(i64::MAX);
    // SAFETY: each call writes one byte of a constant to our own descriptor.
    unsafe {
        print_answer("file_within", libc::pwrite(GROWING_FD, b"x".as_ptr().cast(), 1, 0) as i64);
        print_answer("file_beyond", libc::pwrite(GROWING_FD, b"x".as_ptr().cast(), 1, end) as i64);
    }
}

/// Attempts to reach other processes, and other things outside the sandbox. Also prints some properties of this
/// process, such as its pid.
pub(crate) fn isolation(parent: i32) {
    // SAFETY: each of these is a plain system call that should be refused, or that returns a number; pointers are valid
    // or null.
    unsafe {
        println!("own_pid={}", libc::getpid());
        print_answer("signal_parent", libc::syscall(libc::SYS_kill, i64::from(parent), 0));
        print_answer("fork", libc::syscall(libc::SYS_clone, i64::from(libc::SIGCHLD), 0, 0, 0, 0));
        let arguments = [c"true".as_ptr(), null()];
        print_answer("exec", libc::execv(c"/bin/true".as_ptr(), arguments.as_ptr()).into());
        print_answer("socket", libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0).into());
        print_answer("memory_file", libc::memfd_create(c"hoard".as_ptr(), 0).into());
        print_answer("segment", libc::shmget(libc::IPC_PRIVATE, 4096, 0o600).into());
        let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        print_answer("raise_limit", libc::setrlimit(libc::RLIMIT_DATA, &raw const limit).into());
        print_answer("become_root", libc::setresuid(0, 0, 0).into());
        print_answer("change_root", libc::chroot(c"/".as_ptr()).into());
        print_answer("read_file", libc::open(c"/etc/passwd".as_ptr(), libc::O_RDONLY).into());
        print_answer(
            "make_file",
            libc::open(c"/tmp/opt-canary".as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600).into(),
        );
        println!("session={}", libc::getsid(0) == libc::getpid());
        println!("dumpable={}", libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0));
        println!("no_new_privileges={}", libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
        let mut signal = 0;
        libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal, 0, 0, 0);
        println!("death_signal={signal}");
    }
}

/// Starts threads until one is refused, or until `tasks + 1` or [`MAX_THREADS`] threads are running. They end with the
/// process.
pub(super) fn threads(tasks: u32) {
    let count = tasks.saturating_add(1).min(MAX_THREADS);
    for started in 0..count {
        let thread = std::thread::Builder::new().stack_size(THREAD_STACK).spawn(|| {
            loop {
                std::thread::park();
            }
        });
        if let Err(error) = thread {
            println!("thread_{started}={error}");
            println!("threads={:?}", Errno::from_raw(error.raw_os_error().unwrap_or(0)));
            return;
        }
    }
    println!("threads={count} were started");
}
