//! Finds the rows of a large input that integer inputs seem to name, so that they can be read before a candidate looks
//! them up.
//!
//! Ops that look up rows, such as embeddings and paged attention, get the row numbers as an integer tensor. If all
//! values of such a tensor are valid row numbers of a large input, the candidate will probably read these rows. Its
//! page faults would read them one after another. A disk is several times faster if all rows are requested at once. If
//! the guess is wrong, at most `MAX_BYTES` of the input are read in vain.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use opt_shared::capture::{CaptureError, CaptureFile, DType, Tensor, extent_elements, logical_values};

use super::super::placed::{Placed, StoragePart};
use crate::recorded::{Recorded, request_ahead};

/// The largest number of values of integer inputs that are examined in all, and of rows of an input that are read.
const MAX_VALUES: usize = 64 << 10;
/// The limit on the bytes that are read of an input, and on their share of it (1/n). If the named rows exceed a
/// limit, none are read ahead.
const MAX_BYTES: u64 = 32 << 20;
const MAX_PART: u64 = 4;

/// The values of the integer inputs of a call: for each input, distinct and in ascending order.
pub(super) struct Names(Vec<Vec<u64>>);

impl Names {
    /// Reads the integer inputs, as far as there are not too many values. Leaves out those that cannot be read; the
    /// error is reported when their checksums are verified.
    pub(super) fn of(recorded: &Recorded) -> Self {
        let mut left = MAX_VALUES as u64;
        let mut lists = Vec::new();
        for tensor in recorded.tensors().filter(|tensor| is_list(tensor)) {
            if let Some(rest) = left.checked_sub(tensor.elements()) {
                left = rest;
                lists.extend(values(&recorded.capture, tensor).filter(|list| !list.is_empty()));
            }
        }
        Self(lists)
    }

    /// Returns the bytes of an input's file that contain the named rows of the tensors in this input.
    pub(super) fn bytes_in(&self, placed: &Placed, input: usize) -> impl Iterator<Item = Range<u64>> {
        let place = placed.inputs().get(input).zip(placed.storage_part(input));
        let tensors = placed.as_ref().tensors();
        let inside =
            tensors.filter(move |tensor| place.is_some_and(|(_, part)| part.storage == tensor.storage));
        inside.flat_map(|tensor| self.rows_of(tensor)).filter_map(move |bytes| {
            let (range, StoragePart { within, .. }) = place?;
            let at = |byte: u64| range.file_offset + (byte.clamp(within.start, within.end) - within.start);
            Some(at(bytes.start)..at(bytes.end))
        })
    }

    /// Returns the bytes of the tensor's storage that contain the named rows. The tensor is treated as rows along its
    /// first axis. A list in which a value is too large to be a row number names no rows.
    fn rows_of(&self, tensor: &Tensor) -> Vec<Range<u64>> {
        let (Some((&rows, row_shape)), Some((&stride, row_stride))) =
            (tensor.shape.split_first(), tensor.stride.split_first())
        else {
            return Vec::new();
        };
        let size = tensor.dtype.size();
        let row_bytes = extent_elements(row_shape, row_stride) * size;
        let start = tensor.byte_range().start;
        let lists = self.0.iter().filter(|list| list.last().is_some_and(|&last| last < rows));
        let row_at = |row: u64| start + row * stride * size;
        lists.flatten().map(|&row| row_at(row)..row_at(row) + row_bytes).collect()
    }
}

fn is_list(tensor: &Tensor) -> bool {
    matches!(tensor.dtype, DType::Int32 | DType::Int64)
}

/// Returns the distinct values of a tensor of row numbers, in ascending order. Leaves out negative values, with which
/// many ops pad such a tensor.
fn values(capture: &CaptureFile, tensor: &Tensor) -> Option<Vec<u64>> {
    let signed = |value: &[u8]| match tensor.dtype {
        DType::Int32 => Some(i64::from(i32::from_le_bytes(value.try_into().ok()?))),
        _ => Some(i64::from_le_bytes(value.try_into().ok()?)),
    };
    let mut list: Vec<u64> = Vec::new();
    let read: Result<(), CaptureError> = logical_values(capture, tensor, &mut |chunk| {
        let values = chunk.chunks_exact(tensor.dtype.element_len()).filter_map(signed);
        list.extend(values.filter_map(|value| u64::try_from(value).ok()));
        Ok(())
    });
    read.ok()?;
    list.sort_unstable();
    list.dedup();
    Some(list)
}

/// Reads these bytes of a file, unless they are too many for an input of `input_bytes` bytes. All of them are requested
/// before the first is awaited. Returns true if they were read.
pub(super) fn read(
    file: &File,
    bytes: impl Iterator<Item = Range<u64>>,
    input_bytes: u64,
    page: u64,
) -> bool {
    let bytes: Vec<Range<u64>> = bytes.take(MAX_VALUES + 1).collect();
    if MAX_VALUES < bytes.len() {
        return false;
    }
    let pages = whole_pages(bytes, page);
    let total: u64 = pages.iter().map(|range| range.end - range.start).sum();
    if total == 0 || MAX_BYTES.min(input_bytes / MAX_PART) < total {
        return false;
    }
    for range in &pages {
        request_ahead(file, range.clone());
    }
    // A read of a single byte waits for its page. After an error, the candidate's own fault shows what is wrong.
    let mut byte = [0];
    let starts =
        pages.into_iter().flat_map(|range| range.step_by(usize::try_from(page).unwrap_or(usize::MAX)));
    starts.map(|at| file.read_at(&mut byte, at)).all(|read| read.is_ok());
    true
}

/// Returns the pages that contain these bytes, as byte ranges in ascending order that do not touch each other.
fn whole_pages(mut bytes: Vec<Range<u64>>, page: u64) -> Vec<Range<u64>> {
    bytes.retain(|range| !range.is_empty());
    bytes.sort_unstable_by_key(|range| range.start);
    let mut pages: Vec<Range<u64>> = Vec::new();
    for range in bytes {
        let (start, end) = (range.start - range.start % page, range.end.next_multiple_of(page));
        match pages.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => pages.push(start..end),
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use opt_shared::ids::StorageId;

    use super::*;

    fn table(shape: &[u64], stride: &[u64], storage_offset: u64) -> Tensor {
        let stride = stride.to_vec();
        Tensor { stride, storage_offset, ..Tensor::dense(DType::Float32, shape, StorageId(0)) }
    }

    #[test]
    fn named_rows_are_byte_ranges_of_the_storage() {
        let names = Names(vec![vec![0, 2], vec![9, 100]]);
        assert_eq!(names.rows_of(&table(&[10, 4], &[4, 1], 0)), [0..16, 32..48], "100 is no row number");
        assert_eq!(
            names.rows_of(&table(&[3, 4], &[8, 1], 5)),
            [20..36, 84..100],
            "rows with gaps, from an offset"
        );
        assert_eq!(names.rows_of(&table(&[2, 4], &[4, 1], 0)), [], "2 is no row number");
        assert_eq!(names.rows_of(&table(&[10], &[1], 0)), [0..4, 8..12]);
        assert_eq!(names.rows_of(&table(&[], &[], 0)), []);
    }

    #[test]
    fn bytes_are_widened_to_pages_that_do_not_overlap() {
        assert_eq!(
            whole_pages(vec![9000..9001, 10..20, 4000..4097, 8..8], 4096),
            vec![Range { start: 0, end: 12288 }]
        );
        assert_eq!(whole_pages(vec![20_000..20_010, 0..4096], 4096), [0..4096, 16384..20480]);
    }
}
