//! Computes the short text that identifies an entry's signature class. Entries of the same class have the same shapes,
//! strides, dtypes and plain values.
//!
//! The text is shown to people, and is used to group entries: two entries of a job are in the same class if and only if
//! their texts are equal.

use std::fmt::Write;

use super::plain::shorten;
use super::{Argument, ArgumentValue, OutputTensor};
use crate::capture::{DType, Tensor};

/// A dtype's short name, such as `f32`, `bf16`, `i64`, `f8e4m3fn` or `c64`.
pub fn short_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Float64 => "f64",
        DType::Float32 => "f32",
        DType::Float16 => "f16",
        DType::BFloat16 => "bf16",
        DType::Float8E4M3Fn => "f8e4m3fn",
        DType::Float8E5M2 => "f8e5m2",
        DType::Float8E4M3FnUz => "f8e4m3fnuz",
        DType::Float8E5M2FnUz => "f8e5m2fnuz",
        DType::Complex32 => "c32",
        DType::Complex64 => "c64",
        DType::Complex128 => "c128",
        DType::UInt8 => "u8",
        DType::UInt16 => "u16",
        DType::UInt32 => "u32",
        DType::UInt64 => "u64",
        DType::Int8 => "i8",
        DType::Int16 => "i16",
        DType::Int32 => "i32",
        DType::Int64 => "i64",
        DType::Bool => "bool",
        DType::Float8E8M0Fnu => "f8e8m0fnu",
        DType::Float4E2M1FnX2 => "f4e2m1fnx2",
    }
}

/// Returns the text of a class, such as `f32[8,16] i64[3] eps=1e-05 -> f32[3,16]`. Strides are included if the tensor
/// is not contiguous (`f32[8,16|1,8]`). Views of conjugates and negatives are marked (`conj:c64[3]`). An argument that
/// the call changes follows the returned tensors with its path (`running_mean:=f32[3]`).
pub fn class_key(arguments: &[Argument], outputs: &[OutputTensor]) -> String {
    let mut words: Vec<String> = arguments
        .iter()
        .map(|argument| match &argument.value {
            ArgumentValue::Tensor(tensor) => tensor_word(tensor),
            ArgumentValue::Plain(value) => format!("{}={value}", shorten(&argument.path)),
        })
        .collect();
    words.push("->".to_owned());
    words.extend(outputs.iter().map(|output| {
        let word = tensor_word(&output.tensor);
        if output.arguments.is_empty() { word } else { format!("{}:={word}", shorten(&output.path)) }
    }));
    words.join(" ")
}

fn tensor_word(tensor: &Tensor) -> String {
    let list = |sizes: &[u64]| sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut word = String::new();
    if tensor.conjugate {
        word.push_str("conj:");
    }
    if tensor.negative {
        word.push_str("neg:");
    }
    let strides = if tensor.is_contiguous() { String::new() } else { format!("|{}", list(&tensor.stride)) };
    let write = write!(word, "{}[{}{strides}]", short_name(tensor.dtype), list(&tensor.shape));
    debug_assert!(write.is_ok(), "writing to a String does not fail");
    word
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::PlainValue;
    use super::super::fixture::dense;
    use super::*;

    fn given(tensor: Tensor) -> Argument {
        Argument { parameter: "x".into(), path: "x".into(), value: ArgumentValue::Tensor(Arc::new(tensor)) }
    }

    fn plain(path: &str, value: PlainValue) -> Argument {
        Argument { parameter: path.into(), path: path.into(), value: ArgumentValue::Plain(value) }
    }

    fn output(tensor: Tensor) -> OutputTensor {
        OutputTensor { path: "output".into(), tensor: Arc::new(tensor), arguments: Vec::new() }
    }

    #[test]
    fn class_is_one_short_line() {
        let transposed = Tensor { stride: vec![1, 8], ..dense(DType::Float32, &[8, 16], 0) };
        let key = class_key(
            &[
                given(transposed),
                given(dense(DType::Int64, &[3], 1)),
                plain("eps", PlainValue::Float(1e-5)),
                plain("mode", PlainValue::Str("a b".into())),
                plain("pad", PlainValue::Ints(vec![1, 2])),
            ],
            &[output(dense(DType::BFloat16, &[], 2)), output(dense(DType::Bool, &[3, 0], 3))],
        );
        assert_eq!(key, "f32[8,16|1,8] i64[3] eps=1e-05 mode=\"a b\" pad=[1,2] -> bf16[] bool[3,0]");
    }

    #[test]
    fn entries_that_differ_for_a_kernel_have_different_keys() {
        let base = dense(DType::Complex64, &[4, 4], 0);
        let tensors = [
            base.clone(),
            Tensor { conjugate: true, ..base.clone() },
            Tensor { negative: true, ..base.clone() },
            Tensor { stride: vec![1, 4], ..base.clone() },
            Tensor { stride: vec![0, 0], ..base.clone() },
            Tensor { shape: vec![4, 2], ..base.clone() },
            Tensor { dtype: DType::Float64, ..base },
        ];
        let keys: Vec<String> = tensors.map(|tensor| class_key(&[given(tensor)], &[])).to_vec();
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key}");
        }
        let elsewhere = Tensor { storage_offset: 7, ..dense(DType::Int8, &[2], 9) };
        assert_eq!(
            class_key(&[given(elsewhere)], &[]),
            class_key(&[given(dense(DType::Int8, &[2], 0))], &[])
        );
        assert_ne!(
            class_key(&[plain("n", PlainValue::Int(1))], &[]),
            class_key(&[plain("n", PlainValue::Float(1.0))], &[])
        );
    }
}
