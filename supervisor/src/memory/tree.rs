//! Finds the descendants of a process by reading `/proc/PID/task/*/children` or, if Linux has no such files, the
//! parents of all processes.
//!
//! The tree can change during a walk. A process that started or was orphaned during the walk may be missing, and a
//! process in the result may have ended. The cost of reading all parents grows with the number of processes on the
//! machine, so callers should walk less often if [`TreeWalker::is_cheap`] returns false.

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::SampleError;
use super::procfs::{parent, process_folder};
use super::text::{number, words};

/// The maximum number of descendants. Only a fork bomb should exceed this number.
pub const MAX_DESCENDANTS: usize = 16 << 10;
/// The maximum number of processes on the machine. It is twice Linux's default limit on pids for machines with up to 32
/// CPUs.
pub const MAX_PROCESSES: usize = 64 << 10;
/// The size of the buffer for a list of children, with 8 bytes for each pid.
const CHILDREN_BYTES: usize = MAX_DESCENDANTS * 8;
/// The size of the buffer for folder entries.
const FOLDER_BYTES: usize = 8 << 10;
/// The size of the buffer for a name such as `PID/children`, with its terminating zero.
const NAME_BYTES: usize = 32;

#[derive(Debug)]
pub struct TreeWalker {
    proc: PathBuf,
    folder: OwnedFd,
    entries: Box<[MaybeUninit<u8>]>,
    text: Box<[u8]>,
    found: Vec<u32>,
    /// All processes, as pairs of parent and child. Used only if Linux does not list children.
    pairs: Vec<(u32, u32)>,
    method: Method,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// Linux lists the children of each thread.
    Listed,
    /// Linux does not list children, so the parent of every process is read.
    Parents,
}

impl TreeWalker {
    /// Opens `proc`, which is `/proc`.
    pub fn open(proc: &Path) -> Result<Self, SampleError> {
        let folder = rustix::fs::openat(CWD, proc, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| SampleError::io(proc, "open it", error.into()))?;
        Ok(Self {
            proc: proc.to_owned(),
            folder,
            entries: vec![MaybeUninit::uninit(); FOLDER_BYTES].into_boxed_slice(),
            text: vec![0; CHILDREN_BYTES].into_boxed_slice(),
            found: Vec::new(),
            pairs: Vec::new(),
            method: Method::Listed,
        })
    }

    /// Returns whether the cost of a walk depends only on the size of the tree. The answer is reliable only after the
    /// first walk.
    pub fn is_cheap(&self) -> bool {
        self.method == Method::Listed
    }

    /// Returns the descendants of a process, sorted.
    pub fn descendants(&mut self, pid: u32) -> Result<&[u32], SampleError> {
        if self.method == Method::Listed {
            match self.by_lists(pid) {
                // Linux does not list children, and this cannot change later, so this walk and all later ones read the
                // parents.
                Err(SampleError::Absent { .. }) => self.method = Method::Parents,
                other => other?,
            }
        }
        if self.method == Method::Parents {
            self.by_parents(pid)?;
        }
        // A process that was orphaned during the walk can be found twice, once below its old parent and once below its
        // new one.
        self.found.sort_unstable();
        self.found.dedup();
        Ok(&self.found)
    }

    fn by_lists(&mut self, pid: u32) -> Result<(), SampleError> {
        self.found.clear();
        self.add_children(pid)?;
        let mut next = 0;
        while let Some(&child) = self.found.get(next) {
            self.add_children(child)?;
            next += 1;
        }
        Ok(())
    }

    fn by_parents(&mut self, pid: u32) -> Result<(), SampleError> {
        let Self { proc, pairs, found, .. } = self;
        pairs.clear();
        found.clear();
        parents(proc, |child, parent| pairs.push((parent, child)))?;
        pairs.sort_unstable();
        let mut current = Some(pid);
        let mut next = 0;
        while let Some(parent) = current {
            let from = pairs.partition_point(|&(other, _)| other < parent);
            for &(_, child) in pairs[from..].iter().take_while(|&&(other, _)| other == parent) {
                if found.len() == MAX_DESCENDANTS {
                    return Err(SampleError::TooMany { path: proc.clone(), limit: MAX_DESCENDANTS });
                }
                found.push(child);
            }
            current = found.get(next).copied();
            next += 1;
        }
        Ok(())
    }

