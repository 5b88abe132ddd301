//! A disk that fails on command. It is a read-only file system that mirrors a folder. A test can make its reads fail or
//! hang, and can cut its files short while they are in use.
//!
//! A thread of the test serves the file system through the kernel's FUSE protocol. `protocol.rs` owns the encoding of
//! that protocol. Only a dozen kinds of requests are needed, so this file handles them itself: a crate that handles all
//! kinds would add twenty crates to the build of the tests.

mod protocol;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::protocol::{Attributes, Request, Wanted};

/// The size of the buffer for requests. The largest request is a write of the size that `protocol::initialised` allows,
/// with its header.
const REQUEST_BYTES: usize = 64 << 10;
/// The number that the kernel uses for the root folder.
const ROOT: u64 = 1;
/// The largest answer to one read, in bytes. The kernel asks for less.
const LARGEST_READ: u64 = 4 << 20;

/// How a read that touches a faulty range fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It returns EIO.
    Refused,
    /// It does not return until `heal` is called or the disk is dropped.
    Hangs,
}

/// The mounted file system. Dropping the value unmounts it.
pub struct FaultyDisk {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    /// The connection to the kernel.
    device: File,
    source: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The files and folders to which the kernel refers by number, relative to the root. The first has the number
    /// `ROOT`.
    nodes: Vec<PathBuf>,
    faults: Vec<(PathBuf, Range<u64>, Fault)>,
    /// The lengths of files that were cut short.
    lengths: BTreeMap<PathBuf, u64>,
    /// The reads that currently hang.
    hanging: Vec<Request>,
    /// The number of reads that failed or hung.
    met: usize,
}

impl FaultyDisk {
    /// Mounts a disk on the folder `at`, which mirrors the folder `source`. Returns an error if this process is not
    /// allowed to mount a file system, or if the kernel lacks FUSE.
    pub fn mount(source: &Path, at: &Path) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions",
            device.as_raw_fd()
        );
        let [target, options] =
            [at.as_os_str().as_bytes(), options.as_bytes()].map(|text| CString::new(text).expect("no NUL"));
        let kind = c"fuse";
        let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
        // SAFETY: the four pointers are to strings that end with NUL and outlive the call.
        let mounted = unsafe {
            libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
        };
        if mounted != 0 {
            return Err(io::Error::last_os_error());
        }
        let state = State { nodes: vec![PathBuf::new()], ..State::default() };
        let shared = Arc::new(Shared { device, source: source.to_owned(), state: Mutex::new(state) });
        let server = Arc::clone(&shared);
        // The thread ends when the disk has been unmounted and no process uses it any more.
        std::thread::spawn(move || server.serve());
        Ok(Self { path: at.to_owned(), shared })
    }

    /// Makes every read that touches these bytes of a file fail. The file is named relative to the root of the disk.
    pub fn fail(&self, file: &str, bytes: Range<u64>, fault: Fault) {
        self.shared.state().faults.push((file.into(), bytes, fault));
        self.forget_pages(file);
    }

    /// Cuts a file short. Processes that have mapped the rest get SIGBUS when they access it.
    pub fn cut(&self, file: &str, length: u64) {
        self.shared.state().lengths.insert(file.into(), length);
        self.forget_pages(file);
    }

    /// Ends all faults: restores the lengths of files that were cut short, and answers the reads that hang.
    pub fn heal(&self) {
        let (hanging, cut) = {
            let mut state = self.shared.state();
            state.faults.clear();
            (std::mem::take(&mut state.hanging), std::mem::take(&mut state.lengths))
        };
        for request in hanging {
            self.shared.answer(&request);
        }
        for file in cut.into_keys() {
            self.forget_pages(&file);
        }
    }

    /// The number of reads so far that failed or hung.
    pub fn met(&self) -> usize {
        self.shared.state().met
    }

    /// Makes the kernel drop its cached pages of a file, so that the next read asks this disk.
    fn forget_pages(&self, file: impl AsRef<Path>) {
        let node = self.shared.state().known(file.as_ref());
        if let Some(node) = node {
            // The kernel refuses if it has forgotten the file. In that case it has no cached pages of the file.
            let _ = protocol::send(&self.shared.device, &protocol::forget_pages(node));
        }
    }
}

