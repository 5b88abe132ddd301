//! Computes arithmetic on `f32` and `f64`. Results that are rounded to nearest come from the host's arithmetic, and
//! results in the other rounding modes from exact arithmetic.

use super::Type;
use super::soft::{F32, F64, Format, Rounding, unpack};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    /// Division that multiplies by an approximate reciprocal, which is zero for the largest divisors.
    DivApproximate,
    Reciprocal,
    SquareRoot,
    ReciprocalSquareRoot,
    /// For `f64`: computes the upper half of the reciprocal from the upper half of the operand. The lower half of the
    /// result is zero. The next variant works in the same way.
    ReciprocalHigh,
    ReciprocalSquareRootHigh,
    Sine,
    Cosine,
    Log2,
    Exp2,
    Tanh,
    Neg,
    Abs,
    Min,
    Max,
    CopySign,
    Test(FloatTest),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatTest {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatFunction {
    pub op: FloatOp,
    /// Whether the operands are `f64` instead of `f32`.
    pub wide: bool,
    pub rounding: Rounding,
    /// For `f32`: whether subnormal operands and results are replaced by zeros.
    pub flush: bool,
    /// For `f32`: whether the result is limited to the range from 0 to 1, with NaN replaced by 0.
    pub saturate: bool,
    /// For `min` and `max`: whether the result is NaN if one operand is NaN.
    pub propagates_nan: bool,
    /// For `min` and `max`: whether magnitudes are compared, and the result gets the product of the operands' signs.
    pub xor_sign: bool,
}

impl FloatFunction {
    pub fn new(op: FloatOp, ty: Type) -> Self {
        Self {
            op,
            wide: ty == Type::F64,
            rounding: Rounding::NearestEven,
            flush: false,
            saturate: false,
            propagates_nan: false,
            xor_sign: false,
        }
    }

    pub fn apply(&self, values: [u64; 4]) -> u64 {
        if self.wide {
            return self.wide(values);
        }
        let [a, b, c, _] = values.map(|value| value as u32);
        let moves_bits = matches!(self.op, FloatOp::CopySign | FloatOp::Test(_));
        let [a, b, c] = if self.flush && !moves_bits { [a, b, c].map(flushed) } else { [a, b, c] };
        let mut result = self.narrow(a, b, c);
        if moves_bits {
            return u64::from(result);
        }
        if self.flush {
            result = flushed(result);
        }
        if self.saturate {
            result = saturated(f32::from_bits(result)).to_bits();
        }
        u64::from(result)
    }

    fn narrow(&self, a: u32, b: u32, c: u32) -> u32 {
        let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        let nearest = self.rounding == Rounding::NearestEven;
        let number = match self.op {
            FloatOp::Neg => return canonical_or(x, a ^ 0x8000_0000),
            FloatOp::Abs => return canonical_or(x, a & 0x7fff_ffff),
            FloatOp::CopySign => return b & 0x7fff_ffff | a & 0x8000_0000,
            FloatOp::Test(test) => return u32::from(test.holds_f32(x)),
            FloatOp::Min | FloatOp::Max => return self.extreme(a.into(), b.into(), F32) as u32,
            FloatOp::Add if nearest => x + y,
            FloatOp::Sub if nearest => x - y,
            FloatOp::Mul if nearest => x * y,
            FloatOp::Fma if nearest => x.mul_add(y, z),
            FloatOp::Div if nearest => x / y,
            FloatOp::Reciprocal if nearest => 1.0 / x,
            FloatOp::SquareRoot if nearest => x.sqrt(),
            FloatOp::Add
            | FloatOp::Sub
            | FloatOp::Mul
            | FloatOp::Fma
            | FloatOp::Div
            | FloatOp::Reciprocal
            | FloatOp::SquareRoot => {
                return self.exact([a, b, c].map(u64::from), F32) as u32;
            }
            FloatOp::DivApproximate => {
                let magnitude = y.abs();
                if x.is_infinite() && magnitude.is_finite() && f32::from_bits(0x7e80_0000) < magnitude {
                    f32::NAN
                } else if magnitude.is_finite() && f32::from_bits(0x7e80_0000) < magnitude && !x.is_nan() {
                    0.0_f32.copysign(x * y.signum())
                } else {
                    x / y
                }
            }
            FloatOp::ReciprocalHigh => 1.0 / x,
            FloatOp::ReciprocalSquareRoot | FloatOp::ReciprocalSquareRootHigh => {
                (1.0 / f64::from(x).sqrt()) as f32
            }
            FloatOp::Sine => f64::from(x).sin() as f32,
            FloatOp::Cosine => f64::from(x).cos() as f32,
            FloatOp::Log2 => f64::from(x).log2() as f32,
            FloatOp::Exp2 => f64::from(x).exp2() as f32,
            FloatOp::Tanh => f64::from(x).tanh() as f32,
        };
        canonical_or(number, number.to_bits())
    }

    fn wide(&self, [a, b, c, _]: [u64; 4]) -> u64 {
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        let nearest = self.rounding == Rounding::NearestEven;
        let number = match self.op {
            FloatOp::Neg => return a ^ (1 << 63),
            FloatOp::Abs => return a & !(1 << 63),
            FloatOp::CopySign => return b & !(1 << 63) | a & (1 << 63),
            FloatOp::Test(test) => return u64::from(test.holds_f64(x)),
            FloatOp::Min | FloatOp::Max => return self.extreme(a, b, F64),
            FloatOp::Add if nearest => x + y,
            FloatOp::Sub if nearest => x - y,
            FloatOp::Mul if nearest => x * y,
            FloatOp::Fma if nearest => x.mul_add(y, z),
            FloatOp::Div if nearest => x / y,
            FloatOp::Reciprocal if nearest => 1.0 / x,
            FloatOp::SquareRoot if nearest => x.sqrt(),
            FloatOp::Add
            | FloatOp::Sub
            | FloatOp::Mul
            | FloatOp::Fma
            | FloatOp::Div
            | FloatOp::Reciprocal
            | FloatOp::SquareRoot => {
                return self.exact([a, b, c], F64);
            }
            FloatOp::DivApproximate => x / y,
            FloatOp::ReciprocalSquareRoot => 1.0 / x.sqrt(),
            FloatOp::ReciprocalHigh => upper_half(1.0 / flushed_wide(upper_half(x))),
            FloatOp::ReciprocalSquareRootHigh => upper_half(1.0 / flushed_wide(upper_half(x)).sqrt()),
            FloatOp::Sine => x.sin(),
            FloatOp::Cosine => x.cos(),
            FloatOp::Log2 => x.log2(),
            FloatOp::Exp2 => x.exp2(),
            FloatOp::Tanh => x.tanh(),
        };
        number.to_bits()
    }

    fn exact(&self, values: [u64; 3], format: Format) -> u64 {
        let [a, b, c] = values.map(|value| unpack(value, format));
        let one = || super::soft::from_integer(1);
        match self.op {
            FloatOp::Add => a.plus(b, self.rounding),
            FloatOp::Sub => a.plus(b.negated(), self.rounding),
            FloatOp::Mul => a.times(b),
            FloatOp::Fma => a.times(b).plus(c, self.rounding),
            FloatOp::Reciprocal => one().divided_by(a),
            FloatOp::SquareRoot => a.square_root(),
            _ => a.divided_by(b),
        }
        .round(format, self.rounding)
    }

    fn extreme(&self, a: u64, b: u64, format: Format) -> u64 {
        extreme(self.op == FloatOp::Max, self.propagates_nan, self.xor_sign, a, b, format)
    }
}

/// Returns the smaller or larger of two numbers, where -0 is less than +0.
pub fn extreme(larger: bool, propagates_nan: bool, xor_sign: bool, a: u64, b: u64, format: Format) -> u64 {
    let sign = 1_u64 << (format.exponent_bits + format.fraction_bits);
    let infinity = ((1_u64 << format.exponent_bits) - 1) << format.fraction_bits;
    let is_nan = |value: u64| infinity < value & (sign - 1);
    let (first, second) = if xor_sign { (a & (sign - 1), b & (sign - 1)) } else { (a, b) };
    // This maps floats to integers in the same order: the order of negative floats is reversed, and they precede the
    // others.
    let order = |value: u64| {
        let magnitude = (value & (sign - 1)) as i64;
        if value & sign != 0 { -1 - magnitude } else { magnitude }
    };
    let picked = match (is_nan(a), is_nan(b)) {
        (true, true) => return format.nan,
        (true, _) | (_, true) if propagates_nan => return format.nan,
        (true, false) => second,
        (false, true) => first,
        (false, false) if (order(first) < order(second)) == larger => second,
        (false, false) => first,
    };
    if xor_sign { picked | (a ^ b) & sign } else { picked }
}

/// Replaces subnormal numbers by zeros.
#[inline(always)]
pub fn flushed(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

fn upper_half(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & !0xffff_ffff)
}

fn flushed_wide(value: f64) -> f64 {
    if value.is_subnormal() { 0.0_f64.copysign(value) } else { value }
}

/// Clamps to 0 … 1. NaN becomes 0.
pub fn saturated(value: f32) -> f32 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

fn canonical_or(value: f32, bits: u32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { bits }
}

impl FloatTest {
    fn holds_f32(self, value: f32) -> bool {
        match self {
            Self::Normal => value.is_normal(),
            Self::Subnormal => value.is_subnormal(),
            _ => self.holds_f64(f64::from(value)),
        }
    }

    fn holds_f64(self, value: f64) -> bool {
        match self {
            Self::Finite => value.is_finite(),
            Self::Infinite => value.is_infinite(),
            Self::Number => !value.is_nan(),
            Self::NotANumber => value.is_nan(),
            Self::Normal => value.is_normal(),
            Self::Subnormal => value.is_subnormal(),
        }
    }
}
