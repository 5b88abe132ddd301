//! Computes the instructions whose result depends only on the values of a single lane, as pure functions of bits. Each
//! file except `soft` contains one family of instructions.
//!
//! A value consists of the bits of a register, zero-extended. A result may have more bits than its register, because
//! the caller truncates the result. Signed results of conversions are sign-extended, because the register of a
//! conversion may be wider than the type.

pub mod compare;
pub mod convert;
pub mod float;
pub mod half;
pub mod integer;
pub mod soft;
#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "the host's conversions are what is compared with")]
mod tests;

pub use compare::{Comparison, Selection};
pub use convert::Conversion;
pub use float::{FloatFunction, FloatOp};
pub use half::{HalfFunction, HalfOp};
pub use integer::IntegerOp;

/// The type that an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

impl Type {
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    pub fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 | Self::F16x2 | Self::Bf16x2 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub fn is_integer(self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    pub fn is_untyped(self) -> bool {
        matches!(self, Self::B8 | Self::B16 | Self::B32 | Self::B64)
    }

    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::F16x2 | Self::Bf16 | Self::Bf16x2)
    }

    /// Truncates a value to the bits of this type.
    pub fn truncate(self, value: u64) -> u64 {
        mask(value, self.bits())
    }

    /// Returns the value as a signed number.
    pub fn signed(self, value: u64) -> i64 {
        let unused = 64 - self.bits();
        ((value << unused) as i64) >> unused
    }

    /// Returns the value as a number, which is signed or unsigned like the type.
    pub fn number(self, value: u64) -> i128 {
        if self.is_signed() { i128::from(self.signed(value)) } else { i128::from(self.truncate(value)) }
    }
}

#[inline(always)]
pub fn mask(value: u64, bits: u32) -> u64 {
    if bits == 64 { value } else { value & ((1 << bits) - 1) }
}

#[derive(Clone, Debug)]
pub enum Function {
    Integer(IntegerOp, Type),
    Float(FloatFunction),
    Half(HalfFunction),
    Convert(Conversion),
    Compare(Comparison),
    Select(Selection),
    /// Packs values of `bits` bits each, lowest first.
    Pack {
        bits: u32,
    },
    /// Returns the bits of a value from bit `shift` on.
    Extract {
        shift: u32,
    },
    /// Rounds an `f32` to `tf32`, away from zero if two numbers are equally near.
    RoundToTf32,
}

/// The result and the second result of a lane. The second result is 0 if the operation has only one result.
pub type Results = (u64, u64);

impl Function {
    /// Computes the results. `values` are the operands in order, followed by zeros.
    pub fn apply(&self, values: [u64; 4]) -> Results {
        match self {
            Self::Integer(op, ty) => integer::apply(*op, *ty, values),
            Self::Float(function) => (function.apply(values), 0),
            Self::Half(function) => (function.apply(values), 0),
            Self::Convert(conversion) => (conversion.apply(values), 0),
            Self::Compare(comparison) => comparison.apply(values),
            Self::Select(selection) => (selection.apply(values), 0),
            Self::Pack { bits } => {
                let part = |index: usize| {
                    let shift = bits * index as u32;
                    if 64 <= shift { 0 } else { mask(values[index], *bits) << shift }
                };
                ((0..4).map(part).fold(0, |all, part| all | part), 0)
            }
            Self::Extract { shift } => (values[0] >> shift, 0),
            Self::RoundToTf32 => (convert::rounded_to_tf32(values[0]), 0),
        }
    }
}
