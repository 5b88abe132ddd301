//! Interprets the keys of a capture as one recorded call.
//!
//! This file finds the parts of the call and leaves their values unchanged. `bind` turns the values into arguments.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::MAX_ARGUMENTS;
use super::plain::{Budget, shorten};
use crate::capture::Value;

/// The longest allowed name of a parameter or function, in bytes. A longer name indicates damage or an attack.
const MAX_NAME_BYTES: usize = 255;
/// The largest number of unknown keys that a message lists.
const KEPT_UNKNOWN_KEYS: usize = 16;
/// The newest schema of captures that this program reads. Schema 2 allows captures to leave out the values of tensors,
/// but such captures are refused.
const NEWEST_SCHEMA: i64 = 2;
/// Keys of schema 2 that describe a call but are not part of it.
const DESCRIPTIVE_KEYS: [&str; 2] = ["shape_signature", "capture_policy"];
/// Schema 2 writes a dict with one of these keys in place of a tensor that it leaves out.
const DESCRIPTOR_KEYS: [&str; 2] = ["__kforge_tensor_descriptor__", "__kforge_recompute_output__"];

/// One recorded call.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name of the op, such as `torch.nn.functional.embedding`.
    pub function_name: Option<Arc<str>>,
    pub args: Vec<Value>,
    pub kwargs: Vec<(Arc<str>, Value)>,
    /// The result of the call; `None` if the capture has none.
    pub output: Option<Value>,
    /// Parameters that the call changes, with their values after the call.
    pub mutates: Vec<(Arc<str>, Value)>,
    pub signature: Option<RecordedSignature>,
    /// The first unknown keys of the capture. `check` warns about them.
    pub unknown_keys: Vec<String>,
}

/// The op's parameters as known when the capture was made.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedSignature {
    pub params: Vec<Arc<str>>,
    pub defaults: Vec<(Arc<str>, Value)>,
    /// Python's parameter kinds, such as `KEYWORD_ONLY`, if they were recorded.
    pub kinds: Vec<(Arc<str>, Arc<str>)>,
}

/// Why a capture does not contain a recorded call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("the capture is {found}, not a dict with `args`, `kwargs` and `output`")]
    NotADict { found: &'static str },
    #[error("the capture has neither `args` nor `kwargs` (is it a recorded call?)")]
    NoArguments,
    #[error("`{key}` is {found}, not {expected}")]
    Kind { key: &'static str, found: &'static str, expected: &'static str },
    #[error("a name in `{key}` is {found}, not a string")]
    NotAName { key: &'static str, found: &'static str },
    #[error("a name in `{key}` is longer than {MAX_NAME_BYTES} bytes (it begins `{name}`)")]
    LongName { key: &'static str, name: String },
    #[error("`{key}` names `{name}` twice (capture the call again with the op's own signature)")]
    RepeatedName { key: &'static str, name: String },
    #[error("`{key}` has {found} values (at most {MAX_ARGUMENTS} are allowed)")]
    TooMany { key: &'static str, found: usize },
    #[error(
        "`{path}` holds a `{key}`{name} instead of a tensor: schema 2 left its values out (capture the call \
         again with the tensors in it, or with a larger `max_tensor_value_elements`)"
    )]
    Descriptor {
        path: String,
        key: &'static str,
        /// ` for `NAME`` if the descriptor has a name; otherwise empty.
        name: String,
    },
    #[error("`schema_version` is {found}, and this program reads 1 to {NEWEST_SCHEMA}")]
    Schema { found: String },
    #[error("`{path}` is nested too deeply, or the capture has too many values to be searched")]
    Unsearchable { path: String },
}

impl Entry {
    pub fn from_value(root: &Value) -> Result<Self, EntryError> {
        let Value::Dict { items, .. } = root else {
            return Err(EntryError::NotADict { found: kind_name(root) });
        };
        let (mut name, mut op_name, mut op) = (None, None, None);
        let (mut args, mut kwargs, mut output, mut mutates, mut signature) = (None, None, None, None, None);
        let mut unknown_keys = Vec::new();
        for (key, value) in items.iter() {
            match key {
                Value::Str(key) => match &**key {
                    "function_name" => name = Some(value),
                    "op_name" => op_name = Some(value),
                    "op" => op = Some(value),
                    "args" => args = Some(value),
                    "kwargs" => kwargs = Some(value),
                    "output" => output = Some(value),
                    "mutates" => mutates = Some(value),
                    "signature" => signature = Some(value),
                    "schema_version" => check_schema(value)?,
                    other if DESCRIPTIVE_KEYS.contains(&other) => {}
                    other => unknown_keys.push(shorten(other)),
                },
                other => unknown_keys.push(kind_name(other).to_owned()),
            }
        }
        unknown_keys.truncate(KEPT_UNKNOWN_KEYS);
        if args.is_none() && kwargs.is_none() {
            return Err(EntryError::NoArguments);
        }
        let entry = Self {
            function_name: function_name(name.or(op_name).or(op))?,
            args: positional(args)?,
            kwargs: named("kwargs", kwargs)?,
            output: output.cloned(),
            mutates: named("mutates", mutates)?,
            signature: signature.map(recorded).transpose()?.flatten(),
            unknown_keys,
        };
        entry.refuse_descriptors()?;
        Ok(entry)
    }

    fn refuse_descriptors(&self) -> Result<(), EntryError> {
        let mut budget = Budget::new();
        for (index, value) in self.args.iter().enumerate() {
            refuse_descriptor(value, &format!("args[{index}]"), 0, &mut budget)?;
        }
        for (name, value) in &self.kwargs {
            refuse_descriptor(value, &format!("kwargs.{}", shorten(name)), 0, &mut budget)?;
        }
        for (name, value) in &self.mutates {
            refuse_descriptor(value, &format!("mutates.{}", shorten(name)), 0, &mut budget)?;
        }
        self.output.as_ref().map_or(Ok(()), |value| refuse_descriptor(value, "output", 0, &mut budget))
    }
}

fn function_name(value: Option<&Value>) -> Result<Option<Arc<str>>, EntryError> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Str(name)) if name.len() > MAX_NAME_BYTES => {
            Err(EntryError::LongName { key: "function_name", name: shorten(name) })
        }
        Some(Value::Str(name)) => Ok(Some(name.clone())),
        Some(other) => {
            Err(EntryError::Kind { key: "function_name", found: kind_name(other), expected: "a string" })
        }
    }
}

