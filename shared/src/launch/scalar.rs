//! Converts numbers to the types of a kernel's parameters.

use std::cmp::Ordering;
use std::fmt;

use half::{bf16, f16};

use super::Problem;

/// A number from an expression or a recorded call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

/// Every conversion rounds only once, because rounding to a wider type first and then to a narrower one can yield the
/// wrong one of the two nearest numbers.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "these functions round to the nearest number, as `as` does"
)]
impl Number {
    fn nearest_f64(self) -> f64 {
        match self {
            Self::Float(value) => value,
            Self::Int(value) => value as f64,
            Self::Bool(value) => f64::from(u8::from(value)),
        }
    }

    fn nearest_f32(self) -> f32 {
        match self {
            Self::Int(value) => value as f32,
            _ => self.nearest_f64() as f32,
        }
    }

    /// Converts to `f32`. A number that `f32` cannot represent is rounded to the one of its two neighbours whose last
    /// bit is set. The result can then be rounded to 16 bits as if it were exact. The crate `half` cannot do this: it
    /// rounds an `f64` to `f32` first, or drops its low bits.
    fn sticky_f32(self) -> f32 {
        let nearest = self.nearest_f32();
        let side = match self {
            // The comparison uses `i128`, because the nearest number may exceed `i64`.
            Self::Int(value) => i128::from(value).partial_cmp(&(nearest as i128)),
            _ => self.nearest_f64().partial_cmp(&f64::from(nearest)),
        };
        let is_even = nearest.to_bits().is_multiple_of(2);
        match side {
            Some(Ordering::Less) if is_even => nearest.next_down(),
            Some(Ordering::Greater) if is_even => nearest.next_up(),
            _ => nearest,
        }
    }
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
}

/// The names of the types in plans.
pub(super) const TYPES: [(&str, ScalarType); 13] = [
    ("bool", ScalarType::Bool),
    ("i8", ScalarType::I8),
    ("i16", ScalarType::I16),
    ("i32", ScalarType::I32),
    ("i64", ScalarType::I64),
    ("u8", ScalarType::U8),
    ("u16", ScalarType::U16),
    ("u32", ScalarType::U32),
    ("u64", ScalarType::U64),
    ("f16", ScalarType::F16),
    ("bf16", ScalarType::Bf16),
    ("f32", ScalarType::F32),
    ("f64", ScalarType::F64),
];

impl ScalarType {
    pub const fn name(self) -> &'static str {
        TYPES[self as usize].0
    }

    /// The type of a number for which the plan does not specify one: `int64_t`, `double` or `bool` in C.
    pub(super) const fn of(number: Number) -> Self {
        match number {
            Number::Int(_) => Self::I64,
            Number::Float(_) => Self::F64,
            Number::Bool(_) => Self::Bool,
        }
    }
}

/// The value of one parameter, as bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Scalar {
    kind: ScalarType,
    bytes: [u8; 8],
    size: usize,
}

impl Scalar {
    pub fn kind(&self) -> ScalarType {
        self.kind
    }

    /// The bytes in the device's order, least significant first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    fn new<const N: usize>(kind: ScalarType, value: [u8; N]) -> Self {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&value);
        Self { kind, bytes, size: N }
    }

    /// Converts a number to this type. Floats cannot be converted to an integer type or to `bool`, and these types must
    /// represent the value exactly. With a float type, the number is rounded to the nearest value, which is infinity if
    /// the number is too large.
    pub(super) fn of(number: Number, kind: ScalarType) -> Result<Self, Problem> {
        let unfit = || Problem::DoesNotFit { value: number.to_string(), wanted: kind.name() };
        let int = match number {
            Number::Int(value) => Some(value),
            Number::Bool(value) => Some(value.into()),
            Number::Float(_) => None,
        };
        macro_rules! whole {
            ($type:ty) => {{
                let fits = int.and_then(|value| <$type>::try_from(value).ok());
                Self::new(kind, fits.ok_or_else(unfit)?.to_le_bytes())
            }};
        }
        Ok(match kind {
            ScalarType::Bool => Self::new(
                kind,
                [int.filter(|it| (0..=1).contains(it)).map(u8::try_from).ok_or_else(unfit)?.unwrap_or(0)],
            ),
            ScalarType::I8 => whole!(i8),
            ScalarType::I16 => whole!(i16),
            ScalarType::I32 => whole!(i32),
            ScalarType::I64 => whole!(i64),
            ScalarType::U8 => whole!(u8),
            ScalarType::U16 => whole!(u16),
            ScalarType::U32 => whole!(u32),
            ScalarType::U64 => whole!(u64),
            ScalarType::F16 => Self::new(kind, f16::from_f32(number.sticky_f32()).to_le_bytes()),
            ScalarType::Bf16 => Self::new(kind, bf16::from_f32(number.sticky_f32()).to_le_bytes()),
            ScalarType::F32 => Self::new(kind, number.nearest_f32().to_le_bytes()),
            ScalarType::F64 => Self::new(kind, number.nearest_f64().to_le_bytes()),
        })
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = u64::from_le_bytes(self.bytes);
        let signed = || {
            let unused = 64 - 8 * self.size;
            (word << unused).cast_signed() >> unused
        };
        let half = [self.bytes[0], self.bytes[1]];
        match self.kind {
            ScalarType::Bool => write!(f, "{}", word != 0)?,
            ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 => {
                write!(f, "{}", signed())?
            }
            ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => write!(f, "{word}")?,
            ScalarType::F16 => write!(f, "{:?}", f16::from_le_bytes(half))?,
            ScalarType::Bf16 => write!(f, "{:?}", bf16::from_le_bytes(half))?,
            ScalarType::F32 => {
                let [a, b, c, d, ..] = self.bytes;
                write!(f, "{:?}", f32::from_le_bytes([a, b, c, d]))?;
            }
            ScalarType::F64 => write!(f, "{:?}", f64::from_le_bytes(self.bytes))?,
        }
        write!(f, ":{}", self.kind.name())
    }
}
