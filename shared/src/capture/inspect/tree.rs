//! Draws the contents of a capture as a tree of text: its values, their sizes, and which tensors share a storage.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::capture::error::quoted;
use crate::capture::python::float_text;
use crate::capture::{
    CaptureFile, Creation, DictKind, NumpyArray, NumpyContents, Object, SequenceKind, Tensor, Value,
};
use crate::ids::StorageId;
use crate::units::Bytes;

/// Number of items of a container that are shown. For the others, only their number is shown.
const SHOWN_ITEMS: usize = 16;

/// Largest number of plain values in a container that is shown on one line.
const INLINE_ITEMS: usize = 8;

/// Largest number of lines in a tree. Shared containers are shown at each occurrence.
const MAX_LINES: usize = 2_000;

/// Number of levels that are shown. Deeper values are left out.
const SHOWN_LEVELS: usize = 32;

/// Largest size, in bits, of an integer that is shown as a number. Of a larger integer, only the size is shown.
const MAX_SHOWN_BITS: u64 = 128;

/// Writes the tree: one line for the file and its storages, followed by the values. A sequence of a few plain values is
/// written on one line.
pub fn tree(capture: &CaptureFile) -> String {
    let stored: Bytes = capture.storages().iter().map(|storage| storage.bytes).sum();
    let mut writer = Writer { uses: uses(capture.root()), out: String::new(), lines: 0 };
    let name = capture.path().display().to_string();
    let _ = writeln!(
        writer.out,
        "{name}: {}, {stored} in {} storage{}",
        capture.file_bytes(),
        capture.storages().len(),
        if capture.storages().len() == 1 { "" } else { "s" }
    );
    writer.value("", capture.root(), 1);
    if writer.lines >= MAX_LINES {
        let _ = writeln!(writer.out, "  … (cut off after {MAX_LINES} lines)");
    }
    writer.out
}

/// Counts the uses of each storage: those by tensors, and those as a storage without a tensor. A shared tensor or
/// container is visited only once, and uses inside objects and arrays are not counted.
fn uses(root: &Value) -> HashMap<StorageId, usize> {
    let mut uses = HashMap::new();
    let mut seen_tensors = std::collections::HashSet::new();
    let mut seen_containers = std::collections::HashSet::new();
    let mut waiting = vec![root];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Tensor(tensor) if seen_tensors.insert(tensor.object) => {
                *uses.entry(tensor.storage).or_insert(0) += 1;
            }
            Value::Storage(id) => *uses.entry(*id).or_insert(0) += 1,
            Value::Sequence { items, .. } if seen_containers.insert(items.as_ptr().cast::<u8>()) => {
                waiting.extend(items.iter());
            }
            Value::Dict { items, .. } if seen_containers.insert(items.as_ptr().cast::<u8>()) => {
                waiting.extend(items.iter().flat_map(|(key, value)| [key, value]));
            }
            _ => {}
        }
    }
    uses
}

struct Writer {
    uses: HashMap<StorageId, usize>,
    out: String,
    lines: usize,
}

impl Writer {
    fn line(&mut self, level: usize, label: &str, text: &str) {
        if self.lines < MAX_LINES {
            let separator = if label.is_empty() { "" } else { ": " };
            let _ = writeln!(self.out, "{:indent$}{label}{separator}{text}", "", indent = 2 * level);
        }
        self.lines += 1;
    }

    fn value(&mut self, label: &str, value: &Value, level: usize) {
        if self.lines >= MAX_LINES {
            return;
        }
        if let Some(text) = self.inline(value) {
            return self.line(level, label, &text);
        }
        match value {
            Value::Sequence { kind, items } => {
                let noun = format!("{} of {}", sequence_name(*kind), items.len());
                self.line(level, label, &noun);
                self.items(level, items.len(), |writer, index| {
                    writer.value(&format!("[{index}]"), &items[index], level + 1);
                });
            }
            Value::Dict { kind, items } => {
                let noun = format!("{} of {}", dict_name(*kind), items.len());
                self.line(level, label, &noun);
                self.items(level, items.len(), |writer, index| {
                    let (key, value) = &items[index];
                    let key = match key {
                        Value::Str(text) => plain_key(text),
                        other => writer.inline(other).unwrap_or_else(|| "…".to_owned()),
                    };
                    writer.value(&key, value, level + 1);
                });
            }
            _ => self.line(level, label, "…"),
        }
    }

    fn items(&mut self, level: usize, count: usize, mut show: impl FnMut(&mut Self, usize)) {
        if level >= SHOWN_LEVELS {
            return self.line(level + 1, "", "… (deeper levels are not shown)");
        }
        for index in 0..count.min(SHOWN_ITEMS) {
            show(self, index);
        }
        if count > SHOWN_ITEMS {
            self.line(level + 1, "", &format!("… {} more", count - SHOWN_ITEMS));
        }
    }

    /// Writes a value on one line. Returns `None` for a container that has many items or items that are not plain, and
    /// for a dict that is not empty.
    fn inline(&self, value: &Value) -> Option<String> {
        Some(match value {
            Value::Tensor(tensor) => self.tensor(tensor),
            Value::NumpyArray(array) => array_text(array),
            Value::Storage(id) => format!("a bare storage, {id}"),
            Value::Sequence { kind, items } => {
                if items.len() > INLINE_ITEMS {
                    return None;
                }
                let items: Option<Vec<String>> = items.iter().map(scalar).collect();
                let items = items?.join(", ");
                match kind {
                    SequenceKind::List => format!("[{items}]"),
                    SequenceKind::Tuple => format!("({items})"),
                    _ => format!("{}({items})", sequence_name(*kind)),
                }
            }
            Value::Dict { kind, items } if items.is_empty() => format!("{} of 0", dict_name(*kind)),
            Value::Dict { .. } => return None,
            other => scalar(other)?,
        })
    }

