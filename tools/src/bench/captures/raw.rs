//! Measures the physical limits of the capture store: processes the same files with as many threads, but without a
//! store.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};

/// The number of bytes that are read at a time. The product uses the same number.
const CHUNK: usize = 1 << 20;

/// Reads every file from start to end and hashes it. Nothing is written or dropped.
pub(super) fn read_and_hash(files: &[PathBuf], threads: usize) -> Result<()> {
    in_parallel(files.len(), threads, |number| {
        let mut hasher = blake3::Hasher::new();
        each_chunk(&files[number], |chunk| {
            hasher.update(chunk);
            Ok(())
        })?;
        std::hint::black_box(hasher.finalize());
        Ok(())
    })
}

/// Copies every file to the folder, and flushes the copy to the disk.
pub(super) fn copy(files: &[PathBuf], folder: &Path, threads: usize) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    in_parallel(files.len(), threads, |number| {
        let name = files[number].file_name().context("a file without a name")?;
        let mut copy = File::create(folder.join(name))?;
        each_chunk(&files[number], |chunk| Ok(copy.write_all(chunk)?))?;
        Ok(copy.sync_all()?)
    })
}

fn each_chunk(path: &Path, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(());
        }
        take(&buffer[..read])?;
        at += read as u64;
    }
}

fn in_parallel(count: usize, threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let one = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if count <= number {
                    return Ok(());
                }
                work(number)?;
            }
        };
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
    })
}
