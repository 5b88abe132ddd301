//! The system calls that are denied to sandboxed processes, grouped by purpose, with their numbers on x86-64 and
//! AArch64.
//!
//! The table lists both architectures, so that the test for duplicate numbers covers both wherever it runs. It does not
//! use the constants of the `libc` crate, which may not define the newest calls yet. `calls` decides which groups are
//! denied to which processes, and refuses further calls depending on their arguments.

/// A system call. A number is `None` if the architecture never had the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers and for the checks of this table"))]
    name: &'static str,
    x86_64: Option<u16>,
    aarch64: Option<u16>,
}

impl Call {
    pub(super) fn number(&self) -> Option<i64> {
        let number = if cfg!(target_arch = "x86_64") { self.x86_64 } else { self.aarch64 };
        number.map(i64::from)
    }
}

const fn both(name: &'static str, x86_64: u16, aarch64: u16) -> Call {
    Call { name, x86_64: Some(x86_64), aarch64: Some(aarch64) }
}

const fn x86(name: &'static str, x86_64: u16) -> Call {
    Call { name, x86_64: Some(x86_64), aarch64: None }
}

/// A call that was added in Linux 5.1 or later. Such calls have the same number on all architectures.
const fn everywhere(name: &'static str, number: u16) -> Call {
    both(name, number, number)
}

// These calls are refused only in some cases, or with an error other than EPERM. `calls` decides when they are refused,
// and with which error.
pub(super) const CLONE: Call = both("clone", 56, 220);
pub(super) const CLONE3: Call = everywhere("clone3", 435);
pub(super) const OPEN: Call = x86("open", 2);
pub(super) const OPENAT: Call = both("openat", 257, 56);
pub(super) const OPENAT2: Call = everywhere("openat2", 437);
pub(super) const SENDTO: Call = both("sendto", 44, 206);
pub(super) const FCNTL: Call = both("fcntl", 72, 25);
pub(super) const IOCTL: Call = both("ioctl", 16, 29);
pub(super) const PRCTL: Call = both("prctl", 157, 167);
pub(super) const PRLIMIT64: Call = both("prlimit64", 302, 261);
pub(super) const KILL: Call = both("kill", 62, 129);
pub(super) const TKILL: Call = both("tkill", 200, 130);
pub(super) const TGKILL: Call = both("tgkill", 234, 131);
pub(super) const RT_SIGQUEUEINFO: Call = both("rt_sigqueueinfo", 129, 138);
pub(super) const RT_TGSIGQUEUEINFO: Call = both("rt_tgsigqueueinfo", 297, 240);
pub(super) const SETPRIORITY: Call = both("setpriority", 141, 140);
pub(super) const IOPRIO_SET: Call = both("ioprio_set", 251, 30);
pub(super) const SCHED_SETPARAM: Call = both("sched_setparam", 142, 118);
pub(super) const SCHED_SETSCHEDULER: Call = both("sched_setscheduler", 144, 119);
pub(super) const SCHED_SETAFFINITY: Call = both("sched_setaffinity", 203, 122);
pub(super) const MMAP: Call = both("mmap", 9, 222);
pub(super) const MADVISE: Call = both("madvise", 28, 233);
pub(super) const CLOSE_RANGE: Call = everywhere("close_range", 436);

/// Calls that start another process, or another program in this one.
pub(super) const PROCESSES: &[Call] =
    &[x86("fork", 57), x86("vfork", 58), both("execve", 59, 221), both("execveat", 322, 281)];

/// Calls that open sockets other than the inherited one, or that can send descriptors. Receiving on the inherited
/// socket is allowed.
pub(super) const NETWORK: &[Call] = &[
    both("socket", 41, 198),
    both("socketpair", 53, 199),
    both("connect", 42, 203),
    both("bind", 49, 200),
    both("listen", 50, 201),
    both("accept", 43, 202),
    both("accept4", 288, 242),
    both("sendmsg", 46, 211),
    both("sendmmsg", 307, 269),
];

/// Calls that move mappings, or that allocate memory that is not subject to any limit.
pub(super) const MEMORY: &[Call] = &[
    both("memfd_create", 319, 279),
    everywhere("memfd_secret", 447),
    both("mremap", 25, 216),
    both("userfaultfd", 323, 282),
    both("shmget", 29, 194),
    both("shmctl", 31, 195),
    both("shmat", 30, 196),
    both("shmdt", 67, 197),
    both("remap_file_pages", 216, 234),
    both("io_setup", 206, 0),
    both("io_submit", 209, 2),
    both("migrate_pages", 256, 238),
    both("move_pages", 279, 239),
];

