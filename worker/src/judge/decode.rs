//! Decodes the bytes of tensor elements to numbers, for every dtype of a dense tensor.
//!
//! There are two decoders, which return the same values. One decodes whole blocks into arrays for the hot loop. The
//! other decodes a single element exactly and can print it. Bytes are in little-endian order, which torch writes and
//! every supported machine uses.
//!
//! In expected and actual outputs, a bool is true if its byte is not 0. torch does the same, and captures can contain
//! bytes other than 0 and 1 because uint8 tensors can be viewed as bool.

use opt_shared::capture::{DType, Kind};

use super::fp8::fp8_table;

/// The flags of a captured tensor. If one is set, the tensor's values are the conjugates or negatives of the stored
/// ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    pub(super) conjugate: bool,
    pub(super) negative: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Real(Part),
    Complex(Part, Part),
    Integer(i128),
    Bool(bool),
}

/// A real number, and whether it has the precision of f32 or of f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) value: f64,
    /// True if the number was stored as f32 or as a smaller type. It is then printed with just enough digits to
    /// distinguish f32 values.
    narrow: bool,
}

impl Number {
    /// Decodes an element from its `dtype.size()` bytes.
    pub(super) fn read(dtype: DType, bytes: &[u8]) -> Self {
        let part = |dtype| Part { value: real(dtype, bytes), narrow: dtype != DType::Float64 };
        let parts = |dtype: DType| {
            let second = &bytes[dtype.element_len()..];
            Self::Complex(part(dtype), Part { value: real(dtype, second), narrow: dtype != DType::Float64 })
        };
        match dtype {
            DType::Complex32 => parts(DType::Float16),
            DType::Complex64 => parts(DType::Float32),
            DType::Complex128 => parts(DType::Float64),
            DType::Bool => Self::Bool(bytes[0] != 0),
            _ if dtype.kind() == Kind::Integer => Self::Integer(integer(dtype, bytes)),
            _ => Self::Real(part(dtype)),
        }
    }

    pub(super) fn signed(self, signs: Signs, dtype: DType) -> Self {
        let turn =
            |part: Part, turned: bool| Part { value: if turned { -part.value } else { part.value }, ..part };
        match self {
            Self::Real(part) => Self::Real(turn(part, signs.negative)),
            Self::Complex(re, im) => {
                Self::Complex(turn(re, signs.negative), turn(im, signs.negative != signs.conjugate))
            }
            // The negation wraps around, like torch's `neg`.
            Self::Integer(value) if signs.negative => {
                let bits = dtype.size() * 8;
                let wrapped = value.wrapping_neg() & ((1 << bits) - 1);
                let signed = is_signed(dtype) && wrapped >> (bits - 1) != 0;
                Self::Integer(if signed { wrapped - (1 << bits) } else { wrapped })
            }
            other => other,
        }
    }