    fn add_children(&mut self, pid: u32) -> Result<(), SampleError> {
        let Self { proc, folder, entries, text, found, .. } = self;
        let fail = |operation, error: Errno| {
            SampleError::io(&process_folder(proc, pid).join("task"), operation, error.into())
        };
        let mut name = [0; NAME_BYTES];
        let tasks = match open_below(folder.as_fd(), &mut name, format_args!("{pid}/task"), OFlags::DIRECTORY)
        {
            Ok(tasks) => tasks,
            Err(Errno::NOENT | Errno::SRCH) => return Ok(()),
            Err(error) => return Err(fail("open it", error)),
        };
        let mut threads = RawDir::new(&tasks, entries);
        while let Some(thread) = threads.next() {
            let thread = match thread {
                Ok(thread) => thread,
                Err(Errno::NOENT | Errno::SRCH) => break,
                Err(error) => return Err(fail("list it", error)),
            };
            let Some(thread) = number(thread.file_name().to_bytes()) else { continue };
            let mut name = [0; NAME_BYTES];
            let children =
                open_below(tasks.as_fd(), &mut name, format_args!("{thread}/children"), OFlags::empty());
            let children = match children {
                Ok(children) => children,
                Err(Errno::NOENT | Errno::SRCH) => {
                    // Either the thread has ended, or Linux does not list children. If the thread's folder exists, it
                    // is the latter.
                    let mut name = [0; NAME_BYTES];
                    if open_below(tasks.as_fd(), &mut name, format_args!("{thread}"), OFlags::DIRECTORY)
                        .is_ok()
                    {
                        return Err(SampleError::Absent {
                            path: process_folder(proc, pid).join("task").join(thread.to_string()),
                            wanted: "children",
                        });
                    }
                    continue;
                }
                Err(error) => return Err(fail("open the list of children below it", error)),
            };
            let length = match read_to_end(&children, text) {
                Ok(Some(length)) => length,
                Ok(None) => return Err(SampleError::TooMany { path: proc.clone(), limit: MAX_DESCENDANTS }),
                Err(Errno::SRCH) => continue,
                Err(error) => return Err(fail("read the list of children below it", error)),
            };
            for word in words(&text[..length]) {
                let child = number(word).and_then(|child| u32::try_from(child).ok()).ok_or_else(|| {
                    let path = process_folder(proc, pid).join("task").join(thread.to_string());
                    SampleError::line(&path.join("children"), &text[..length], "a list of process ids")
                })?;
                if found.len() == MAX_DESCENDANTS {
                    return Err(SampleError::TooMany { path: proc.clone(), limit: MAX_DESCENDANTS });
                }
                found.push(child);
            }
        }
        Ok(())
    }
}

/// Returns the children of a process, sorted. To find them, reads the parents of all processes.
pub fn children(proc: &Path, pid: u32) -> Result<Vec<u32>, SampleError> {
    let mut children = Vec::new();
    parents(proc, |child, parent| {
        if parent == pid {
            children.push(child);
        }
    })?;
    children.sort_unstable();
    Ok(children)
}

/// Calls `visit` with the pid and the parent of each process. Processes that end in the meantime are skipped.
fn parents(proc: &Path, mut visit: impl FnMut(u32, u32)) -> Result<(), SampleError> {
    let entries = std::fs::read_dir(proc).map_err(|error| SampleError::io(proc, "list it", error))?;
    let mut seen = 0;
    for entry in entries {
        let entry = entry.map_err(|error| SampleError::io(proc, "list it", error))?;
        let pid = number(entry.file_name().as_encoded_bytes()).and_then(|pid| u32::try_from(pid).ok());
        let Some(pid) = pid else { continue };
        if seen == MAX_PROCESSES {
            return Err(SampleError::TooMany { path: proc.to_owned(), limit: MAX_PROCESSES });
        }
        seen += 1;
        if let Some(parent) = parent(proc, pid)? {
            visit(pid, parent);
        }
    }
    Ok(())
}

