//! Converts values that are not tensors to arguments, refuses those that no kernel can take, and writes them as text.
//!
//! A capture may use one list in many places, so visiting all of its values can take far longer than the size of the
//! file suggests. All code here that visits values therefore limits their number and depth.

use std::fmt::{self, Write};

use num_bigint::BigInt;
use sha2::{Digest, Sha256};

use super::PlainValue;
use super::element::half;
use super::heavy::HeavyView;
use crate::capture::{SequenceKind, Value};

/// Largest number of values that one conversion visits. A list of more than a million numbers should be a tensor.
const MAX_VALUES: usize = 1 << 20;
/// Deepest nesting of lists. Real arguments have two levels; the limit keeps recursion from overflowing the stack.
const MAX_DEPTH: usize = 64;
/// Longest string that is passed to a kernel, in bytes. The strings of real calls are names such as `mean`. The limit
/// is needed because many arguments may share one string of a file, and each argument gets a copy of the string.
const MAX_STRING_BYTES: usize = 4 << 10;
/// The largest numbers of elements of a list and of characters of a string that are written out in full. Longer values
/// are cut, and get a digest by which they can be told apart.
const SHOWN_ELEMENTS: usize = 16;
const SHOWN_CHARACTERS: usize = 64;

/// The reason why a value cannot become an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "a dict cannot be passed to a kernel (leave it out with `params` if it is the same in every entry)"
    )]
    Dict,
    #[error("{0} cannot be passed to a kernel (leave it out with `params` if it is the same in every entry)")]
    Kind(&'static str),
    #[error("a numpy array ({dtype}) cannot be passed to a kernel (capture the call with a torch tensor)")]
    NumpyArray { dtype: String },
    #[error("a numpy scalar of dtype {dtype} is neither an integer, a float nor a bool")]
    NumpyScalar { dtype: String },
    #[error(
        "`{0}` is an object of an unknown class, which this program does not create (record the plain values that the \
         kernel needs, or leave it out with `params` if it is the same in every entry)"
    )]
    Object(String),
    #[error("torch.{0} is a dtype that kernels cannot take")]
    OtherDType(String),
    #[error("the integer {0} does not fit into an int64")]
    IntRange(String),
    #[error("the integer {0} is in a list of floats, and no float has exactly this value")]
    InexactInt(i64),
    #[error("{0} is in a list (lists hold integers, floats and bools, or tensors)")]
    InList(&'static str),
    #[error(
        "a string of {0} bytes cannot be passed to a kernel (the limit is {MAX_STRING_BYTES}: leave it out with \
         `params` if it is the same in every entry)"
    )]
    LongString(usize),
    #[error(
        "a string with a NUL byte cannot be passed to a kernel (leave it out with `params` if it is the same in every \
         entry)"
    )]
    Nul,
    #[error("it contains a tensor where only plain values are allowed")]
    Tensor,
    #[error("it is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("it has more than {MAX_VALUES} elements (put them into a tensor)")]
    TooLarge,
    #[error(transparent)]
    Heavy(#[from] HeavyView),
    #[error("its tensors become more than {} arguments", super::MAX_ARGUMENTS)]
    TooManyArguments,
}

/// The number of values that may still be visited.
pub(super) struct Budget(usize);

impl Budget {
    pub(super) fn new() -> Self {
        Self(MAX_VALUES)
    }

    pub(super) fn visit(&mut self, depth: usize) -> Result<(), Refusal> {
        if depth > MAX_DEPTH {
            return Err(Refusal::TooDeep);
        }
        self.0 = self.0.checked_sub(1).ok_or(Refusal::TooLarge)?;
        Ok(())
    }
}

/// The items of a tuple, list, `torch.Size` or named tuple: the sequences whose order is meaningful.
pub(super) fn ordered(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Sequence {
            kind: SequenceKind::List | SequenceKind::Tuple | SequenceKind::Size | SequenceKind::ReturnType(_),
            items,
        } => Some(items),
        Value::Object(object) => object.tuple_items(),
        _ => None,
    }
}