/// Calls that communicate with other processes on the machine.
pub(super) const CHANNELS: &[Call] = &[
    both("semget", 64, 190),
    both("semctl", 66, 191),
    both("semop", 65, 193),
    both("semtimedop", 220, 192),
    both("msgget", 68, 186),
    both("msgctl", 71, 187),
    both("msgsnd", 69, 189),
    both("msgrcv", 70, 188),
    both("mq_open", 240, 180),
    both("mq_unlink", 241, 181),
    both("mq_timedsend", 242, 182),
    both("mq_timedreceive", 243, 183),
    both("mq_notify", 244, 184),
    both("mq_getsetattr", 245, 185),
    both("add_key", 248, 217),
    both("request_key", 249, 218),
    both("keyctl", 250, 219),
];

/// Calls that inspect other processes or act on them.
pub(super) const OTHER_PROCESSES: &[Call] = &[
    both("ptrace", 101, 117),
    both("process_vm_readv", 310, 270),
    both("process_vm_writev", 311, 271),
    everywhere("process_madvise", 440),
    everywhere("process_mrelease", 448),
    everywhere("pidfd_open", 434),
    everywhere("pidfd_getfd", 438),
    everywhere("pidfd_send_signal", 424),
    both("kcmp", 312, 272),
    both("perf_event_open", 298, 241),
    both("lookup_dcookie", 212, 18),
    both("syslog", 103, 116),
];

/// Calls into large, recent or privileged parts of Linux that neither candidates nor compilers need.
pub(super) const ADMINISTRATION: &[Call] = &[
    everywhere("io_uring_setup", 425),
    everywhere("io_uring_enter", 426),
    everywhere("io_uring_register", 427),
    both("bpf", 321, 280),
    both("unshare", 272, 97),
    both("setns", 308, 268),
    everywhere("listns", 470),
    both("mount", 165, 40),
    both("umount2", 166, 39),
    both("pivot_root", 155, 41),
    both("chroot", 161, 51),
    everywhere("open_tree", 428),
    everywhere("move_mount", 429),
    everywhere("fsopen", 430),
    everywhere("fsconfig", 431),
    everywhere("fsmount", 432),
    everywhere("fspick", 433),
    everywhere("mount_setattr", 442),
    everywhere("statmount", 457),
    everywhere("listmount", 458),
    everywhere("open_tree_attr", 467),
    both("name_to_handle_at", 303, 264),
    both("open_by_handle_at", 304, 265),
    both("fanotify_init", 300, 262),
    both("fanotify_mark", 301, 263),
    both("quotactl", 179, 60),
    everywhere("quotactl_fd", 443),
    both("swapon", 167, 224),
    both("swapoff", 168, 225),
    both("acct", 163, 89),
    both("reboot", 169, 142),
    both("kexec_load", 246, 104),
    both("kexec_file_load", 320, 294),
    both("init_module", 175, 105),
    both("finit_module", 313, 273),
    both("delete_module", 176, 106),
    both("settimeofday", 164, 170),
    both("clock_settime", 227, 112),
    both("adjtimex", 159, 171),
    both("clock_adjtime", 305, 266),
    both("sethostname", 170, 161),
    both("setdomainname", 171, 162),
    both("vhangup", 153, 58),
    both("personality", 135, 92),
    x86("iopl", 172),
    x86("ioperm", 173),
    x86("modify_ldt", 154),
    x86("uselib", 134),
    x86("_sysctl", 156),
    both("nfsservctl", 180, 42),
];

/// Calls that make timers or set limits. A timer can raise SIGCONT, which would wake a stopped runner while another
/// runner is being timed.
pub(super) const TIMERS_AND_LIMITS: &[Call] = &[both("timer_create", 222, 107), both("setrlimit", 160, 164)];

