//! Tests streams with a simulated file, which fails as files on real disks do. A stream must either return the right
//! bytes or fail.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use rustix::fs::{Advice, fadvise};

use super::*;
use crate::cache::cached_pages;

/// The behaviour of the simulated file in one read.
#[derive(Clone, Copy, Debug)]
enum ReadBehaviour {
    Whole,
    /// Returns at most this many bytes.
    Short(usize),
    Interrupted,
    /// The method is not supported.
    Refused,
    /// A sector is bad.
    Broken,
}

struct UnreliableFile {
    contents: Vec<u8>,
    method: AtomicU8,
    alignment: u64,
    behaviours: Vec<ReadBehaviour>,
    /// The number of reads of the file.
    reads: AtomicU64,
}

impl StreamFile for UnreliableFile {
    fn method(&self) -> ReadMethod {
        ReadMethod::ALL[usize::from(self.method.load(Ordering::SeqCst))]
    }

    fn step_down(&self, from: ReadMethod) {
        let next = (from as u8 + 1).min(2);
        let _ = self.method.compare_exchange(from as u8, next, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn read_at(&self, method: ReadMethod, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if method == ReadMethod::Direct {
            let aligned = |at: u64| at.is_multiple_of(self.alignment);
            let address = buffer.as_ptr() as u64;
            if !aligned(offset) || !aligned(buffer.len() as u64) || !aligned(address) {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
        }
        let read_index = to_index(self.reads.fetch_add(1, Ordering::SeqCst));
        let most = match self.behaviours.get(read_index).unwrap_or(&ReadBehaviour::Whole) {
            ReadBehaviour::Whole => usize::MAX,
            ReadBehaviour::Short(most) => *most,
            ReadBehaviour::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
            ReadBehaviour::Refused if method != ReadMethod::Behind => {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
            ReadBehaviour::Refused => usize::MAX,
            ReadBehaviour::Broken => return Err(io::Error::from_raw_os_error(libc::EIO)),
        };
        let rest = self.contents.get(to_index(offset)..).unwrap_or_default();
        let read = rest.len().min(buffer.len()).min(most);
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }
}

fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251).to_le_bytes()[0]).collect()
}

fn collect(
    file: &impl StreamFile,
    bytes: Range<u64>,
    chunk: u64,
    readers: usize,
) -> Result<Vec<u8>, ReadFault> {
    let mut all = Vec::new();
    stream(file, bytes, Shape { chunk: Bytes::new(chunk), readers }, |chunk| {
        all.extend_from_slice(chunk);
        Ok::<_, ReadFault>(())
    })?;
    Ok(all)
}

fn read_behaviour() -> impl Strategy<Value = ReadBehaviour> {
    prop_oneof![
        4 => Just(ReadBehaviour::Whole),
        4 => (1usize..9000).prop_map(ReadBehaviour::Short),
        2 => Just(ReadBehaviour::Interrupted),
        1 => Just(ReadBehaviour::Refused),
        1 => Just(ReadBehaviour::Broken),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Either all the right bytes arrive, or an error that names the position.
    #[test]
    fn stream_returns_the_right_bytes_or_an_error(
        size in 0usize..90_000, start in 0u64..90_000, length in 0u64..90_000,
        chunk in 4096u64..20_000, readers in 1usize..5, method in 0u8..3, shift in 0u32..13,
        behaviours in prop::collection::vec(read_behaviour(), 0..20),
    ) {
        let unreliable = UnreliableFile {
            contents: contents(size),
            method: AtomicU8::new(method),
            alignment: 1 << shift,
            behaviours: behaviours.clone(),
            reads: AtomicU64::new(0),
        };
        let range = start..start + length;
        // Reading into a buffer, without a stream, gives the same result.
        let without_stream = UnreliableFile {
            contents: unreliable.contents.clone(),
            method: AtomicU8::new(method),
            alignment: 1 << shift,
            behaviours: behaviours.clone(),
            reads: AtomicU64::new(0),
        };
        let mut buffer = vec![0; to_index(length)];
        match read_exact(&without_stream, &mut buffer, start) {
            Ok(()) => prop_assert!(length == 0 || buffer == contents(size)[to_index(start)..to_index(start + length)]),
            Err(error) => {
                let broken = error.source.raw_os_error() == Some(libc::EIO);
                prop_assert!(broken || (size as u64) < range.end, "{error:?}");
            }
        }
        match collect(&unreliable, range.clone(), chunk, readers) {
            Ok(bytes) => {
                prop_assert_eq!(Some(&*bytes), unreliable.contents.get(to_index(range.start)..to_index(range.end))
                    .or((length == 0).then_some(&[][..])));
            }
            Err(error) => {
                let broken = error.source.raw_os_error() == Some(libc::EIO);
                let early = error.source.kind() == io::ErrorKind::UnexpectedEof;
                prop_assert!(broken && behaviours.iter().any(|read_behaviour| matches!(read_behaviour, ReadBehaviour::Broken))
                    || early && (size as u64) < range.end, "{error:?}");
                prop_assert!(range.start <= error.offset && error.offset < range.end);
            }
        }
    }
}

#[test]
fn every_method_reads_the_same_and_leaves_little_in_the_cache() {
    let all = contents((3 << 20) + 777);
    let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
    file.write_all(&all).expect("written");
    file.sync_all().expect("on disk");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
    let cold = cached_pages(file.as_fd()) == Some(0);
    for (method, readers) in [
        (ReadMethod::Uncached, 2),
        (ReadMethod::Direct, 1),
        (ReadMethod::Direct, 2),
        (ReadMethod::Behind, 1),
        (ReadMethod::Behind, 2),
    ] {
        for range in [0..all.len() as u64, 5..(2 << 20) + 3, 4096..8192, 77..77] {
            let opened = FileDisk::with_method(&file, readers, Some(method)).expect("opened");
            let read = collect(&opened, range.clone(), 256 << 10, readers).expect("read");
            assert!(read == all[to_index(range.start)..to_index(range.end)], "{method:?} {range:?}");
        }
        if cold {
            // Linux decides which pages it drops, so a page at each end of a piece may stay cached. With `Behind`, the
            // pages of a read-ahead window may stay too.
            let pages_left = cached_pages(file.as_fd()).expect("Linux reported the cached pages before");
            let max_pages = if method == ReadMethod::Behind { 512 } else { 64 };
            assert!(pages_left <= max_pages, "{method:?} left {pages_left} pages");
        }
    }
}

#[test]
fn readers_end_when_the_caller_stops() {
    let unreliable = UnreliableFile {
        contents: contents(80_000),
        method: AtomicU8::new(2),
        alignment: 512,
        behaviours: Vec::new(),
        reads: AtomicU64::new(0),
    };
    let mut calls = 0;
    let shape = Shape { chunk: Bytes::new(4096), readers: 3 };
    let done = stream(&unreliable, 0..80_000, shape, |_| {
        calls += 1;
        if calls == 2 { Err(fault(&(0..0), io::ErrorKind::Other.into())) } else { Ok(()) }
    });
    assert!(done.is_err());
    assert_eq!(calls, 2);
}