fn check_schema(value: &Value) -> Result<(), EntryError> {
    match value {
        Value::Int(version) if (1..=NEWEST_SCHEMA).contains(version) => Ok(()),
        Value::Int(version) => Err(EntryError::Schema { found: version.to_string() }),
        other => Err(EntryError::Schema { found: kind_name(other).to_owned() }),
    }
}

fn positional(value: Option<&Value>) -> Result<Vec<Value>, EntryError> {
    match value {
        None | Some(Value::None) => Ok(Vec::new()),
        Some(value) => {
            let items = super::plain::ordered(value).ok_or(EntryError::Kind {
                key: "args",
                found: kind_name(value),
                expected: "a list or tuple",
            })?;
            check_count("args", items.len())?;
            Ok(items.to_vec())
        }
    }
}

fn check_count(key: &'static str, found: usize) -> Result<(), EntryError> {
    if found > MAX_ARGUMENTS { Err(EntryError::TooMany { key, found }) } else { Ok(()) }
}

/// Returns the items of a dict whose keys are names. As in Python, a repeated key keeps its first position and its last
/// value.
fn named(key: &'static str, value: Option<&Value>) -> Result<Vec<(Arc<str>, Value)>, EntryError> {
    let items = match value {
        None | Some(Value::None) => return Ok(Vec::new()),
        Some(Value::Dict { items, .. }) => items,
        Some(other) => return Err(EntryError::Kind { key, found: kind_name(other), expected: "a dict" }),
    };
    check_count(key, items.len())?;
    let mut named: Vec<(Arc<str>, Value)> = Vec::with_capacity(items.len());
    for (name, value) in items.iter() {
        let name = parameter_name(key, name)?;
        match named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, place)) => *place = value.clone(),
            None => named.push((name, value.clone())),
        }
    }
    Ok(named)
}

fn parameter_name(key: &'static str, value: &Value) -> Result<Arc<str>, EntryError> {
    match value {
        Value::Str(name) if name.len() > MAX_NAME_BYTES => {
            Err(EntryError::LongName { key, name: shorten(name) })
        }
        Value::Str(name) => Ok(name.clone()),
        other => Err(EntryError::NotAName { key, found: kind_name(other) }),
    }
}