/// Calls that make Linux allocate memory, or keep unmapped pages allocated, without counting towards any limit on the
/// process.
pub(super) const UNLIMITED_MEMORY_CALLS: &[Call] = &[
    both("vmsplice", 278, 75),
    both("splice", 275, 76),
    both("tee", 276, 77),
    both("sendfile", 40, 71),
    both("flock", 73, 32),
    x86("inotify_init", 253),
    both("inotify_init1", 294, 26),
    both("inotify_add_watch", 254, 27),
    everywhere("landlock_create_ruleset", 444),
    everywhere("landlock_add_rule", 445),
    everywhere("landlock_restrict_self", 446),
    // With its own filter, a candidate could also block a call indefinitely, and thereby delay the stop of its runner.
    both("seccomp", 317, 277),
    // A shadow stack, like a mapping that grows downwards, does not count as private memory.
    everywhere("map_shadow_stack", 453),
];

/// Calls that disturb other processes even after the caller has been stopped. They set timers (hundreds could fire
/// while another candidate is timed), write back the dirty pages of all processes, or read files in the background.
/// `sched_setattr` can also request a higher CPU frequency, or undo the short time slices that the caller was given.
pub(super) const DISTURBANCES: &[Call] = &[
    both("sched_setattr", 314, 274),
    both("timerfd_create", 283, 85),
    both("sync", 162, 81),
    both("syncfs", 306, 267),
    both("sync_file_range", 277, 84),
    both("readahead", 187, 213),
    both("fadvise64", 221, 223),
];

/// Calls that change folders or the contents of files. Landlock prevents these too, but not in every version of Linux.
pub(super) const FILE_CHANGES: &[Call] = &[
    x86("creat", 85),
    both("truncate", 76, 45),
    x86("mkdir", 83),
    both("mkdirat", 258, 34),
    x86("rmdir", 84),
    x86("unlink", 87),
    both("unlinkat", 263, 35),
    x86("rename", 82),
    both("renameat", 264, 38),
    both("renameat2", 316, 276),
    x86("link", 86),
    both("linkat", 265, 37),
    x86("symlink", 88),
    both("symlinkat", 266, 36),
    x86("mknod", 133),
    both("mknodat", 259, 33),
];