    fn tensor(&self, tensor: &Tensor) -> String {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let mut text = format!("{}[{}]", tensor.dtype, shape.join(", "));
        let _ = write!(text, "  {}  {}", tensor.logical_bytes(), tensor.storage);
        if tensor.storage_offset > 0 {
            let _ = write!(text, " from element {}", tensor.storage_offset);
        }
        if !tensor.is_contiguous() {
            let _ = write!(text, "  stride {:?}", tensor.stride);
        }
        let sharing = self.uses.get(&tensor.storage).copied().unwrap_or(1);
        if sharing > 1 {
            let _ = write!(text, "  shared by {sharing}");
        }
        for (set, word) in [
            (tensor.parameter, "parameter"),
            (tensor.requires_grad, "requires grad"),
            (tensor.conjugate, "conjugate"),
            (tensor.negative, "negative"),
        ] {
            if set {
                let _ = write!(text, "  {word}");
            }
        }
        text
    }
}

fn array_text(array: &NumpyArray) -> String {
    let what = match &array.contents {
        NumpyContents::Bytes(bytes) => Bytes::from(bytes.len()).to_string(),
        NumpyContents::Objects(items) => format!("{} objects", items.len()),
    };
    let order = if array.fortran_order { "  Fortran order" } else { "" };
    format!("numpy {}{:?}  {what}{order}", array.dtype, array.shape)
}

fn scalar(value: &Value) -> Option<String> {
    Some(match value {
        Value::None => "None".to_owned(),
        Value::Ellipsis => "...".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::BigInt(value) if value.bits() > MAX_SHOWN_BITS => format!("an int of {} bits", value.bits()),
        Value::Int(value) => value.to_string(),
        Value::BigInt(value) => value.to_string(),
        Value::Float(value) => float_text(*value),
        Value::Complex { real, imaginary } => {
            format!("complex({}, {})", float_text(*real), float_text(*imaginary))
        }
        Value::Str(text) => quoted(text).replace('`', "\""),
        Value::Bytes(bytes) => format!("{} of bytes", Bytes::from(bytes.len())),
        Value::ByteArray(bytes) => format!("{} of bytearray", Bytes::from(bytes.len())),
        Value::DType(dtype) => format!("torch.{dtype}"),
        Value::OtherDType(name) | Value::Layout(name) | Value::MemoryFormat(name) => format!("torch.{name}"),
        Value::Device(name) => format!("device {}", quoted(name)),
        Value::Slice(parts) => slice_parts("slice", parts)?,
        Value::Range(parts) => slice_parts("range", parts)?,
        Value::NumpyScalar { dtype, .. } => format!("numpy {dtype} scalar"),
        Value::Cycle(path) => format!("itself at {}", quoted(path)),
        Value::Object(object) => object_text(object),
        Value::Sequence { .. }
        | Value::Dict { .. }
        | Value::Tensor(_)
        | Value::Storage(_)
        | Value::NumpyArray(_) => return None,
    })
}

fn object_text(object: &Object) -> String {
    let name = quoted(&object.name).replace('`', "");
    match (&object.made, object.member_value()) {
        (Creation::Named, _) => name,
        (_, Some(value)) => format!("{name}({})", scalar(value).unwrap_or_else(|| "…".to_owned())),
        (Creation::Called(arguments) | Creation::New(arguments), None) => {
            let items: Option<Vec<String>> = arguments.iter().take(INLINE_ITEMS).map(plain_scalar).collect();
            let state = if object.state.is_empty() { "" } else { " with attributes" };
            items.filter(|_| arguments.len() <= INLINE_ITEMS).map_or_else(
                || format!("{name} of {} values{state}", arguments.len()),
                |items| format!("{name}({}){state}", items.join(", ")),
            )
        }
    }
}

/// Writes a value that is part of an object, a slice or a range. If it is one of these itself, it becomes `…`.
fn plain_scalar(value: &Value) -> Option<String> {
    match value {
        Value::Object(_) | Value::Slice(_) | Value::Range(_) => Some("…".to_owned()),
        other => scalar(other),
    }
}

fn slice_parts(name: &str, parts: &[Value; 3]) -> Option<String> {
    let parts: Option<Vec<String>> = parts.iter().map(plain_scalar).collect();
    Some(format!("{name}({})", parts?.join(", ")))
}

/// Writes a key, without quotes if it has at most 64 characters, all of them letters, digits, `_`, `-` or `.`.
fn plain_key(text: &str) -> String {
    let plain = !text.is_empty()
        && text.len() <= 64
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "_-.".contains(character));
    if plain { text.to_owned() } else { quoted(text) }
}

fn sequence_name(kind: SequenceKind) -> &'static str {
    match kind {
        SequenceKind::List => "list",
        SequenceKind::Tuple => "tuple",
        SequenceKind::Size => "torch.Size",
        SequenceKind::Set => "set",
        SequenceKind::FrozenSet => "frozenset",
        SequenceKind::ReturnType(class) => class,
    }
}

fn dict_name(kind: DictKind) -> &'static str {
    match kind {
        DictKind::Dict => "dict",
        DictKind::Ordered => "OrderedDict",
        DictKind::Default => "defaultdict",
        DictKind::Counter => "Counter",
    }
}
