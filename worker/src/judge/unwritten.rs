//! Detects elements that a kernel never writes.
//!
//! Owns the poisons and the search for elements that still contain them. The caller fills the buffers and makes two
//! calls. A single call proves nothing, because a kernel may compute the poison's value. If two calls leave two
//! different poisons in an element, the kernel does not write it.

use opt_shared::capture::DType;
use opt_shared::units::Bytes;

use super::compare::{ByteSource, BytesSource, CompareError};
use super::feed::Feed;
use super::layout::Walk;

/// Size of the largest element, in bytes.
const LARGEST_ELEMENT: usize = 16;

/// The bytes that fill outputs before a call. Every element of `n` bytes gets the first `n` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poison([u8; LARGEST_ELEMENT]);

impl Poison {
    pub const fn byte(byte: u8) -> Self {
        Self([byte; LARGEST_ELEMENT])
    }

    pub const fn pattern(pattern: [u8; LARGEST_ELEMENT]) -> Self {
        Self(pattern)
    }

    /// The bytes of an element of this type that was not written.
    pub fn element(&self, dtype: DType) -> &[u8] {
        &self.0[..dtype.element_len()]
    }

    /// Fills memory that starts at an element of this type.
    pub fn fill(&self, dtype: DType, memory: &mut [u8]) {
        for element in memory.chunks_mut(dtype.element_len()) {
            element.copy_from_slice(&self.0[..element.len()]);
        }
    }

    pub(super) fn is_in(&self, element: &[u8]) -> bool {
        self.0.get(..element.len()) == Some(element)
    }
}

/// Returns true if all of `bytes`, contiguous elements of `dtype`, are still poison.
pub fn is_poisoned(bytes: &[u8], dtype: DType, poison: &Poison) -> bool {
    bytes.chunks_exact(dtype.element_len()).all(|element| poison.is_in(element))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub elements: u64,
    pub count: u64,
    /// The coordinates of the first unwritten element in row-major order.
    pub first: Option<Vec<u64>>,
}