/// True if this value is a tensor, or a list that contains one.
pub(super) fn holds_tensor(value: &Value, depth: usize, budget: &mut Budget) -> Result<bool, Refusal> {
    budget.visit(depth)?;
    if let Value::Tensor(_) = value {
        return Ok(true);
    }
    for item in ordered(value).unwrap_or_default() {
        if holds_tensor(item, depth + 1, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Converts a value other than a tensor to an argument.
pub fn plain_value(value: &Value) -> Result<PlainValue, Refusal> {
    plain_within(value, 0, &mut Budget::new())
}

pub(super) fn plain_within(value: &Value, depth: usize, budget: &mut Budget) -> Result<PlainValue, Refusal> {
    if let Some(items) = ordered(value) {
        let mut numbers = Vec::new();
        budget.visit(depth)?;
        collect_numbers(items, depth + 1, budget, &mut numbers)?;
        return one_type(&numbers);
    }
    match plainest(value) {
        Value::None => Ok(PlainValue::None),
        Value::Str(text) => accepted_text(text).map(PlainValue::Str),
        Value::DType(dtype) => Ok(PlainValue::DType(*dtype)),
        Value::Device(name) => accepted_text(name).map(PlainValue::Device),
        Value::Layout(name) | Value::MemoryFormat(name) => accepted_text(name).map(PlainValue::Str),
        other => number(other).map(|number| match number {
            Number::Bool(value) => PlainValue::Bool(value),
            Number::Int(value) => PlainValue::Int(value),
            Number::Float(value) => PlainValue::Float(value),
        }),
    }
}

/// Copies a string, or refuses it if a kernel cannot take it.
fn accepted_text(text: &str) -> Result<String, Refusal> {
    match text.len() {
        _ if text.contains('\0') => Err(Refusal::Nul),
        bytes if MAX_STRING_BYTES < bytes => Err(Refusal::LongString(bytes)),
        _ => Ok(text.to_owned()),
    }
}

/// Returns the value of an enum's member. Any other value is returned unchanged.
fn plainest(value: &Value) -> &Value {
    match value {
        Value::Object(object) => object.member_value().unwrap_or(value),
        other => other,
    }
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

fn collect_numbers(
    items: &[Value],
    depth: usize,
    budget: &mut Budget,
    numbers: &mut Vec<Number>,
) -> Result<(), Refusal> {
    for item in items {
        budget.visit(depth)?;
        match ordered(item) {
            Some(inner) => collect_numbers(inner, depth + 1, budget, numbers)?,
            None => match plainest(item) {
                Value::None => return Err(Refusal::InList("None")),
                Value::Str(_) => return Err(Refusal::InList("a string")),
                Value::DType(_) => return Err(Refusal::InList("a dtype")),
                Value::Device(_) => return Err(Refusal::InList("a device")),
                Value::Layout(_) | Value::MemoryFormat(_) => {
                    return Err(Refusal::InList("a layout or memory format"));
                }
                other => numbers.push(number(other)?),
            },
        }
    }
    Ok(())
}

/// Converts all numbers of a list to one type. As in Python, bools are converted to integers if the list also contains
/// integers, and integers to floats if it also contains floats.
fn one_type(numbers: &[Number]) -> Result<PlainValue, Refusal> {
    if numbers.iter().any(|number| matches!(number, Number::Float(_))) {
        return numbers
            .iter()
            .map(|number| as_float(*number))
            .collect::<Result<_, _>>()
            .map(PlainValue::Floats);
    }
    if !numbers.is_empty() && numbers.iter().all(|number| matches!(number, Number::Bool(_))) {
        return Ok(PlainValue::Bools(
            numbers.iter().map(|number| matches!(number, Number::Bool(true))).collect(),
        ));
    }
    let integers = numbers.iter().filter_map(|number| match *number {
        Number::Bool(value) => Some(i64::from(value)),
        Number::Int(value) => Some(value),
        Number::Float(_) => None,
    });
    Ok(PlainValue::Ints(integers.collect()))
}

fn as_float(number: Number) -> Result<f64, Refusal> {
    match number {
        Number::Float(value) => Ok(value),
        Number::Bool(value) => Ok(f64::from(u8::from(value))),
        Number::Int(value) => {
            #[expect(clippy::cast_precision_loss, reason = "compared with the integer in the next line")]
            let float = value as f64;
            // The comparison uses 128 bits, because `i64::MAX as f64 as i64` would saturate to the same value.
            #[expect(clippy::cast_possible_truncation, reason = "the float of an i64 fits into an i128")]
            let exact = float as i128 == i128::from(value);
            if exact { Ok(float) } else { Err(Refusal::InexactInt(value)) }
        }
    }
}

fn number(value: &Value) -> Result<Number, Refusal> {
    match value {
        Value::Bool(value) => Ok(Number::Bool(*value)),
        Value::Int(value) => Ok(Number::Int(*value)),
        Value::BigInt(value) => Err(Refusal::IntRange(shorten_integer(value))),
        Value::Float(value) => Ok(Number::Float(*value)),
        Value::NumpyScalar { dtype, bytes } => numpy_number(dtype, bytes),
        Value::NumpyArray(array) => Err(Refusal::NumpyArray { dtype: shorten(&array.dtype) }),
        Value::OtherDType(name) => Err(Refusal::OtherDType(shorten(name))),
        Value::Dict { .. } => Err(Refusal::Dict),
        Value::Tensor(_) => Err(Refusal::Tensor),
        Value::Ellipsis => Err(Refusal::Kind("an Ellipsis")),
        Value::Complex { .. } => Err(Refusal::Kind("a complex number")),
        Value::Bytes(_) | Value::ByteArray(_) => Err(Refusal::Kind("a bytes or bytearray object")),
        Value::Sequence { .. } => Err(Refusal::Kind("a set")),
        Value::Slice(_) => Err(Refusal::Kind("a slice")),
        Value::Range(_) => Err(Refusal::Kind("a range")),
        Value::Storage(_) => Err(Refusal::Kind("a bare storage")),
        Value::Object(object) => Err(Refusal::Object(shorten(&object.name))),
        Value::Cycle(_) => Err(Refusal::Kind("a container that contains itself")),
        Value::None
        | Value::Str(_)
        | Value::DType(_)
        | Value::Device(_)
        | Value::Layout(_)
        | Value::MemoryFormat(_) => Err(Refusal::Kind("a value that is not a number")),
    }
}

/// Converts a numpy scalar. `dtype` is numpy's `descr`: byte order (`<`, `>`, `|`, `=`), kind and size.
fn numpy_number(dtype: &str, bytes: &[u8]) -> Result<Number, Refusal> {
    let refuse = || Refusal::NumpyScalar { dtype: shorten(dtype) };
    let (order, kind) =
        if dtype.starts_with(['<', '>', '|', '=']) { dtype.split_at(1) } else { ("<", dtype) };
    let mut little = bytes.to_vec();
    if order == ">" {
        little.reverse();
    }
    if little.is_empty() || little.len() > 8 || kind.get(1..) != Some(little.len().to_string().as_str()) {
        return Err(refuse());
    }
    let negative = kind.starts_with('i') && little.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..little.len()].copy_from_slice(&little);
    match kind {
        "b1" => Ok(Number::Bool(little[0] != 0)),
        "i1" | "i2" | "i4" | "i8" => Ok(Number::Int(i64::from_le_bytes(wide))),
        "u1" | "u2" | "u4" | "u8" => {
            let value = u64::from_le_bytes(wide);
            i64::try_from(value).map(Number::Int).map_err(|_| Refusal::IntRange(value.to_string()))
        }
        "f2" => Ok(Number::Float(half(u16::from_le_bytes([wide[0], wide[1]])))),
        "f4" => Ok(Number::Float(f64::from(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]])))),
        "f8" => Ok(Number::Float(f64::from_le_bytes(wide))),
        _ => Err(refuse()),
    }
}

