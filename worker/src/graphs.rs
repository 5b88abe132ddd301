//! Reads the artifact of a compiled torch function. PyTorch's compiler makes a shared library, which is called a
//! *graph*, for each different call of a job. The artifact is one file with all of these libraries:
//!
//! ```text
//! "opt-graphs 1\n" | count | count × (key, length) | the libraries, one after another
//! ```
//! Numbers are 64-bit and little-endian. A key is the digest of a call, as 64 hexadecimal digits.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use opt_shared::arguments::{Argument, ArgumentValue, Call};
use opt_shared::capture::contiguous_strides;
use serde::Serialize;

use crate::recorded::is_materialised;

/// The largest number of different calls of a job that are compiled. Each takes a descriptor in every runner.
pub(crate) const MAX_GRAPHS: usize = crate::runner::frame::MAX_LIBRARIES;
const MAGIC: &[u8] = b"opt-graphs 1\n";
const KEY: usize = 64;
const NUMBER: usize = size_of::<u64>();

/// The parts of a call that determine how it is compiled. Calls that are equal in these parts share a graph.
#[derive(Serialize)]
pub(crate) struct CallForm<'a> {
    call: &'a Call,
    tensors: Vec<TensorForm<'a>>,
}

#[derive(Serialize)]
struct TensorForm<'a> {
    /// The index of the tensor among the arguments of the call.
    index: usize,
    dtype: &'static str,
    shape: &'a [u64],
    stride: Cow<'a, [u64]>,
}

impl<'a> CallForm<'a> {
    pub(crate) fn new(call: &'a Call, arguments: &'a [Argument]) -> Self {
        let tensors = arguments.iter().enumerate().filter_map(|(index, argument)| match &argument.value {
            ArgumentValue::Tensor(tensor) => Some(TensorForm {
                index,
                dtype: tensor.dtype.name(),
                shape: &tensor.shape,
                stride: if is_materialised(tensor) {
                    contiguous_strides(&tensor.shape).into()
                } else {
                    (&tensor.stride).into()
                },
            }),
            _ => None,
        });
        Self { call, tensors: tensors.collect() }
    }

    pub(crate) fn key(&self) -> serde_json::Result<String> {
        Ok(blake3::hash(&serde_json::to_vec(self)?).to_hex().to_string())
    }
}

/// Returns the key of each graph, and the range of its library in the file.
pub(crate) fn read(artifact: &File) -> io::Result<Vec<(String, Range<u64>)>> {
    let bad = |what: &str| io::Error::other(format!("it is not a file of compiled calls: {what}"));
    let size = artifact.metadata()?.len();
    let mut start = [0; MAGIC.len() + NUMBER];
    artifact.read_exact_at(&mut start, 0).map_err(|_| bad("it is too short"))?;
    let (magic, count) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(bad("its first bytes are not those of such a file"));
    }
    let count = usize::try_from(number(count)).unwrap_or(usize::MAX);
    if !(1..=MAX_GRAPHS).contains(&count) {
        return Err(bad("it has no call, or too many"));
    }
    let mut table = vec![0; count * (KEY + NUMBER)];
    artifact.read_exact_at(&mut table, start.len() as u64).map_err(|_| bad("its table is cut off"))?;
    let mut at = (start.len() + table.len()) as u64;
    let mut graphs = Vec::with_capacity(count);
    for row in table.chunks_exact(KEY + NUMBER) {
        let (key, length) = row.split_at(KEY);
        let key = std::str::from_utf8(key).ok().filter(|key| key.bytes().all(|it| it.is_ascii_hexdigit()));
        let end = at.checked_add(number(length)).filter(|&end| end <= size);
        let (Some(key), Some(end)) = (key, end) else { return Err(bad("a row of its table is wrong")) };
        graphs.push((key.to_owned(), at..end));
        at = end;
    }
    Ok(graphs)
}

/// Reads a little-endian number of eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use opt_shared::units::to_index;
    use proptest::prelude::*;

    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content).expect("written");
        file
    }

    fn packed(graphs: &[(&str, &[u8])]) -> Vec<u8> {
        let mut content = [MAGIC, &(graphs.len() as u64).to_le_bytes()].concat();
        for (key, library) in graphs {
            content.extend([key.as_bytes(), &(library.len() as u64).to_le_bytes()].concat());
        }
        graphs.iter().for_each(|(_, library)| content.extend_from_slice(library));
        content
    }

    #[test]
    fn read_finds_each_graph_and_refuses_files_that_are_cut_off() {
        let (one, two) = ("0a".repeat(32), "ff".repeat(32));
        let content = packed(&[(&one, b"first"), (&two, b"the second")]);
        let found = read(&file(&content)).expect("well formed");
        let text = |range: &Range<u64>| &content[to_index(range.start)..to_index(range.end)];
        assert_eq!(found.iter().map(|(key, _)| key).collect::<Vec<_>>(), [&one, &two]);
        assert_eq!((text(&found[0].1), text(&found[1].1)), (&b"first"[..], &b"the second"[..]));
        for length in 0..content.len() {
            assert!(read(&file(&content[..length])).is_err(), "{length}");
        }
        let many = vec![(one.as_str(), &b""[..]); MAX_GRAPHS + 1];
        assert!(read(&file(&packed(&many[1..]))).is_ok() && read(&file(&packed(&many))).is_err());
        assert!(read(&file(&packed(&[(&"é".repeat(32), b"")]))).is_err());
        assert!(read(&file(&packed(&[]))).is_err());
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(at in 0usize..200, value: u8) {
            let mut content = packed(&[(&"0a".repeat(32), b"first"), (&"0b".repeat(32), b"second")]);
            let at = at % content.len();
            content[at] = value;
            if let Ok(graphs) = read(&file(&content)) {
                prop_assert!(graphs.iter().all(|(_, range)| range.end <= content.len() as u64));
            }
        }
    }
}