fn recorded(value: &Value) -> Result<Option<RecordedSignature>, EntryError> {
    let items = match value {
        Value::None => return Ok(None),
        Value::Dict { items, .. } => items,
        other => {
            return Err(EntryError::Kind { key: "signature", found: kind_name(other), expected: "a dict" });
        }
    };
    let part = |wanted: &str| {
        items.iter().rev().find_map(|(key, value)| match key {
            Value::Str(key) if **key == *wanted => Some(value),
            _ => None,
        })
    };
    let params = match part("params") {
        None | Some(Value::None) => return Ok(None),
        Some(value) => super::plain::ordered(value).ok_or(EntryError::Kind {
            key: "signature.params",
            found: kind_name(value),
            expected: "a list of names",
        })?,
    };
    check_count("signature.params", params.len())?;
    let params: Vec<Arc<str>> =
        params.iter().map(|name| parameter_name("signature.params", name)).collect::<Result<_, _>>()?;
    let mut seen = BTreeSet::new();
    if let Some(repeated) = params.iter().find(|name| !seen.insert(&***name)) {
        return Err(EntryError::RepeatedName { key: "signature.params", name: shorten(repeated) });
    }
    let kinds = named("signature.kinds", part("kinds"))?
        .into_iter()
        .filter_map(|(name, kind)| match kind {
            Value::Str(kind) => Some((name, kind)),
            _ => None,
        })
        .collect();
    Ok(Some(RecordedSignature { params, defaults: named("signature.defaults", part("defaults"))?, kinds }))
}

