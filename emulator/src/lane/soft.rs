//! Implements floating-point arithmetic in software, for rounding modes and formats that the host does not support.
//! Values are exact, or precise enough that rounding them to any format gives the same result as if they were exact.

/// The direction in which a value between two numbers of a format is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    NearestEven,
    TowardsZero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub exponent_bits: u32,
    pub fraction_bits: u32,
    /// The bits of the canonical NaN.
    pub nan: u64,
}

pub const F16: Format = Format { exponent_bits: 5, fraction_bits: 10, nan: 0x7fff };
pub const BF16: Format = Format { exponent_bits: 8, fraction_bits: 7, nan: 0x7fff };
pub const F32: Format = Format { exponent_bits: 8, fraction_bits: 23, nan: 0x7fff_ffff };
pub const F64: Format = Format { exponent_bits: 11, fraction_bits: 52, nan: 0x7ff8_0000_0000_0000 };

impl Format {
    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    fn largest_exponent(self) -> u64 {
        (1 << self.exponent_bits) - 1
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    fn infinity(self) -> u64 {
        self.largest_exponent() << self.fraction_bits
    }
}

/// A number, which is either exact, or has a sticky lowest bit: this bit is set if any lower bit of the exact number is
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Nan,
    Infinite {
        negative: bool,
    },
    Zero {
        negative: bool,
    },
    /// mantissa × 2^exponent. The mantissa is not zero.
    Finite {
        negative: bool,
        mantissa: u128,
        exponent: i32,
    },
}

use Value::{Finite, Infinite, Nan, Zero};

pub fn unpack(bits: u64, format: Format) -> Value {
    let negative = bits & format.sign() != 0;
    let fraction = bits & ((1 << format.fraction_bits) - 1);
    let exponent = bits >> format.fraction_bits & format.largest_exponent();
    let lowest = 1 - format.bias() - format.fraction_bits as i32;
    if exponent == format.largest_exponent() {
        if fraction == 0 { Infinite { negative } } else { Nan }
    } else if exponent != 0 {
        let mantissa = u128::from(fraction | 1 << format.fraction_bits);
        Finite { negative, mantissa, exponent: lowest + exponent as i32 - 1 }
    } else if fraction == 0 {
        Zero { negative }
    } else {
        Finite { negative, mantissa: u128::from(fraction), exponent: lowest }
    }
}

pub fn from_integer(value: i128) -> Value {
    if value == 0 {
        return Zero { negative: false };
    }
    Finite { negative: value < 0, mantissa: value.unsigned_abs(), exponent: 0 }
}

/// Whether the kept magnitude is rounded up. `half` is the highest discarded bit, and `more` says whether any other
/// discarded bit is set.
fn rounds_up(negative: bool, kept: u128, half: bool, more: bool, rounding: Rounding) -> bool {
    match rounding {
        Rounding::NearestEven => half && (more || kept & 1 == 1),
        Rounding::TowardsZero => false,
        Rounding::Down => negative && (half || more),
        Rounding::Up => !negative && (half || more),
    }
}

/// Shifts right by `shift` bits and rounds the result.
fn shift_and_round(negative: bool, mantissa: u128, shift: u32, rounding: Rounding) -> u128 {
    if shift == 0 {
        return mantissa;
    }
    let kept = mantissa.checked_shr(shift).unwrap_or(0);
    let half = shift <= 128 && mantissa >> (shift - 1) & 1 == 1;
    let below = if shift <= 128 { (1_u128 << (shift - 1)) - 1 } else { u128::MAX };
    let more = mantissa & below != 0;
    kept + u128::from(rounds_up(negative, kept, half, more, rounding))
}

impl Value {
    /// Rounds to a format, and returns the bits.
    pub fn round(self, format: Format, rounding: Rounding) -> u64 {
        let sign = |negative| if negative { format.sign() } else { 0 };
        match self {
            Nan => format.nan,
            Infinite { negative } => sign(negative) | format.infinity(),
            Zero { negative } => sign(negative),
            Finite { negative, mantissa, exponent } => {
                let fraction_bits = format.fraction_bits as i32;
                let top = exponent + 127 - mantissa.leading_zeros() as i32;
                let unit = top.max(1 - format.bias()) - fraction_bits;
                let kept = if unit <= exponent {
                    mantissa << (exponent - unit)
                } else {
                    shift_and_round(negative, mantissa, (unit - exponent) as u32, rounding)
                };
                let field = unit + fraction_bits + format.bias();
                let overflowed = i64::from(field) >= format.largest_exponent() as i64
                    || ((field as u64) << format.fraction_bits) + kept as u64 - (1 << format.fraction_bits)
                        >= format.infinity();
                let magnitude = if !overflowed {
                    ((field as u64) << format.fraction_bits) + kept as u64 - (1 << format.fraction_bits)
                } else if rounds_up(negative, 1, true, true, rounding) {
                    format.infinity()
                } else {
                    format.infinity() - 1
                };
                sign(negative) | magnitude
            }
        }
    }

    /// Rounds to an integer.
    pub fn round_to_integer(self, rounding: Rounding) -> Self {
        match self {
            Finite { negative, mantissa, exponent } if exponent < 0 => {
                match shift_and_round(negative, mantissa, exponent.unsigned_abs(), rounding) {
                    0 => Zero { negative },
                    mantissa => Finite { negative, mantissa, exponent: 0 },
                }
            }
            other => other,
        }
    }

