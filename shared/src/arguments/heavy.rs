//! Refuses views that take much longer to read than the size of their file suggests. Examples: a few bytes repeated
//! 2^36 times; one element per page; interleaved rows, where reading each row means reading the whole storage.
//!
//! Most inputs of a kernel are exempt from the limits: they are memory-mapped, whatever their strides. The limits apply
//! to tensors that are read element by element: outputs, because they are compared, and conjugated or negated views,
//! because their values have to be computed.

use crate::capture::{Tensor, bytes_read};
use crate::units::Bytes;

/// Largest number of elements in a view that repeats parts of its storage. Comparing this many takes about a minute.
/// Other tensors are limited by the size of their files.
const MAX_REPEATED_ELEMENTS: u64 = 1 << 32;

/// Largest number of separate reads for a view whose elements are far apart. At a microsecond each, they take about
/// a minute.
const MAX_SCATTERED_READS: u64 = 1 << 26;

/// Largest number of bytes read for a view whose rows are interleaved. From the page cache, this takes about a minute.
const MAX_REPEATED_READS: Bytes = Bytes::new(256 << 30);
/// A view with interleaved rows is always accepted if reading it takes at most this many passes over its part of the
/// storage.
const MAX_READS_OF_STORAGE: u64 = 4;

/// A view that takes too long to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeavyView {
    #[error(
        "it is a view of {elements} elements, more than its part of the storage has, and would take too long to read \
         (the limit is {MAX_REPEATED_ELEMENTS}: record a contiguous copy, or a smaller call)"
    )]
    Repeated { elements: u64 },
    #[error(
        "it is a view whose elements lie so far apart that it takes {reads} reads (the limit is {MAX_SCATTERED_READS}: \
         record a contiguous copy)"
    )]
    Scattered { reads: u64 },
    #[error(
        "it is a view with interleaved rows, and {bytes} would be read to put them in order (the limit is \
         {MAX_REPEATED_READS}: record a contiguous copy)"
    )]
    Interleaved { bytes: Bytes },
}

/// Refuses a tensor that exceeds one of the limits above.
pub(super) fn walkable(tensor: &Tensor) -> Result<(), HeavyView> {
    let elements = tensor.elements();
    if elements > MAX_REPEATED_ELEMENTS && elements > tensor.extent_elements() {
        return Err(HeavyView::Repeated { elements });
    }
    let reads = tensor.scattered_reads();
    if reads > MAX_SCATTERED_READS {
        return Err(HeavyView::Scattered { reads });
    }
    let bytes = bytes_read(tensor);
    let range = tensor.byte_range();
    if bytes > MAX_REPEATED_READS && bytes.get() / MAX_READS_OF_STORAGE > range.end - range.start {
        return Err(HeavyView::Interleaved { bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fixture::dense;
    use super::*;
    use crate::capture::DType;

    #[test]
    fn views_that_take_too_long_to_walk_are_refused() {
        let view = |shape: &[u64], stride: &[u64]| Tensor {
            stride: stride.to_vec(),
            ..dense(DType::Float32, shape, 0)
        };
        // Dense tensors are limited only by their files.
        assert_eq!(walkable(&dense(DType::Float32, &[1 << 20, 1 << 16], 0)), Ok(()));
        assert_eq!(walkable(&view(&[1 << 20, 1 << 12], &[0, 1])), Ok(()));
        let elements = 1 << 36;
        assert_eq!(walkable(&view(&[elements], &[0])), Err(HeavyView::Repeated { elements }));
        assert_eq!(
            walkable(&view(&[1 << 18, 1 << 18], &[1, 1 << 12])),
            Err(HeavyView::Repeated { elements })
        );
        // Elements that are 257 apart count as separate reads; elements that are 256 apart are still read together.
        let reads = MAX_SCATTERED_READS + 1;
        assert_eq!(walkable(&view(&[reads], &[257])), Err(HeavyView::Scattered { reads }));
        assert_eq!(walkable(&view(&[reads], &[256])), Ok(()));
        assert_eq!(
            walkable(&view(&[1 << 13, 1 << 14], &[300, 301])),
            Err(HeavyView::Scattered { reads: 1 << 27 })
        );
        // This transposed matrix is accepted: elements are far apart only along its last axis, so only 2^20 reads are
        // counted.
        assert_eq!(walkable(&view(&[1 << 13, 1 << 20], &[1, 1 << 13])), Ok(()));
        assert_eq!(walkable(&view(&[0, 1 << 40], &[1 << 20, 0])), Ok(()));
        // The storage is 16 GiB and is read once for each of the 1,024 rows.
        let bytes = bytes_read(&view(&[1 << 10, 1 << 22], &[1, 1 << 10]));
        assert!(Bytes::new(15 << 40) < bytes, "{bytes}");
        assert_eq!(
            walkable(&view(&[1 << 10, 1 << 22], &[1, 1 << 10])),
            Err(HeavyView::Interleaved { bytes })
        );
        // Two axes have the same stride, so each step along the first axis reads nearly all of the 1 MiB of the second
        // axis again.
        let bytes = bytes_read(&view(&[1024, 1024], &[256, 256]));
        assert!(Bytes::mib(1000) < bytes && bytes < Bytes::mib(1100), "{bytes}");
        // With 4,096 rows, neighbours in a row are more than a page apart, so the bytes between them are not read.
        assert_eq!(walkable(&view(&[1 << 12, 1 << 22], &[1, 1 << 12])), Ok(()));
    }
}
