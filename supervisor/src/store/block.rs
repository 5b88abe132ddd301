//! Encodes a block of memory samples as bytes. Times, and sizes in KiB, are stored as differences from the previous
//! point, in variable-length integers. A checksum follows.
//!
//! A block is self-contained, so it can be read, thinned out or lost without its neighbours. If any part of a block is
//! damaged, the whole block is refused.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;

use crate::record::timeline::{Block, Point, Series, Track};

/// The version of the format, which is the first byte. Every change of the format increments it.
const FORMAT: u8 = 1;
/// The maximum number of points that are written in one block. Further points go into the next block.
pub const MAX_POINTS: usize = 16 << 10;
/// The size limit of an encoded block, in bytes. A point and a track header together take at most 50 bytes, so 64 bytes
/// for each point leave room for the block's header and its checksum.
const MAX_BYTES: usize = MAX_POINTS * 64;
/// The length of the checksum, in bytes.
const CHECKSUM: usize = 4;
/// The maximum length of a variable-length integer in bytes, with seven bits per byte.
const MAX_VARINT: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("it has {length} bytes, but at most {MAX_BYTES} are allowed")]
    TooLong { length: usize },
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its format is {found}, but this program reads format {FORMAT}")]
    Format { found: u8 },
    #[error("it ends before {what} is complete")]
    Short { what: &'static str },
    #[error("{what} is out of range")]
    Range { what: &'static str },
    #[error("a track occurs twice")]
    Twice,
    #[error("{count} bytes follow its end")]
    Trailing { count: usize },
}

pub fn encode(block: &Block) -> Vec<u8> {
    let start = block.span().map_or(0, |(start, _)| start);
    let mut bytes = vec![FORMAT];
    put(&mut bytes, block.width);
    put(&mut bytes, start);
    put(&mut bytes, block.series.len() as u64);
    for (track, series) in &block.series {
        let (kind, ids) = match *track {
            Track::Tree => (0, None),
            Track::Machine => (1, None),
            Track::Supervisor => (2, None),
            Track::Worker { worker, pid } => (3, Some((worker, pid))),
            Track::Runner { worker, pid } => (4, Some((worker, pid))),
        };
        put(&mut bytes, kind);
        if let Some((worker, pid)) = ids {
            put(&mut bytes, u64::from(worker.0));
            put(&mut bytes, u64::from(pid));
        }
        put(&mut bytes, series.points.len() as u64);
        let (mut at, mut first, mut second) = (start, 0, 0);
        for point in &series.points {
            put(&mut bytes, point.at.saturating_sub(at));
            put_difference(&mut bytes, first, kib(point.first));
            put_difference(&mut bytes, second, kib(point.second));
            (at, first, second) = (point.at, kib(point.first), kib(point.second));
        }
        put(&mut bytes, series.last.saturating_sub(at));
    }
    let checksum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

pub fn decode(bytes: &[u8]) -> Result<Block, BlockError> {
    if MAX_BYTES < bytes.len() {
        return Err(BlockError::TooLong { length: bytes.len() });
    }
    let (body, checksum) =
        bytes.split_last_chunk::<CHECKSUM>().ok_or(BlockError::Short { what: "its checksum" })?;
    if crc32fast::hash(body).to_le_bytes() != *checksum {
        return Err(BlockError::Checksum);
    }
    let (&format, rest) = body.split_first().ok_or(BlockError::Short { what: "its format" })?;
    if format != FORMAT {
        return Err(BlockError::Format { found: format });
    }
    let mut reader = Reader { rest };
    let width = reader.number("the width")?;
    let start = reader.number("the start")?;
    let tracks = reader.count("the number of tracks")?;
    let mut series = BTreeMap::new();
    let mut total = 0;
    for _ in 0..tracks {
        let track = reader.track()?;
        let points = reader.count("the number of points")?;
        total += points;
        if MAX_POINTS < total {
            return Err(BlockError::Range { what: "the number of points" });
        }
        let it = reader.series(start, points)?;
        if series.insert(track, it).is_some() {
            return Err(BlockError::Twice);
        }
    }
    match reader.rest.len() {
        0 => Ok(Block { width, series }),
        count => Err(BlockError::Trailing { count }),
    }
}

/// Converts a size to whole KiB. This is exact, because Linux counts memory in pages.
fn kib(bytes: Bytes) -> u64 {
    bytes.get() / 1024
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

/// Appends a difference in zigzag encoding, in which small differences of either sign become small numbers. All figures
/// are below 2^54.
fn put_difference(bytes: &mut Vec<u8>, before: u64, now: u64) {
    put(bytes, if before <= now { (now - before) << 1 } else { ((before - now) << 1) - 1 });
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn number(&mut self, what: &'static str) -> Result<u64, BlockError> {
        let mut number = 0;
        for index in 0..MAX_VARINT {
            let (&byte, rest) = self.rest.split_first().ok_or(BlockError::Short { what })?;
            self.rest = rest;
            let low = u64::from(byte & 0x7f);
            let shift = 7 * index;
            if shift == 63 && 1 < low {
                break;
            }
            number |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(BlockError::Range { what })
    }

    fn count(&mut self, what: &'static str) -> Result<usize, BlockError> {
        let number = self.number(what)?;
        usize::try_from(number).ok().filter(|&count| count <= MAX_POINTS).ok_or(BlockError::Range { what })
    }

    fn track(&mut self) -> Result<Track, BlockError> {
        let kind = self.number("a kind of track")?;
        let mut id =
            |what| self.number(what).and_then(|id| u32::try_from(id).map_err(|_| BlockError::Range { what }));
        Ok(match kind {
            0 => Track::Tree,
            1 => Track::Machine,
            2 => Track::Supervisor,
            3 => Track::Worker { worker: WorkerId(id("the number of a worker")?), pid: id("a pid")? },
            4 => Track::Runner { worker: WorkerId(id("the number of a worker")?), pid: id("a pid")? },
            _ => return Err(BlockError::Range { what: "a kind of track" }),
        })
    }

    fn series(&mut self, start: u64, count: usize) -> Result<Series, BlockError> {
        let mut points = Vec::with_capacity(count);
        let (mut at, mut first, mut second) = (start, 0, 0);
        for _ in 0..count {
            at = self.time_after(at)?;
            first = self.figure(first)?;
            second = self.figure(second)?;
            points.push(Point { at, first: Bytes::kib(first), second: Bytes::kib(second) });
        }
        Ok(Series { points, last: self.time_after(at)? })
    }

    fn time_after(&mut self, before: u64) -> Result<u64, BlockError> {
        const WHAT: &str = "a time";
        before.checked_add(self.number(WHAT)?).ok_or(BlockError::Range { what: WHAT })
    }

    fn figure(&mut self, before: u64) -> Result<u64, BlockError> {
        const WHAT: &str = "a figure";
        let difference = self.number(WHAT)?;
        let half = (difference >> 1) + (difference & 1);
        let figure = if difference & 1 == 0 { before.checked_add(half) } else { before.checked_sub(half) };
        // The figure must also be representable in bytes.
        figure.filter(|&figure| figure <= u64::MAX >> 10).ok_or(BlockError::Range { what: WHAT })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::timeline::samples::any_block;

    /// Adds a valid checksum, so that `decode` examines the content.
    fn sealed(mut body: Vec<u8>) -> Vec<u8> {
        let checksum = crc32fast::hash(&body);
        body.extend_from_slice(&checksum.to_le_bytes());
        body
    }

    proptest! {
        #[test]
        fn written_block_is_read_back(block in any_block()) {
            prop_assert_eq!(decode(&encode(&block)), Ok(block));
        }

        #[test]
        fn changed_byte_is_refused(block in any_block(), position in any::<prop::sample::Index>(), bits in 1u8..) {
            let mut bytes = encode(&block);
            let position = position.index(bytes.len());
            bytes[position] ^= bits;
            prop_assert!(decode(&bytes).is_err());
            bytes[position] ^= bits;
            bytes.truncate(position);
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn garbage_with_a_valid_checksum_is_refused_or_read_within_bounds(
            mut body in proptest::collection::vec(any::<u8>(), 0..200),
            has_valid_format in any::<bool>(),
        ) {
            if let Some(first) = body.first_mut().filter(|_| has_valid_format) {
                *first = FORMAT;
            }
            if let Ok(block) = decode(&sealed(body)) {
                prop_assert!(block.points() <= MAX_POINTS);
            }
        }
    }

    #[test]
    fn each_kind_of_damage_has_its_error() {
        let refused = |body: &[u8]| decode(&sealed(body.to_vec())).expect_err("refuses");
        assert_eq!(decode(b"abc").expect_err("refuses"), BlockError::Short { what: "its checksum" });
        assert_eq!(refused(&[]), BlockError::Short { what: "its format" });
        assert_eq!(refused(&[9]), BlockError::Format { found: 9 });
        assert_eq!(refused(&[1, 1, 0, 1, 7]), BlockError::Range { what: "a kind of track" });
        assert_eq!(refused(&[1, 1, 0, 0, 5]), BlockError::Trailing { count: 1 });
        assert_eq!(refused(&[1, 1, 0, 1, 0, 1, 0, 1]), BlockError::Range { what: "a figure" });
        assert_eq!(refused(&[1, 1, 0, 2, 0, 0, 0, 0, 0, 0]), BlockError::Twice);
        assert!(matches!(decode(&vec![0; MAX_BYTES + 1]), Err(BlockError::TooLong { .. })));
    }

    #[test]
    fn one_second_of_samples_with_one_peak_takes_a_few_bytes() {
        let mut block = Block::new(1);
        for at in 0..1000 {
            let owed = Bytes::mib(if at == 500 { 90 } else { 80 });
            block.push(Track::Tree, Point { at: 1_777_636_800_000 + at, first: owed, second: Bytes::mib(3) });
        }
        assert!(encode(&block).len() < 48, "{}", encode(&block).len());
    }
}