fn refuse_descriptor(value: &Value, path: &str, depth: usize, budget: &mut Budget) -> Result<(), EntryError> {
    budget.visit(depth).map_err(|_| EntryError::Unsearchable { path: path.to_owned() })?;
    match value {
        Value::Sequence { items, .. } => {
            for (index, item) in items.iter().enumerate() {
                // Items that contain no others are skipped, because building a path for each item would be slow in a
                // long list of numbers.
                if matches!(item, Value::Sequence { .. } | Value::Dict { .. }) {
                    refuse_descriptor(item, &format!("{path}[{index}]"), depth + 1, budget)?;
                }
            }
            Ok(())
        }
        Value::Dict { items, .. } => {
            let text = |wanted: &str| {
                items.iter().find_map(|(key, value)| match (key, value) {
                    (Value::Str(key), Value::Str(value)) if **key == *wanted => Some(value),
                    _ => None,
                })
            };
            for (key, item) in items.iter() {
                if let Value::Str(key) = key {
                    if let Some(descriptor) = DESCRIPTOR_KEYS.into_iter().find(|known| **known == **key) {
                        let name = text("name").or_else(|| text("function_name"));
                        return Err(EntryError::Descriptor {
                            path: path.to_owned(),
                            key: descriptor,
                            name: name.map_or(String::new(), |name| format!(" for `{}`", shorten(name))),
                        });
                    }
                    refuse_descriptor(item, &format!("{path}.{}", shorten(key)), depth + 1, budget)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns the kind of a value, with an article, for messages.
pub(super) fn kind_name(value: &Value) -> &'static str {
    use crate::capture::SequenceKind;
    match value {
        Value::None => "None",
        Value::Ellipsis => "an Ellipsis",
        Value::Bool(_) => "a bool",
        Value::Int(_) | Value::BigInt(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Complex { .. } => "a complex number",
        Value::Str(_) => "a string",
        Value::Bytes(_) | Value::ByteArray(_) => "a bytes or bytearray object",
        Value::Sequence { kind: SequenceKind::List, .. } => "a list",
        Value::Sequence { kind: SequenceKind::Tuple, .. } => "a tuple",
        Value::Sequence { kind: SequenceKind::Size, .. } => "a torch.Size",
        Value::Sequence { kind: SequenceKind::ReturnType(_), .. } => "a named tuple",
        Value::Sequence { kind: SequenceKind::Set | SequenceKind::FrozenSet, .. } => "a set",
        Value::Dict { .. } => "a dict",
        Value::Slice(_) => "a slice",
        Value::Range(_) => "a range",
        Value::DType(_) | Value::OtherDType(_) => "a dtype",
        Value::Device(_) => "a device",
        Value::Layout(_) => "a layout",
        Value::MemoryFormat(_) => "a memory format",
        Value::Tensor(_) => "a tensor",
        Value::Storage(_) => "a bare storage",
        Value::NumpyArray(_) => "a numpy array",
        Value::NumpyScalar { .. } => "a numpy scalar",
        Value::Object(_) => "an object of an unknown class",
        Value::Cycle(_) => "a container that contains itself",
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{dict, int, list, tensor, text, tuple};
    use super::*;
    use crate::capture::DType;

    #[test]
    fn parts_of_a_call_are_found() {
        let root = dict([
            ("op_name", text("torch.relu")),
            ("args", tuple([tensor(DType::Float32, &[2], 0)])),
            ("kwargs", Value::None),
            ("generated-incorrect-output", Value::None),
            ("schema_version", int(2)),
            ("shape_signature", text("{}")),
            (
                "signature",
                dict([
                    ("params", list([text("input"), text("inplace")])),
                    ("defaults", dict([("inplace", Value::Bool(false))])),
                    ("kinds", dict([("input", text("POSITIONAL_OR_KEYWORD"))])),
                ]),
            ),
        ]);
        let entry = Entry::from_value(&root).unwrap();
        assert_eq!(entry.function_name.as_deref(), Some("torch.relu"));
        assert_eq!((entry.args.len(), entry.kwargs.len()), (1, 0));
        assert_eq!(entry.output, None);
        assert_eq!(entry.unknown_keys, ["generated-incorrect-output"]);
        let signature = entry.signature.unwrap();
        assert_eq!(signature.params, ["input".into(), "inplace".into()]);
        assert_eq!(signature.kinds.len(), 1);
    }

    #[test]
    fn output_of_none_is_not_a_missing_output() {
        let root = dict([("args", list([])), ("output", Value::None)]);
        assert_eq!(Entry::from_value(&root).unwrap().output, Some(Value::None));
    }

    #[test]
    fn capture_that_is_not_a_well_formed_call_is_refused() {
        let long = "x".repeat(300);
        for (root, part) in [
            (tensor(DType::Float32, &[2], 0), "the capture is a tensor"),
            (dict([("weights", list([]))]), "neither `args` nor `kwargs`"),
            (dict([("args", int(3))]), "`args` is an integer, not a list or tuple"),
            (dict([("kwargs", list([]))]), "`kwargs` is a list, not a dict"),
            (dict([("args", list([])), ("mutates", list([]))]), "`mutates` is a list, not a dict"),
            (dict([("args", list([])), ("function_name", int(1))]), "`function_name` is an integer"),
            (dict([("args", list([])), ("signature", int(1))]), "`signature` is an integer"),
            (
                dict([
                    ("args", list([])),
                    ("signature", dict([("params", list([text("x"), text("y"), text("x")]))])),
                ]),
                "`signature.params` names `x` twice",
            ),
            (dict([("kwargs", dict([(long.as_str(), int(1))]))]), "longer than 255 bytes"),
            (dict([("args", list([])), ("schema_version", int(3))]), "`schema_version` is 3"),
            (dict([("args", list((0..1025).map(int)))]), "has 1025 values"),
        ] {
            let message = Entry::from_value(&root).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn descriptors_of_schema_2_are_named_with_their_path() {
        let descriptor = dict([
            ("__kforge_tensor_descriptor__", Value::Bool(true)),
            ("kind", text("param_ref")),
            ("name", text("embed.weight")),
        ]);
        let root = dict([("args", list([])), ("kwargs", dict([("hx", tuple([int(1), descriptor]))]))]);
        let message = Entry::from_value(&root).unwrap_err().to_string();
        for part in ["kwargs.hx[1]", "__kforge_tensor_descriptor__", "embed.weight", "again"] {
            assert!(message.contains(part), "{message}");
        }
        let recompute = dict([("__kforge_recompute_output__", Value::Bool(true))]);
        let root = dict([("args", list([])), ("output", recompute)]);
        assert!(matches!(
            Entry::from_value(&root),
            Err(EntryError::Descriptor { key: "__kforge_recompute_output__", .. })
        ));
    }
}
