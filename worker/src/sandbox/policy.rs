//! Turns a plan's limits into a `Confinement`, which the process of a runner or a compiler then applies to itself.
//!
//! The memory limits that this module computes do not include the memory that the process already uses when it locks
//! itself down. Only that process can measure this amount, and it adds the amount itself (`add_present_usage`).

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use opt_shared::formula::STACK;
use opt_shared::message::HiddenPaths;
use opt_shared::settings::LimitSettings;
use opt_shared::units::Bytes;

use crate::sandbox::confine::{
    Confinement, FileAccess, ProcessLimit, ResourceLimits, SandboxKind, library_folders,
};
use crate::sandbox::streams;

/// The address space that glibc reserves for the arena of each thread.
const ARENA: Bytes = Bytes::mib(128);
/// The address space that is allowed for libraries and their mappings.
pub(crate) const LIBRARIES: Bytes = Bytes::mib(256);
/// The number of processes that `limits.processes = "auto"` allows for each thread.
const TASKS_PER_THREAD: u32 = 4;
/// The largest number of processes that a build may have: a compiler driver, its subprocesses, and a parallel linker.
pub(crate) const COMPILER_TASKS: u32 = 256;
const COMPILER_FILES: u32 = 1024;
/// The time for which a count of root's tasks is reused.
const RECOUNT: Duration = Duration::from_secs(1);
/// The number of different user numbers that one worker gives its runners.
const USERS_PER_WORKER: u32 = 64;

/// The number of tasks that `limits.processes = "auto"` allows a runner, not counting other tasks of the same user.
pub(crate) fn tasks(threads: u32) -> u32 {
    TASKS_PER_THREAD.saturating_mul(threads)
}

/// Returns the user number for the next runner. Each worker has a block of `USERS_PER_WORKER` numbers, which it derives
/// from its pid, and uses these numbers in turn.
pub(crate) fn user_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % USERS_PER_WORKER;
    (std::process::id() % (1 << 22)) * USERS_PER_WORKER + number
}

/// Returns a candidate's confinement. `libraries` is the total size of the files that the runner loads in addition to
/// the system's libraries.
pub(crate) fn for_candidate(
    limits: &LimitSettings,
    threads: u32,
    memory: Bytes,
    libraries: Bytes,
    file_access: FileAccess,
) -> Confinement {
    Confinement {
        kind: SandboxKind::Candidate,
        limits: ResourceLimits {
            data: memory,
            address_space: Some(
                memory + ARENA.saturating_mul(u64::from(threads) + 1) + LIBRARIES + libraries,
            ),
            // This limit also applies to the standard streams, which are sealed memfds of half this size. A write
            // beyond the end of such a memfd fails with EPERM because of the seal, but a write beyond this limit would
            // raise SIGXFSZ.
            file_size: streams::size_for(limits.output).saturating_mul(2),
            open_files: limits.open_files,
            processes: Some(process_limit(limits.processes.unwrap_or_else(|| tasks(threads)))),
            stack: STACK,
            locked_memory: Bytes::ZERO,
        },
        user_number: user_number(),
        file_access,
    }
}

/// The paths that a compiler may access in addition to the system's folders, and the paths that stay hidden from it.
#[derive(Clone, Copy)]
pub(crate) struct CompilerFileAccess<'a> {
    pub(crate) scratch: &'a Path,
    pub(crate) readable: &'a [PathBuf],
    pub(crate) toolchain: &'a [PathBuf],
    pub(crate) hidden: &'a HiddenPaths,
    /// The folder from which the candidate's files were copied. It stays hidden, because the compiler gets the copies.
    pub(crate) files: &'a Path,
}

pub(crate) fn for_compiler(
    file_access: &CompilerFileAccess<'_>,
    memory: Bytes,
    largest_file: Bytes,
) -> Confinement {
    Confinement {
        kind: SandboxKind::Compiler,
        limits: ResourceLimits {
            data: memory,
            address_space: Some(memory + LIBRARIES),
            file_size: largest_file,
            open_files: COMPILER_FILES,
            processes: Some(process_limit(COMPILER_TASKS)),
            stack: STACK.saturating_mul(8),
            locked_memory: Bytes::ZERO,
        },
        user_number: 0,
        file_access: FileAccess {
            readable: existing(file_access.readable),
            libraries: Vec::new(),
            toolchain: existing(file_access.toolchain),
            hidden: without_links(&file_access.hidden.files),
            homes: without_links([&file_access.hidden.home, file_access.files]),
            writable: vec![file_access.scratch.to_owned()],
        },
    }
}

