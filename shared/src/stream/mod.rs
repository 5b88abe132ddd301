//! Reads a long range of a file once, from front to back, at the disk's speed and without filling the page cache.
//!
//! Reader threads fill slots (buffers of one chunk) in turn, and the caller gets the slots in order. The readers work
//! ahead, so the disk does not wait for the caller. However long the range is, a stream needs memory only for its
//! slots.
//!
//! The module `method` decides how a chunk is read. If the system does not support the best method, the stream is
//! slower, but delivers the same bytes.

mod method;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

pub use method::{FileDisk, ReadMethod};

use crate::units::{Bytes, to_index};

/// The alignment of slots in memory. Direct reads are not used for a file that requires a coarser alignment.
const ALIGNMENT: u64 = 4096;
/// The number of slots that each reader has: it fills one slot while the caller uses the other.
const SLOTS_PER_READER: usize = 2;

/// The size of a stream's chunks, and its number of reader threads.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub chunk: Bytes,
    pub readers: usize,
}

/// A file that can be streamed, with the method by which it is read.
pub trait StreamFile: Sync {
    fn method(&self) -> ReadMethod;

    /// Stops using a method that does not work for this file. Later reads use the next method in `ReadMethod::ALL`.
    fn step_down(&self, from: ReadMethod);

    /// The alignment, in bytes, that direct reads need for their offset, their length and their memory.
    fn alignment(&self) -> u64;

