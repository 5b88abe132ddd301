//! Arithmetic on `f16` and `bf16`, single or in pairs: computed exactly, then rounded once.

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
    pub brain: bool,
    pub pair: bool,
    pub flush: bool,
    pub saturate: bool,
    /// Negative results become zero.
    pub relu: bool,
    pub propagates_nan: bool,
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
        // NaN stays NaN.
        if self.relu && !is_nan && is_negative {
            result = 0;
        }
        result
    }

    fn compute(&self, a: u64, b: u64, c: u64, format: Format) -> u64 {
        let nearest = Rounding::NearestEven;
        let (x, y, z) = (unpack(a, format), unpack(b, format), unpack(c, format));
        match self.op {
            HalfOp::Neg | HalfOp::Abs if matches!(x, Value::Nan) => format.nan,
            HalfOp::Neg => a ^ 0x8000,
            HalfOp::Abs => a & 0x7fff,
            HalfOp::Min | HalfOp::Max => {
                extreme(self.op == HalfOp::Max, self.propagates_nan, self.xor_sign, a, b, format)
            }
            HalfOp::Add => x.plus(y, nearest).round(format, nearest),
            HalfOp::Sub => x.plus(y.negated(), nearest).round(format, nearest),
            HalfOp::Mul => x.times(y).round(format, nearest),
            HalfOp::Fma => x.times(y).plus(z, nearest).round(format, nearest),
            HalfOp::Exp2 => through_f64(x, format, f64::exp2),
            HalfOp::Tanh => through_f64(x, format, f64::tanh),
        }
    }
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