/// Calls that change the owner, mode, times or attributes of files. Landlock does not prevent them.
pub(super) const FILE_ATTRIBUTES: &[Call] = &[
    x86("chmod", 90),
    both("fchmod", 91, 52),
    both("fchmodat", 268, 53),
    everywhere("fchmodat2", 452),
    x86("chown", 92),
    x86("lchown", 94),
    both("fchown", 93, 55),
    both("fchownat", 260, 54),
    x86("utime", 132),
    x86("utimes", 235),
    x86("futimesat", 261),
    both("utimensat", 280, 88),
    both("setxattr", 188, 5),
    both("lsetxattr", 189, 6),
    both("fsetxattr", 190, 7),
    everywhere("setxattrat", 463),
    both("removexattr", 197, 14),
    both("lremovexattr", 198, 15),
    both("fremovexattr", 199, 16),
    everywhere("removexattrat", 466),
    everywhere("file_setattr", 469),
];

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [&[Call]; 11] = [
        PROCESSES,
        NETWORK,
        MEMORY,
        CHANNELS,
        OTHER_PROCESSES,
        ADMINISTRATION,
        TIMERS_AND_LIMITS,
        UNLIMITED_MEMORY_CALLS,
        DISTURBANCES,
        FILE_CHANGES,
        FILE_ATTRIBUTES,
    ];

    #[test]
    fn calls_and_numbers_are_unique() {
        let all: Vec<&Call> = GROUPS.iter().copied().flatten().collect();
        for (index, one) in all.iter().enumerate() {
            for other in &all[index + 1..] {
                assert_ne!(one.name, other.name);
                assert!(
                    one.x86_64.is_none() || one.x86_64 != other.x86_64,
                    "{} and {}",
                    one.name,
                    other.name
                );
                assert!(
                    one.aarch64.is_none() || one.aarch64 != other.aarch64,
                    "{} and {}",
                    one.name,
                    other.name
                );
            }
        }
    }

    /// Pairs call names with the C library's numbers for the architecture on which the test runs.
    macro_rules! known {
        ($($name:ident = $constant:ident),* $(,)?) => { [$((stringify!($name), libc::$constant)),*] };
    }

    #[test]
    fn numbers_agree_with_the_c_library() {
        let known = known![
            clone = SYS_clone,
            clone3 = SYS_clone3,
            openat = SYS_openat,
            openat2 = SYS_openat2,
            sendto = SYS_sendto,
            fcntl = SYS_fcntl,
            ioctl = SYS_ioctl,
            prctl = SYS_prctl,
            prlimit64 = SYS_prlimit64,
            kill = SYS_kill,
            tkill = SYS_tkill,
            tgkill = SYS_tgkill,
            rt_sigqueueinfo = SYS_rt_sigqueueinfo,
            rt_tgsigqueueinfo = SYS_rt_tgsigqueueinfo,
            setpriority = SYS_setpriority,
            ioprio_set = SYS_ioprio_set,
            sched_setparam = SYS_sched_setparam,
            sched_setscheduler = SYS_sched_setscheduler,
            sched_setattr = SYS_sched_setattr,
            close_range = SYS_close_range,
            execve = SYS_execve,
            execveat = SYS_execveat,
            socket = SYS_socket,
            socketpair = SYS_socketpair,
            connect = SYS_connect,
            bind = SYS_bind,
            sendmsg = SYS_sendmsg,
            memfd_create = SYS_memfd_create,
            memfd_secret = SYS_memfd_secret,
            mremap = SYS_mremap,
            userfaultfd = SYS_userfaultfd,
            io_setup = SYS_io_setup,
            shmget = SYS_shmget,
            shmat = SYS_shmat,
            remap_file_pages = SYS_remap_file_pages,
            semget = SYS_semget,
            msgget = SYS_msgget,
            mq_open = SYS_mq_open,
            keyctl = SYS_keyctl,
            ptrace = SYS_ptrace,
            process_vm_readv = SYS_process_vm_readv,
            process_vm_writev = SYS_process_vm_writev,
            pidfd_open = SYS_pidfd_open,
            pidfd_getfd = SYS_pidfd_getfd,
            pidfd_send_signal = SYS_pidfd_send_signal,
            perf_event_open = SYS_perf_event_open,
            io_uring_setup = SYS_io_uring_setup,
            bpf = SYS_bpf,
            unshare = SYS_unshare,
            setns = SYS_setns,
            mount = SYS_mount,
            umount2 = SYS_umount2,
            open_by_handle_at = SYS_open_by_handle_at,
            name_to_handle_at = SYS_name_to_handle_at,
            personality = SYS_personality,
            timer_create = SYS_timer_create,
            mmap = SYS_mmap,
            sched_setaffinity = SYS_sched_setaffinity,
            vmsplice = SYS_vmsplice,
            splice = SYS_splice,
            tee = SYS_tee,
            sendfile = SYS_sendfile,
            flock = SYS_flock,
            inotify_init1 = SYS_inotify_init1,
            inotify_add_watch = SYS_inotify_add_watch,
            landlock_create_ruleset = SYS_landlock_create_ruleset,
            seccomp = SYS_seccomp,
            timerfd_create = SYS_timerfd_create,
            sync = SYS_sync,
            syncfs = SYS_syncfs,
            sync_file_range = SYS_sync_file_range,
            readahead = SYS_readahead,
            fadvise64 = SYS_fadvise64,
            madvise = SYS_madvise,
            truncate = SYS_truncate,
            mkdirat = SYS_mkdirat,
            unlinkat = SYS_unlinkat,
            renameat2 = SYS_renameat2,
            linkat = SYS_linkat,
            symlinkat = SYS_symlinkat,
            mknodat = SYS_mknodat,
            fchmod = SYS_fchmod,
            fchmodat = SYS_fchmodat,
            fchownat = SYS_fchownat,
            utimensat = SYS_utimensat,
            setxattr = SYS_setxattr,
            removexattr = SYS_removexattr,
        ];
        let conditional = [
            CLONE,
            CLONE3,
            OPENAT,
            OPENAT2,
            SENDTO,
            FCNTL,
            IOCTL,
            PRCTL,
            PRLIMIT64,
            KILL,
            TKILL,
            TGKILL,
            RT_SIGQUEUEINFO,
            RT_TGSIGQUEUEINFO,
            SETPRIORITY,
            IOPRIO_SET,
            SCHED_SETPARAM,
            SCHED_SETSCHEDULER,
            SCHED_SETAFFINITY,
            MMAP,
            MADVISE,
            CLOSE_RANGE,
        ];
        for (name, number) in known {
            let call = GROUPS.iter().copied().flatten().chain(&conditional).find(|call| call.name == name);
            assert_eq!(call.and_then(Call::number), Some(number), "{name}");
        }
    }
}