/// Opens an entry of a folder. Formats the entry's name into `buffer`, so that nothing is allocated.
fn open_below(
    folder: BorrowedFd<'_>,
    buffer: &mut [u8; NAME_BYTES],
    name: std::fmt::Arguments<'_>,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let mut rest = &mut buffer[..];
    write!(rest, "{name}\0").map_err(|_| Errno::NAMETOOLONG)?;
    let name = std::ffi::CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::INVAL)?;
    rustix::fs::openat(folder, name, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Reads a whole file into the buffer, and returns its length. Returns `None` if the file does not fit.
fn read_to_end(file: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
    let mut length = 0;
    while length < buffer.len() {
        match rustix::io::read(file, &mut buffer[length..]) {
            Ok(0) => return Ok(Some(length)),
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a fake `/proc`. Each thread is given as the pid of its process, its own id, and its list of children.
    fn fake(threads: &[(u32, u32, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        for (pid, thread, children) in threads {
            let folder = process_folder(root.path(), *pid).join("task").join(thread.to_string());
            std::fs::create_dir_all(&folder).expect("folder");
            std::fs::write(folder.join("children"), children).expect("writes");
        }
        root
    }

    #[test]
    fn descendants_include_children_of_all_threads() {
        let root = fake(&[
            (10, 10, "11 "),
            (10, 15, "20 21 "),
            (11, 11, "12 "),
            (12, 12, ""),
            (20, 20, ""),
            (30, 30, "31 "),
        ]);
        let mut walker = TreeWalker::open(root.path()).expect("opens");
        assert_eq!(walker.descendants(10).expect("walks"), [11, 12, 20, 21]);
        assert_eq!(walker.descendants(12).expect("walks"), [0u32; 0]);
        assert_eq!(walker.descendants(99).expect("walks"), [0u32; 0]);
    }

    #[test]
    fn descendants_fail_at_the_limit() {
        let root = fake(&[(1, 1, "2 "), (2, 2, "1 ")]);
        let error = TreeWalker::open(root.path()).expect("opens").descendants(1).expect_err("refuses");
        assert!(matches!(error, SampleError::TooMany { limit: MAX_DESCENDANTS, .. }), "{error}");
    }

    #[test]
    fn descendants_are_found_by_parents_if_no_children_are_listed() {
        let root = fake(&[(10, 10, "11 "), (11, 11, "")]);
        for (pid, parent) in [(10, 1), (11, 10), (12, 11), (13, 11), (20, 1), (21, 20)] {
            let folder = process_folder(root.path(), pid);
            std::fs::create_dir_all(folder.join("task").join(pid.to_string())).expect("folder");
            let stat = format!("{pid} (a ) b) S {parent} 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid}00 0 0\n");
            std::fs::write(folder.join("stat"), stat).expect("writes");
        }
        std::fs::remove_file(root.path().join("10/task/10/children")).expect("removes");
        let mut walker = TreeWalker::open(root.path()).expect("opens");
        assert!(walker.is_cheap());
        assert_eq!(walker.descendants(10).expect("walks"), [11, 12, 13]);
        assert!(!walker.is_cheap());
        assert_eq!(walker.descendants(20).expect("walks"), [21]);
        assert_eq!(walker.descendants(99).expect("walks"), [0u32; 0]);
        assert_eq!(children(root.path(), 11).expect("walks"), [12, 13]);
        std::fs::write(
            root.path().join("12/stat"),
            "12 (x) S 12 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0\n",
        )
        .expect("writes");
        let error = walker.descendants(12).expect_err("its own parent");
        assert!(matches!(error, SampleError::TooMany { .. }), "{error}");
    }

    #[test]
    fn malformed_list_of_children_is_reported() {
        let root = fake(&[(1, 1, "two")]);
        let error = TreeWalker::open(root.path()).expect("opens").descendants(1).expect_err("refuses");
        assert!(error.to_string().contains("1/task/1/children: `two`"), "{error}");
    }

    /// Finds a child and a grandchild of this process with both methods.
    #[test]
    fn both_methods_find_a_real_tree() {
        use std::io::BufRead as _;
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        std::io::BufReader::new(stdout).read_line(&mut line).expect("prints the pid of its child");
        let grandchild: u32 = line.trim().parse().expect("a pid");
        for method in [Method::Listed, Method::Parents] {
            let mut walker = TreeWalker::open(Path::new("/proc")).expect("opens");
            walker.method = method;
            let found = walker.descendants(std::process::id()).expect("walks").to_vec();
            assert!(found.contains(&child.id()) && found.contains(&grandchild), "{method:?}: {found:?}");
            assert_eq!(walker.descendants(child.id()).expect("walks"), [grandchild], "{method:?}");
        }
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(grandchild).expect("a pid")).expect("a pid"),
            rustix::process::Signal::KILL,
        )
        .expect("kills");
        child.wait().expect("reaps");
    }
}