impl Drop for FaultyDisk {
    fn drop(&mut self) {
        // A process that hangs in a read cannot be killed, so answer all reads that hang.
        self.heal();
        if let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) {
            // SAFETY: the pointer is to a string that ends with NUL and outlives the call.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

impl State {
    /// Returns the number by which the kernel knows a path, if it has asked for the path.
    fn known(&self, path: &Path) -> Option<u64> {
        let at = self.nodes.iter().position(|node| node == path)?;
        Some(u64::try_from(at).ok()? + ROOT)
    }

    fn path(&self, node: u64) -> io::Result<&PathBuf> {
        let at = node.checked_sub(ROOT).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.nodes.get(at)).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn fault(&self, path: &Path, bytes: &Range<u64>) -> Option<Fault> {
        let touches = |range: &Range<u64>| range.start < bytes.end && bytes.start < range.end;
        self.faults.iter().find(|(file, range, _)| file == path && touches(range)).map(|it| it.2)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut buffer = vec![0; REQUEST_BYTES];
        loop {
            match (&self.device).read(&mut buffer) {
                Ok(bytes) => {
                    if let Some(request) = Request::parse(&buffer[..bytes]) {
                        self.answer(&request);
                    }
                }
                // The kernel withdrew the request before this thread read it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                // The disk is unmounted.
                Err(_) => return,
            }
        }
    }

    fn answer(&self, request: &Request) {
        let answer = match &request.wanted {
            Wanted::Nothing => return,
            Wanted::Read { bytes } => match self.read(request, bytes.clone()) {
                Some(read) => read,
                None => return,
            },
            wanted => self.facts(request.node, wanted),
        };
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        // The kernel refuses an answer to a request that it has withdrawn.
        let _ = protocol::send(&self.device, &protocol::answer(request.unique, answer.map_err(errno)));
    }

    /// Answers a request that reads no data.
    fn facts(&self, node: u64, wanted: &Wanted) -> io::Result<Vec<u8>> {
        match wanted {
            Wanted::Start { minor } => Ok(protocol::initialised(*minor)),
            Wanted::Lookup { name } => {
                let path = self.state().path(node)?.join(std::ffi::OsStr::from_bytes(name));
                // The kernel may get a number only for a file that exists.
                fs::symlink_metadata(self.source.join(&path))?;
                let node = {
                    let mut state = self.state();
                    if state.known(&path).is_none() {
                        state.nodes.push(path.clone());
                    }
                    state.known(&path).ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?
                };
                Ok(protocol::entry(&self.attributes(node)?))
            }
            Wanted::Attributes => Ok(protocol::attributes(&self.attributes(node)?)),
            Wanted::Open => Ok(protocol::opened()),
            Wanted::List { offset } => self.list(node, *offset),
            Wanted::Close => Ok(Vec::new()),
            Wanted::Nothing | Wanted::Read { .. } | Wanted::Other => {
                Err(io::Error::from_raw_os_error(libc::ENOSYS))
            }
        }
    }

    fn attributes(&self, node: u64) -> io::Result<Attributes> {
        let (path, cut) = {
            let state = self.state();
            let path = state.path(node)?.clone();
            let cut = state.lengths.get(&path).copied();
            (path, cut)
        };
        let metadata = fs::symlink_metadata(self.source.join(path))?;
        let length = cut.unwrap_or(u64::MAX).min(metadata.size());
        Ok(Attributes {
            node,
            length,
            seconds: u64::try_from(metadata.mtime()).unwrap_or_default(),
            nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
            mode: metadata.mode(),
            user: metadata.uid(),
            group: metadata.gid(),
        })
    }

    /// Lists the entries of a folder after number `offset`. The folders of tests are so small that one answer contains
    /// all entries. The kernel asks again after the last entry.
    fn list(&self, node: u64, offset: u64) -> io::Result<Vec<u8>> {
        let folder = self.source.join(self.state().path(node)?);
        let mut names: Vec<(Vec<u8>, bool)> = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            names.push((entry.file_name().into_vec(), entry.file_type()?.is_dir()));
        }
        names.sort();
        Ok(protocol::listed(&names, offset))
    }

    /// Reads from the file. Returns `None` if the read hangs.
    fn read(&self, request: &Request, bytes: Range<u64>) -> Option<io::Result<Vec<u8>>> {
        let path = {
            let mut state = self.state();
            let path = match state.path(request.node) {
                Ok(path) => path.clone(),
                Err(error) => return Some(Err(error)),
            };
            match state.fault(&path, &bytes) {
                None => path,
                Some(fault) => {
                    state.met += 1;
                    if fault == Fault::Hangs {
                        state.hanging.push(request.clone());
                        return None;
                    }
                    return Some(Err(io::Error::from_raw_os_error(libc::EIO)));
                }
            }
        };
        Some(self.attributes(request.node).and_then(|attributes| {
            let length = bytes.end.min(attributes.length).saturating_sub(bytes.start).min(LARGEST_READ);
            let mut data = vec![0; usize::try_from(length).unwrap_or_default()];
            File::open(self.source.join(path))?.read_exact_at(&mut data, bytes.start)?;
            Ok(data)
        }))
    }
}
