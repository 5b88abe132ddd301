//! Computes fingerprints of values, by which the values of entries can be compared without keeping them.
//!
//! Values that can be turned into arguments have equal fingerprints if the arguments are equal. `(1, 2)` and `[1, 2]`
//! are therefore treated as equal. All tensors, and all values that contain a tensor, have the same fingerprint.

use num_bigint::BigInt;
use sha2::{Digest, Sha256};

use super::PlainValue;
use super::entry::kind_name;
use super::plain::{Budget, Refusal, holds_tensor, plain_value, shorten};
use crate::capture::{Creation, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fingerprint {
    Digest { shown: String, digest: [u8; 32] },
    Tensor,
    Incomparable(Refusal),
}

impl Fingerprint {
    pub(super) fn of(value: &Value) -> Self {
        match holds_tensor(value, 0, &mut Budget::new()) {
            Ok(true) => return Self::Tensor,
            Ok(false) => {}
            Err(reason) => return Self::Incomparable(reason),
        }
        match plain_value(value) {
            Ok(value) => Self::of_plain(&value),
            Err(reason) => Self::of_other(value, reason),
        }
    }

    pub(super) fn of_plain(value: &PlainValue) -> Self {
        Self::Digest { shown: value.to_string(), digest: Sha256::digest(value.canonical()).into() }
    }

    /// The fingerprint of a value that no kernel can take. It is needed because a parameter can be left out if it has
    /// the same such value in every entry.
    fn of_other(value: &Value, reason: Refusal) -> Self {
        let mut hash = Sha256::new();
        match hash_structure(value, 0, &mut Budget::new(), &mut hash) {
            Ok(()) => Self::Digest { shown: kind_name(value).to_owned(), digest: hash.finalize().into() },
            Err(Refusal::Tensor) => Self::Tensor,
            Err(Refusal::TooDeep | Refusal::TooLarge) => Self::Incomparable(reason),
            Err(other) => Self::Incomparable(other),
        }
    }

    /// The fingerprint of a parameter that an entry lacks and that has no default.
    pub(super) fn nothing() -> Self {
        Self::Digest { shown: "nothing".to_owned(), digest: [0; 32] }
    }

    pub(super) fn shown(&self) -> String {
        match self {
            Self::Digest { shown, .. } => shown.clone(),
            Self::Tensor => "a tensor".to_owned(),
            Self::Incomparable(reason) => reason.to_string(),
        }
    }
}

fn hash_integer(hash: &mut Sha256, integer: &BigInt) {
    let bytes = integer.to_signed_bytes_le();
    hash.update(format!("int:{}:", bytes.len()));
    hash.update(bytes);
}

/// Feeds a value's structure into `hash`. Every part is preceded by its kind, and by its length if that varies, so that
/// different values have different digests. Bytes and a bytearray with the same contents count as equal.
fn hash_structure(
    value: &Value,
    depth: usize,
    budget: &mut Budget,
    hash: &mut Sha256,
) -> Result<(), Refusal> {
    budget.visit(depth)?;
    match value {
        Value::Tensor(_) | Value::Storage(_) => return Err(Refusal::Tensor),
        Value::NumpyArray(array) => return Err(Refusal::NumpyArray { dtype: shorten(&array.dtype) }),
        Value::Sequence { kind, items } => {
            hash.update(format!("{kind:?}[{}]", items.len()));
            for item in items.iter() {
                hash_structure(item, depth + 1, budget, hash)?;
            }
        }
        Value::Dict { kind, items } => {
            hash.update(format!("{kind:?}{{{}}}", items.len()));
            for (key, item) in items.iter() {
                hash_structure(key, depth + 1, budget, hash)?;
                hash_structure(item, depth + 1, budget, hash)?;
            }
        }
        Value::Slice(parts) | Value::Range(parts) => {
            hash.update(kind_name(value));
            for part in parts.iter() {
                hash_structure(part, depth + 1, budget, hash)?;
            }
        }
        Value::Bytes(bytes) | Value::ByteArray(bytes) | Value::NumpyScalar { bytes, .. } => {
            if let Value::NumpyScalar { dtype, .. } = value {
                hash.update(format!("numpy:{}:{dtype}", dtype.len()));
            }
            hash.update(format!("bytes:{}:", bytes.len()));
            hash.update(bytes);
        }
        Value::Complex { real, imaginary } => {
            hash.update(format!("complex:{:016x}{:016x}", real.to_bits(), imaginary.to_bits()));
        }
        Value::Int(integer) => hash_integer(hash, &BigInt::from(*integer)),
        Value::BigInt(integer) => hash_integer(hash, integer),
        Value::OtherDType(name) | Value::Cycle(name) => {
            hash.update(format!("{}:{}:{name}", kind_name(value), name.len()));
        }
        Value::Object(object) => {
            let (kind, arguments) = match &object.made {
                Creation::Named => ("named", &[][..]),
                Creation::Called(arguments) => ("called", &**arguments),
                Creation::New(arguments) => ("new", &**arguments),
            };
            let name = &object.name;
            hash.update(format!("{kind}:{}:{name}({},{})", name.len(), arguments.len(), object.state.len()));
            for part in arguments.iter().chain(&object.state) {
                hash_structure(part, depth + 1, budget, hash)?;
            }
        }
        Value::Ellipsis => hash.update("ellipsis"),
        Value::None
        | Value::Bool(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::DType(_)
        | Value::Device(_)
        | Value::Layout(_)
        | Value::MemoryFormat(_) => hash.update(plain_value(value)?.canonical()),
    }
    Ok(())
}