/// Counts elements that still contain the poison in the outputs of both calls.
pub fn scan_unwritten<'s>(
    first: (&'s mut dyn BytesSource, &Poison),
    second: (&'s mut dyn BytesSource, &Poison),
    dtype: DType,
    shape: &[u64],
    stride: &[u64],
    chunk: Bytes,
) -> Result<Unwritten, CompareError> {
    let poisons = [first.1.element(dtype), second.1.element(dtype)];
    if poisons[0] == poisons[1] {
        return Err(CompareError::SamePoison);
    }
    let walk = Walk::new(shape, stride, stride, dtype.size())?;
    let sources = [(first.0, ByteSource::FirstCall), (second.0, ByteSource::SecondCall)];
    let mut feed = Feed::new(walk, dtype.size(), sources, chunk)?;
    let size = dtype.element_len();
    let mut count = 0;
    let mut min: Option<u64> = None;
    feed.each_tile(|walk, tile, bytes| {
        let found = count_both(bytes, poisons, size);
        if found > 0 {
            count += found;
            let elements = bytes[0].chunks_exact(size).zip(bytes[1].chunks_exact(size));
            for (index, (one, other)) in (0..).zip(elements) {
                if one == poisons[0] && other == poisons[1] {
                    let position = walk.position(tile, index);
                    min = Some(min.map_or(position, |min| min.min(position)));
                }
            }
        }
        Ok(())
    })?;
    Ok(Unwritten {
        elements: feed.walk().elements(),
        count,
        first: min.map(|position| feed.walk().coordinates(position)),
    })
}

/// Comparing integers instead of slices lets the compiler vectorise the loop.
fn count_both(bytes: [&[u8]; 2], poisons: [&[u8]; 2], size: usize) -> u64 {
    macro_rules! count {
        ($number:ty, $size:literal) => {{
            let number = |bytes: &[u8; $size]| <$number>::from_ne_bytes(*bytes);
            let poison = |side: usize| poisons[side].as_chunks::<$size>().0.first().map(number);
            let elements = bytes[0].as_chunks::<$size>().0.iter().zip(bytes[1].as_chunks::<$size>().0);
            let (Some(first), Some(second)) = (poison(0), poison(1)) else { return 0 };
            // A narrower counter would vectorise better, but memory bandwidth already limits the loop.
            elements.map(|(one, other)| u64::from((number(one) == first) & (number(other) == second))).sum()
        }};
    }
    match size {
        1 => count!(u8, 1),
        2 => count!(u16, 2),
        4 => count!(u32, 4),
        8 => count!(u64, 8),
        _ => count!(u128, 16),
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::{contiguous_strides, extent_elements};
    use opt_shared::units::to_index;
    use proptest::prelude::*;

    use super::*;

    const ONES: Poison = Poison::byte(0xff);
    const OTHER: Poison = Poison::byte(0x5a);

    fn scan(first: &[u8], second: &[u8], dtype: DType, shape: &[u64], stride: &[u64]) -> Unwritten {
        let (mut first, mut second) = (first, second);
        scan_unwritten((&mut first, &ONES), (&mut second, &OTHER), dtype, shape, stride, Bytes::new(256))
            .expect("two sources of the right length")
    }

    #[test]
    fn value_that_equals_one_poison_counts_as_written() {
        let value = (-1_i32).to_le_bytes().repeat(3);
        let mut second = value.clone();
        let clean = scan(&value, &second, DType::Int32, &[3], &[1]);
        assert_eq!((clean.count, clean.first), (0, None));
        second[4..8].copy_from_slice(&[0x5a; 4]);
        let found = scan(&value, &second, DType::Int32, &[3], &[1]);
        assert_eq!((found.count, found.first), (1, Some(vec![1])));
    }

    #[test]
    fn equal_poisons_are_refused() {
        let mut memory: (&[u8], &[u8]) = (&[0; 4], &[0; 4]);
        let scanned = scan_unwritten(
            (&mut memory.0, &ONES),
            (&mut memory.1, &ONES),
            DType::Float32,
            &[1],
            &[1],
            Bytes::kib(1),
        );
        assert!(matches!(scanned, Err(CompareError::SamePoison)));
    }

    #[test]
    fn poison_repeats_with_every_element() {
        let poison = Poison::pattern(std::array::from_fn(|at| at.to_le_bytes()[0]));
        let mut memory = [0xee; 12];
        poison.fill(DType::Float32, &mut memory);
        assert_eq!(memory, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert!(is_poisoned(&memory, DType::Int32, &poison));
        memory[11] = 0;
        assert!(!is_poisoned(&memory, DType::Int32, &poison));
    }

    proptest! {
        #[test]
        fn scan_finds_exactly_the_unwritten_elements(
            dtype in prop::sample::select(DType::ALL.to_vec()),
            rows in 1_u64..9,
            columns in 1_u64..40,
            transposed in any::<bool>(),
            written in prop::collection::vec(any::<bool>(), 9 * 40),
        ) {
            let shape = [rows, columns];
            let stride = if transposed { vec![1, rows] } else { contiguous_strides(&shape) };
            let size = dtype.element_len();
            let mut calls = [ONES, OTHER].map(|poison| {
                let mut memory = vec![0; to_index(extent_elements(&shape, &stride)) * size];
                poison.fill(dtype, &mut memory);
                memory
            });
            let mut missing = Vec::new();
            for row in 0..rows {
                for column in 0..columns {
                    if written[to_index(row * columns + column)] {
                        let at = to_index(row * stride[0] + column * stride[1]) * size;
                        for memory in &mut calls {
                            memory[at..at + size].fill(0x5a);
                        }
                    } else {
                        missing.push(vec![row, column]);
                    }
                }
            }
            let found = scan(&calls[0], &calls[1], dtype, &shape, &stride);
            prop_assert_eq!(found.count, missing.len() as u64);
            prop_assert_eq!(found.first, missing.first().cloned());
        }
    }
}