/// Shortens text from a file for a message, and replaces control characters.
pub(super) fn shorten(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS).map(printable).collect();
    if text.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push('…');
    }
    shown
}

/// Writes an integer. Converting a huge integer to decimal takes quadratic time, so only its size is shown.
fn shorten_integer(value: &BigInt) -> String {
    if value.bits() <= 256 { value.to_string() } else { format!("of {} bits", value.bits()) }
}

impl PlainValue {
    /// Returns a text that is different for each value, for digests and comparisons. Floats are written as their bits,
    /// and all NaNs are equal.
    pub(super) fn canonical(&self) -> String {
        let mut text = String::new();
        let float = |value: &f64| {
            let bits = if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() };
            format!("{bits:016x}")
        };
        let list = |name: &str, items: Vec<String>| format!("{name}:{}", items.join(","));
        let write = match self {
            Self::None => text.write_str("none"),
            Self::Bool(value) => write!(text, "bool:{value}"),
            Self::Int(value) => write!(text, "int:{value}"),
            Self::Float(value) => write!(text, "float:{}", float(value)),
            Self::Str(value) => write!(text, "str:{}:{value}", value.len()),
            Self::DType(value) => write!(text, "dtype:{value}"),
            Self::Device(value) => write!(text, "device:{}:{value}", value.len()),
            Self::Ints(values) => {
                text.write_str(&list("ints", values.iter().map(ToString::to_string).collect()))
            }
            Self::Floats(values) => text.write_str(&list("floats", values.iter().map(float).collect())),
            Self::Bools(values) => {
                text.write_str(&list("bools", values.iter().map(ToString::to_string).collect()))
            }
        };
        debug_assert!(write.is_ok(), "writing to a String does not fail");
        text
    }

    /// The first eight bytes of a SHA-256, in hex: enough for names and classes, and short enough to read.
    fn short_digest(&self) -> String {
        hex::encode(&Sha256::digest(self.canonical())[..8])
    }
}

