//! Writes one capture file: the dict that describes a recorded call, and the records in PyTorch's order.
//!
//! This module decides keys, storages and the names of records. `archive.rs` writes the container, `pickle.rs` encodes
//! the dict, and callers provide the numbers.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use opt_shared::units::Bytes;

use crate::archive::Archive;
use crate::pickle::{Element, PickleValue, TensorValue, pickle};

/// The size of one write. It is large enough that system calls cost little, and small compared with any memory limit.
const WRITE_BUFFER: Bytes = Bytes::mib(1);

/// Space for headers, pickle and directory in estimates of a file's size.
const OVERHEAD: Bytes = Bytes::kib(8);

/// A function that writes all bytes of a storage, in order.
pub(crate) type Fill<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

/// A tensor, and the function that writes its values.
pub(crate) struct Values<'a> {
    pub(crate) element: Element,
    pub(crate) shape: Vec<u64>,
    pub(crate) fill: Fill<'a>,
}

pub(crate) enum ArgumentValue<'a> {
    Tensor(Values<'a>),
    Plain(PickleValue),
}

/// A parameter, its argument, and its default if the op has one.
pub(crate) struct Argument<'a> {
    pub(crate) name: &'static str,
    pub(crate) value: ArgumentValue<'a>,
    pub(crate) default: Option<PickleValue>,
}

impl<'a> Argument<'a> {
    pub(crate) fn tensor(name: &'static str, values: Values<'a>) -> Self {
        Self { name, value: ArgumentValue::Tensor(values), default: None }
    }

    /// An argument for a parameter whose default is None.
    pub(crate) fn optional_tensor(name: &'static str, values: Values<'a>) -> Self {
        Self { default: Some(PickleValue::None), ..Self::tensor(name, values) }
    }

    pub(crate) fn required(name: &'static str, value: PickleValue) -> Self {
        Self { name, value: ArgumentValue::Plain(value), default: None }
    }

    /// An argument that was left at its default.
    pub(crate) fn at_default(name: &'static str, value: PickleValue) -> Self {
        Self { name, value: ArgumentValue::Plain(value.clone()), default: Some(value) }
    }
}

/// A recorded call of an op with a known signature: every argument is given by name.
pub(crate) struct Capture<'a> {
    pub(crate) function_name: &'static str,
    pub(crate) arguments: Vec<Argument<'a>>,
    pub(crate) output: Values<'a>,
}

impl Capture<'_> {
    /// Returns an upper estimate of the file's size.
    pub(crate) fn estimate(&self) -> Bytes {
        let tensors = self.arguments.iter().filter_map(|argument| match &argument.value {
            ArgumentValue::Tensor(values) => Some(values),
            ArgumentValue::Plain(_) => None,
        });
        tensors.chain([&self.output]).map(Values::bytes).sum::<Bytes>() + OVERHEAD
    }

    /// Writes to a `.part` file and then renames it, so that the final name never refers to a partial capture. Returns
    /// a description of the contents.
    pub(crate) fn write(self, path: &Path) -> Result<Written> {
        let part = path.with_extension("pt.part");
        let write = || -> Result<(Written, File)> {
            let file = File::create(&part)?;
            let sink = BufWriter::with_capacity(WRITE_BUFFER.to_usize(), file);
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (tensors, sink) = self.write_archive(sink, &stem)?;
            let file = sink.into_inner().map_err(io::IntoInnerError::into_error)?;
            let bytes = Bytes::new(file.metadata()?.len());
            Ok((Written { path: path.to_owned(), bytes, tensors }, file))
        };
        let (written, file) = write().with_context(|| format!("cannot write `{}`", part.display()))?;
        drop_from_cache(&file).with_context(|| format!("cannot flush `{}`", part.display()))?;
        fs::rename(&part, path)
            .with_context(|| format!("cannot rename `{}` to `{}`", part.display(), path.display()))?;
        Ok(written)
    }

    /// Writes only the archive, to any sink. `folder` is the name of the file without its suffix.
    fn write_archive<W: Write>(self, sink: W, folder: &str) -> io::Result<(Vec<String>, W)> {
        let mut storages = Storages::default();
        let mut kwargs = Vec::new();
        let mut params = Vec::new();
        let mut defaults = Vec::new();
        for Argument { name, value, default } in self.arguments {
            let value = match value {
                ArgumentValue::Tensor(values) => storages.add(name, values),
                ArgumentValue::Plain(value) => value,
            };
            kwargs.push((name, value));
            params.push(PickleValue::Str(name));
            defaults.extend(default.map(|default| (name, default)));
        }
        let output = storages.add("output", self.output);
        let signature =
            vec![("params", PickleValue::List(params)), ("defaults", PickleValue::Dict(defaults))];
        let root = PickleValue::Dict(vec![
            ("function_name", PickleValue::Str(self.function_name)),
            ("args", PickleValue::List(Vec::new())),
            ("kwargs", PickleValue::Dict(kwargs)),
            ("output", output),
            ("signature", PickleValue::Dict(signature)),
        ]);

        let mut archive = Archive::new(sink, folder);
        archive.bytes("data.pkl", &pickle(&root))?;
        archive.bytes(".format_version", b"1")?;
        archive.bytes(".storage_alignment", b"64")?;
        archive.bytes("byteorder", b"little")?;
        for (key, (bytes, fill)) in storages.contents.into_iter().enumerate() {
            archive.record(&format!("data/{key}"), bytes.get(), fill)?;
        }
        archive.bytes("version", b"3\n")?;
        let id = serialization_id(archive.checksums());
        archive.bytes(".data/serialization_id", id.as_bytes())?;
        Ok((storages.described, archive.finish()?))
    }
}

