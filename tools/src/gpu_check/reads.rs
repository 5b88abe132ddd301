//! Tests whether a file can be read directly into pinned memory, without the page cache, and how fast this is.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use opt_shared::units::Bytes;

use crate::Arguments;
use crate::cuda::{Device, Pinned};
use crate::row::Row;

/// The size of the test file, in bytes.
const FILE_BYTES: usize = 512 << 20;
/// The size of the test file in a dry run, in bytes.
const TWIN_FILE_BYTES: usize = 16 << 20;
const BLOCK: usize = 8 << 20;
/// A flag of `preadv2` since Linux 6.14. The headers of some libcs do not have it yet.
const RWF_DONTCACHE: i32 = 0x80;
/// The alignment of buffers. `O_DIRECT` needs buffers that are aligned to the blocks of the disk, which are usually no
/// larger than this.
const ALIGNMENT: usize = 4096;

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let device = Device::open(arguments)?;
    let file = Scratch::write(&arguments.dir, arguments.size(FILE_BYTES, TWIN_FILE_BYTES))?;
    let mut pinned = Pinned::allocate(&device, BLOCK)?;
    let mut plain = vec![0u8; BLOCK + ALIGNMENT];
    let skip = plain.as_ptr().align_offset(ALIGNMENT);
    let plain = &mut plain[skip..][..BLOCK];
    let ways = [("O_DIRECT", libc::O_DIRECT, 0), ("RWF_DONTCACHE", 0, RWF_DONTCACHE), ("no flags", 0, 0)];
    let mut rows = Vec::new();
    for (name, flags, read_flags) in ways {
        let into_pinned = file.read(flags, read_flags, pinned.as_mut_slice(), |_| Ok(()));
        let into_plain = file.read(flags, read_flags, plain, |_| Ok(()));
        let shown = |rate: &Result<f64>| match rate {
            Ok(rate) => format!("{rate:.2} GB/s"),
            Err(error) => format!("failed ({error:#})"),
        };
        rows.push(Row::measured(
            format!("preadv2, {name}, into pinned memory"),
            shown(&into_pinned),
            format!("into ordinary memory: {}", shown(&into_plain)),
        ));
    }
    let target = device.allocate(BLOCK as u64)?;
    let staged = file.read(libc::O_DIRECT, 0, pinned.as_mut_slice(), |block| device.upload(&target, block));
    rows.push(Row::of(
        "O_DIRECT into pinned memory and on to the device, one buffer",
        staged.map(|rate| (format!("{rate:.2} GB/s"), "read, then copied, not overlapped".to_owned())),
    ));
    pinned.release()?;
    device.release(target)?;
    Ok(rows)
}

/// A temporary file, which is removed when this value is dropped.
struct Scratch {
    path: PathBuf,
    bytes: usize,
}

impl Scratch {
    fn write(dir: &Path, bytes: usize) -> Result<Self> {
        let disk = rustix::fs::statvfs(dir)
            .with_context(|| format!("asking for the free space of {}", dir.display()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        ensure!(
            2 * bytes as u64 <= free,
            "{} has less than {} of free space, twice the size of the test file (pass --dir)",
            dir.display(),
            Bytes::from(2 * bytes)
        );
        let path = dir.join(format!("gpu-check-{}.tmp", std::process::id()));
        let scratch = Self { path, bytes };
        let write = || -> std::io::Result<()> {
            let mut file = File::create_new(&scratch.path)?;
            let mut block = vec![0u8; BLOCK];
            for number in 0..bytes / BLOCK {
                // Make all blocks different, so that a file system cannot compress or deduplicate their contents.
                let mut state = number as u64 + 1;
                for word in block.chunks_exact_mut(8) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    word.copy_from_slice(&state.to_le_bytes());
                }
                file.write_all(&block)?;
            }
            file.sync_all()
        };
        write().with_context(|| format!("writing {}", scratch.path.display()))?;
        Ok(scratch)
    }

    /// Reads the whole file, after dropping it from the page cache. Returns the speed in GB/s.
    fn read(
        &self,
        flags: i32,
        read_flags: i32,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<f64> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(&self.path)
            .context("opening the test file")?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        let started = Instant::now();
        let mut at = 0;
        while at < self.bytes {
            let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            // SAFETY: the single vector covers a live buffer, to which no other reference exists.
            let read = unsafe {
                libc::preadv2(file.as_raw_fd(), &raw const part, 1, i64::try_from(at)?, read_flags)
            };
            match usize::try_from(read) {
                Ok(0) => bail!("the file ended early"),
                Ok(read) => {
                    take(&buffer[..read])?;
                    at += read;
                }
                Err(_) => return Err(std::io::Error::last_os_error()).context("preadv2"),
            }
        }
        Ok(Bytes::from(self.bytes).as_f64() / started.elapsed().as_secs_f64() / 1e9)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Ignore errors, because this program cannot repair a folder that is no longer writable.
        let _ = std::fs::remove_file(&self.path);
    }
}
