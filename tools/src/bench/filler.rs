//! A child process that touches new memory as fast as one thread can. It counts this memory on a page that it shares
//! with its parent, so that its peak is known after its death.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use rustix::process::{Resource, Rlimit, setrlimit};

/// The first command line argument that makes this program a filler.
pub(crate) const ARGUMENT: &str = "__filler";
const PAGE: usize = 4096;
const CHUNK: usize = 64 << 20;
/// The number of bytes over its limit at which the filler stops by itself, in case nothing else stops it.
const ENOUGH: u64 = 4 << 30;
const HUGE_PAGE: u64 = 2 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The contents of the page that a filler shares with its parent.
#[repr(C)]
pub(crate) struct Count {
    /// The flag with which the parent starts the filling.
    go: AtomicU64,
    pub(crate) touched: AtomicU64,
    ready: AtomicU64,
}

/// Maps the shared page. The map stays until the process ends.
fn map(file: impl AsFd) -> Result<&'static Count> {
    // SAFETY: this is a new shared map of a file that is one page long and never shrinks. `Count` fits into the page
    // and consists of atomics, for which any bytes are valid.
    let count = unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )?;
        &*at.cast::<Count>()
    };
    Ok(count)
}

pub(crate) struct Filler {
    pub(crate) child: Child,
    pub(crate) count: &'static Count,
    _page: OwnedFd,
    huge: bool,
}

impl Filler {
    /// Starts a filler, which waits for `go`. `data` is its RLIMIT_DATA in bytes, or `None` for no such limit. If
    /// `huge` is true, the filler requests huge pages.
    pub(crate) fn start(limit: u64, data: Option<u64>, huge: bool) -> Result<Self> {
        let page = rustix::fs::memfd_create("filler", MemfdFlags::empty()).context("making a page")?;
        rustix::fs::ftruncate(&page, PAGE as u64)?;
        let count = map(&page)?;
        let own_executable = std::env::current_exe()?;
        let child = Command::new(own_executable)
            .arg(ARGUMENT)
            .args([
                page.as_raw_fd().to_string(),
                limit.to_string(),
                data.unwrap_or(0).to_string(),
                huge.to_string(),
            ])
            .stdin(Stdio::null())
            .spawn()
            .context("starting a filler")?;
        let filler = Self { child, count, _page: page, huge };
        let deadline = Instant::now() + TIMEOUT;
        while count.ready.load(Ordering::Acquire) == 0 {
            ensure!(Instant::now() < deadline, "the filler was not ready within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(filler)
    }

    pub(crate) fn go(&self) {
        self.count.go.store(1, Ordering::Release);
    }

    /// Waits until the filler is dead, and returns the bytes that it owed: the memory that it had touched, in whole
    /// pages, and its page tables.
    pub(crate) fn owed_at_death(&mut self) -> Result<u64> {
        self.child.wait().context("waiting for a filler")?;
        let touched = self.count.touched.load(Ordering::Acquire);
        let touched = if self.huge { touched.next_multiple_of(HUGE_PAGE) } else { touched };
        Ok(touched + touched / HUGE_PAGE * PAGE as u64)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> = arguments.filter_map(|it| it.into_string().ok()).collect();
    match fill(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("filler: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn fill(arguments: &[String]) -> Result<()> {
    let [page, limit, data, huge] = arguments else { bail!("a filler takes four arguments") };
    let (limit, data): (u64, u64) = (limit.parse()?, data.parse()?);
    let huge: bool = huge.parse()?;
    let count = map(File::options().read(true).write(true).open(format!("/proc/self/fd/{page}"))?)?;
    if data != 0 {
        setrlimit(Resource::Data, Rlimit { current: Some(data), maximum: Some(data) })?;
    }
    count.ready.store(1, Ordering::Release);
    let deadline = Instant::now() + TIMEOUT;
    while count.go.load(Ordering::Acquire) == 0 {
        ensure!(Instant::now() < deadline, "the filler was not told to begin within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
    let (mut chunk, mut touched) = (CHUNK, 0);
    while PAGE <= chunk && touched < limit + ENOUGH {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: this creates a new private map at an address that Linux chooses.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), chunk, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let Ok(at) = at else {
            // Linux refused the map, so continue with smaller maps.
            chunk /= 2;
            continue;
        };
        if huge {
            // SAFETY: advice on the new map does not change its contents. Linux may refuse it.
            let _ = unsafe { madvise(at, chunk, Advice::LinuxHugepage) };
        }
        for offset in (0..chunk).step_by(PAGE) {
            // SAFETY: the address is within the new map, to which no other reference exists. The write is volatile, so
            // it is not optimised away.
            unsafe { at.cast::<u8>().add(offset).write_volatile(1) };
            touched += PAGE as u64;
            count.touched.store(touched, Ordering::Release);
        }
    }
    Ok(())
}
