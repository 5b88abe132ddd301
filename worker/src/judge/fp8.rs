//! Contains a table of all values for each of the four eight-bit float formats. The tables are computed at compile
//! time.

use opt_shared::capture::DType;

/// Returns the value of every code of `dtype`, which must be one of the eight-bit floats.
pub(super) fn fp8_table(dtype: DType) -> &'static [f32; 256] {
    match dtype {
        DType::Float8E4M3Fn => &E4M3FN,
        DType::Float8E5M2 => &E5M2,
        DType::Float8E4M3FnUz => &E4M3FNUZ,
        _ => &E5M2FNUZ,
    }
}

static E4M3FN: [f32; 256] = fp8(4, 3, 7, Special::NanAllOnes);
static E5M2: [f32; 256] = fp8(5, 2, 15, Special::Ieee);
static E4M3FNUZ: [f32; 256] = fp8(4, 3, 8, Special::NanNegativeZero);
static E5M2FNUZ: [f32; 256] = fp8(5, 2, 16, Special::NanNegativeZero);

#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// As in IEEE 754: infinities and NaN have the largest exponent.
    Ieee,
    /// There are no infinities. A value is NaN if all bits of exponent and mantissa are set.
    NanAllOnes,
    /// There are no infinities, and there is only one zero. The code of -0 is NaN.
    NanNegativeZero,
}

#[expect(
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "fields of 8 bits; every exponent is far above -127"
)]
const fn fp8(exponent_bits: u32, mantissa_bits: u32, bias: i32, special: Special) -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0_u32;
    while code < 256 {
        let exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let mantissa = code & ((1 << mantissa_bits) - 1);
        let (significand, power) = if exponent == 0 {
            (mantissa, 1 - bias)
        } else {
            (mantissa + (1 << mantissa_bits), exponent as i32 - bias)
        };
        // The significand is a small integer and the power is well within f32, so this is exact.
        let unit = f32::from_bits(((127 + power - mantissa_bits as i32) as u32) << 23);
        let magnitude = match special {
            Special::Ieee if exponent == (1 << exponent_bits) - 1 && mantissa == 0 => f32::INFINITY,
            Special::Ieee if exponent == (1 << exponent_bits) - 1 => f32::NAN,
            Special::NanAllOnes if code & 0x7f == 0x7f => f32::NAN,
            Special::NanNegativeZero if code == 0x80 => f32::NAN,
            _ => significand as f32 * unit,
        };
        table[code as usize] = if code & 0x80 != 0 { -magnitude } else { magnitude };
        code += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::Kind;

    use super::*;

    #[test]
    fn fp8_has_the_values_of_its_formats() {
        use DType::{Float8E4M3Fn, Float8E4M3FnUz, Float8E5M2, Float8E5M2FnUz};
        for (dtype, code, value) in [
            (Float8E4M3Fn, 0x00, 0.0),
            (Float8E4M3Fn, 0x01, 1.0 / 512.0),
            (Float8E4M3Fn, 0x07, 7.0 / 512.0),
            (Float8E4M3Fn, 0x08, 1.0 / 64.0),
            (Float8E4M3Fn, 0x38, 1.0),
            (Float8E4M3Fn, 0x39, 1.125),
            (Float8E4M3Fn, 0x7e, 448.0),
            (Float8E4M3Fn, 0xfe, -448.0),
            (Float8E5M2, 0x01, 1.0 / 65_536.0),
            (Float8E5M2, 0x04, 1.0 / 16_384.0),
            (Float8E5M2, 0x3c, 1.0),
            (Float8E5M2, 0x7b, 57_344.0),
            (Float8E5M2, 0x7c, f32::INFINITY),
            (Float8E5M2, 0xfc, f32::NEG_INFINITY),
            (Float8E4M3FnUz, 0x01, 1.0 / 1024.0),
            (Float8E4M3FnUz, 0x08, 1.0 / 128.0),
            (Float8E4M3FnUz, 0x40, 1.0),
            (Float8E4M3FnUz, 0x7f, 240.0),
            (Float8E4M3FnUz, 0xff, -240.0),
            (Float8E5M2FnUz, 0x01, 1.0 / 131_072.0),
            (Float8E5M2FnUz, 0x04, 1.0 / 32_768.0),
            (Float8E5M2FnUz, 0x40, 1.0),
            (Float8E5M2FnUz, 0x7f, 57_344.0),
        ] {
            assert_eq!(fp8_table(dtype)[code], value, "{dtype} {code:#04x}");
        }
        for (dtype, nans) in [
            (Float8E4M3Fn, vec![0x7f, 0xff]),
            (Float8E5M2, vec![0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff]),
            (Float8E4M3FnUz, vec![0x80]),
            (Float8E5M2FnUz, vec![0x80]),
        ] {
            let found: Vec<usize> = (0..256).filter(|&code| fp8_table(dtype)[code].is_nan()).collect();
            assert_eq!(found, nans, "{dtype}");
        }
    }

    #[test]
    fn codes_of_one_sign_are_ordered_like_their_values() {
        for &dtype in DType::ALL.iter().filter(|dtype| dtype.kind() == Kind::Float && dtype.size() == 1) {
            for code in 1..0x80 {
                let (below, above) = (fp8_table(dtype)[code - 1], fp8_table(dtype)[code]);
                assert!(above > below || above.is_nan(), "{dtype} {code:#04x}");
            }
        }
    }
}
