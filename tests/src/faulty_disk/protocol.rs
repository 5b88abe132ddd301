//! Encodes and decodes messages of the kernel's FUSE protocol (`linux/fuse.h`), as far as a read-only file system needs
//! them. Integers have the byte order of this machine.

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;

/// The version of the protocol that this file implements. A kernel with a newer version adapts to it.
const MAJOR: u32 = 7;
const MINOR: u32 = 31;
/// The largest write that the kernel may send. The kernel never uses a smaller limit, and a read-only file system gets
/// no writes anyway.
const LARGEST_WRITE: u32 = 4096;
const HEADER_BYTES: usize = 40;
const BLOCK_BYTES: u32 = 4096;
/// The feature `FUSE_ASYNC_READ`, which lets the kernel request pages in the background. A process that waits for such
/// a page can be killed. A process that waits for the answer to a request of its own cannot.
const ASYNCHRONOUS_READS: u32 = 1;
/// The number of the notification `FUSE_NOTIFY_INVAL_INODE`.
const INVALIDATE_INODE: i32 = 2;
/// The types of entries in a listing: `DT_DIR` and `DT_REG`.
const FOLDER: u32 = 4;
const REGULAR: u32 = 8;

/// A request from the kernel.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) wanted: Wanted,
}

#[derive(Clone, Debug)]
pub(super) enum Wanted {
    Start {
        minor: u32,
    },
    Lookup {
        name: Vec<u8>,
    },
    Attributes,
    /// A file or folder is opened.
    Open,
    Read {
        bytes: Range<u64>,
    },
    /// Lists the entries of a folder after the one with this number, or all entries if the number is 0.
    List {
        offset: u64,
    },
    /// A file or folder is closed.
    Close,
    /// A request to which the kernel expects no answer.
    Nothing,
    /// A request that this file system does not support.
    Other,
}

pub(super) struct Attributes {
    pub(super) node: u64,
    pub(super) length: u64,
    /// The time of the last modification, in seconds since 1970.
    pub(super) seconds: u64,
    pub(super) nanoseconds: u32,
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Request {
    /// Parses a request; `None` if it is shorter than its kind demands.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (operation, unique, node) = (word(bytes, 4)?, long(bytes, 8)?, long(bytes, 16)?);
        let body = bytes.get(HEADER_BYTES..)?;
        let read = || Some((long(body, 8)?, u64::from(word(body, 16)?)));
        let wanted = match operation {
            1 => Wanted::Lookup { name: body.strip_suffix(&[0])?.to_vec() },
            3 => Wanted::Attributes,
            14 | 27 => Wanted::Open,
            15 => {
                let (offset, length) = read()?;
                Wanted::Read { bytes: offset..offset.checked_add(length)? }
            }
            18 | 29 => Wanted::Close,
            26 => Wanted::Start { minor: word(body, 4)? },
            28 => Wanted::List { offset: read()?.0 },
            // FORGET, INTERRUPT and BATCH_FORGET.
            2 | 36 | 42 => Wanted::Nothing,
            _ => Wanted::Other,
        };
        Some(Self { unique, node, wanted })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Sends an answer or a notification in a single write, as the kernel demands.
pub(super) fn send(mut device: &File, message: &[u8]) -> io::Result<()> {
    device.write(message).map(drop)
}

/// Encodes an answer, which consists of a body or an error number.
pub(super) fn answer(unique: u64, body: Result<Vec<u8>, i32>) -> Vec<u8> {
    match body {
        Ok(body) => message(0, unique, &body),
        Err(errno) => message(-errno, unique, &[]),
    }
}

/// Encodes a notification that the cached pages of a file are invalid.
pub(super) fn forget_pages(node: u64) -> Vec<u8> {
    // From the beginning to the end of the file.
    message(INVALIDATE_INODE, 0, &Body::default().longs(&[node, 0, 0]).0)
}

fn message(code: i32, unique: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + body.len()).expect("messages are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(code.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(body);
    bytes
}

#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    fn longs(mut self, longs: &[u64]) -> Self {
        longs.iter().for_each(|it| self.0.extend(it.to_ne_bytes()));
        self
    }

    fn words(mut self, words: &[u32]) -> Self {
        words.iter().for_each(|it| self.0.extend(it.to_ne_bytes()));
        self
    }

    fn attributes(self, it: &Attributes) -> Self {
        let blocks = it.length.div_ceil(512);
        self.longs(&[it.node, it.length, blocks, it.seconds, it.seconds, it.seconds])
            .words(&[it.nanoseconds, it.nanoseconds, it.nanoseconds, it.mode])
            // The number of links is 1, and the device number is 0.
            .words(&[1, it.user, it.group, 0, BLOCK_BYTES, 0])
    }
}

/// Encodes the answer to the first request. It forbids reading ahead, so that only reads of faulty pages fail.
pub(super) fn initialised(minor: u32) -> Vec<u8> {
    Body::default()
        .words(&[MAJOR, minor.min(MINOR), 0, ASYNCHRONOUS_READS, 0, LARGEST_WRITE, 1])
        .words(&[0; 9])
        .0
}

/// Encodes the answer to a lookup. The answer expires at once, so the kernel asks again each time.
pub(super) fn entry(attributes: &Attributes) -> Vec<u8> {
    Body::default().longs(&[attributes.node, 0, 0, 0]).words(&[0, 0]).attributes(attributes).0
}

/// Encodes the answer to a request for attributes. The answer expires at once.
pub(super) fn attributes(attributes: &Attributes) -> Vec<u8> {
    Body::default().longs(&[0]).words(&[0, 0]).attributes(attributes).0
}

/// Encodes the answer to an open. Because no flags are set, the kernel caches pages, and drops those of earlier opens.
pub(super) fn opened() -> Vec<u8> {
    Body::default().longs(&[0]).words(&[0, 0]).0
}

/// Encodes the answer to a listing. Each entry has a flag that is true if it is a folder.
pub(super) fn listed(entries: &[(Vec<u8>, bool)], offset: u64) -> Vec<u8> {
    let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
    let mut body = Body::default();
    for (number, (name, is_folder)) in (1..).zip(entries).skip(skipped) {
        let length = u32::try_from(name.len()).expect("names are short");
        // The number of the file does not matter, but must not be zero.
        body = body.longs(&[number, number]).words(&[length, if *is_folder { FOLDER } else { REGULAR }]);
        body.0.extend(name);
        body.0.resize(body.0.len().next_multiple_of(8), 0);
    }
    body.0
}
