//! Reading a long range once, front to back, at the disk's rate and without filling the page cache.
//!
//! Reader threads fill slots in turn and the caller gets them in order, so that the disk does not wait for who uses
//! the bytes. Memory is the slots, whatever the range. How a chunk is read is `ladder`'s; an advice or a method that
//! is not taken changes the speed and never the bytes.

mod ladder;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

pub use ladder::{FileDisk, ReadMethod};

use crate::units::{Bytes, to_index};

/// Slots start at such an address and such a place of the file: what every disk accepts for direct reads.
const ALIGNMENT: u64 = 4096;
/// Each reader fills one slot while its other one is used.
const SLOTS_PER_READER: usize = 2;

/// What a stream holds in memory, and how many read at a time.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub chunk: Bytes,
    pub readers: usize,
}

/// What a stream reads from.
pub trait Disk: Sync {
    fn method(&self) -> ReadMethod;

    /// This method does not work here; what follows is read by the next one.
    fn step_down(&self, from: ReadMethod);

    /// What places and lengths of direct reads are multiples of.
    fn alignment(&self) -> u64;

    /// As `FileExt::read_at`: may bring less than was asked for, and nothing at the end.
    fn read_at(&self, method: ReadMethod, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Bytes that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {length} at byte {offset} (was the file truncated meanwhile?)")]
pub struct ReadFault {
    pub offset: u64,
    pub length: Bytes,
    #[source]
    pub source: io::Error,
}

/// Hands the range to `sink` in order, in pieces of a chunk at most. Stops at the first error.
pub fn stream<E: From<ReadFault>>(
    disk: &impl Disk,
    bytes: Range<u64>,
    shape: Shape,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let chunk = shape.chunk.get().max(ALIGNMENT);
    // Cut where the file is aligned, so that direct reads overlap nowhere but at the ends.
    let first = bytes.start / chunk;
    let chunks = bytes.end.div_ceil(chunk).saturating_sub(first);
    let chunk_at = |number: u64| {
        let start = (first + number) * chunk;
        start.max(bytes.start)..(start + chunk).min(bytes.end)
    };
    let readers = (shape.readers as u64).clamp(1, chunks.max(1));
    if chunks <= 1 {
        let mut slot = Slot::new(chunk);
        return (0..chunks).try_for_each(|number| sink(slot.fill(disk, chunk_at(number))?));
    }
    let stop = AtomicBool::new(false);
    let mut lanes = Vec::new();
    std::thread::scope(|scope| {
        for reader in 0..readers {
            let lane = Lane::new(chunk);
            let (stop, chunk_at) = (&stop, &chunk_at);
            let mine = (reader..chunks).step_by(to_index(readers));
            let Lane { full, give, empty, back } = lane;
            let read = move || {
                for number in mine {
                    let Ok(mut slot) = empty.recv() else { return };
                    let filled = slot.read(disk, chunk_at(number));
                    let over = filled.is_err() || stop.load(Ordering::Relaxed);
                    if give.send(filled.map(|()| slot)).is_err() || over {
                        return;
                    }
                }
            };
            // A reader that cannot be started is read for by the caller.
            let started = std::thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, read);
            lanes.push(started.ok().map(|_| (full, back)));
        }
        let mut own = None;
        let done = (0..chunks).try_for_each(|number| {
            match lanes.get(usize::try_from(number % readers).unwrap_or(0)) {
                Some(Some((full, back))) => {
                    let gone = |_| fault(&chunk_at(number), io::Error::other("its reader has ended"));
                    let slot = full.recv().map_err(gone)??;
                    let done = sink(slot.bytes());
                    let _ = back.send(slot);
                    done
                }
                _ => sink(own.get_or_insert_with(|| Slot::new(chunk)).fill(disk, chunk_at(number))?),
            }
        });
        stop.store(true, Ordering::Relaxed);
        // Readers that wait for a slot, or to give one, see that nobody is there any more.
        lanes.clear();
        done
    })
}

/// Fills `buffer` from the bytes at `offset`, by the method that the disk is on. Where a direct read is not possible
/// for its place or length, it goes through the cache and out of it again.
pub fn read_exact(disk: &impl Disk, buffer: &mut [u8], offset: u64) -> Result<(), ReadFault> {
    let bytes = offset..offset + buffer.len() as u64;
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let rest = &mut buffer[done..];
        let method = match disk.method() {
            ReadMethod::Direct => {
                let alignment = disk.alignment().clamp(1, ALIGNMENT);
                let is_direct = [at, rest.len() as u64, rest.as_ptr() as u64]
                    .iter()
                    .all(|it| it.is_multiple_of(alignment));
                if is_direct { ReadMethod::Direct } else { ReadMethod::Behind }
            }
            method => method,
        };
        match disk.read_at(method, rest, at) {
            Ok(0) => return Err(fault(&bytes, io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if method != ReadMethod::Behind && is_refused(&error) => disk.step_down(method),
            Err(error) => return Err(fault(&bytes, error)),
        }
    }
    Ok(())
}

/// Between one reader and the caller.
struct Lane {
    full: Receiver<Result<Slot, ReadFault>>,
    give: SyncSender<Result<Slot, ReadFault>>,
    empty: Receiver<Slot>,
    back: Sender<Slot>,
}

impl Lane {
    fn new(chunk: u64) -> Self {
        let (give, full) = sync_channel(SLOTS_PER_READER);
        let (back, empty) = channel();
        for _ in 0..SLOTS_PER_READER {
            let _ = back.send(Slot::new(chunk));
        }
        Self { full, give, empty, back }
    }
}

/// Aligned memory for one chunk and what direct reads bring beside it.
struct Slot {
    memory: Vec<u8>,
    aligned: usize,
    filled: Range<usize>,
}

impl Slot {
    fn new(chunk: u64) -> Self {
        let room = Bytes::new(chunk + 3 * ALIGNMENT).to_usize();
        let memory = vec![0; room];
        let aligned = memory.as_ptr().align_offset(to_index(ALIGNMENT)).min(to_index(ALIGNMENT));
        Self { memory, aligned, filled: 0..0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.filled.clone()]
    }

    fn fill(&mut self, disk: &impl Disk, bytes: Range<u64>) -> Result<&[u8], ReadFault> {
        self.read(disk, bytes)?;
        Ok(self.bytes())
    }

    fn read(&mut self, disk: &impl Disk, bytes: Range<u64>) -> Result<(), ReadFault> {
        let base = bytes.start - bytes.start % ALIGNMENT;
        let place = |at: u64| self.aligned + Bytes::new(at - base).to_usize();
        let mut done = bytes.start;
        while done < bytes.end {
            let method = disk.method();
            let (from, to) = match method {
                ReadMethod::Direct => {
                    let alignment = disk.alignment().clamp(1, ALIGNMENT);
                    (done - done % alignment, bytes.end.next_multiple_of(alignment))
                }
                ReadMethod::Uncached | ReadMethod::Behind => (done, bytes.end),
            };
            let (start, end) = (place(from), place(to));
            match disk.read_at(method, &mut self.memory[start..end], from) {
                Ok(0) => return Err(fault(&bytes, io::ErrorKind::UnexpectedEof.into())),
                Ok(read) if done < from + read as u64 => done = (from + read as u64).min(bytes.end),
                // Less than was there before: the next method knows how to read half a block.
                Ok(_) => disk.step_down(method),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if method != ReadMethod::Behind && is_refused(&error) => disk.step_down(method),
                Err(error) => return Err(fault(&bytes, error)),
            }
        }
        self.filled = place(bytes.start)..place(bytes.end);
        Ok(())
    }
}

/// The kernel or the file system does not do this, or not like this.
fn is_refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::EFAULT | libc::EPERM | libc::EACCES)
    )
}

fn fault(bytes: &Range<u64>, source: io::Error) -> ReadFault {
    ReadFault { offset: bytes.start, length: Bytes::new(bytes.end - bytes.start), source }
}

#[cfg(test)]
mod tests;
