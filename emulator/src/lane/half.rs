//! Computes arithmetic on `f16` and `bf16`, single or in pairs. Sums and products are rounded once, as if they had been
//! computed exactly.

use super::Type;
use super::float::extreme;
use super::soft::{BF16, F16, F32, Format, Rounding, Value, unpack};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfOp {
    Add,
    Sub,
    Mul,
    Fma,
    Neg,
    Abs,
    Min,
    Max,
    Exp2,
    Tanh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfFunction {
    pub op: HalfOp,
    /// Whether the operands are `bf16` instead of `f16`.
    pub brain: bool,
    /// Whether each operand consists of two numbers.
    pub pair: bool,
    /// Whether subnormal operands and results are replaced by zeros.
    pub flush: bool,
    /// Whether results are limited to the range from 0 to 1, with NaN replaced by 0.
    pub saturate: bool,
    /// Whether negative results are replaced by zero.
    pub relu: bool,
    /// For `min` and `max`: whether the result is NaN if one operand is NaN.
    pub propagates_nan: bool,
    /// For `min` and `max`: whether magnitudes are compared, and the result gets the product of the operands' signs.
    pub xor_sign: bool,
}

impl HalfFunction {
    pub fn new(op: HalfOp, ty: Type) -> Self {
        Self {
            op,
            brain: matches!(ty, Type::Bf16 | Type::Bf16x2),
            pair: matches!(ty, Type::F16x2 | Type::Bf16x2),
            flush: false,
            saturate: false,
            relu: false,
            propagates_nan: false,
            xor_sign: false,
        }
    }

    pub fn apply(&self, [a, b, c, _]: [u64; 4]) -> u64 {
        let low = self.one(a & 0xffff, b & 0xffff, c & 0xffff);
        if !self.pair {
            return low;
        }
        let high = |value: u64| value >> 16 & 0xffff;
        low | self.one(high(a), high(b), high(c)) << 16
    }

    fn one(&self, a: u64, b: u64, c: u64) -> u64 {
        let format = if self.brain { BF16 } else { F16 };
        let [a, b, c] = if self.flush { [a, b, c].map(|value| flushed(value, format)) } else { [a, b, c] };
        let mut result = self.compute(a, b, c, format);
        if self.flush {
            result = flushed(result, format);
        }
        let is_nan = matches!(unpack(result, format), Value::Nan);
        let is_negative = result & 0x8000 != 0;
        if self.saturate {
            let one = super::soft::from_integer(1).round(format, Rounding::NearestEven);
            result = if is_nan || is_negative { 0 } else { result.min(one) };
        }
        // `relu` keeps NaN.
        if self.relu && !is_nan && is_negative {
            result = 0;
        }
        result
    }

    fn compute(&self, a: u64, b: u64, c: u64, format: Format) -> u64 {
        let (x, y, z) = (unpack(a, format), unpack(b, format), unpack(c, format));
        match self.op {
            HalfOp::Neg | HalfOp::Abs if matches!(x, Value::Nan) => format.nan,
            HalfOp::Neg => a ^ 0x8000,
            HalfOp::Abs => a & 0x7fff,
            HalfOp::Min | HalfOp::Max => {
                extreme(self.op == HalfOp::Max, self.propagates_nan, self.xor_sign, a, b, format)
            }
            HalfOp::Add | HalfOp::Sub | HalfOp::Mul | HalfOp::Fma => {
                self.in_f64(a, b, c, format).unwrap_or_else(|| self.exactly(x, y, z, format))
            }
            HalfOp::Exp2 => through_f64(x, format, f64::exp2),
            HalfOp::Tanh => through_f64(x, format, f64::tanh),
        }
    }

    /// Computes the result of any operands exactly, and rounds it once.
    pub(super) fn exactly(&self, x: Value, y: Value, z: Value, format: Format) -> u64 {
        let nearest = Rounding::NearestEven;
        match self.op {
            HalfOp::Add => x.plus(y, nearest).round(format, nearest),
            HalfOp::Sub => x.plus(y.negated(), nearest).round(format, nearest),
            HalfOp::Mul => x.times(y).round(format, nearest),
            _ => x.times(y).plus(z, nearest).round(format, nearest),
        }
    }

    /// Computes the result in `f64`, in which products are exact. This works only if the operands and the result are
    /// zero or normal. A sum may be rounded in `f64`, which matters only if the rounded sum is half-way between two
    /// numbers of the format. Returns `None` in this case, and for other operands and results.
    pub(super) fn in_f64(&self, a: u64, b: u64, c: u64, format: Format) -> Option<u64> {
        let (x, y, z) = (widened(a, format)?, widened(b, format)?, widened(c, format)?);
        let result = match self.op {
            HalfOp::Add => x + y,
            HalfOp::Sub => x - y,
            HalfOp::Mul => x * y,
            _ => x * y + z,
        };
        let (sign, magnitude) = (result.to_bits() >> 63 << 15, result.to_bits() & (u64::MAX >> 1));
        if magnitude == 0 {
            return Some(sign);
        }
        let dropped = 52 - format.fraction_bits;
        let half = 1 << (dropped - 1);
        let lowest = (1023 - bias(format) + 1) << 52;
        let highest = (1023 + bias(format)) << 52;
        if magnitude < lowest || highest <= magnitude || magnitude & (2 * half - 1) == half {
            return None;
        }
        let rounded = (magnitude + half) >> dropped;
        Some(sign | (rounded - ((1023 - bias(format)) << format.fraction_bits)))
    }
}

fn bias(format: Format) -> u64 {
    (1 << (format.exponent_bits - 1)) - 1
}

/// Converts a number to `f64`, if it is zero or normal.
fn widened(bits: u64, format: Format) -> Option<f64> {
    let (sign, magnitude) = ((bits & 0x8000) << 48, bits & 0x7fff);
    let exponent = magnitude >> format.fraction_bits;
    if magnitude == 0 {
        return Some(f64::from_bits(sign));
    }
    let is_normal = exponent != 0 && exponent + 1 != 1 << format.exponent_bits;
    let moved = (magnitude << (52 - format.fraction_bits)) + ((1023 - bias(format)) << 52);
    is_normal.then_some(f64::from_bits(sign | moved))
}

/// Replaces subnormal numbers by zeros.
pub fn flushed(bits: u64, format: Format) -> u64 {
    let exponent = ((1 << format.exponent_bits) - 1) << format.fraction_bits;
    if bits & exponent == 0 { bits & 0x8000 } else { bits }
}

fn through_f64(x: Value, format: Format, function: impl Fn(f64) -> f64) -> u64 {
    let single = f32::from_bits(x.round(F32, Rounding::NearestEven) as u32);
    let result = function(f64::from(single));
    unpack(result.to_bits(), super::soft::F64).round(format, Rounding::NearestEven)
}