    /// Returns the number's parts as real numbers: two for a complex number, otherwise one.
    pub(super) fn parts(self) -> impl Iterator<Item = f64> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "for error sizes and norms; equality is decided on integers"
        )]
        let (first, second) = match self {
            Self::Real(part) => (part.value, None),
            Self::Complex(re, im) => (re.value, Some(im.value)),
            Self::Integer(value) => (value as f64, None),
            Self::Bool(value) => (f64::from(u8::from(value)), None),
        };
        std::iter::once(first).chain(second)
    }

    /// Returns a part of a float element as a number that can be displayed.
    pub(super) fn of_part(dtype: DType, value: f64) -> Self {
        Self::Real(Part { value, narrow: !is_wide(dtype) })
    }

    /// Returns the value of an integer, or 0 or 1 for a bool. Returns `None` for a float or a complex number.
    pub(super) fn whole(self) -> Option<i128> {
        match self {
            Self::Integer(value) => Some(value),
            Self::Bool(value) => Some(value.into()),
            Self::Real(_) | Self::Complex(..) => None,
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.value;
        if value.is_nan() {
            f.write_str("NaN")
        } else if value.is_infinite() {
            f.write_str(if value > 0.0 { "Infinity" } else { "-Infinity" })
        } else if self.narrow {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "it came from f32 or less, so nothing is lost"
            )]
            let narrow = value as f32;
            write!(f, "{narrow:?}")
        } else {
            write!(f, "{value:?}")
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Real(part) => part.fmt(f),
            Self::Complex(re, im) => {
                let plus = if im.value.is_sign_negative() && !im.value.is_nan() { "" } else { "+" };
                write!(f, "({re}{plus}{im}j)")
            }
            Self::Integer(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

fn real(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::Float64 => f64::from_le_bytes(head(bytes)),
        DType::Float32 => f64::from(f32::from_le_bytes(head(bytes))),
        DType::Float16 => half::f16::from_le_bytes(head(bytes)).to_f64(),
        DType::BFloat16 => f64::from(bfloat(u16::from_le_bytes(head(bytes)))),
        _ => f64::from(fp8_table(dtype)[usize::from(bytes[0])]),
    }
}

fn integer(dtype: DType, bytes: &[u8]) -> i128 {
    match dtype {
        DType::UInt16 => u16::from_le_bytes(head(bytes)).into(),
        DType::UInt32 => u32::from_le_bytes(head(bytes)).into(),
        DType::UInt64 => u64::from_le_bytes(head(bytes)).into(),
        DType::Int8 => i8::from_le_bytes(head(bytes)).into(),
        DType::Int16 => i16::from_le_bytes(head(bytes)).into(),
        DType::Int32 => i32::from_le_bytes(head(bytes)).into(),
        DType::Int64 => i64::from_le_bytes(head(bytes)).into(),
        _ => bytes[0].into(),
    }
}

fn is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64)
}

fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

/// The number of parts of an element: two for a complex type, otherwise one.
pub(super) fn parts_of(dtype: DType) -> usize {
    if dtype.kind() == Kind::Complex { 2 } else { 1 }
}

/// Returns true if the parts of a type are f64. The values of all other float types fit f32 exactly.
pub(super) fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::Float64 | DType::Complex128)
}

/// Decodes a block of a float or complex type that is not wide. `out` has room for one number per part.
pub(super) fn decode_narrow(dtype: DType, bytes: &[u8], signs: Signs, out: &mut [f32]) {
    match dtype {
        DType::Float32 | DType::Complex64 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        DType::Float16 | DType::Complex32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = half_float(u16::from_le_bytes(*bytes));
            }
        }
        DType::BFloat16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = bfloat(u16::from_le_bytes(*bytes));
            }
        }
        _ => {
            let table = fp8_table(dtype);
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = table[usize::from(byte)];
            }
        }
    }
    apply(signs, parts_of(dtype), out, |value| *value = -*value);
}

/// Decodes a block of a wide type, that is, one whose parts are f64.
pub(super) fn decode_wide(dtype: DType, bytes: &[u8], signs: Signs, out: &mut [f64]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *out = f64::from_le_bytes(*bytes);
    }
    apply(signs, parts_of(dtype), out, |value| *value = -*value);
}

/// Decodes floats of any type to f64, for the element-by-element pass. `out` has room for one number per part.
pub(super) fn decode_parts(dtype: DType, bytes: &[u8], signs: Signs, out: &mut [f64]) {
    /// The number of values that are decoded at a time: few enough for the stack, but enough for efficient inner loops.
    const PIECE: usize = 64;
    if is_wide(dtype) {
        return decode_wide(dtype, bytes, signs, out);
    }
    let width = dtype.element_len() / parts_of(dtype);
    let mut narrow = [0.0; PIECE];
    for (out, bytes) in out.chunks_mut(PIECE).zip(bytes.chunks(PIECE * width)) {
        let narrow = &mut narrow[..out.len()];
        decode_narrow(dtype, bytes, signs, narrow);
        for (out, &value) in out.iter_mut().zip(narrow.iter()) {
            *out = value.into();
        }
    }
}

