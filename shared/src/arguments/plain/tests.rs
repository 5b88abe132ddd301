//! Tests of plain values.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::fixture::{int, list, text, tuple};
use super::*;
use crate::capture::DType;

#[test]
fn plain_values_become_arguments() {
    let nested = tuple([int(1), list([int(2), tuple([int(3)])])]);
    for (value, expected) in [
        (Value::None, PlainValue::None),
        (Value::Bool(true), PlainValue::Bool(true)),
        (int(-7), PlainValue::Int(-7)),
        (Value::Float(2.5), PlainValue::Float(2.5)),
        (text("same"), PlainValue::Str("same".into())),
        (Value::Layout("strided".into()), PlainValue::Str("strided".into())),
        (Value::MemoryFormat("channels_last".into()), PlainValue::Str("channels_last".into())),
        (Value::DType(DType::BFloat16), PlainValue::DType(DType::BFloat16)),
        (Value::Device("cuda:1".into()), PlainValue::Device("cuda:1".into())),
        (list([]), PlainValue::Ints(vec![])),
        (tuple([tuple([]), list([])]), PlainValue::Ints(vec![])),
        (nested, PlainValue::Ints(vec![1, 2, 3])),
        (tuple([int(1), Value::Float(2.5)]), PlainValue::Floats(vec![1.0, 2.5])),
        (list([Value::Bool(true), Value::Bool(false)]), PlainValue::Bools(vec![true, false])),
        (list([Value::Bool(true), int(4)]), PlainValue::Ints(vec![1, 4])),
    ] {
        assert_eq!(plain_value(&value), Ok(expected), "{value:?}");
    }
}

#[test]
fn numpy_scalars_are_numbers() {
    let scalar = |dtype: &str, bytes: &[u8]| {
        plain_value(&Value::NumpyScalar { dtype: dtype.into(), bytes: bytes.into() })
    };
    assert_eq!(scalar("<f4", &1.5_f32.to_le_bytes()), Ok(PlainValue::Float(1.5)));
    assert_eq!(scalar(">f8", &1.5_f64.to_be_bytes()), Ok(PlainValue::Float(1.5)));
    assert_eq!(scalar("<f2", &[0x00, 0x3e]), Ok(PlainValue::Float(1.5)));
    assert_eq!(scalar("<i8", &(-3_i64).to_le_bytes()), Ok(PlainValue::Int(-3)));
    assert_eq!(scalar(">i2", &(-3_i16).to_be_bytes()), Ok(PlainValue::Int(-3)));
    assert_eq!(scalar("|u1", &[200]), Ok(PlainValue::Int(200)));
    assert_eq!(scalar("|b1", &[1]), Ok(PlainValue::Bool(true)));
    assert_eq!(scalar("<u8", &u64::MAX.to_le_bytes()), Err(Refusal::IntRange(u64::MAX.to_string())));
    for (dtype, bytes) in [("<c8", &[0; 8][..]), ("<f4", &[0; 3]), ("|S1", b"x"), ("<f", &[]), ("é", &[0])] {
        assert_eq!(scalar(dtype, bytes), Err(Refusal::NumpyScalar { dtype: dtype.into() }), "{dtype}");
    }
}

#[test]
fn refusal_says_which_value_is_unsupported() {
    let huge = Value::BigInt(Arc::new(BigInt::from(i64::MAX) + 1));
    let three = Arc::new([Value::None, int(4), Value::None]);
    for (value, part) in [
        (huge, "9223372036854775808 does not fit"),
        (Value::BigInt(Arc::new(BigInt::from(1) << 100_000)), "of 100001 bits"),
        (text(&"x".repeat(MAX_STRING_BYTES + 1)), "a string of 4097 bytes"),
        (Value::Ellipsis, "an Ellipsis"),
        (Value::Slice(three.clone()), "a slice"),
        (Value::Range(three), "a range"),
        (Value::Sequence { kind: SequenceKind::Set, items: Arc::new([]) }, "a set"),
        (Value::Complex { real: 0.0, imaginary: 1.0 }, "a complex number"),
        (Value::OtherDType("quint8".into()), "torch.quint8"),
        (list([Value::None]), "None is in a list"),
        (list([int(1), text("x")]), "a string is in a list"),
        (list([int((1 << 53) + 1), Value::Float(0.5)]), "9007199254740993"),
        (list([int(i64::MAX), Value::Float(0.5)]), "9223372036854775807"),
    ] {
        let message = plain_value(&value).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn too_large_and_too_deep_lists_are_refused() {
    let mut value = list([]);
    for _ in 0..60 {
        value = list([value.clone(), value]);
    }
    assert_eq!(plain_value(&value), Err(Refusal::TooLarge));
    let mut deep = list([]);
    for _ in 0..100 {
        deep = list([deep]);
    }
    assert_eq!(plain_value(&deep), Err(Refusal::TooDeep));
}

#[test]
fn floats_are_written_as_python_writes_them() {
    for (value, text) in [
        (1e-5, "1e-05"),
        (0.1, "0.1"),
        (2.0, "2.0"),
        (-0.0, "-0.0"),
        (1e16, "1e+16"),
        (1.5e-300, "1.5e-300"),
        (123_456_789.0, "123456789.0"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(PlainValue::Float(value).to_string(), text);
    }
}

proptest! {
    #[test]
    fn different_values_are_written_differently(
        a in prop::collection::vec(-2..3_i64, 0..20), b in prop::collection::vec(-2..3_i64, 0..20),
    ) {
        let (x, y) = (PlainValue::Ints(a.clone()), PlainValue::Ints(b.clone()));
        prop_assert_eq!(a == b, x.to_string() == y.to_string());
        prop_assert_eq!(a == b, x.canonical() == y.canonical());
    }
}