    /// Rounds to an integer and clamps it. Returns `None` if the value is NaN.
    pub fn to_integer(self, rounding: Rounding, min: i128, max: i128) -> Option<i128> {
        let clamped = |negative| if negative { min } else { max };
        match self.round_to_integer(rounding) {
            Nan => None,
            Zero { .. } => Some(0),
            Infinite { negative } => Some(clamped(negative)),
            Finite { negative, mantissa, exponent } => {
                let top = exponent + 127 - mantissa.leading_zeros() as i32;
                if 100 < top {
                    return Some(clamped(negative));
                }
                let magnitude = (mantissa << exponent) as i128;
                Some((if negative { -magnitude } else { magnitude }).clamp(min, max))
            }
        }
    }

    pub fn negated(self) -> Self {
        match self {
            Nan => Nan,
            Infinite { negative } => Infinite { negative: !negative },
            Zero { negative } => Zero { negative: !negative },
            Finite { negative, mantissa, exponent } => Finite { negative: !negative, mantissa, exponent },
        }
    }

    fn is_negative(self) -> bool {
        match self {
            Nan => false,
            Infinite { negative } | Zero { negative } | Finite { negative, .. } => negative,
        }
    }

    pub fn plus(self, other: Self, rounding: Rounding) -> Self {
        match (self, other) {
            (Nan, _) | (_, Nan) => Nan,
            (Infinite { negative: one }, Infinite { negative: two }) if one != two => Nan,
            (Infinite { .. }, _) => self,
            (_, Infinite { .. }) => other,
            (Zero { negative: one }, Zero { negative: two }) => {
                Zero { negative: if one == two { one } else { rounding == Rounding::Down } }
            }
            (Zero { .. }, _) => other,
            (_, Zero { .. }) => self,
            (
                Finite { negative: n1, mantissa: m1, exponent: e1 },
                Finite { negative: n2, mantissa: m2, exponent: e2 },
            ) => {
                let first = Aligned::new(n1, m1, e1);
                let second = Aligned::new(n2, m2, e2);
                let (big, small) =
                    if second.exponent <= first.exponent { (first, second) } else { (second, first) };
                let lowered = sticky_shift(small.mantissa, (big.exponent - small.exponent) as u32);
                let (negative, mantissa) = if big.negative == small.negative {
                    (big.negative, big.mantissa + lowered)
                } else if lowered <= big.mantissa {
                    (big.negative, big.mantissa - lowered)
                } else {
                    (small.negative, lowered - big.mantissa)
                };
                if mantissa == 0 {
                    Zero { negative: rounding == Rounding::Down }
                } else {
                    Finite { negative, mantissa, exponent: big.exponent }
                }
            }
        }
    }

    pub fn times(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Nan, _) | (_, Nan) | (Infinite { .. }, Zero { .. }) | (Zero { .. }, Infinite { .. }) => Nan,
            (Infinite { .. }, _) | (_, Infinite { .. }) => Infinite { negative },
            (Zero { .. }, _) | (_, Zero { .. }) => Zero { negative },
            (Finite { mantissa: m1, exponent: e1, .. }, Finite { mantissa: m2, exponent: e2, .. }) => {
                Finite { negative, mantissa: m1 * m2, exponent: e1 + e2 }
            }
        }
    }

    pub fn divided_by(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Nan, _) | (_, Nan) | (Infinite { .. }, Infinite { .. }) | (Zero { .. }, Zero { .. }) => Nan,
            (Infinite { .. }, _) | (_, Zero { .. }) => Infinite { negative },
            (Zero { .. }, _) | (_, Infinite { .. }) => Zero { negative },
            (Finite { mantissa: m1, exponent: e1, .. }, Finite { mantissa: m2, exponent: e2, .. }) => {
                let raised = m1.leading_zeros();
                let whole = m1 << raised;
                let mantissa = (whole / m2) | u128::from(!whole.is_multiple_of(m2));
                Finite { negative, mantissa, exponent: e1 - raised as i32 - e2 }
            }
        }
    }

    pub fn square_root(self) -> Self {
        match self {
            Zero { .. } | Nan => self,
            Infinite { negative: false } => self,
            Infinite { .. } | Finite { negative: true, .. } => Nan,
            Finite { negative, mantissa, exponent } => {
                // The remaining exponent must be even, so that it can be halved.
                let mut raised = mantissa.leading_zeros();
                raised -= u32::from((exponent - raised as i32) % 2 != 0);
                let whole = mantissa << raised;
                let root = whole.isqrt();
                let mantissa = root << 1 | u128::from(root * root != whole);
                Finite { negative, mantissa, exponent: (exponent - raised as i32) / 2 - 1 }
            }
        }
    }
}

/// A finite number whose mantissa has been shifted so that its highest bit is bit 125. Two such mantissas can be added
/// without overflow.
struct Aligned {
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

impl Aligned {
    fn new(negative: bool, mantissa: u128, exponent: i32) -> Self {
        let raised = mantissa.leading_zeros() as i32 - 2;
        let mantissa =
            if raised < 0 { sticky_shift(mantissa, raised.unsigned_abs()) } else { mantissa << raised };
        Self { negative, mantissa, exponent: exponent - raised }
    }
}

/// Shifts right. If bits are lost, the lowest bit is set.
fn sticky_shift(mantissa: u128, shift: u32) -> u128 {
    if 127 < shift {
        return u128::from(mantissa != 0);
    }
    let kept = mantissa >> shift;
    kept | u128::from(kept << shift != mantissa)
}
