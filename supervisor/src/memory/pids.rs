//! Samples how many processes and threads can still be started.

use std::path::Path;

use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::{CapabilitySet, capabilities};

use super::SampleError;
use super::cgroup::pids_left;
use super::text::{number, read_small, words};

/// The maximum size of a file. Each file has one short line.
const BYTES: usize = 256;

/// Returns how many more processes and threads the machine and the control groups allow, or `None` if no limit can be
/// read. `root` is `/` except in tests. The user's own limit is not included; `left_for_user` reads it.
pub fn left(root: &Path) -> Result<Option<u64>, SampleError> {
    let proc = root.join("proc");
    let groups = pids_left(root)?;
    let Some(tasks) = tasks(&proc)? else { return Ok(groups) };
    let machine =
        [number_in(&proc.join("sys/kernel/threads-max"))?, number_in(&proc.join("sys/kernel/pid_max"))?];
    let machine = machine.into_iter().flatten().map(|limit| limit.saturating_sub(tasks));
    Ok(machine.chain(groups).min())
}

/// Returns how many more processes and threads the user's own limit (`ulimit -u`) allows. Returns `None` if no limit
/// applies to this process, if `/proc` cannot be listed, or if the limit is so far away that counting processes is not
/// worth the time.
pub fn left_for_user(root: &Path) -> Option<u64> {
    // Linux exempts processes with one of these capabilities.
    let exempt = CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    if capabilities(None).is_ok_and(|own| own.effective.intersects(exempt)) {
        return None;
    }
    let limit = getrlimit(Resource::Nproc).current?;
    left_under(limit, &root.join("proc"), getuid().as_raw())
}

fn left_under(limit: u64, proc: &Path, user: u32) -> Option<u64> {
    /// A number of processes that is enough for any run.
    const PLENTY: u64 = 1024;
    // A user has at most as many tasks as the whole machine, so if these are far below the limit, there is no need to
    // count the user's.
    if let Ok(Some(all)) = tasks(proc)
        && all.saturating_add(PLENTY) <= limit
    {
        return None;
    }
    let is_pid = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = std::fs::read_dir(proc).ok()?.flatten().filter(|process| is_pid(&process.file_name()));
    let of_user = processes.filter(|process| real_user(&process.path()) == Some(user));
    let threads = of_user.filter_map(|process| std::fs::read_dir(process.path().join("task")).ok());
    let used: u64 = threads.map(|threads| threads.count() as u64).sum();
    Some(limit.saturating_sub(used))
}

/// Returns the real user of a process, according to its file `status`. The owner of the files in `/proc` does not tell
/// the user, because these files may belong to root, as those of workers do.
fn real_user(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the number of tasks on this machine. In `/proc/loadavg`, it is the second number of the fourth word, such as
/// 512 in `0.2 0.1 0.1 3/512 4711`.
fn tasks(proc: &Path) -> Result<Option<u64>, SampleError> {
    let path = proc.join("loadavg");
    let Some(text) = read_small(&path, BYTES)? else { return Ok(None) };
    let tasks = words(&text).nth(3).and_then(|word| number(word.split(|&byte| byte == b'/').nth(1)?));
    tasks
        .map(Some)
        .ok_or_else(|| SampleError::line(&path, &text, "the load, and the number of tasks after a slash"))
}

fn number_in(path: &Path) -> Result<Option<u64>, SampleError> {
    let Some(text) = read_small(path, BYTES)? else { return Ok(None) };
    number(text.trim_ascii()).map(Some).ok_or_else(|| SampleError::line(path, &text, "a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_left_are_limited_by_machine_and_groups() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |name: &str, text: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        assert_eq!(left(root.path()).expect("read"), None);
        put("proc/loadavg", "0.20 0.18 0.12 3/512 4711\n");
        put("proc/sys/kernel/pid_max", "4194304\n");
        put("proc/sys/kernel/threads-max", "1000\n");
        assert_eq!(left(root.path()).expect("read"), Some(488));
        put("proc/self/cgroup", "0::/a\n");
        put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        put("sys/fs/cgroup/a/pids.max", "20\n");
        put("sys/fs/cgroup/a/pids.current", "15\n");
        assert_eq!(left(root.path()).expect("read"), Some(5));
        put("proc/loadavg", "0.20\n");
        assert!(left(root.path()).is_err());
    }

    #[test]
    fn processes_left_for_a_user_are_limited_by_its_tasks() {
        let root = tempfile::tempdir().expect("a folder");
        let user = getuid().as_raw();
        for thread in ["7/task/7", "7/task/9", "8/task/8", "self/task/8"] {
            std::fs::create_dir_all(root.path().join(thread)).expect("made");
        }
        for (process, real) in [("7", user), ("8", user), ("9", user + 1)] {
            let status = format!("Name:\tx\nUid:\t{real}\t0\t0\t0\n");
            std::fs::create_dir_all(root.path().join(process)).expect("made");
            std::fs::write(root.path().join(process).join("status"), status).expect("written");
        }
        assert_eq!(left_under(20, root.path(), user), Some(17));
        assert_eq!(left_under(20, root.path(), user + 1), Some(20));
        assert_eq!(left_under(2, root.path(), user), Some(0));
        std::fs::write(root.path().join("loadavg"), "0.20 0.18 0.12 3/512 4711\n").expect("written");
        assert_eq!(left_under(1535, root.path(), user), Some(1532));
        assert_eq!(left_under(1536, root.path(), user), None);
    }

    #[test]
    fn processes_left_are_read_on_this_machine() {
        left(Path::new("/")).expect("reads");
    }
}