    /// Reads like `FileExt::read_at`: may return fewer bytes than requested, and returns 0 at the end.
    fn read_at(&self, method: ReadMethod, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// The error for a range that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("could not read {length} at byte {offset}")]
pub struct ReadFault {
    pub offset: u64,
    pub length: Bytes,
    #[source]
    pub source: io::Error,
}

/// Passes the bytes of the range to `sink`, in order, in pieces of at most one chunk. Stops at the first error.
pub fn stream<E: From<ReadFault>>(
    file: &impl StreamFile,
    bytes: Range<u64>,
    shape: Shape,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let chunk = shape.chunk.get().max(ALIGNMENT);
    // Chunks end at multiples of `chunk` in the file. If `chunk` is aligned, direct reads read extra bytes only at the
    // two ends of the range.
    let first = bytes.start / chunk;
    let chunks = bytes.end.div_ceil(chunk).saturating_sub(first);
    let chunk_at = |number: u64| {
        let start = (first + number) * chunk;
        start.max(bytes.start)..(start + chunk).min(bytes.end)
    };
    let readers = (shape.readers as u64).clamp(1, chunks.max(1));
    if chunks <= 1 {
        let mut slot = Slot::new(chunk);
        return (0..chunks).try_for_each(|number| sink(slot.fill(file, chunk_at(number))?));
    }
    let stop = AtomicBool::new(false);
    let mut lanes = Vec::new();
    std::thread::scope(|scope| {
        for reader in 0..readers {
            let lane = Lane::new(chunk);
            let (stop, chunk_at) = (&stop, &chunk_at);
            let mine = (reader..chunks).step_by(to_index(readers));
            let Lane { filled_sender, filled_receiver, empty_sender, empty_receiver } = lane;
            let read = move || {
                for number in mine {
                    let Ok(mut slot) = empty_receiver.recv() else { return };
                    let filled = slot.read(file, chunk_at(number));
                    let is_last = filled.is_err() || stop.load(Ordering::Relaxed);
                    if filled_sender.send(filled.map(|()| slot)).is_err() || is_last {
                        return;
                    }
                }
            };
            // If a reader cannot be started, the caller reads its chunks.
            let started = std::thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, read);
            lanes.push(started.ok().map(|_| (filled_receiver, empty_sender)));
        }
        let mut own = None;
        let result = (0..chunks).try_for_each(|number| {
            match lanes.get(usize::try_from(number % readers).unwrap_or(0)) {
                Some(Some((filled_receiver, empty_sender))) => {
                    let gone = |_| fault(&chunk_at(number), io::Error::other("its reader thread has ended"));
                    let slot = filled_receiver.recv().map_err(gone)??;
                    let result = sink(slot.bytes());
                    let _ = empty_sender.send(slot);
                    result
                }
                _ => sink(own.get_or_insert_with(|| Slot::new(chunk)).fill(file, chunk_at(number))?),
            }
        });
        stop.store(true, Ordering::Relaxed);
        // This closes the channels, so that readers which are still waiting on them stop.
        lanes.clear();
        result
    })
}

/// Fills `buffer` with the bytes at `offset`, which are read with the file's current method. If that is `Direct`, but
/// the offset, the length or the buffer is not aligned, `Behind` is used instead.
pub fn read_exact(file: &impl StreamFile, buffer: &mut [u8], offset: u64) -> Result<(), ReadFault> {
    let bytes = offset..offset + buffer.len() as u64;
    let mut done = 0;
    while done < buffer.len() {
        let at = offset + done as u64;
        let rest = &mut buffer[done..];
        let method = match file.method() {
            ReadMethod::Direct => {
                let alignment = file.alignment().clamp(1, ALIGNMENT);
                let is_direct = [at, rest.len() as u64, rest.as_ptr() as u64]
                    .iter()
                    .all(|it| it.is_multiple_of(alignment));
                if is_direct { ReadMethod::Direct } else { ReadMethod::Behind }
            }
            method => method,
        };
        match file.read_at(method, rest, at) {
            Ok(0) => return Err(fault(&bytes, io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if method != ReadMethod::Behind && is_refused(&error) => file.step_down(method),
            Err(error) => return Err(fault(&bytes, error)),
        }
    }
    Ok(())
}

/// The channels between one reader and the caller.
struct Lane {
    /// Sends filled slots from the reader to the caller.
    filled_sender: SyncSender<Result<Slot, ReadFault>>,
    filled_receiver: Receiver<Result<Slot, ReadFault>>,
    /// Returns slots from the caller to the reader, to be filled again.
    empty_sender: Sender<Slot>,
    empty_receiver: Receiver<Slot>,
}

impl Lane {
    fn new(chunk: u64) -> Self {
        let (filled_sender, filled_receiver) = sync_channel(SLOTS_PER_READER);
        let (empty_sender, empty_receiver) = channel();
        for _ in 0..SLOTS_PER_READER {
            let _ = empty_sender.send(Slot::new(chunk));
        }
        Self { filled_sender, filled_receiver, empty_sender, empty_receiver }
    }
}

/// Aligned memory for one chunk, and for the extra bytes that direct reads return around it.
struct Slot {
    memory: Vec<u8>,
    aligned: usize,
    filled: Range<usize>,
}

impl Slot {
    fn new(chunk: u64) -> Self {
        // In addition to the chunk, one `ALIGNMENT` is for aligning the memory, and one at each end is for the extra
        // bytes of direct reads.
        let room = Bytes::new(chunk + 3 * ALIGNMENT).to_usize();
        let memory = vec![0; room];
        let aligned = memory.as_ptr().align_offset(to_index(ALIGNMENT)).min(to_index(ALIGNMENT));
        Self { memory, aligned, filled: 0..0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.filled.clone()]
    }

    fn fill(&mut self, file: &impl StreamFile, bytes: Range<u64>) -> Result<&[u8], ReadFault> {
        self.read(file, bytes)?;
        Ok(self.bytes())
    }

    fn read(&mut self, file: &impl StreamFile, bytes: Range<u64>) -> Result<(), ReadFault> {
        let base = bytes.start - bytes.start % ALIGNMENT;
        let place = |at: u64| self.aligned + Bytes::new(at - base).to_usize();
        let mut done = bytes.start;
        while done < bytes.end {
            let method = file.method();
            let (from, to) = match method {
                ReadMethod::Direct => {
                    let alignment = file.alignment().clamp(1, ALIGNMENT);
                    (done - done % alignment, bytes.end.next_multiple_of(alignment))
                }
                ReadMethod::Uncached | ReadMethod::Behind => (done, bytes.end),
            };
            let (start, end) = (place(from), place(to));
            match file.read_at(method, &mut self.memory[start..end], from) {
                Ok(0) => return Err(fault(&bytes, io::ErrorKind::UnexpectedEof.into())),
                Ok(read) if done < from + read as u64 => done = (from + read as u64).min(bytes.end),
                // The read returned fewer bytes than requested, and none of those that are still missing. The next
                // method needs no alignment, so it can read them.
                Ok(_) => file.step_down(method),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if method != ReadMethod::Behind && is_refused(&error) => file.step_down(method),
                Err(error) => return Err(fault(&bytes, error)),
            }
        }
        self.filled = place(bytes.start)..place(bytes.end);
        Ok(())
    }
}

/// True if the error means that Linux or the file system does not support this method, at least not for this read.
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
