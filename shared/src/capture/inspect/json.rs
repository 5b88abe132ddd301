//! Makes the JSON document that describes a capture: the outcome, the storages, and every value as a typed node.
//!
//! Nodes have the format of the golden fixtures (`tests/data/README.md`), including the order of keys. Shared values
//! are written out at each occurrence, so the numbers of nodes and of bytes of text are limited here too.

use std::collections::HashMap;
use std::path::Path;

use blake2::Blake2b;
use blake2::digest::consts::U32;
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

use crate::capture::error::{CaptureError, ErrorKind, Fault};
use crate::capture::limits::{
    CHUNK_BYTES, MAX_DIGESTED_READ_BYTES, MAX_DIGESTED_READS, MAX_DIGESTED_SLACK_BYTES,
    MAX_DIGESTED_TENSOR_BYTES, MAX_JSON_NODES, MAX_JSON_TEXT_BYTES,
};
use crate::capture::python::{float_text, json_text};
use crate::capture::{
    CaptureFile, Creation, DictKind, NumpyArray, NumpyContents, Object, SequenceKind, Storage, Tensor, Value,
    bytes_read, contiguous_strides, logical_values,
};
use crate::causes::chain;
use crate::units::Bytes;

/// Number of bytes of a tensor's values that its node shows.
const HEAD_BYTES: usize = 16;

/// Returns the output of `inspect --json`: `outcome`, `error_kind`, `storages`, `root`, and `message` if there is an
/// error. With `digests`, every storage is checked as in `check_storage`. Digests of storages, arrays and tensors are
/// added, except those of tensors that are too large. Otherwise no tensor data is read after the file is opened.
pub fn document(path: &Path, digests: bool) -> Json {
    match rendered(path, digests) {
        Ok((storages, root)) => {
            json!({"outcome": "ok", "error_kind": null, "storages": storages, "root": root})
        }
        Err(error) => json!({
            "outcome": "error",
            "error_kind": error.kind.name(),
            "storages": [],
            "root": null,
            "message": chain(&error),
        }),
    }
}

fn rendered(path: &Path, digests: bool) -> Result<(Json, Json), CaptureError> {
    let capture = CaptureFile::open(path)?;
    if digests {
        capture.storages().iter().try_for_each(|storage| capture.check_storage(storage.id))?;
    }
    let mut renderer = Renderer {
        capture: &capture,
        digests,
        nodes_left: MAX_JSON_NODES,
        text_left: MAX_JSON_TEXT_BYTES,
        digested_left: capture.file_bytes().saturating_mul(4).get().saturating_add(MAX_DIGESTED_SLACK_BYTES),
        reads_left: MAX_DIGESTED_READS,
        bytes_left: MAX_DIGESTED_READ_BYTES,
        tensors: HashMap::new(),
    };
    let root = renderer.node(capture.root())?;
    let storages: Result<Vec<Json>, CaptureError> =
        capture.storages().iter().map(|storage| renderer.storage(storage)).collect();
    Ok((Json::Array(storages?), root))
}

struct Renderer<'a> {
    capture: &'a CaptureFile,
    digests: bool,
    // What is left of the limits on the output, and on the bytes and reads for digests.
    nodes_left: usize,
    text_left: usize,
    digested_left: u64,
    reads_left: u64,
    bytes_left: u64,
    /// Digests by tensor object, because a tensor may occur in many places.
    tensors: HashMap<u32, Digests>,
}

#[derive(Clone, Default)]
struct Digests {
    sha256: Json,
    blake2b_256: Json,
    head_hex: Json,
}

#[derive(Default)]
struct Hashing {
    sha256: Sha256,
    blake2b_256: Blake2b<U32>,
    head: Vec<u8>,
}

impl Hashing {
    fn update(&mut self, chunk: &[u8]) {
        self.sha256.update(chunk);
        self.blake2b_256.update(chunk);
        let wanted = HEAD_BYTES - self.head.len();
        self.head.extend_from_slice(&chunk[..wanted.min(chunk.len())]);
    }

    fn finish(self) -> Digests {
        Digests {
            sha256: hex::encode(self.sha256.finalize()).into(),
            blake2b_256: hex::encode(self.blake2b_256.finalize()).into(),
            head_hex: hex::encode(&self.head).into(),
        }
    }
}

fn typed(name: &str) -> Map<String, Json> {
    let mut node = Map::new();
    node.insert("type".to_owned(), name.into());
    node
}

fn valued(name: &str, value: impl Into<Json>) -> Json {
    with(name, "value", value)
}

fn with(name: &str, key: &str, value: impl Into<Json>) -> Json {
    let mut node = typed(name);
    node.insert(key.to_owned(), value.into());
    Json::Object(node)
}