/// Writes the value on one line, with Python's words for None, bools and floats. Long strings and lists are cut and get
/// a digest, so that different values are written differently.
impl fmt::Display for PlainValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => f.write_str(&python_float(*value)),
            Self::Str(text) if text.chars().count() > SHOWN_CHARACTERS => {
                let head: String = text.chars().take(SHOWN_CHARACTERS / 2).collect();
                write!(f, "{head:?}…{}:{}", text.len(), self.short_digest())
            }
            Self::Str(text) => write!(f, "{text:?}"),
            Self::DType(dtype) => write!(f, "{dtype}"),
            Self::Device(name) => f.write_str(&shorten(name)),
            Self::Ints(values) => self.write_list(f, values.iter().map(ToString::to_string)),
            Self::Floats(values) => self.write_list(f, values.iter().map(|value| python_float(*value))),
            Self::Bools(values) => {
                self.write_list(f, values.iter().map(|&value| Self::Bool(value).to_string()))
            }
        }
    }
}

impl PlainValue {
    fn write_list(
        &self,
        f: &mut fmt::Formatter<'_>,
        items: impl ExactSizeIterator<Item = String>,
    ) -> fmt::Result {
        let length = items.len();
        let shown: Vec<String> = items.take(SHOWN_ELEMENTS).collect();
        write!(f, "[{}", shown.join(","))?;
        if length > SHOWN_ELEMENTS {
            write!(f, ",…{length}:{}", self.short_digest())?;
        }
        f.write_str("]")
    }
}

/// Writes a float like Python's `repr`: the shortest digits that read back, with an exponent outside 1e-4..1e16.
fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, power) = match exponent.strip_prefix('-') {
            Some(power) => ('-', power),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{power:0>2}");
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests;
