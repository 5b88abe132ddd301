//! Converts elements of any dtype to f64, for numpy scalars and for statistics over captured outputs.
//!
//! Verdicts do not depend on this module, which rounds a 64-bit integer to the nearest f64. The judge has its own,
//! faster conversions, and compares integers exactly.

use crate::capture::DType;

/// How a float type of 8 bits encodes infinities and NaNs.
#[derive(Clone, Copy)]
enum Special {
    /// Infinities and NaNs, as in IEEE 754.
    Ieee,
    /// No infinities; only an all-ones magnitude is NaN.
    Finite,
    /// No infinities, and the pattern of negative zero is the only NaN.
    UnsignedZero,
}

#[expect(clippy::cast_possible_wrap, reason = "fields of at most 8 bits")]
fn small_float(bits: u32, exponent_bits: u32, mantissa_bits: u32, bias: i32, special: Special) -> f64 {
    let magnitude_mask = (1 << (exponent_bits + mantissa_bits)) - 1;
    let negative = bits & !magnitude_mask != 0;
    let magnitude = bits & magnitude_mask;
    let exponent = magnitude >> mantissa_bits;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    let top_exponent = (1 << exponent_bits) - 1;
    let value = match special {
        Special::Ieee if exponent == top_exponent && mantissa == 0 => f64::INFINITY,
        Special::Ieee if exponent == top_exponent => f64::NAN,
        Special::Finite if magnitude == magnitude_mask => f64::NAN,
        Special::UnsignedZero if negative && magnitude == 0 => f64::NAN,
        _ => {
            let (lead, power) = if exponent == 0 { (0, 1) } else { (1 << mantissa_bits, exponent as i32) };
            f64::from(lead + mantissa) * f64::from(power - bias - mantissa_bits as i32).exp2()
        }
    };
    if negative { -value } else { value }
}

pub(super) fn half(bits: u16) -> f64 {
    half::f16::from_bits(bits).to_f64()
}

/// Converts little-endian elements of a dtype to f64, with rounding. A complex element yields its two parts. Bytes
/// after the last complete element are ignored.
pub fn numbers(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    let part = match dtype {
        DType::Complex32 => DType::Float16,
        DType::Complex64 => DType::Float32,
        DType::Complex128 => DType::Float64,
        other => other,
    };
    let whole_bytes = bytes.len() - bytes.len() % dtype.element_len();
    bytes[..whole_bytes].chunks_exact(part.element_len()).map(move |element| number(part, element))
}

/// Converts one element. `element` has `dtype.size()` bytes; `dtype` is not complex.
fn number(dtype: DType, element: &[u8]) -> f64 {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(wide);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        reason = "each arm takes the low bytes of `bits`, as many as its dtype has"
    )]
    match dtype {
        DType::Float64 => f64::from_bits(bits),
        DType::Float32 => f64::from(f32::from_bits(bits as u32)),
        DType::Float16 => half(bits as u16),
        DType::BFloat16 => half::bf16::from_bits(bits as u16).to_f64(),
        DType::Float8E4M3Fn => small_float(bits as u32, 4, 3, 7, Special::Finite),
        DType::Float8E5M2 => small_float(bits as u32, 5, 2, 15, Special::Ieee),
        DType::Float8E4M3FnUz => small_float(bits as u32, 4, 3, 8, Special::UnsignedZero),
        DType::Float8E5M2FnUz => small_float(bits as u32, 5, 2, 16, Special::UnsignedZero),
        DType::Int8 => f64::from(bits as i8),
        DType::Int16 => f64::from(bits as i16),
        DType::Int32 => f64::from(bits as i32),
        DType::Int64 => bits as i64 as f64,
        // An E8M0 number is a power of two. An F4E2M1x2 element packs two numbers, so its byte is taken as an integer.
        DType::Float8E8M0Fnu if bits == 0xff => f64::NAN,
        DType::Float8E8M0Fnu => (f64::from(bits as u8) - 127.0).exp2(),
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 | DType::Float4E2M1FnX2 => bits as f64,
        DType::Bool => f64::from(u8::from(bits != 0)),
        // The caller has split complex elements into their parts.
        DType::Complex32 | DType::Complex64 | DType::Complex128 => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dtype: DType, bytes: &[u8]) -> f64 {
        let all: Vec<f64> = numbers(dtype, bytes).collect();
        assert_eq!(all.len(), 1);
        all[0]
    }

    #[test]
    fn elements_have_the_values_of_their_dtypes() {
        for (dtype, bytes, expected) in [
            (DType::Float16, &[0x00, 0x3c][..], 1.0),
            (DType::Float16, &[0x01, 0x00], 5.960_464_477_539_063e-8),
            (DType::Float16, &[0xff, 0x7b], 65504.0),
            (DType::Float16, &[0x00, 0xfc], f64::NEG_INFINITY),
            (DType::BFloat16, &[0x80, 0xbf], -1.0),
            (DType::Float8E4M3Fn, &[0x7e], 448.0),
            (DType::Float8E4M3Fn, &[0x01], 0.001_953_125),
            (DType::Float8E5M2, &[0x7b], 57344.0),
            (DType::Float8E5M2, &[0x7c], f64::INFINITY),
            (DType::Float8E4M3FnUz, &[0x7f], 240.0),
            (DType::Float8E5M2FnUz, &[0x7f], 57344.0),
            (DType::Float8E5M2FnUz, &[0x01], 7.629_394_531_25e-6),
            (DType::Float8E8M0Fnu, &[0x7f], 1.0),
            (DType::Float8E8M0Fnu, &[0x00], 5.877_471_754_111_438e-39),
            (DType::Int16, &[0xfe, 0xff], -2.0),
            (DType::UInt16, &[0xfe, 0xff], 65534.0),
            (DType::Bool, &[0x01], 1.0),
        ] {
            assert_eq!(one(dtype, bytes), expected, "{dtype} {bytes:x?}");
        }
        for (dtype, byte) in [
            (DType::Float8E4M3Fn, 0xff),
            (DType::Float8E5M2, 0x7d),
            (DType::Float8E4M3FnUz, 0x80),
            (DType::Float8E5M2FnUz, 0x80),
            (DType::Float8E8M0Fnu, 0xff),
        ] {
            assert!(one(dtype, &[byte]).is_nan(), "{dtype}");
        }
    }

    #[test]
    fn complex_elements_yield_both_parts_and_extra_bytes_nothing() {
        let bytes: Vec<u8> = [1.5_f32, -2.0, 8.0].iter().flat_map(|part| part.to_le_bytes()).collect();
        assert_eq!(numbers(DType::Complex64, &bytes).collect::<Vec<_>>(), [1.5, -2.0]);
    }
}
