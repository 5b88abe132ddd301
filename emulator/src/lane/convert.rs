//! Computes conversions: the supported forms of `cvt`.

use super::Type;
use super::float::{flushed, saturated};
use super::soft::{BF16, F16, F32, F64, Format, Rounding, Value, from_integer, unpack};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    pub to: Type,
    pub from: Type,
    /// The rounding mode, which also applies to conversions to integers.
    pub rounding: Rounding,
    /// Whether the result is an integral number, even if it is a float.
    pub integral: bool,
    /// Whether subnormal `f32` operands and results are replaced by zeros.
    pub flush: bool,
    /// Whether the result saturates: a result of an integer type is limited to the type's range, and a float to the
    /// range from 0 to 1, with NaN replaced by 0.
    pub saturate: bool,
    /// Whether negative results are replaced by zero.
    pub relu: bool,
}

fn format(ty: Type) -> Option<Format> {
    match ty {
        Type::F16 | Type::F16x2 => Some(F16),
        Type::Bf16 | Type::Bf16x2 => Some(BF16),
        Type::F32 => Some(F32),
        Type::F64 => Some(F64),
        _ => None,
    }
}

impl Conversion {
    pub fn apply(&self, [a, b, _, _]: [u64; 4]) -> u64 {
        // The second operand becomes the lower half.
        if matches!(self.to, Type::F16x2 | Type::Bf16x2) {
            return self.one(a) << 16 | self.one(b) & 0xffff;
        }
        self.fast_path(a).unwrap_or_else(|| self.one(a))
    }

    /// A fast path for plain conversions between 16-bit and 32-bit floats.
    fn fast_path(&self, a: u64) -> Option<u64> {
        if self.saturate || self.relu || self.integral || self.flush {
            return None;
        }
        let (low, single) = (a & 0xffff, a as u32);
        let exponent = single >> 23 & 0xff;
        match (self.from, self.to) {
            // The number is normal, so only the bias of its exponent changes.
            (Type::F16, Type::F32) if !matches!(low >> 10 & 31, 0 | 31) => {
                Some((low & 0x8000) << 16 | ((low & 0x7fff) + (112 << 10)) << 13)
            }
            (Type::Bf16, Type::F32) if low >> 7 & 0xff != 0xff => Some(low << 16),
            (Type::F32, Type::F16)
                if self.rounding == Rounding::NearestEven && (113..142).contains(&exponent) =>
            {
                let rounded = (single & 0x7fff_ffff) + 0xfff + (single >> 13 & 1);
                Some(u64::from(single >> 16 & 0x8000 | ((rounded >> 13) - (112 << 10))))
            }
            (Type::F32, Type::Bf16) if self.rounding == Rounding::NearestEven && exponent != 0xff => {
                Some(u64::from((single + 0x7fff + (single >> 16 & 1)) >> 16))
            }
            _ => None,
        }
    }

    fn one(&self, a: u64) -> u64 {
        match (format(self.from), format(self.to)) {
            (None, None) => {
                let number = self.from.number(a);
                let (min, max) = bounds(self.to);
                let number = if self.saturate { number.clamp(min, max) } else { number };
                self.extended(number as u64)
            }
            (None, Some(to)) => {
                let bits = from_integer(self.from.number(a)).round(to, self.rounding);
                self.finished(bits, to)
            }
            (Some(from), None) => {
                let (min, max) = bounds(self.to);
                match self.source(a, from).to_integer(self.rounding, min, max) {
                    Some(number) => self.extended(number as u64),
                    None if self.from == Type::F64 || self.to.bits() == 64 => {
                        self.extended(1 << (self.to.bits() - 1))
                    }
                    None => 0,
                }
            }
            (Some(from), Some(to)) => {
                let value = self.source(a, from);
                let value = if self.integral { value.round_to_integer(self.rounding) } else { value };
                let nan = matches!(value, Value::Nan);
                // A conversion from `f64` to `f64` that does not saturate keeps the payload. All others result in the
                // canonical NaN or, if they saturate, in 0.
                if nan && from == F64 && to == F64 && !self.saturate {
                    return a;
                }
                self.finished(value.round(to, self.rounding), to)
            }
        }
    }

    fn source(&self, a: u64, from: Format) -> Value {
        let bits = a & (u64::MAX >> (63 - from.exponent_bits - from.fraction_bits));
        let bits = if self.flush && from == F32 { u64::from(flushed(bits as u32)) } else { bits };
        unpack(bits, from)
    }

    fn finished(&self, bits: u64, to: Format) -> u64 {
        let bits = if self.flush && to == F32 { u64::from(flushed(bits as u32)) } else { bits };
        let sign = 1_u64 << (to.exponent_bits + to.fraction_bits);
        let is_nan = matches!(unpack(bits, to), Value::Nan);
        if self.saturate {
            if to == F32 {
                return u64::from(saturated(f32::from_bits(bits as u32)).to_bits());
            }
            let one = from_integer(1).round(to, Rounding::NearestEven);
            return if is_nan || bits & sign != 0 { 0 } else { bits.min(one) };
        }
        if self.relu && !is_nan && bits & sign != 0 { 0 } else { bits }
    }

    /// Extends a result to the bits of a register that may be wider than the type. A signed value is sign-extended.
    fn extended(&self, bits: u64) -> u64 {
        if self.to.is_signed() { self.to.signed(bits) as u64 } else { self.to.truncate(bits) }
    }
}

/// Rounds an `f32` to a `tf32`, which is an `f32` whose lowest 13 bits are zeros.
pub fn rounded_to_tf32(bits: u64) -> u64 {
    if matches!(unpack(bits, F32), Value::Nan) {
        return F32.nan;
    }
    // If the magnitude becomes too large, the carry turns the result into infinity. Infinity itself stays the same.
    (bits + 0x1000) & 0xffff_e000
}

fn bounds(ty: Type) -> (i128, i128) {
    let bits = ty.bits();
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}