impl Values<'_> {
    fn bytes(&self) -> Bytes {
        self.shape.iter().fold(Bytes::new(self.element.bytes()), |bytes, &size| bytes.saturating_mul(size))
    }
}

/// A description of a written file, to be shown to the user.
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Bytes,
    /// A text for each tensor, such as `weight float32[96, 48]`.
    pub(crate) tensors: Vec<String>,
}

/// The storages seen so far. The key of a storage is its index.
#[derive(Default)]
struct Storages<'a> {
    contents: Vec<(Bytes, Fill<'a>)>,
    described: Vec<String>,
}

impl<'a> Storages<'a> {
    fn add(&mut self, name: &str, values: Values<'a>) -> PickleValue {
        self.described.push(format!("{name} {}{:?}", values.element.name(), values.shape));
        let key = self.contents.len();
        self.contents.push((values.bytes(), values.fill));
        PickleValue::Tensor(TensorValue { element: values.element, shape: values.shape, key })
    }
}

/// Returns the serialization id. It has forty digits, like PyTorch's, but other ones: half of them are computed from
/// the names of the records, and half from the CRCs of the records.
fn serialization_id<'a>(records: impl Iterator<Item = (&'a str, u32)>) -> String {
    let (mut names, mut checksums) = (0_u64, 0_u64);
    for (name, crc32) in records {
        names = names.rotate_left(7) ^ u64::from(crc32fast::hash(name.as_bytes()));
        checksums = checksums.rotate_left(7) ^ u64::from(crc32);
    }
    format!("{names:020}{checksums:020}")
}

/// Flushes a file and drops it from the page cache. Dirty or cached pages would distort measurements of programs that
/// read the captures.
fn drop_from_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored<'a>(element: Element, shape: &[u64], bytes: &'a [u8]) -> Values<'a> {
        Values { element, shape: shape.to_vec(), fill: Box::new(|sink| sink.write_all(bytes)) }
    }

    /// The fixture is a file that torch saved. With the same values, the file written here differs only in the
    /// serialization id and in the CRC of that id, which is in the descriptor and in the directory.
    #[test]
    fn capture_equals_one_that_torch_saved_except_for_its_id() {
        let fixture = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/data/captures/torch_nn_functional_embedding/entry_000000.pt"
        );
        let torch = fs::read(fixture).unwrap();
        let capture = Capture {
            function_name: "torch.nn.functional.embedding",
            arguments: vec![
                Argument::tensor("input", stored(Element::I64, &[1, 16], &torch[1152..][..128])),
                Argument::tensor("weight", stored(Element::F32, &[96, 48], &torch[1408..][..18_432])),
                Argument::at_default("padding_idx", PickleValue::None),
                Argument::at_default("max_norm", PickleValue::None),
                Argument::at_default("norm_type", PickleValue::Float(2.0)),
                Argument::at_default("scale_grad_by_freq", PickleValue::Bool(false)),
                Argument::at_default("sparse", PickleValue::Bool(false)),
            ],
            output: stored(Element::F32, &[1, 16, 48], &torch[19_968..][..3072]),
        };
        assert!(capture.estimate() >= Bytes::from(torch.len()));
        let (tensors, ours) = capture.write_archive(Vec::new(), "entry_000000").unwrap();
        assert_eq!(tensors, ["input int64[1, 16]", "weight float32[96, 48]", "output float32[1, 16, 48]"]);

        // These are the offsets of the serialization id, and of its CRC in the descriptor and in the directory entry.
        let id_offset = 23_296;
        let crc_offsets = [id_offset + 40 + 4, 23_899 + 16];
        let mut expected = torch.clone();
        expected[id_offset..id_offset + 40].copy_from_slice(&ours[id_offset..][..40]);
        let crc = crc32fast::hash(&ours[id_offset..][..40]).to_le_bytes();
        for offset in crc_offsets {
            expected[offset..offset + 4].copy_from_slice(&crc);
        }
        assert!(ours == expected, "the files differ at byte {:?}", first_difference(&ours, &expected));
    }

    fn first_difference(ours: &[u8], theirs: &[u8]) -> Option<usize> {
        (0..ours.len().max(theirs.len())).find(|&at| ours.get(at) != theirs.get(at))
    }
}