fn apply<T>(signs: Signs, parts: usize, out: &mut [T], negate: impl Fn(&mut T)) {
    if signs.negative {
        out.iter_mut().for_each(&negate);
    }
    if signs.conjugate && parts == 2 {
        out.iter_mut().skip(1).step_by(2).for_each(&negate);
    }
}

fn bfloat(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Converts a float16 to f32. Unlike the `half` crate's conversion, this one has no branches, so the compiler can
/// vectorise loops that call it.
#[inline(always)]
fn half_float(bits: u16) -> f32 {
    /// The difference between the biases of the two exponents (112), shifted to the exponent field.
    const REBIAS: u32 = 112 << 23;
    /// The bits of 2^-14 as f32, which is the smallest normal half. To convert a subnormal half, its mantissa is added
    /// to these bits, and 2^-14 is subtracted from the resulting f32.
    const MIN_NORMAL: u32 = 113 << 23;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let subnormal = (f32::from_bits(magnitude + MIN_NORMAL) - f32::from_bits(MIN_NORMAL)).to_bits();
    let is_subnormal = magnitude < (1 << 23);
    let is_special = magnitude >= (31 << 23);
    let normal = magnitude + REBIAS + if is_special { REBIAS } else { 0 };
    let sign = u32::from(bits & 0x8000) << 16;
    f32::from_bits(sign | if is_subnormal { subnormal } else { normal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_agree_with_the_half_crate_for_all_bits() {
        for bits in 0..=u16::MAX {
            let theirs = half::f16::from_bits(bits).to_f32();
            let ours = half_float(bits);
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#06x}: {ours} {theirs}"
            );
            let brain = half::bf16::from_bits(bits).to_f32();
            assert!(bfloat(bits).to_bits() == brain.to_bits() || brain.is_nan(), "{bits:#06x}");
        }
    }

    #[test]
    fn numbers_are_shown_with_their_significant_digits() {
        let show = |dtype, bytes: &[u8]| Number::read(dtype, bytes).to_string();
        assert_eq!(show(DType::Float32, &0.1_f32.to_le_bytes()), "0.1");
        assert_eq!(show(DType::Float64, &0.1_f64.to_le_bytes()), "0.1");
        assert_eq!(show(DType::Float32, &1e-9_f32.to_le_bytes()), "1e-9");
        assert_eq!(show(DType::Float32, &f32::NEG_INFINITY.to_le_bytes()), "-Infinity");
        assert_eq!(show(DType::UInt64, &u64::MAX.to_le_bytes()), "18446744073709551615");
        assert_eq!(show(DType::Bool, &[7]), "true");
        let complex = [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
        assert_eq!(show(DType::Complex64, &complex), "(1.5-2.0j)");
    }

    #[test]
    fn signs_follow_the_tensors_flags() {
        let read = |value: i8| Number::read(DType::Int8, &value.to_le_bytes());
        let negative = Signs { negative: true, conjugate: false };
        assert_eq!(read(5).signed(negative, DType::Int8), Number::Integer(-5));
        assert_eq!(read(-128).signed(negative, DType::Int8), Number::Integer(-128));
        assert_eq!(Number::read(DType::UInt8, &[1]).signed(negative, DType::UInt8), Number::Integer(255));
        let bytes = [1.0_f64.to_le_bytes(), 2.0_f64.to_le_bytes()].concat();
        for (conjugate, negative, parts) in [
            (false, false, [1.0, 2.0]),
            (true, false, [1.0, -2.0]),
            (false, true, [-1.0, -2.0]),
            (true, true, [-1.0, 2.0]),
        ] {
            let signs = Signs { conjugate, negative };
            let one = Number::read(DType::Complex128, &bytes).signed(signs, DType::Complex128);
            assert_eq!(one.parts().collect::<Vec<_>>(), parts);
            let mut block = [0.0; 2];
            decode_wide(DType::Complex128, &bytes, signs, &mut block);
            assert_eq!(block, parts);
        }
    }
}