fn numbers(values: &[u64]) -> Json {
    values.iter().map(u64::to_string).collect()
}

fn bits(value: f64) -> String {
    format!("{:016x}", value.to_bits())
}

impl Renderer<'_> {
    fn limit(&self, what: &str, limit: impl std::fmt::Display) -> CaptureError {
        Fault::new(ErrorKind::Limit, format!("as a JSON document, {what} (the limit is {limit})"))
            .at(self.capture.path())
    }

    fn charge_nodes(&mut self, nodes: usize) -> Result<(), CaptureError> {
        self.nodes_left = self
            .nodes_left
            .checked_sub(nodes)
            .ok_or_else(|| self.limit("it has too many values", MAX_JSON_NODES))?;
        Ok(())
    }

    fn charge_text(&mut self, bytes: usize) -> Result<(), CaptureError> {
        self.text_left = self
            .text_left
            .checked_sub(bytes)
            .ok_or_else(|| self.limit("it has too much text", Bytes::from(MAX_JSON_TEXT_BYTES)))?;
        Ok(())
    }

    fn charge_digested(&mut self, bytes: u64) -> Result<(), CaptureError> {
        self.digested_left = self.digested_left.checked_sub(bytes).ok_or_else(|| {
            Fault::new(
                ErrorKind::Limit,
                "its tensors are too large to digest (the limit is four times the size of the file, plus 512 MiB)",
            )
            .at(self.capture.path())
        })?;
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<Json, CaptureError> {
        self.charge_text(text.len())?;
        Ok(text.into())
    }

    fn hex(&mut self, bytes: &[u8]) -> Result<Json, CaptureError> {
        self.charge_text(bytes.len().saturating_mul(2))?;
        Ok(hex::encode(bytes).into())
    }

    fn node(&mut self, value: &Value) -> Result<Json, CaptureError> {
        self.charge_nodes(1)?;
        Ok(match value {
            Value::None => Json::Object(typed("none")),
            Value::Ellipsis => Json::Object(typed("ellipsis")),
            Value::Bool(value) => valued("bool", *value),
            Value::Int(value) => valued("int", self.text(&value.to_string())?),
            Value::BigInt(value) => valued("int", self.text(&value.to_string())?),
            Value::Float(value) => {
                let mut node = typed("float");
                node.insert("bits".to_owned(), bits(*value).into());
                node.insert("repr".to_owned(), float_text(*value).into());
                Json::Object(node)
            }
            Value::Complex { real, imaginary } => {
                let mut node = typed("complex");
                node.insert("real_bits".to_owned(), bits(*real).into());
                node.insert("imag_bits".to_owned(), bits(*imaginary).into());
                Json::Object(node)
            }
            Value::Str(text) => valued("str", self.text(text)?),
            Value::Bytes(bytes) => with("bytes", "hex", self.hex(bytes)?),
            Value::ByteArray(bytes) => with("bytearray", "hex", self.hex(bytes)?),
            Value::Sequence { kind, items } => self.sequence(*kind, items)?,
            Value::Dict { kind, items } => self.dict(*kind, items)?,
            Value::Slice(parts) => self.slice_parts("slice", parts)?,
            Value::Range(parts) => self.slice_parts("range", parts)?,
            Value::DType(dtype) => valued("torch.dtype", dtype.name()),
            Value::OtherDType(name) => valued("torch.dtype", &**name),
            Value::Device(name) => valued("torch.device", self.text(name)?),
            Value::Layout(name) => valued("torch.layout", &**name),
            Value::MemoryFormat(name) => valued("torch.memory_format", &**name),
            Value::Tensor(tensor) => self.tensor(tensor)?,
            Value::Storage(id) => with("storage", "storage", id.0),
            Value::NumpyArray(array) => self.array(array)?,
            Value::NumpyScalar { dtype, bytes } => {
                let mut node = typed("numpy_scalar");
                node.insert("dtype".to_owned(), (&**dtype).into());
                node.insert("hex".to_owned(), self.hex(bytes)?);
                Json::Object(node)
            }
            Value::Object(object) => self.object(object)?,
            Value::Cycle(path) => with("cycle", "to", self.text(path)?),
        })
    }

    fn nodes(&mut self, values: &[Value]) -> Result<Vec<Json>, CaptureError> {
        // This is checked before the nodes are made, because a vector of them must also fit into memory.
        if values.len() > self.nodes_left {
            return Err(self.limit("it has too many values", MAX_JSON_NODES));
        }
        values.iter().map(|value| self.node(value)).collect()
    }

    fn sequence(&mut self, kind: SequenceKind, items: &[Value]) -> Result<Json, CaptureError> {
        let mut items = self.nodes(items)?;
        let name = match kind {
            SequenceKind::List => "list",
            SequenceKind::Tuple => "tuple",
            SequenceKind::Size => "torch.Size",
            SequenceKind::Set | SequenceKind::FrozenSet => {
                items = self.sorted(items)?;
                if kind == SequenceKind::Set { "set" } else { "frozenset" }
            }
            SequenceKind::ReturnType(class) => {
                let mut node = typed("structseq");
                node.insert("class".to_owned(), format!("torch.return_types.{class}").into());
                node.insert("items".to_owned(), items.into());
                return Ok(Json::Object(node));
            }
        };
        Ok(with(name, "items", items))
    }

    /// Sorts the members by their text. The text is counted against the limit, because nested sets are written out
    /// again at each level.
    fn sorted(&mut self, members: Vec<Json>) -> Result<Vec<Json>, CaptureError> {
        let mut keyed = Vec::new();
        for member in members {
            let text = sorting_text(&member);
            self.charge_text(text.len())?;
            keyed.push((text, member));
        }
        keyed.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(keyed.into_iter().map(|(_, member)| member).collect())
    }

    fn dict(&mut self, kind: DictKind, items: &[(Value, Value)]) -> Result<Json, CaptureError> {
        let name = match kind {
            DictKind::Dict => "dict",
            DictKind::Ordered => "ordered_dict",
            DictKind::Default => "defaultdict",
            DictKind::Counter => "counter",
        };
        let mut pairs = Vec::new();
        for (key, value) in items {
            pairs.push(Json::Array(vec![self.node(key)?, self.node(value)?]));
        }
        Ok(with(name, "items", pairs))
    }

    fn slice_parts(&mut self, name: &str, parts: &[Value; 3]) -> Result<Json, CaptureError> {
        let mut node = typed(name);
        for (key, part) in ["start", "stop", "step"].into_iter().zip(parts) {
            node.insert(key.to_owned(), self.node(part)?);
        }
        Ok(Json::Object(node))
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<Json, CaptureError> {
        // The node of a tensor has as many keys as about ten other nodes.
        self.charge_nodes(10 + 2 * tensor.shape.len())?;
        let mut node = typed("tensor");
        let fields: [(&str, Json); 12] = [
            ("class", if tensor.parameter { "parameter" } else { "tensor" }.into()),
            ("obj", tensor.object.into()),
            ("dtype", tensor.dtype.name().into()),
            ("shape", numbers(&tensor.shape)),
            ("stride", numbers(&tensor.stride)),
            ("storage_offset", tensor.storage_offset.to_string().into()),
            ("storage", tensor.storage.0.into()),
            ("requires_grad", tensor.requires_grad.into()),
            ("conj", tensor.conjugate.into()),
            ("neg", tensor.negative.into()),
            ("contiguous", tensor.is_contiguous().into()),
            ("logical_nbytes", tensor.logical_bytes().get().to_string().into()),
        ];
        node.extend(fields.map(|(key, value)| (key.to_owned(), value)));
        insert_digests(&mut node, self.tensor_digests(tensor)?);
        Ok(Json::Object(node))
    }

    fn tensor_digests(&mut self, tensor: &Tensor) -> Result<Digests, CaptureError> {
        let bytes = tensor.logical_bytes().get();
        if !self.digests || bytes > MAX_DIGESTED_TENSOR_BYTES {
            return Ok(Digests::default());
        }
        if let Some(known) = self.tensors.get(&tensor.object) {
            return Ok(known.clone());
        }
        self.charge_digested(bytes)?;
        self.bytes_left = self.bytes_left.checked_sub(bytes_read(tensor).get()).ok_or_else(|| {
            Fault::limit(
                "the digests of its tensors need too many bytes to be read, because rows of views are interleaved",
                Bytes::new(MAX_DIGESTED_READ_BYTES),
            )
            .at(self.capture.path())
        })?;
        self.reads_left = self.reads_left.checked_sub(tensor.scattered_reads()).ok_or_else(|| {
            Fault::limit(
                "the digests of its tensors need too many reads, because elements of views lie far apart",
                MAX_DIGESTED_READS,
            )
            .at(self.capture.path())
        })?;
        let mut hashing = Hashing::default();
        logical_values(self.capture, tensor, &mut |chunk| -> Result<(), CaptureError> {
            hashing.update(chunk);
            Ok(())
        })?;
        let digests = hashing.finish();
        self.tensors.insert(tensor.object, digests.clone());
        Ok(digests)
    }

    fn object(&mut self, object: &Object) -> Result<Json, CaptureError> {
        let name = self.text(&object.name)?;
        let (key, arguments) = match &object.made {
            Creation::Named => return Ok(with("global", "name", name)),
            Creation::Called(arguments) => ("called", arguments),
            Creation::New(arguments) => ("new", arguments),
        };
        let mut node = typed("object");
        node.insert("class".to_owned(), name);
        node.insert(key.to_owned(), self.nodes(arguments)?.into());
        node.insert("state".to_owned(), self.nodes(&object.state)?.into());
        Ok(Json::Object(node))
    }

    fn array(&mut self, array: &NumpyArray) -> Result<Json, CaptureError> {
        self.charge_nodes(6 + array.shape.len())?;
        let mut node = typed("ndarray");
        node.insert("dtype".to_owned(), (&*array.dtype).into());
        let bytes = match &array.contents {
            NumpyContents::Objects(items) => {
                node.insert("items".to_owned(), self.nodes(items)?.into());
                node.insert("shape".to_owned(), numbers(&array.shape));
                return Ok(Json::Object(node));
            }
            NumpyContents::Bytes(bytes) => bytes,
        };
        node.insert("shape".to_owned(), numbers(&array.shape));
        node.insert("fortran_order".to_owned(), array.fortran_order.into());
        node.insert("logical_nbytes".to_owned(), bytes.len().to_string().into());
        let mut digests = Digests::default();
        if self.digests {
            self.charge_digested(bytes.len() as u64)?;
            let mut hashing = Hashing::default();
            if array.fortran_order {
                row_major(array, bytes, &mut |item| hashing.update(item));
            } else {
                hashing.update(bytes);
            }
            digests = hashing.finish();
        }
        insert_digests(&mut node, digests);
        Ok(Json::Object(node))
    }

    fn storage(&mut self, storage: &Storage) -> Result<Json, CaptureError> {
        let mut digests = Digests::default();
        if self.digests {
            let total = storage.bytes.get();
            let mut hashing = Hashing::default();
            let mut buffer = vec![0; Bytes::new(CHUNK_BYTES.min(total)).to_usize()];
            let mut done = 0;
            while done < total {
                let chunk = &mut buffer[..Bytes::new(CHUNK_BYTES.min(total - done)).to_usize()];
                self.capture.read_range(storage.id, done, chunk)?;
                hashing.update(chunk);
                done += chunk.len() as u64;
            }
            digests = hashing.finish();
        }
        Ok(json!({
            "id": storage.id.0,
            "nbytes": storage.bytes.get(),
            "sha256": digests.sha256,
            "blake2b_256": digests.blake2b_256,
        }))
    }
}

fn insert_digests(node: &mut Map<String, Json>, digests: Digests) {
    node.insert("sha256".to_owned(), digests.sha256);
    node.insert("blake2b_256".to_owned(), digests.blake2b_256);
    node.insert("head_hex".to_owned(), digests.head_hex);
}

/// Passes the items of a Fortran-order array to `take` in row-major order.
fn row_major(array: &NumpyArray, bytes: &[u8], take: &mut dyn FnMut(&[u8])) {
    // Items of size 0 take no space in the file, so there may be an enormous number of them.
    if bytes.is_empty() {
        return;
    }
    let count: u64 = array.shape.iter().product();
    let item_bytes = bytes.len() / Bytes::new(count.max(1)).to_usize();
    let rows = contiguous_strides(&array.shape);
    let columns: Vec<u64> = array
        .shape
        .iter()
        .scan(1, |step, &size| {
            let stride = *step;
            *step *= size;
            Some(stride)
        })
        .collect();
    for number in 0..count {
        let index: u64 =
            (0..rows.len()).map(|axis| number / rows[axis] % array.shape[axis] * columns[axis]).sum();
        let start = Bytes::new(index).to_usize() * item_bytes;
        take(&bytes[start..start + item_bytes]);
    }
}

/// The text by which the members of a set are sorted: `json.dumps(node, sort_keys=True)`.
fn sorting_text(node: &Json) -> String {
    let mut text = String::new();
    write_sorted(node, &mut text);
    text
}

fn write_sorted(node: &Json, out: &mut String) {
    match node {
        Json::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_sorted(item, out);
            }
            out.push(']');
        }
        Json::Object(fields) => {
            let mut fields: Vec<(&String, &Json)> = fields.iter().collect();
            fields.sort_unstable_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                json_text(key, out);
                out.push_str(": ");
                write_sorted(value, out);
            }
            out.push('}');
        }
        Json::String(text) => json_text(text, out),
        other => out.push_str(&other.to_string()),
    }
}