/// Returns the files that a candidate's runners may read: all files in the folders `readable`, and the shared libraries
/// in the folders `libraries`.
pub(crate) fn file_access_of_candidate(
    readable: &[PathBuf],
    libraries: &[PathBuf],
    hidden_paths: &HiddenPaths,
) -> FileAccess {
    let open = without_links(readable.iter().chain(libraries)).into_iter().chain(library_folders());
    let open: Vec<PathBuf> = open.collect();
    // Only hidden paths inside readable folders are listed, because the list must fit into one frame. All other paths
    // are inaccessible anyway.
    let mut hidden = without_links(&hidden_paths.files);
    hidden.retain(|hidden| open.iter().any(|folder| hidden.starts_with(folder)));
    FileAccess {
        readable: existing(readable),
        libraries: existing(libraries),
        hidden,
        homes: without_links([&hidden_paths.home]),
        ..FileAccess::default()
    }
}

fn existing(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter(|path| path.exists()).cloned().collect()
}

/// Resolves symbolic links, and leaves out paths that do not exist.
fn without_links<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Vec<PathBuf> {
    paths.into_iter().filter_map(|path| path.as_ref().canonicalize().ok()).collect()
}

/// The number of copies that a zygote may make for the next runner after the user's tasks were counted.
const COPIES_AHEAD: u32 = 1;

/// Returns a limit that allows `own` tasks in addition to those that this user has now. Tasks that the user starts
/// later use up part of the limit.
pub(crate) fn process_limit(own: u32) -> ProcessLimit {
    ProcessLimit { own, other_tasks: user_tasks().saturating_add(COPIES_AHEAD) }
}

/// Returns the number of threads and processes of this user, all of which RLIMIT_NPROC counts.
///
/// For root, a count is reused for `RECOUNT`, because counting takes milliseconds on a machine with many processes, and
/// the count rarely matters for root. It matters only in a container whose root is not the host's root. Otherwise,
/// Linux exempts root from the limit, or the runner has a user of its own.
fn user_tasks() -> u32 {
    thread_local! {
        static COUNTED: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
    }
    if let Some((when, tasks)) = COUNTED.get()
        && when.elapsed() < RECOUNT
        && rustix::process::geteuid().is_root()
    {
        return tasks;
    }
    let tasks = count_user_tasks();
    COUNTED.set(Some((Instant::now(), tasks)));
    tasks
}

fn count_user_tasks() -> u32 {
    let me = rustix::process::geteuid().as_raw();
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let mut tasks = 0u32;
    for process in processes.flatten() {
        if !process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(metadata) = process.metadata() else { continue };
        if std::os::unix::fs::MetadataExt::uid(&metadata) == me
            && let Ok(threads) = std::fs::read_dir(process.path().join("task"))
        {
            tasks = tasks.saturating_add(u32::try_from(threads.count()).unwrap_or(u32::MAX));
        }
    }
    tasks
}

/// Adds the memory that this process already uses to its memory limits.
pub(crate) fn add_present_usage(mut confinement: Confinement) -> Confinement {
    let (size, data) = present_usage();
    confinement.limits.data += data;
    if let Some(address_space) = &mut confinement.limits.address_space {
        *address_space += size;
    }
    confinement
}

/// Returns the address space and the private writable memory of this process. If /proc cannot be read, returns
/// estimates.
fn present_usage() -> (Bytes, Bytes) {
    let Ok(text) = std::fs::read_to_string("/proc/self/statm") else {
        return (Bytes::gib(1), Bytes::mib(64));
    };
    let pages: Vec<u64> = text.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    let page = rustix::param::page_size() as u64;
    let field = |at: usize| Bytes::new(pages.get(at).copied().unwrap_or(0)).saturating_mul(page);
    // The fields of statm are size, resident, shared, text, lib and data.
    (field(0), field(5))
}
