//! Computes comparisons and selections: `set`, `setp` and `slct`.

use std::cmp::Ordering;

use super::float::flushed;
use super::soft::{BF16, F16, F32, Rounding, unpack};
use super::{Results, Type};
use crate::code::{Compare, FlagOp};

/// `set` and `setp`. The operands are two values and, with `combine`, a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub compare: Compare,
    pub ty: Type,
    /// For floats of 16 and 32 bits: whether subnormal operands are replaced by zeros.
    pub flush: bool,
    /// The operation that combines the result with a predicate, and whether the predicate is negated.
    pub combine: Option<(FlagOp, bool)>,
    /// The type of the result; `Pred` for `setp`.
    pub result: Type,
}

impl Comparison {
    pub fn apply(&self, [a, b, c, _]: [u64; 4]) -> Results {
        if matches!(self.ty, Type::F16x2 | Type::Bf16x2) {
            let low = self.combined(self.holds(a & 0xffff, b & 0xffff), c);
            let high = self.combined(self.holds(a >> 16 & 0xffff, b >> 16 & 0xffff), c);
            if self.result == Type::Pred {
                return (u64::from(low), u64::from(high));
            }
            let one = |holds: bool| {
                if !holds {
                    0
                } else if self.result.is_half() {
                    half_one(self.result)
                } else {
                    0xffff
                }
            };
            return (one(low) | one(high) << 16, 0);
        }
        let holds = self.holds(a, b);
        let (first, second) = (self.combined(holds, c), self.combined(!holds, c));
        let first = match self.result {
            _ if !first => 0,
            Type::Pred => 1,
            Type::F32 => u64::from(1_f32.to_bits()),
            Type::F16 | Type::Bf16 => half_one(self.result),
            _ => u64::MAX,
        };
        (first, u64::from(second))
    }

    fn combined(&self, holds: bool, flag: u64) -> bool {
        let Some((op, negated)) = self.combine else { return holds };
        let flag = (flag & 1 == 1) != negated;
        match op {
            FlagOp::And => holds && flag,
            FlagOp::Or => holds || flag,
            FlagOp::Xor => holds != flag,
        }
    }

    fn holds(&self, a: u64, b: u64) -> bool {
        let half = |value, format| {
            let value = if self.flush { super::half::flushed(value, format) } else { value };
            let single = unpack(value, format).round(F32, Rounding::NearestEven) as u32;
            f32::from_bits(single)
        };
        let single =
            |value: u64| f32::from_bits(if self.flush { flushed(value as u32) } else { value as u32 });
        let order = match self.ty {
            Type::F64 => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
            Type::F32 => single(a).partial_cmp(&single(b)),
            Type::F16 | Type::F16x2 => half(a, F16).partial_cmp(&half(b, F16)),
            Type::Bf16 | Type::Bf16x2 => half(a, BF16).partial_cmp(&half(b, BF16)),
            ty => Some(ty.number(a).cmp(&ty.number(b))),
        };
        self.compare.holds(order)
    }
}

fn half_one(ty: Type) -> u64 {
    if matches!(ty, Type::F16 | Type::F16x2) { 0x3c00 } else { 0x3f80 }
}

impl Compare {
    pub fn holds(self, order: Option<Ordering>) -> bool {
        use Ordering::{Equal, Greater, Less};
        match self {
            Self::Eq => order == Some(Equal),
            Self::Ne => matches!(order, Some(Less | Greater)),
            Self::Lt => order == Some(Less),
            Self::Le => matches!(order, Some(Less | Equal)),
            Self::Gt => order == Some(Greater),
            Self::Ge => matches!(order, Some(Greater | Equal)),
            Self::EqOrNan => matches!(order, Some(Equal) | None),
            Self::NeOrNan => order != Some(Equal),
            Self::LtOrNan => matches!(order, Some(Less) | None),
            Self::LeOrNan => order != Some(Greater),
            Self::GtOrNan => matches!(order, Some(Greater) | None),
            Self::GeOrNan => order != Some(Less),
            Self::BothNumbers => order.is_some(),
            Self::AnyNan => order.is_none(),
        }
    }
}

/// `slct`: selects the first operand if the third is not negative, otherwise the second. NaN selects the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    BySignOfS32,
    BySignOfF32 { flush: bool },
}

impl Selection {
    pub fn apply(self, [a, b, c, _]: [u64; 4]) -> u64 {
        let first = match self {
            Self::BySignOfS32 => 0 <= c as u32 as i32,
            Self::BySignOfF32 { flush } => {
                0.0 <= f32::from_bits(if flush { flushed(c as u32) } else { c as u32 })
            }
        };
        if first { a } else { b }
    }
}
